"""The file in which an actor's steps wait for the learner: SQLite, checked when it is opened.

One file has the steps of one actor in one run and specification, by session. A file that is not
what it should be raises SpoolFileError; `set_aside` renames it. No ROS, no threads.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeGuard
from urllib.parse import quote

from hil_actor.step_store import Committed

MAX_STEP_BYTES = 64 * 2**20
"""A larger step is neither written nor read."""
MAX_SESSIONS = 10_000
SET_ASIDE = "set-aside"

_MAX_NAME = 256
_APPLICATION = 0x48494C53
_VERSION = 1
_PAGE_BYTES = 8192
# The write-ahead log is cut to this size after it was larger.
_LOG_BYTES = 32 * 2**20
# Free pages are given back to the file system from this number on, so many at a time.
_SPARE_PAGES = 1024
_SCHEMA = {
    "spool": """CREATE TABLE spool (
        run_id TEXT NOT NULL, fingerprint TEXT NOT NULL, actor_id TEXT NOT NULL)""",
    "session": """CREATE TABLE session (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, acknowledged INTEGER NOT NULL)""",
    "step": """CREATE TABLE step (
        session INTEGER NOT NULL, seq INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (session, seq))""",
}


class SpoolError(RuntimeError):
    """The spool cannot be used now; the text says why and what to do."""


class SpoolFileError(SpoolError):
    """The file is damaged, or is no spool."""


@dataclass(frozen=True)
class Owner:
    """Whose steps a file has."""

    run_id: str
    fingerprint: str
    actor_id: str


@dataclass(frozen=True)
class SessionRow:
    """One session in the file.

    Attributes:
        id: key in the file.
        name: the session's.
        acknowledged: number of the last acknowledged step, as far as it was noted.
        last: number of the last step.
        waiting, waiting_bytes: steps that are not acknowledged.
    """

    id: int
    name: str
    acknowledged: int
    last: int
    waiting: int
    waiting_bytes: int


class SpoolLock:
    """Keeps a second process from a spool file; ends with the process, however that ends.

    Raises:
        SpoolError: another process has it, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        lock = path.with_name(path.name + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = lock.open("a", encoding="utf-8")
        except OSError as error:
            raise SpoolError(f"spool {path}: {error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise SpoolError(
                f"spool {path} is in use by another process: two actors need two actor_ids "
                "(or two spool_dirs)"
            ) from error

    def close(self) -> None:
        """Let others have it."""
        self._file.close()


class SpoolFile:
    """An open file. `commit` and `add_session` from one thread, `read` from one other.

    Args:
        path: an existing file.
        fsync: a commit survives a power loss.

    Raises:
        SpoolFileError: not a spool, or damaged.
        SpoolError: it cannot be opened or read.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        if not path.is_file():
            raise SpoolError(f"spool {path}: not a file")
        try:
            self._writer = _connect(path, fsync)
        except sqlite3.Error as error:
            raise _explained(path, error) from error
        try:
            _check(self._writer)
            self.owner = _owner(self._writer)
            self._reader = _connect(path, fsync)
        except SpoolFileError as error:
            self._writer.close()
            raise SpoolFileError(f"spool {path}: {error}") from error
        except sqlite3.Error as error:
            self._writer.close()
            raise _explained(path, error) from error

    @classmethod
    def create(cls, path: Path, owner: Owner, *, fsync: bool = False) -> SpoolFile:
        """Make an empty file, complete or not at all, and open it.

        Raises:
            SpoolError: it cannot be written.
        """
        temporary = path.with_name(path.name + ".new")
        try:
            temporary.unlink(missing_ok=True)
            connection = sqlite3.connect(temporary, isolation_level=None)
            try:
                connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("BEGIN")
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                for statement in _SCHEMA.values():
                    connection.execute(statement)
                values = (owner.run_id, owner.fingerprint, owner.actor_id)
                connection.execute("INSERT INTO spool VALUES (?, ?, ?)", values)
                connection.execute("COMMIT")
            finally:
                connection.close()
            delete(path)  # a write-ahead log without its file would be applied to the new one
            os.replace(temporary, path)
        except (OSError, sqlite3.Error) as error:
            raise SpoolError(f"spool {path}: {error}") from error
        return cls(path, fsync=fsync)

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first.

        Raises:
            SpoolFileError: impossible content.
            SpoolError: it cannot be read.
        """
        rows = self._all(
            "SELECT id, name, acknowledged FROM session ORDER BY id LIMIT ?", (MAX_SESSIONS + 1,)
        )
        if len(rows) > MAX_SESSIONS:
            raise SpoolFileError(f"spool {self.path}: more than {MAX_SESSIONS} sessions")
        return [self._session(*row) for row in rows]

    def _session(self, key: object, name: object, acknowledged: object) -> SessionRow:
        if not (isinstance(key, int) and _is_name(name) and _is_number(acknowledged)):
            raise SpoolFileError(f"spool {self.path}: a session makes no sense")
        ((last,),) = self._all("SELECT max(seq) FROM step WHERE session = ?", (key,))
        ((count, size),) = self._all(
            "SELECT count(*), total(length(data)) FROM step WHERE session = ? AND seq > ?",
            (key, acknowledged),
        )
        last = acknowledged if last is None else last
        if not _is_number(last):
            raise SpoolFileError(f"spool {self.path}: a step's number makes no sense")
        return SessionRow(key, str(name), acknowledged, last, count, int(size))

    def add_session(self, name: str) -> int:
        """Begin a session and return its key.

        Raises:
            SpoolError: it cannot be written.
        """
        try:
            statement = "INSERT INTO session (name, acknowledged) VALUES (?, 0)"
            key = self._writer.execute(statement, (name,)).lastrowid
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error
        assert key is not None
        return key

    def commit(
        self,
        session: int,
        first: int,
        steps: Sequence[bytes],
        acknowledged: Sequence[tuple[int, int, int]] = (),
        done: Sequence[int] = (),
    ) -> None:
        """Write steps, and note what was acknowledged, all or nothing.

        Args:
            session: key.
            first: number of the first step.
            steps: consecutive.
            acknowledged: (session, number of the last acknowledged step, number of the oldest
                step to keep); older steps are deleted.
            done: sessions that are deleted.

        Raises:
            SpoolError: nothing was changed.
        """
        write = self._writer.execute
        try:
            write("BEGIN IMMEDIATE")
            try:
                rows = ((session, seq, data) for seq, data in enumerate(steps, first))
                self._writer.executemany("INSERT INTO step VALUES (?, ?, ?)", rows)
                for key, seq, keep in acknowledged:
                    write("UPDATE session SET acknowledged = ? WHERE id = ?", (seq, key))
                    write("DELETE FROM step WHERE session = ? AND seq < ?", (key, keep))
                for key in done:
                    write("DELETE FROM step WHERE session = ?", (key,))
                    write("DELETE FROM session WHERE id = ?", (key,))
                write("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    write("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error

    def shrink(self) -> None:
        """Give some of the space of deleted steps back to the file system.

        Raises:
            SpoolError: it cannot be written.
        """
        try:
            ((free,),) = self._writer.execute("PRAGMA freelist_count").fetchall()
            if free > _SPARE_PAGES:
                # Not `execute`: it stops after the first page.
                self._writer.executescript(f"PRAGMA incremental_vacuum({_SPARE_PAGES})")
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error

    def read(self, session: int, first: int, max_steps: int, max_bytes: int) -> list[Committed]:
        """Consecutive steps from number `first` on; at least one if there is one.

        Raises:
            SpoolFileError: a step of impossible size or type.
            SpoolError: it cannot be read.
        """
        sizes = self._all(
            "SELECT seq, length(data), typeof(data) FROM step WHERE session = ? AND seq >= ? "
            "ORDER BY seq LIMIT ?",
            (session, first, max_steps),
        )
        last, total = first - 1, 0
        for seq, size, kind in sizes:
            if kind != "blob" or size > MAX_STEP_BYTES:
                raise SpoolFileError(f"spool {self.path}: step {seq} makes no sense")
            total += size
            if seq != last + 1 or (last >= first and total > max_bytes):
                break
            last = seq
        rows = self._all(
            "SELECT seq, data FROM step WHERE session = ? AND seq BETWEEN ? AND ? ORDER BY seq",
            (session, first, last),
        )
        return [Committed(seq, data) for seq, data in rows]

    def close(self) -> None:
        """Close; everything is in the one file then, if nobody else has it open."""
        self._reader.close()
        self._writer.close()

    def _all(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error


def spool_path(folder: Path, actor_id: str) -> Path:
    """The spool file of an actor."""
    return folder / f"{_file_name(actor_id)}.sqlite"


def set_aside(path: Path, label: str) -> Path:
    """Rename a file that is closed, with a label and the date in its name; return the new path.

    Raises:
        SpoolError: it cannot be renamed.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    stem = f"{path.stem}.{_file_name(label)}.{stamp}"
    target, number = path.with_name(f"{stem}.{SET_ASIDE}.sqlite"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{stem}-{number}.{SET_ASIDE}.sqlite")
    try:
        for suffix in ("-wal", "-shm", ""):
            source = path.with_name(path.name + suffix)
            if source.exists():
                source.rename(target.with_name(target.name + suffix))
    except OSError as error:
        raise SpoolError(f"spool {path} cannot be set aside: {error}") from error
    return target


def delete(path: Path) -> None:
    """Delete a file that is closed.

    Raises:
        SpoolError: it cannot be deleted.
    """
    try:
        for suffix in ("-wal", "-shm", ""):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise SpoolError(f"spool {path} cannot be deleted: {error}") from error


def _file_name(text: str) -> str:
    """A part of a file name that stands for any text."""
    return re.sub(r"^\.", "%2E", quote(text, safe=""))[:100]


def _connect(path: Path, fsync: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
    )
    try:
        for pragma in (
            "trusted_schema = OFF",
            "cell_size_check = ON",
            "journal_mode = WAL",
            f"journal_size_limit = {_LOG_BYTES}",
            f"synchronous = {'FULL' if fsync else 'NORMAL'}",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection) -> None:
    """Raise SpoolFileError for a database that is not a whole spool."""
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    if application != _APPLICATION:
        raise SpoolFileError("a database of something else")
    if version != _VERSION:
        raise SpoolFileError(f"of version {version}, this actor reads {_VERSION}")
    found = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 100"
    ).fetchall()
    if sorted(found) != sorted(("table", name, sql) for name, sql in _SCHEMA.items()):
        raise SpoolFileError("not the tables of a spool")
    ((verdict,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise SpoolFileError(f"damaged ({str(verdict)[:200]})")


def _owner(connection: sqlite3.Connection) -> Owner:
    rows = connection.execute(
        "SELECT run_id, fingerprint, actor_id FROM spool "
        "WHERE max(length(run_id), length(fingerprint), length(actor_id)) <= ? LIMIT 2",
        (_MAX_NAME,),
    ).fetchall()
    if len(rows) != 1 or not all(_is_name(value) for value in rows[0]):
        raise SpoolFileError("it does not say whose it is")
    return Owner(*rows[0])


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and value >= 0


def _explained(path: Path, error: sqlite3.Error) -> SpoolError:
    """OperationalError: disk, permissions, locks. Another DatabaseError: the file itself."""
    text = f"spool {path}: {error}"
    if isinstance(error, sqlite3.OperationalError) or not isinstance(error, sqlite3.DatabaseError):
        return SpoolError(text)
    return SpoolFileError(text)
