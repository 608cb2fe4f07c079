"""What people said about episodes afterwards, and what the store holds because of it.

Annotations are applied in the order of the log. What an episode's labels are now is worked out
anew from the recorded ones and the annotations that count, so an undone one leaves no trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from hil_learner.records import MAX_NAME
from hil_rl.spaces import Array
from hil_rl.store import EpisodeLabels, EpisodeStore, Step, Use

MAX_ANNOTATIONS = 100_000
MAX_REWARDS = 10_000
MAX_COMMENT = 4096
LAST = 2**32 - 1
"""last_step of a range that goes to the end of the episode."""


class Kind(IntEnum):
    """Values of Annotation.kind."""

    LABEL = 1
    VETO = 2
    KEEP = 3
    DROP = 4
    RELABEL = 5
    UNDO = 6


class AnnotationError(ValueError):
    """An annotation that is not applied; the text begins with the field at fault."""


@dataclass(frozen=True)
class Annotation:
    """See hil_interfaces/msg/Annotation."""

    id: str
    author: str
    kind: Kind
    run_id: str
    actor_id: str
    session: str
    episode: int
    first_step: int = 0
    last_step: int = LAST
    success: bool = False
    rewards: tuple[float, ...] = ()
    refers_to: str = ""

    @property
    def stream(self) -> str:
        """Stream of the episode in the store."""
        return f"{self.actor_id}/{self.session}"


def decode(message: Any) -> Annotation:
    """Return a message as an annotation.

    Raises:
        AnnotationError: a field is missing, too long or out of range.
    """
    for name in ("id", "author", "actor_id", "session", "refers_to"):
        value, optional = getattr(message, name), name in ("author", "refers_to")
        if len(value) > MAX_NAME or not (value or optional):
            raise AnnotationError(f"{name}: {len(value)} characters, not 1 to {MAX_NAME}")
    if len(message.comment) > MAX_COMMENT:
        raise AnnotationError(f"comment: {len(message.comment)} characters, not {MAX_COMMENT}")
    kinds = {int(kind) for kind in Kind}
    if message.kind not in kinds:
        raise AnnotationError(f"kind: {message.kind}, not one of {sorted(kinds)}")
    annotation = Annotation(
        id=message.id,
        author=message.author,
        kind=Kind(message.kind),
        run_id=message.run_id,
        actor_id=message.actor_id,
        session=message.session,
        episode=int(message.episode),
        first_step=int(message.first_step),
        last_step=int(message.last_step),
        success=bool(message.success),
        rewards=_rewards(message),
        refers_to=message.refers_to,
    )
    if annotation.last_step < annotation.first_step:
        raise AnnotationError(f"last_step: {annotation.last_step} is before first_step")
    return annotation


def _rewards(message: Any) -> tuple[float, ...]:
    count = len(message.rewards)
    if count > MAX_REWARDS:
        raise AnnotationError(f"rewards: {count}, at most {MAX_REWARDS}")
    rewards = tuple(float(value) for value in message.rewards)
    if not all(map(math.isfinite, rewards)):
        raise AnnotationError("rewards: not finite")
    if message.kind != Kind.RELABEL:
        return rewards
    steps = int(message.last_step) - int(message.first_step) + 1
    if count != 1 and count != steps:
        raise AnnotationError(f"rewards: {count}, not one, and not one for each of {steps} steps")
    return rewards


@dataclass
class _Annotated:
    """An episode with the labels it was recorded with and the annotations that count."""

    recorded: EpisodeLabels
    annotations: list[Annotation] = field(default_factory=list)


class AnnotatedStore:
    """Puts steps and annotations into a store, in the order of the log.

    Every call changes the store in one piece: no sample sees half of it.

    Args:
        store: belongs to whoever calls; others may sample.
        on_success: called with stream, episode and whether it succeeded, when that was said.
    """

    def __init__(
        self,
        store: EpisodeStore,
        on_success: Callable[[str, int, bool], None] = lambda *_: None,
    ) -> None:
        self.store = store
        self.on_success = on_success
        self._episodes: dict[tuple[str, int], _Annotated] = {}
        self._known: dict[str, Annotation] = {}

    def add(self, step: Step) -> None:
        """Store a step; one of an annotated episode gets the labels that were said of it."""
        with self.store.frozen():
            self.store.add(step)
            episode = self._episodes.get((step.stream, step.episode))
            if episode is not None:
                _extend(episode.recorded, step)
                self.store.revise(_labels(episode))

    def known(self, identifier: str) -> bool:
        """An annotation of this id was applied."""
        return identifier in self._known

    def check(self, annotation: Annotation) -> None:
        """Raise an error for an annotation that could not be applied now.

        Raises:
            AnnotationError: too many, or an undo of nothing.
        """
        if len(self._known) >= MAX_ANNOTATIONS:
            raise AnnotationError(f"id: a run has at most {MAX_ANNOTATIONS} annotations")
        if annotation.kind == Kind.UNDO:
            undone = self._known.get(annotation.refers_to)
            if undone is None or undone.kind == Kind.UNDO:
                raise AnnotationError(f"refers_to: no annotation {annotation.refers_to!r}")
            if undone not in self._episodes[undone.stream, undone.episode].annotations:
                raise AnnotationError(f"refers_to: {annotation.refers_to!r} is undone already")

    def annotate(self, annotation: Annotation) -> None:
        """Apply an annotation that `check` has let pass."""
        target = annotation
        with self.store.frozen():
            if annotation.kind == Kind.UNDO:
                target = self._known[annotation.refers_to]
                episode = self._episodes[target.stream, target.episode]
                episode.annotations.remove(target)
            else:
                episode = self._episode(annotation)
                episode.annotations.append(annotation)
            self._known[annotation.id] = annotation
            labels = _labels(episode)
            self.store.revise(labels)
        if target.kind in (Kind.LABEL, Kind.VETO):
            self.on_success(target.stream, target.episode, labels.success)

    def _episode(self, annotation: Annotation) -> _Annotated:
        key = (annotation.stream, annotation.episode)
        if key not in self._episodes:
            self._episodes[key] = _Annotated(self.store.episode(*key))
        return self._episodes[key]


def _extend(recorded: EpisodeLabels, step: Step) -> None:
    recorded.success |= step.success and (step.terminated or step.truncated)
    recorded.step = np.append(recorded.step, np.int64(step.step))
    recorded.reward = np.append(recorded.reward, np.float32(step.reward))
    recorded.terminated = np.append(recorded.terminated, step.terminated)
    recorded.truncated = np.append(recorded.truncated, step.truncated)
    recorded.use = np.append(recorded.use, np.int8(Use.DEFAULT))


def _labels(episode: _Annotated) -> EpisodeLabels:
    """Recorded labels with the annotations that count, in order."""
    recorded = episode.recorded
    labels = replace(
        recorded,
        reward=recorded.reward.copy(),
        terminated=recorded.terminated.copy(),
        truncated=recorded.truncated.copy(),
        use=recorded.use.copy(),
    )
    ended = recorded.terminated | recorded.truncated
    for annotation in episode.annotations:
        _apply(annotation, labels, ended)
    return labels


def _apply(annotation: Annotation, labels: EpisodeLabels, ended: Array) -> None:
    chosen = (labels.step >= annotation.first_step) & (labels.step <= annotation.last_step)
    if annotation.kind in (Kind.LABEL, Kind.VETO):
        success = annotation.success and annotation.kind == Kind.LABEL
        labels.success = success
        labels.reward[ended] = float(success)
        labels.terminated[ended] = success
        labels.truncated[ended] = not success
    elif annotation.kind == Kind.KEEP:
        labels.use[chosen] = Use.KEEP
    elif annotation.kind == Kind.DROP:
        labels.use[chosen] = Use.DROP
    elif len(annotation.rewards) == 1:
        labels.reward[chosen] = annotation.rewards[0]
    else:
        rewards = np.asarray(annotation.rewards, np.float32)
        labels.reward[chosen] = rewards[labels.step[chosen] - annotation.first_step]
