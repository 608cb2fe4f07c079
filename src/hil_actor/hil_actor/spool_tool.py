"""`hil spool list` and `hil spool import`: look at spool files, and send what was set aside.

Importing sends the waiting steps to the running learner as the actor itself would have: under
their own actor and session, with the learner's consent, each once however often it is repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message

from hil_actor.insert_client import InsertClient
from hil_actor.sender import Reply, SenderOptions, Status, Transport
from hil_actor.spool_file import SessionRow, SpoolError, SpoolFile, SpoolLock
from hil_actor.step_store import Committed, Stream
from hil_interfaces.msg import Step

# Steps of one call, s for its answer, s to find the learner, and attempts for one call.
_OPTIONS = SenderOptions()
_FIND_LIMIT = 20.0
_ATTEMPTS = 5


class NotImported(RuntimeError):
    """The steps cannot be imported; the text says why and what to do."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of a command line; ends the process with a text on help or a mistake."""
    parser = argparse.ArgumentParser(prog="hil spool", description="Steps that wait on disk.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="spool files, and how many steps wait in each")
    listing.add_argument("folder", nargs="?", default="runs/_spool", help="of the spool files")
    sending = commands.add_parser("import", help="send the waiting steps of a file to the learner")
    sending.add_argument("file", help="a spool file that no actor uses")
    sending.add_argument(
        "--into-run",
        metavar="RUN",
        default="",
        help="add the steps to this run instead of the one in which they were taken",
    )
    return parser.parse_args(list(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; return the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.command == "list":
            print(listing(Path(options.folder)))
        else:
            print(_import(Path(options.file), options.into_run))
    except (SpoolError, NotImported) as error:
        print(f"hil spool: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def listing(folder: Path) -> str:
    """What is in the spool files of a folder, one line for each."""
    lines = [describe(path) for path in sorted(folder.glob("*.sqlite"))]
    return "\n".join(lines) or f"no spool files in {folder}"


def describe(path: Path) -> str:
    """One line about a spool file."""
    try:
        with _opened(path) as (file, rows):
            waiting = sum(row.waiting for row in rows)
            size = sum(row.waiting_bytes for row in rows) / 2**20
            return (
                f"{path}: {waiting} steps ({size:.1f} MB) wait, of actor {file.owner.actor_id} "
                f"in run {file.owner.run_id}"
            )
    except SpoolError as error:
        return str(error)


def send(
    file: SpoolFile, rows: Sequence[SessionRow], transport: Transport, into_run: str = ""
) -> int:
    """Send what waits in a file, oldest session first; return the number of steps.

    Raises:
        NotImported: the learner does not take them, or does not answer.
        SpoolError: the file cannot be read or written.
    """
    total = 0
    for row in rows:
        if row.waiting:
            total += _send_session(file, row, transport, into_run)
            # Only now: an import that was broken off and repeated must send the same again.
            file.commit(row.id, 1, (), [(row.id, row.last, 0)])
    return total


def _send_session(file: SpoolFile, row: SessionRow, transport: Transport, into_run: str) -> int:
    owner = file.owner
    first = row.acknowledged + 1
    stream = Stream(owner.run_id, owner.fingerprint, owner.actor_id, row.name)
    shift = 0
    if into_run and into_run != owner.run_id:
        # Another run has none of the steps before: they get numbers from 1 on, in a session
        # whose name says which they are.
        shift = row.acknowledged
        stream = Stream(into_run, owner.fingerprint, owner.actor_id, f"{row.name}@{first}")
    wanted = _call(transport, stream, ()).last_seq + 1
    while wanted + shift <= row.last:
        steps = file.read(row.id, max(wanted + shift, 1), _OPTIONS.max_steps, _OPTIONS.max_bytes)
        if not steps or steps[0].seq != wanted + shift:
            raise NotImported(
                f"session {row.name}: the learner wants step {wanted + shift}, "
                f"{file.path} has {first} to {row.last}"
            )
        if shift or stream.run_id != owner.run_id:
            steps = [_readdressed(step, stream, shift) for step in steps]
        reply = _call(transport, stream, steps)
        if reply.last_seq < wanted:
            raise NotImported(f"the learner does not take step {wanted + shift}: {reply.reason}")
        wanted = reply.last_seq + 1
    return row.waiting


def _readdressed(step: Committed, stream: Stream, shift: int) -> Committed:
    """The step as one of another run."""
    try:
        message = deserialize_message(step.data, Step)
    except Exception as error:  # the middleware's errors have no common base
        raise NotImported(f"step {step.seq} is not a serialized Step ({error})") from error
    message.run_id, message.session = stream.run_id, stream.session
    message.seq = step.seq - shift
    return Committed(message.seq, bytes(serialize_message(message)))


def _call(transport: Transport, stream: Stream, steps: Sequence[Committed]) -> Reply:
    """Answer of the learner, which takes such steps."""
    for attempt in range(_ATTEMPTS):
        try:
            reply = transport.insert(stream, steps, _OPTIONS.timeout)
        except TimeoutError as error:
            if attempt == _ATTEMPTS - 1:
                raise NotImported(str(error)) from error
            continue
        if reply.status == Status.WRONG_RUN:
            raise NotImported(
                f"the learner refuses: it trains run {reply.run_id!r}, these are steps of run "
                f"{stream.run_id!r}; --into-run {reply.run_id} adds them to its run"
            )
        if reply.status not in (Status.OK, Status.GAP):
            raise NotImported(f"the learner refuses: {reply.reason}")
        return reply
    raise AssertionError


class _opened:
    """A spool file that nobody else uses, with its sessions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()

    def __enter__(self) -> tuple[SpoolFile, list[SessionRow]]:
        if not self._path.is_file():
            raise SpoolError(f"spool {self._path}: no such file")
        lock = SpoolLock(self._path)
        self._stack.callback(lock.close)
        try:
            file = SpoolFile(self._path)
            self._stack.callback(file.close)
            return file, file.sessions()
        except BaseException:
            self._stack.close()
            raise

    def __exit__(self, *_: Any) -> None:
        self._stack.close()


def _import(path: Path, into_run: str) -> str:
    with _opened(path) as (file, rows):
        count = _with_learner(lambda transport: send(file, rows, transport, into_run))
    return f"{count} steps are at the learner; nothing waits in {path} any more"


def _with_learner(work: Callable[[Transport], int]) -> int:
    rclpy.init()
    try:
        node = Node("spool_import")
        client = InsertClient(node)
        try:
            if not client.wait_ready(_FIND_LIMIT):
                raise NotImported("no learner is running in this ROS domain")
            return work(client)
        finally:
            client.close()
            node.destroy_node()
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
