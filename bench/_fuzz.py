"""Fuzzers: hostile requests and files, seeded. Each case is refused with a reason, or harmless.

A case that raises anything else than the documented errors, or is refused without a reason,
raises `Failure` with what is needed to see it again.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from mcap.writer import CompressionType, Writer
from rclpy.serialization import serialize_message

from hil_interfaces.msg import Annotation, Step, Tensor
from hil_learner import messages
from hil_learner.annotations import AnnotatedStore
from hil_learner.ingest import STEP_TOPIC, Ingest, Request, Status
from hil_learner.records import RecordDecoder
from hil_learner.run_folder import RunFolder, RunFolderError, RunIdentity
from hil_learner.step_bag import StepBag, read_bag
from hil_learner.synthetic import SPACES, SyntheticActor, synthetic_spec
from hil_rl import checkpoint
from hil_rl.checkpoint import CheckpointError
from hil_rl.config import SACConfig
from hil_rl.policy import Policy, PolicyError, encode
from hil_rl.sac import SACAgent
from hil_rl.store import EpisodeStore

SPEC = synthetic_spec()
_LONG = 300
_INTEGERS = (0, 1, 2, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**63 - 1)
_NUMBERS = (0.0, -0.0, 1.0, 1.1, -5.0, 1e30, float("nan"), float("inf"), float("-inf"))


class Failure(AssertionError):
    """A case that was not handled as it has to be."""


@dataclass
class Result:
    """How many cases ended how, by fuzzer."""

    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


Case = Callable[[random.Random], str]
"""One case; returns the reason of the refusal, "" if there was none."""


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few random faults: flips, cuts, repeats, claims of huge lengths."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        kind = rng.randrange(6)
        if kind == 0 and content:
            content[at % len(content)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            del content[at : at + rng.randint(1, 40)]
        elif kind == 3:
            content[at:at] = rng.randbytes(rng.randint(1, 40))
        elif kind == 4:
            size = rng.choice((1, 2, 4, 8))
            content[at : at + size] = (rng.choice(_INTEGERS) % 2 ** (8 * size)).to_bytes(
                size, "little"
            )
        else:
            content[at:at] = content[at : at + rng.randint(1, 200)]
    return bytes(content)


class Requests:
    """insert_steps with malformed records, numbers, names and claims; and good ones between."""

    def __init__(self) -> None:
        self._restart(0)

    def _restart(self, seed: int) -> None:
        self._store = AnnotatedStore(EpisodeStore(SPACES, 500))
        self._ingest = Ingest(RecordDecoder(SPEC, messages.decode_step), self._store)
        self._actor = SyntheticActor(SPEC, "actor", f"s{seed}", seed)
        self._next = self._actor.next()

    def __call__(self, rng: random.Random) -> str:
        """Send one hostile request, and sometimes the good step that it imitates."""
        stored = self._ingest.last_seq("actor", self._actor.session)
        request = self._request(rng)
        answer = self._ingest.insert(request)
        if answer.status == Status.OK:
            self._continue()
        if rng.random() < 0.1:
            good = self._good()
            if self._ingest.insert(good).status != Status.OK:
                raise Failure("a good step is refused after a bad one")
            self._continue()
        if self._ingest.last_seq("actor", self._actor.session) < stored:
            raise Failure("what was stored is gone")
        return "" if answer.status == Status.OK else answer.reason or "-"

    def _continue(self) -> None:
        """Go on with a step that the learner can take, whatever it took before."""
        if self._ingest.last_seq("actor", self._actor.session) > 0:
            self._restart(self._actor.seq + int(self._actor.session[1:]) + 1)

    def _good(self) -> Request:
        step = self._next
        return Request(
            SPEC.run_id, SPEC.fingerprint, "actor", self._actor.session, [(step.seq, step.data)]
        )

    def _request(self, rng: random.Random) -> Request:
        good = self._good()
        kind = rng.randrange(8)
        if kind == 0:
            name = rng.choice(["run_id", "fingerprint", "actor_id", "session"])
            text = rng.choice(["", "x", "x" * _LONG, "\0", "é" * 20, good.fingerprint[:-1]])
            return Request(**{**vars(good), name: text})
        if kind == 1:
            seq = rng.choice((*_INTEGERS, -1, 2, 3))
            return replace(good, steps=[(seq, self._next.data)])
        if kind == 2:
            count = rng.choice((2, 3, 3000))
            return replace(good, steps=[(self._next.seq, self._next.data)] * count)
        if kind == 3:
            return replace(good, steps=[(self._next.seq, bytes(rng.choice((0, 1, 4, 100_000))))])
        if kind == 4:
            return replace(good, steps=[(self._next.seq, serialize_message(self._wrong(rng)))])
        return replace(good, steps=[(self._next.seq, mutate(self._next.data, rng))])

    def _wrong(self, rng: random.Random) -> Step:
        """A well-formed message with one field that is not what it has to be."""
        step = messages.decode_step(self._next.data)
        tensor = rng.choice(step.observation)
        number, integer = rng.choice(_NUMBERS), rng.choice(_INTEGERS)
        changes: list[Callable[[], None]] = [
            lambda: setattr(step, "reward", number if abs(number) < 3e38 else float("nan")),
            lambda: setattr(step, "flags", integer % 2**32),
            lambda: setattr(step, "episode", integer % 2**32),
            lambda: setattr(step, "step", integer % 2**32),
            lambda: setattr(step, "seq", integer),
            lambda: setattr(step, "policy_version", integer),
            lambda: setattr(step, "action", [0.5] * rng.choice((0, 1, 3, 5000))),
            lambda: setattr(step, "action", [float("nan")] * len(step.action)),
            lambda: setattr(step, "policy_action", [2.0] * rng.choice((1, 3))),
            lambda: setattr(step, "intervened", [True] * rng.choice((0, 2, 500))),
            lambda: setattr(step, "grasp_penalty", [1.0]),
            lambda: setattr(step, rng.choice(["run_id", "session", "task"]), "y" * _LONG),
            lambda: setattr(tensor, "name", rng.choice(["", "goal", "x" * _LONG])),
            lambda: setattr(tensor, "dtype", rng.choice(["", "object", "float64", "O8", "V9"])),
            lambda: setattr(tensor, "shape", [integer % 2**32] * rng.choice((0, 1, 2, 60))),
            lambda: setattr(tensor, "data", rng.randbytes(rng.choice((0, 1, 7, 4096)))),
            lambda: setattr(tensor, "data", b"\xff" * len(tensor.data)),
            lambda: setattr(step, "observation", step.observation[: rng.randint(0, 2)]),
            lambda: setattr(step, "observation", [Tensor()] * rng.choice((1, 50))),
            lambda: setattr(step, "observation", [*step.observation, tensor]),
            lambda: setattr(step, "final_observation", step.observation),
            lambda: setattr(step, "terminated", True),
        ]
        rng.choice(changes)()
        return step


class Annotations:
    """annotate with fields that are missing, too long, out of range or about nothing."""

    def __init__(self) -> None:
        self._ingest = Ingest(
            RecordDecoder(SPEC, messages.decode_step), AnnotatedStore(EpisodeStore(SPACES, 500))
        )
        actor = SyntheticActor(SPEC, "actor", "s", 0)
        steps = [(s.seq, s.data) for s in (actor.next() for _ in range(100))]
        self._ingest.insert(Request(SPEC.run_id, SPEC.fingerprint, "actor", "s", steps))
        self._count = 0

    def __call__(self, rng: random.Random) -> str:
        """Send one annotation."""
        self._count += 1
        names = ["actor", "s", SPEC.run_id, "", "x", "x" * _LONG]
        message = Annotation(
            id=rng.choice([str(self._count), "", "x" * _LONG]),
            author=rng.choice(names),
            kind=rng.choice([1, 2, 3, 4, 5, 6, 6, rng.randrange(256)]),
            run_id=rng.choice([SPEC.run_id] * 4 + names),
            actor_id=rng.choice(["actor"] * 4 + names),
            session=rng.choice(["s"] * 4 + names),
            episode=rng.choice([0, 1, 2, rng.choice(_INTEGERS) % 2**32]),
            first_step=rng.choice([0, rng.choice(_INTEGERS) % 2**32]),
            last_step=rng.choice([3, Annotation.LAST, rng.choice(_INTEGERS) % 2**32]),
            success=rng.random() < 0.5,
            rewards=[rng.choice((0.0, 1.0, float("nan")))] * rng.choice((0, 1, 4, 20_000)),
            refers_to=rng.choice(["", str(rng.randint(0, self._count))]),
        )
        return self._ingest.annotate(message, serialize_message(message))


class Bags:
    """Bags of every compression, damaged anywhere, for reading and for continuing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        actor = SyntheticActor(SPEC, "actor", "s", 0)
        self._steps = [actor.next().data for _ in range(12)]
        self._files = [self._own(), *map(self._other, CompressionType)]

    def _own(self) -> bytes:
        bag = StepBag(self._folder / "own", messages.topics())
        for data in self._steps:
            bag.append([(STEP_TOPIC, data)])
        bag.close()
        return (self._folder / "own" / "own_0.mcap").read_bytes()

    def _other(self, compression: CompressionType) -> bytes:
        path = self._folder / f"{compression.name}.mcap"
        topic = messages.topics()[0]
        with path.open("wb") as stream:
            writer = Writer(stream, chunk_size=2000, compression=compression)
            writer.start(profile="ros2")
            schema = writer.register_schema(topic.type, "ros2msg", topic.definition.encode())
            channel = writer.register_channel(topic.name, "cdr", schema)
            for i, data in enumerate(self._steps):
                writer.add_message(channel, i, data, i)
            writer.finish()
        return path.read_bytes()

    def __call__(self, rng: random.Random) -> str:
        """Read one damaged bag, and continue it as a log."""
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "case_0.mcap"
        path.write_bytes(mutate(rng.choice(self._files), rng))
        reason = ""
        try:
            for entry in read_bag(path):
                if len(entry.data) > 10_000:
                    raise Failure("a record that is longer than any")
        except OSError as error:
            reason = str(error) or "-"
        bag = StepBag(folder, messages.topics())
        try:
            list(bag.replay())
            bag.append([(STEP_TOPIC, b"more")])
            bag.close()
        except OSError as error:
            return str(error) or "-"
        return reason


