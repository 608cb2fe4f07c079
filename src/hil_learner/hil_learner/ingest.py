"""Steps in, exactly once: the rule of `insert_steps`, without ROS.

For every (actor, session) of the run only the step after the last one is stored. A repeat is
acknowledged and ignored, a gap is refused with the number that is wanted, and a step of another
run or specification, or a malformed one, is refused with the reason. New steps and annotations
pass through the log before they reach the store and before they are acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from hil_learner.annotations import Annotation, AnnotationError, Kind, decode
from hil_learner.mcap_file import Entry
from hil_learner.records import (
    FLAG_DEMO,
    FLAG_EVALUATION,
    FLAG_INTERRUPTED,
    MAX_NAME,
    Identity,
    RecordDecoder,
    RecordError,
)
from hil_rl.store import Step

MAX_SESSIONS = 10_000

STEP_TOPIC = "/step"
ANNOTATION_TOPIC = "/annotation"
UPDATES_TOPIC = "/learner/updates"


class Status(IntEnum):
    """Values of InsertSteps.status."""

    OK = 0
    GAP = 1
    WRONG_RUN = 2
    WRONG_SPEC = 3
    MALFORMED = 4
    BUSY = 5


@dataclass(frozen=True)
class Answer:
    """Reply to one request. `last_seq` is what is stored for the session, whatever the status."""

    status: Status
    reason: str
    last_seq: int
    wanted_seq: int


@dataclass(frozen=True)
class Request:
    """One call of `insert_steps`. steps: (seq, serialized step), ascending; may be none."""

    run_id: str
    fingerprint: str
    actor_id: str
    session: str
    steps: Sequence[tuple[int, Any]] = ()


class StepLog(Protocol):
    """Keeps what was accepted beyond the life of this process, in the order of acceptance."""

    def append(self, records: Sequence[tuple[str, bytes]]) -> None:
        """Return when the (topic, data) are safe; raise OSError to have them sent again."""

    def replay(self) -> Iterator[Entry]:
        """Everything that was appended, oldest first."""


class Store(Protocol):
    """What ingestion writes to; see `hil_learner.annotations.AnnotatedStore`."""

    def add(self, step: Step) -> Any:
        """Store a step."""

    def known(self, identifier: str) -> bool:
        """An annotation of this id was applied."""

    def check(self, annotation: Annotation) -> None:
        """Raise AnnotationError for what cannot be applied."""

    def annotate(self, annotation: Annotation) -> None:
        """Apply an annotation."""


class Observer(Protocol):
    """Hears of every new step, in the order of storing (episode statistics, throttle)."""

    def on_step(self, actor_id: str, step: Step) -> None:
        """Take the next step of a stream."""

    def on_interrupted(self, stream: str) -> None:
        """Note that the open episode of a stream was left by its actor."""


@dataclass
class Session:
    """One life of one actor. episode, step: of its last step (-1: none yet)."""

    last_seq: int = 0
    episode: int = -1
    step: int = -1
    open: bool = False
    """The last step was not the end of its episode."""

    def advance(self, step: Step) -> None:
        """Make `step` the last one."""
        self.last_seq = step.seq
        self.episode, self.step = step.episode, step.step
        self.open = not _is_last(step)


@dataclass
class Counters:
    """Steps that were accepted, by kind. env_steps: training steps (no demos, no evaluation)."""

    env_steps: int = 0
    demo_steps: int = 0
    evaluation_steps: int = 0
    intervened_steps: int = 0
    annotations: int = 0
    repeats: int = 0
    refused: int = 0


class Ingest:
    """Judges requests and moves new steps through the log into the store.

    Everything belongs to one thread; `counters` may be read from any.

    Args:
        decoder: of steps.
        store: what they are written to.
        log: what they pass through first.
        decode_annotation: bytes -> hil_interfaces/Annotation; wanted if the log has annotations.
        observers: hear of every step.
        max_steps: of one request.
    """

    def __init__(
        self,
        decoder: RecordDecoder,
        store: Store,
        *,
        log: StepLog | None = None,
        decode_annotation: Callable[[bytes], Any] | None = None,
        observers: Iterable[Observer] = (),
        max_steps: int = 2000,
    ) -> None:
        self.spec = decoder.spec
        self.log_problem = ""
        """Why the log did not take the newest records; empty when it did."""
        self.busy_reason = ""
        """Not empty: nothing is stored now, and why."""
        self._decoder = decoder
        self._store = store
        self._log = log
        self._decode_annotation = decode_annotation
        self._observers = tuple(observers)
        self._max_steps = max_steps
        self.counters = Counters()
        self._sessions: dict[str, dict[str, Session]] = {}

    def replay(self) -> int:
        """Take in what the log kept from earlier processes; return the number of steps.

        Raises:
            RecordError: the log holds a step that does not fit this run.
            OSError: the log cannot be read.
        """
        replayed = 0
        for entry in self._log.replay() if self._log is not None else ():
            if entry.topic == STEP_TOPIC:
                self._replay_step(entry.data)
                replayed += 1
            elif entry.topic == ANNOTATION_TOPIC and self._decode_annotation is not None:
                self._replay_annotation(self._decode_annotation, entry.data)
        return replayed

    def _replay_annotation(self, deserialize: Callable[[bytes], Any], data: bytes) -> None:
        try:
            annotation = decode(deserialize(data))
            self._store.check(annotation)
        except Exception as error:  # the middleware's errors have no common base
            raise RecordError(f"log: annotation: {error}") from error
        self._apply(annotation)

    def _replay_step(self, data: bytes) -> None:
        identity, step = self._decoder.decode_stored(data)
        session = self._session(identity.actor_id, identity.session) or Session()
        if identity.seq != session.last_seq + 1:
            raise RecordError(
                f"log: {identity.stream} has step {identity.seq} after {session.last_seq}, "
                f"wanted {session.last_seq + 1}: a file of the log is missing or was changed"
            )
        session.advance(step)
        self._take(identity.actor_id, identity.session, [step], session)

    def last_seq(self, actor_id: str, session: str) -> int:
        """Number of the last stored step of a session; 0 if there is none."""
        found = self._sessions.get(actor_id, {}).get(session)
        return found.last_seq if found else 0

    def insert(self, request: Request) -> Answer:
        """Store what is new and say what is stored. Never raises for anything in the request."""
        problem = self._problem_of(request)
        if problem is not None:
            return self._refuse(request, *problem)
        return self._insert(request)

    def _problem_of(self, request: Request) -> tuple[Status, str] | None:
        for name in ("actor_id", "session"):
            value = getattr(request, name)
            if not 0 < len(value) <= MAX_NAME:
                return Status.MALFORMED, f"{name}: {len(value)} characters, not 1 to {MAX_NAME}"
        if request.run_id != self.spec.run_id:
            return Status.WRONG_RUN, (
                f"run_id: the step is of run {request.run_id[:MAX_NAME]!r}, "
                f"this learner trains run {self.spec.run_id!r}"
            )
        if request.fingerprint != self.spec.fingerprint:
            return Status.WRONG_SPEC, (
                f"fingerprint: {request.fingerprint[:16]!r}… is another specification than "
                f"{self.spec.fingerprint[:16]!r}… of task {self.spec.task!r}"
            )
        if len(request.steps) > self._max_steps:
            return Status.MALFORMED, (
                f"steps: {len(request.steps)} in one call, at most {self._max_steps}"
            )
        if self.busy_reason:
            return Status.BUSY, self.busy_reason
        return None

    def _insert(self, request: Request) -> Answer:
        session = self._session(request.actor_id, request.session)
        if session is None:
            return self._refuse(request, Status.BUSY, f"{MAX_SESSIONS} sessions are in use")
        ahead = Session(**vars(session))
        records: list[tuple[bytes, Step]] = []
        refusal: tuple[Status, str] | None = None
        for seq, data in request.steps:
            if 0 < seq <= ahead.last_seq:
                self.counters.repeats += 1
                continue
            refusal = self._judge(request, ahead, seq, data, records)
            if refusal is not None:
                break
        if records:
            try:
                self._append([(STEP_TOPIC, data) for data, _ in records])
            except OSError:
                return self._refuse(request, Status.BUSY, self.log_problem)
            self._take(request.actor_id, request.session, [s for _, s in records], ahead)
        if refusal is not None:
            return self._refuse(request, *refusal)
        return self._answer(request, Status.OK, "")

    def _session(self, actor_id: str, session: str) -> Session | None:
        known = self._sessions.get(actor_id, {}).get(session)
        if known is not None:
            return known
        if sum(map(len, self._sessions.values())) >= MAX_SESSIONS:
            return None
        return Session()

    def _judge(
        self, request: Request, ahead: Session, seq: int, data: Any, records: list[Any]
    ) -> tuple[Status, str] | None:
        """Decode the step into `records` and move `ahead`, or return why not."""
        if seq < 1:
            return Status.MALFORMED, f"seq: {seq}, numbers begin at 1"
        if seq != ahead.last_seq + 1:
            return Status.GAP, f"seq: {seq} after {ahead.last_seq}, wanted {ahead.last_seq + 1}"
        try:
            if len(data) > self.spec.max_bytes:
                raise RecordError(
                    f"data: {len(data)} bytes, a step has at most {self.spec.max_bytes}"
                )
            raw = bytes(data)
            step = self._decoder.decode(raw, Identity(request.actor_id, request.session, seq))
            _check_order(ahead, step)
        except RecordError as error:
            return Status.MALFORMED, f"step {seq}: {error}"
        records.append((raw, step))
        ahead.advance(step)
        return None

    def _take(self, actor_id: str, session: str, steps: Iterable[Step], ahead: Session) -> None:
        """Put steps that are safe into the store, and tell the observers."""
        of_actor = self._sessions.setdefault(actor_id, {})
        if session not in of_actor:
            self._interrupt_others(actor_id, of_actor)
        of_actor[session] = ahead
        for step in steps:
            if not step.flags & FLAG_EVALUATION:
                self._store.add(step)
            self._count(step)
            for observer in self._observers:
                observer.on_step(actor_id, step)

    def _interrupt_others(self, actor_id: str, sessions: Mapping[str, Session]) -> None:
        """A newer session of the actor closes the episode that an older one left open.

        That concerns the statistics only: should the older one go on after all, its steps are
        stored like any others.
        """
        for name, session in sessions.items():
            if session.open:
                for observer in self._observers:
                    observer.on_interrupted(f"{actor_id}/{name}")

    def _count(self, step: Step) -> None:
        counters = self.counters
        if step.flags & FLAG_EVALUATION:
            counters.evaluation_steps += 1
        elif step.flags & FLAG_DEMO:
            counters.demo_steps += 1
        else:
            counters.env_steps += 1
            counters.intervened_steps += step.intervened

    def annotate(self, message: Any, data: bytes) -> str:
        """Log and apply an annotation; return why not, or "" if it stands in the log.

        message: hil_interfaces/Annotation. data: its serialization.
        """
        try:
            annotation = decode(message)
            if self._store.known(annotation.id):
                return ""
            self._check(annotation)
            if self.busy_reason:
                return self.busy_reason
            self._append([(ANNOTATION_TOPIC, data)])
        except AnnotationError as error:
            return str(error)
        except OSError:
            return self.log_problem
        self._apply(annotation)
        return ""

    def _append(self, records: Sequence[tuple[str, bytes]]) -> None:
        if self._log is None:
            return
        try:
            self._log.append(records)
            self.log_problem = ""
        except OSError as error:
            self.log_problem = f"the log to be written: {error}"
            raise

    def _apply(self, annotation: Annotation) -> None:
        self._store.annotate(annotation)
        self.counters.annotations += 1

    def _check(self, annotation: Annotation) -> None:
        """Refuse what is not about an episode that this run has."""
        if annotation.run_id != self.spec.run_id:
            raise AnnotationError(f"run_id: this learner trains run {self.spec.run_id!r}")
        session = self._sessions.get(annotation.actor_id, {}).get(annotation.session)
        if session is None:
            raise AnnotationError("session: no step of this actor and session is stored")
        if annotation.kind != Kind.UNDO and annotation.episode > session.episode:
            raise AnnotationError(
                f"episode: {annotation.episode}, the newest of the session is {session.episode}"
            )
        is_open = session.open and annotation.episode == session.episode
        if annotation.kind in (Kind.LABEL, Kind.VETO) and is_open:
            raise AnnotationError(f"episode: {annotation.episode} has not ended")
        self._store.check(annotation)

    def _refuse(self, request: Request, status: Status, reason: str) -> Answer:
        self.counters.refused += 1
        return self._answer(request, status, reason)

    def _answer(self, request: Request, status: Status, reason: str) -> Answer:
        last = self.last_seq(request.actor_id, request.session)
        return Answer(status, reason, last, last + 1)


def _is_last(step: Step) -> bool:
    return bool(step.terminated or step.truncated or step.flags & FLAG_INTERRUPTED)


def _check_order(session: Session, step: Step) -> None:
    """A step must continue its session: wrong pairs of observations are worse than a refusal."""
    if session.episode < 0:
        return
    if step.episode < session.episode:
        raise RecordError(f"episode: {step.episode} after episode {session.episode}")
    if step.episode > session.episode:
        if step.step != 0:
            raise RecordError(f"step: episode {step.episode} begins with step {step.step}, not 0")
        return
    if not session.open:
        raise RecordError(f"episode: {step.episode} has already ended")
    if step.step != session.step + 1:
        raise RecordError(f"step: {step.step} after step {session.step} of the same episode")
