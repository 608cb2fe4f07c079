"""Training from recorded bags alone: no graph, no robot, the same result every time.

Two ways. Either everything that the bags hold is read into the store and then trained on, or the
updates that a live run made are made again, each on the steps and annotations that the live one
had seen: the log says which (hil_interfaces/LearnerUpdates), and the weights come out the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from hil_common.params import ParameterError
from hil_learner import messages
from hil_learner.annotations import AnnotatedStore, AnnotationError, decode
from hil_learner.ingest import ANNOTATION_TOPIC, STEP_TOPIC, UPDATES_TOPIC
from hil_learner.learner import load_task, make_trainer, record_spec, takeover_penalty
from hil_learner.mcap_file import Entry
from hil_learner.messages import Updates
from hil_learner.params import LearnerParams, assignments
from hil_learner.records import FLAG_EVALUATION, RecordDecoder, RecordError, RecordSpec
from hil_learner.step_bag import read_bag
from hil_rl import checkpoint
from hil_rl.store import EpisodeStore
from hil_rl.trainer import UNLIMITED, Trainer


class ReplayError(RuntimeError):
    """The bags cannot be trained from; the text says why."""


@dataclass
class Tally:
    """What was found in the bags. gaps: where steps are missing within a session."""

    steps: int = 0
    evaluation_steps: int = 0
    repeats: int = 0
    gaps: int = 0
    annotations: int = 0


@dataclass(frozen=True)
class Result:
    """A finished training. sha256: of the checkpoint's arrays, its weights among them."""

    checkpoint: Path
    sha256: str
    updates: int
    tally: Tally

    def line(self) -> str:
        """One line of JSON."""
        row = {"checkpoint": str(self.checkpoint), "sha256": self.sha256}
        return json.dumps({**row, "updates": self.updates, **vars(self.tally)})


@dataclass
class BagReader:
    """Puts what bags hold into a store, as ingestion did: same order, nothing twice.

    Bags may be of several runs of one task, and may lack steps; the store makes no pairs across
    a gap.

    Args:
        spec: what the steps look like; its run_id is not looked at.
        store: to fill.
    """

    spec: RecordSpec
    store: AnnotatedStore
    tally: Tally = field(default_factory=Tally)
    _decoders: dict[str, RecordDecoder] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        """Put one record into the store; other topics are left alone.

        Raises:
            ReplayError: a record of another task, or damaged.
        """
        try:
            if entry.type == messages.TYPES[STEP_TOPIC]:
                self._step(entry.data)
            elif entry.type == messages.TYPES[ANNOTATION_TOPIC]:
                self._annotation(entry.data)
        except (RecordError, AnnotationError) as error:
            raise ReplayError(f"{entry.topic}: {error}") from error

    def _step(self, data: bytes) -> None:
        if len(data) > self.spec.max_bytes:
            raise RecordError(f"data: {len(data)} bytes, a step has at most {self.spec.max_bytes}")
        run_id = _message(messages.decode_step, data).run_id
        if run_id not in self._decoders:
            spec = replace(self.spec, run_id=run_id)
            self._decoders[run_id] = RecordDecoder(spec, messages.decode_step)
        identity, step = self._decoders[run_id].decode_stored(data)
        newest = self._newest.get(identity.stream, 0)
        if step.seq <= newest:
            self.tally.repeats += 1
            return
        self.tally.gaps += step.seq != newest + 1
        self._newest[identity.stream] = step.seq
        self.tally.steps += 1
        if step.flags & FLAG_EVALUATION:
            self.tally.evaluation_steps += 1
        else:
            self.store.add(step)

    def _annotation(self, data: bytes) -> None:
        annotation = decode(_message(messages.decode_annotation, data))
        if self.store.known(annotation.id):
            self.tally.repeats += 1
            return
        self.store.check(annotation)
        self.store.annotate(annotation)
        self.tally.annotations += 1


def train(
    bags: Iterable[Path],
    params: LearnerParams,
    out: Path,
    *,
    repeat: bool = False,
    updates: int | None = None,
    spec: RecordSpec | None = None,
) -> Result:
    """Train an agent from bags and write a checkpoint.

    Args:
        bags: folders or files, in order.
        params: settings of agent, training and task; see `parameters` for those of a run.
        out: folder of the checkpoint, which `hil eval` and a learner can continue from.
        repeat: make the updates that the live run made.
        updates: stop after that many; None: all that the update ratio allows, or all that are
            recorded.
        spec: of the steps; None: that of the task.

    Raises:
        ReplayError: the bags do not fit the task, or do not hold what repeating needs.
        BagError, McapDamage: a bag cannot be read.
        ParameterError: wrong settings.
    """
    paths = list(bags)
    torch.set_num_threads(params.torch_threads)
    if spec is None:
        spec = _spec(paths, params)
    store = EpisodeStore(
        spec.spaces,
        params.capacity,
        successful_demos=params.successful_demos,
        takeover_penalty=takeover_penalty(params),
    )
    reader = BagReader(spec, AnnotatedStore(store))
    trainer = make_trainer(params, spec, store)
    if repeat:
        _repeat(paths, reader, trainer, updates)
    else:
        _train(paths, reader, trainer, updates)
    path = _save(trainer, spec, out)
    return Result(path, checkpoint.load(path).sha256, trainer.updates, reader.tally)