class Checkpoints:
    """Checkpoints whose manifest or arrays are damaged, also with digests that fit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoint"
        agent = SACAgent(SPACES, SACConfig(hidden=(8, 8), state_encoder=4), 0)
        self._path = checkpoint.save(self._folder, 7, agent.state(), {"a": [1, 2], "b": "c"})
        self._files = {path.name: path.read_bytes() for path in self._folder.iterdir()}

    def __call__(self, rng: random.Random) -> str:
        """Load one damaged checkpoint."""
        name = rng.choice(list(self._files))
        data = mutate(self._files[name], rng)
        if rng.random() < 0.1:
            data = rng.choice([b"[" * 100_000, b"{}", b"1e999", b"null", b'{"format": [' * 5000])
        (self._folder / name).write_bytes(data)
        try:
            checkpoint.load(self._path)
            checkpoint.latest(self._folder)
        except CheckpointError as error:
            return str(error) or "-"
        finally:
            (self._folder / name).write_bytes(self._files[name])
        return ""


class Policies:
    """Policies as bytes from the network."""

    def __init__(self) -> None:
        agent = SACAgent(SPACES, SACConfig(hidden=(8, 8), state_encoder=4), 0)
        self._data = encode(agent, 3, "f")

    def __call__(self, rng: random.Random) -> str:
        """Decode one damaged policy."""
        data = self._data
        if rng.random() < 0.5:  # the header is small: hit it on purpose
            length = int.from_bytes(data[:8], "little") + 8
            data = mutate(data[:length], rng) + data[length:]
        else:
            data = mutate(data, rng)
        try:
            Policy.decode(data, SPACES, "f")
        except PolicyError as error:
            return str(error) or "-"
        return ""


class RunFolders:
    """Run configurations that are damaged or are something else."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "runs"
        self._identity = RunIdentity("run", "task", "f")
        RunFolder.open(self._root, self._identity, {"a": 1, "b": ["c"]}, resume=True).close()
        self._config = self._root / "run" / "config.yaml"
        self._data = self._config.read_bytes()

    def __call__(self, rng: random.Random) -> str:
        """Open a run folder with one damaged configuration."""
        data = mutate(self._data, rng)
        if rng.random() < 0.1:
            data = rng.choice([b"[" * 3000, b"a: &a [*a]", b"!!python/object:os.system {}", b"\0"])
            data += json.dumps(self._data.decode()).encode() if rng.random() < 0.2 else b""
        self._config.write_bytes(data)
        try:
            RunFolder.open(self._root, self._identity, {"a": 1}, resume=True).close()
        except RunFolderError as error:
            return str(error) or "-"
        yaml.safe_load(self._config.read_bytes())
        return ""


SHARES = {
    "requests": 80, "annotations": 6, "bags": 4, "checkpoints": 4, "policies": 5, "run_folders": 1
}  # fmt: skip
"""Cases of each fuzzer in a hundred."""


def run(cases: int, seed: int) -> Result:
    """Run so many cases.

    Raises:
        Failure: a case was not handled; the text names fuzzer, seed and number.
    """
    result = Result()
    with tempfile.TemporaryDirectory(prefix="hil_fuzz") as folder:
        for name, case in _fuzzers(Path(folder)):
            for number in range(cases * SHARES[name] // 100):
                rng = random.Random(f"{name} {seed} {number}")
                try:
                    reason = case(rng)
                except Exception as error:
                    raise Failure(f"{name}, seed {seed}, case {number}: {error!r}") from error
                result.cases[name] += 1
                result.refused[name] += bool(reason)
    return result


def _fuzzers(folder: Path) -> Iterator[tuple[str, Case]]:
    yield "requests", Requests()
    yield "annotations", Annotations()
    yield "bags", Bags(folder)
    yield "checkpoints", Checkpoints(folder)
    yield "policies", Policies()
    yield "run_folders", RunFolders(folder)