def _train(paths: list[Path], reader: BagReader, trainer: Trainer, updates: int | None) -> None:
    for entry in _entries(paths):
        reader.take(entry)
    wanted = trainer.updates_due() if updates is None else updates
    if wanted == UNLIMITED:
        raise ReplayError("utd is 0, so there is no end: say how many updates")
    if wanted == 0:
        raise ReplayError(f"nothing to train on: {trainer.waiting_for()}")
    for _ in range(wanted):
        trainer.step()


def _repeat(paths: list[Path], reader: BagReader, trainer: Trainer, updates: int | None) -> None:
    """Make the recorded updates, each when the store is what it was."""
    store = trainer.store
    rows = iter(_effective(entry for entry in _entries(paths) if _is_updates(entry)))
    row = next(rows, None)
    if row is None:
        raise ReplayError("the bags have no record of updates: train without repeating them")
    for entry in _entries(paths):
        reader.take(entry)
        while row is not None and row.seen == store.revision:
            for _ in range(row.count):
                if trainer.updates == updates:
                    return
                trainer.step()
            row = next(rows, None)
        if row is None:
            return
        if row.seen < store.revision:
            break
    raise ReplayError(
        f"update {row.first} had seen {row.seen} changes of the store, the bags have "
        f"{store.revision} there: steps are missing, or bags of several runs were given"
    )


def _effective(entries: Iterable[Entry]) -> list[Updates]:
    """Rows of updates that count: those of a process that was killed were made anew."""
    rows: list[Updates] = []
    for entry in entries:
        row = _message(messages.decode_updates, entry.data)
        while rows and rows[-1].first >= row.first:
            rows.pop()
        if rows and rows[-1].first + rows[-1].count > row.first:
            rows[-1] = replace(rows[-1], count=row.first - rows[-1].first)
        rows.append(row)
    return rows


def _is_updates(entry: Entry) -> bool:
    return entry.type == messages.TYPES[UPDATES_TOPIC]


def _entries(paths: Iterable[Path]) -> Iterator[Entry]:
    for path in paths:
        yield from read_bag(path)


def _message(deserialize: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserialize(data)
    except Exception as error:  # the middleware's errors have no common base
        raise ReplayError(f"a record that is not what its topic says: {error}") from error


def _spec(paths: list[Path], params: LearnerParams) -> RecordSpec:
    """Specification of the task that the steps are of."""
    step_type = messages.TYPES[STEP_TOPIC]
    first = next((entry for entry in _entries(paths) if entry.type == step_type), None)
    if first is None:
        raise ReplayError(f"no step in {', '.join(map(str, paths))}")
    message = _message(messages.decode_step, first.data)
    task = load_task(params if params.task_file else replace(params, task=message.task))
    spec = record_spec(task.spec, message.run_id)
    if spec.fingerprint != message.fingerprint:
        raise ReplayError(
            f"the steps are of specification {message.fingerprint[:16]}…, task "
            f"{spec.task!r} is now {spec.fingerprint[:16]}…: give the task file of then"
        )
    return spec


def _save(trainer: Trainer, spec: RecordSpec, out: Path) -> Path:
    arrays, state = trainer.state()
    counts = trainer.store.counts
    meta = {
        "fingerprint": spec.fingerprint,
        "task": spec.task,
        "policy_version": 1,
        "env_steps": counts.online,
        "demo_steps": counts.demo,
        "log_records": 0,
        "trainer": state,
    }
    return checkpoint.save(out, trainer.updates, arrays, meta)


def parameters(bag: Path, settings: Iterable[str] = ()) -> LearnerParams:
    """Parameters of the run that a bag lies in, or the defaults; `settings` are name=value.

    Raises:
        ParameterError: an unknown name, or a value of another type.
        ReplayError: the run's configuration cannot be read.
    """
    config = bag.absolute().parent / "config.yaml"
    recorded: dict[str, Any] = {}
    if config.is_file():
        try:
            recorded = dict(yaml.safe_load(config.read_text(encoding="utf-8"))["parameters"])
        except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise ReplayError(f"{config}: not a run's configuration ({error})") from error
    try:
        given = assignments(tuple(settings))
    except ValueError as error:
        raise ParameterError(str(error)) from error
    names = {each.name: each for each in fields(LearnerParams)}
    for name, value in given.items():
        if name not in names:
            raise ParameterError(f"unknown parameter {name!r}")
        default = names[name].default
        wanted = list if isinstance(default, tuple) else type(default)
        if wanted is float and type(value) is int:
            given[name] = value = float(value)
        if type(value) is not wanted:
            raise ParameterError(f"{name}: {value!r} is not of type {wanted.__name__}")
    merged = {**{k: v for k, v in recorded.items() if k in names}, **given}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in merged.items()}
    return LearnerParams(**values)


def run(options: Any) -> int:
    """`hil train`: options of hil_bringup.train; return the exit code."""
    bags = [Path(path) for path in options.from_bag]
    settings = list(options.set)
    if options.seed is not None:
        settings.append(f"seed={options.seed}")
    try:
        params = parameters(bags[0], settings)
        result = train(
            bags, params, Path(options.out), repeat=options.repeat, updates=options.updates
        )
    except (ReplayError, ParameterError, OSError, ValueError) as error:
        print(f"hil train: {error}")
        return 1
    if options.json:
        print(result.line())
        return 0
    tally = result.tally
    print(
        f"{result.updates} updates on {tally.steps} steps and {tally.annotations} annotations "
        f"({tally.gaps} gaps, {tally.repeats} repeats)\n"
        f"checkpoint {result.checkpoint}\nsha256 {result.sha256}"
    )
    return 0
