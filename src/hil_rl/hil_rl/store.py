"""Episode store: every control step once, transitions computed when they are sampled.

A step is kept in one slot of a ring of preallocated arrays, together with the slot in which its
next observation is. That slot is the successor's own (the same stream, the same episode, the
next step number), or an extra slot that holds only a final observation. Slots are handed out in
order of arrival, so a step is always overwritten before its successor: a stored pair can never
point to foreign data, whatever the mix of streams, gaps and wrap-around.

"Online" and "demo" are index sets over the same slots, not copies.

What people say afterwards about an episode (its reward, its success, whether it is to be used)
is written over the stored values with `EpisodeStore.episode` and `EpisodeStore.revise`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from .features import Encoded, Frames
from .memory import available_memory
from .spaces import Array, Spaces
from .trajectories import Trajectories

View = str
"""Name of a set of transitions: "all", "demo", or one that `EpisodeStore.define_view` made."""
BASE_VIEWS: tuple[View, ...] = ("all", "demo")
_FRAMES = ("frames", "next_frames", "shift", "next_shift")
_OWN_BYTES = 42 + 16 * (len(BASE_VIEWS) + 1)  # per slot: links, labels, views, trajectories
_COMPUTED = ("next_state", "slot", *_FRAMES)  # fields of a batch that are not stored

# Bits of Step.flags, the same as in hil_interfaces/msg/Step.
FLAG_TAKEOVER = 1
FLAG_TELEOP_LOST = 64
FLAG_HELD = 128
FLAG_DEMO = 512
FLAG_EVALUATION = 1024


class Use(IntEnum):
    """Whether a step is sampled: as its flags and its episode say, always, or never."""

    DEFAULT = 0
    KEEP = 1
    DROP = 2


class StoreError(ValueError):
    """A step that cannot be stored, or a view that cannot be sampled."""


@dataclass
class Step:
    """One control step, as it is streamed and logged.

    Attributes:
        stream: "actor_id/session"; steps of one stream arrive in order.
        seq: 1, 2, 3, ... within the stream.
        episode: number of the episode within the stream.
        step: number of the step within the episode.
        policy_version: of the acting policy; 0 for random initialisation or none.
        observation: name -> array, see `Spaces.observation`; other names are ignored.
        action: (action_size,) executed action in [-1, 1].
        policy_action: what the policy proposed, or None.
        intervened: a person's action was executed.
        reward: of this action.
        terminated: the task ended; there is no future reward.
        truncated: the episode was cut; the value of `final_observation` still counts.
        success: of the episode, meaningful on its last step.
        grasp_penalty: (grippers,), zero or negative.
        flags: bits, see the FLAG constants.
        final_observation: observation after the last step of an episode, else None.
        task: name, for views by task.
    """

    stream: str
    seq: int
    episode: int
    step: int
    policy_version: int
    observation: Mapping[str, Array]
    action: Array
    policy_action: Array | None = None
    intervened: bool = False
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    grasp_penalty: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    flags: int = 0
    final_observation: Mapping[str, Array] | None = None
    task: str = ""


@dataclass(frozen=True)
class Counts:
    """What a store has seen since it was created (steps that were overwritten included).

    Attributes:
        online: training steps: no demonstrations, no evaluation.
        intervened: online steps in which a person acted.
        demo: demonstration steps.
        excluded: steps that are never sampled because of their flags (evaluation).
        episodes: finished online episodes.
        demo_episodes: finished demonstration episodes.
        dropped: steps whose next observation never arrived (gaps, interrupted episodes).
    """

    online: int = 0
    intervened: int = 0
    demo: int = 0
    excluded: int = 0
    episodes: int = 0
    demo_episodes: int = 0
    dropped: int = 0


@dataclass
class EpisodeLabels:
    """What can be said differently about an episode; one element for each step that is held.

    Attributes:
        stream, episode: which one.
        success: of the episode.
        step: (n,) int64, ascending.
        reward: (n,) float32.
        terminated, truncated: (n,) bool.
        use: (n,) int8, values of `Use`.
    """

    stream: str
    episode: int
    success: bool
    step: Array
    reward: Array
    terminated: Array
    truncated: Array
    use: Array


@dataclass
class Batch:
    """Sampled transitions, one row each. Arrays are float32 unless stated otherwise.

    Attributes:
        state: (n, vector_size) state vectors.
        next_state: (n, vector_size); of a terminated step without final observation: the state.
        action: (n, action_size) executed.
        reward: (n,).
        mask: (n,) 0 if terminated, else 1: whether the target bootstraps.
        grasp_penalty: (n, grippers).
        truncated: (n,) bool.
        intervened: (n,) bool.
        demo: (n,) bool: recorded as a demonstration.
        episode: (n,) int64, unique number of the episode within the store.
        step: (n,) int64, step within the episode.
        policy_version: (n,) uint64.
        slot: (n,) int64, where the step is; identifies it until it is overwritten.
        frames: (n, cameras, channels, positions) float16 features of the images, or
            (n, cameras, height, width, 3) uint8 images; see `hil_rl.features`. Without images here
            and below: (n, 0).
        next_frames: of the next observation, of another augmentation.
        shift: (n, 2) uint8 rows and columns by which the images were moved, or are to be moved.
        next_shift: of the next observation.
    """

    state: Array
    next_state: Array
    action: Array
    reward: Array
    mask: Array
    grasp_penalty: Array
    truncated: Array
    intervened: Array
    demo: Array
    episode: Array
    step: Array
    policy_version: Array
    slot: Array
    frames: Array
    next_frames: Array
    shift: Array
    next_shift: Array

    @staticmethod
    def empty(n: int, spaces: Spaces, frames: Frames | None = None) -> Batch:
        """Uninitialised batch of n rows; `frames` says what is made of images."""
        shape, dtype = ((0,), "float16") if frames is None else (frames.shape, frames.dtype)
        return Batch(
            state=np.empty((n, spaces.vector_size), np.float32),
            next_state=np.empty((n, spaces.vector_size), np.float32),
            action=np.empty((n, spaces.action_size), np.float32),
            reward=np.empty(n, np.float32),
            mask=np.empty(n, np.float32),
            grasp_penalty=np.empty((n, spaces.grippers), np.float32),
            truncated=np.empty(n, np.bool_),
            intervened=np.empty(n, np.bool_),
            demo=np.empty(n, np.bool_),
            episode=np.empty(n, np.int64),
            step=np.empty(n, np.int64),
            policy_version=np.empty(n, np.uint64),
            slot=np.empty(n, np.int64),
            frames=np.empty((n, *shape), dtype),
            next_frames=np.empty((n, *shape), dtype),
            shift=np.empty((n, 2 if frames is not None else 0), np.uint8),
            next_shift=np.empty((n, 2 if frames is not None else 0), np.uint8),
        )

    def __len__(self) -> int:
        return len(self.reward)

    def rows(self, start: int, stop: int) -> Batch:
        """Rows start:stop as a view of the same memory."""
        return Batch(**{name: array[start:stop] for name, array in vars(self).items()})


class _IndexSet:
    """Set of slots with O(1) add, discard and uniform sampling."""

    def __init__(self, capacity: int) -> None:
        self._members = np.zeros(capacity, np.int64)
        self._position = np.full(capacity, -1, np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, slot: int) -> None:
        if self._position[slot] < 0:
            self._members[self._size] = slot
            self._position[slot] = self._size
            self._size += 1

    def discard(self, slot: int) -> None:
        at = self._position[slot]
        if at >= 0:
            self._size -= 1
            last = self._members[self._size]
            self._members[at] = last
            self._position[last] = at
            self._position[slot] = -1

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self._members[rng.integers(0, self._size, n)]

    def members(self) -> Array:
        return self._members[: self._size].copy()


@dataclass(frozen=True)
class TakeoverPenalty:
    """Reward of the policy's own steps right before a person takes over.

    It is added when transitions are sampled; recorded rewards stay what they are. A critic with a
    bounded range of values (`SACConfig.value_range`) needs a lower bound that leaves room for it.

    Attributes:
        value: added to the reward of each of these steps, 0 or negative.
        horizon: number of steps before the takeover; 0: off.
    """

    value: float = 0.0
    horizon: int = 0

    def __post_init__(self) -> None:
        if not -math.inf < self.value <= 0.0:
            raise StoreError(f"takeover penalty: value {self.value} must be finite and <= 0")
        if self.horizon < 0:
            raise StoreError(f"takeover penalty: horizon {self.horizon} must be >= 0")


NO_PENALTY = TakeoverPenalty()


@dataclass
class _Open:
    """Newest step of a stream; waits for its successor.

    before: slots, with their serials, of the policy's last steps without a person.
    """

    slot: int
    serial: int
    seq: int
    episode: int
    step: int
    episode_id: int
    before: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Rule:
    """Which steps of a view are also in another one; empty and 0 ask for nothing."""

    of: View
    task: str = ""
    flags: int = 0


class EpisodeStore:
    """Ring of steps; sampling gives transitions (s, a, r, s').

    One thread adds, any thread may sample. The same steps in the same order give the same
    samples for the same generator.

    Args:
        spaces: what an observation and an action are.
        capacity: slots; a step takes one, a final observation one more. Memory is allocated
            here, see `nbytes`.
        exclude_flags: steps with any of these flags are kept (they are somebody's successor) but
            never sampled.
        demo_exclude_flags: intervention and demonstration steps with any of these flags are not
            in the "demo" view: what was executed is a hold, not what the person did.
        successful_demos: a demonstration enters the "demo" view when it has ended with success,
            as in HIL-SERL; else at once, whatever comes of it.
        frames: where the images go, or what is made of them; needed if there are any.
        takeover_penalty: negative reward before a takeover; off by default.

    Attributes:
        trajectories: the states of every episode, in order; to be read under the lock.
        relabel: called with every batch that `sample` draws and with its generator, under the
            lock; may change the batch in place (hindsight goals, see `hil_rl.her`).
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        exclude_flags: int = FLAG_EVALUATION,
        demo_exclude_flags: int = FLAG_TAKEOVER | FLAG_TELEOP_LOST | FLAG_HELD,
        successful_demos: bool = True,
        frames: Frames | None = None,
        takeover_penalty: TakeoverPenalty = NO_PENALTY,
    ) -> None:
        if capacity < 2:
            raise StoreError(f"capacity must be at least 2 slots, got {capacity}")
        if spaces.images and frames is None:
            raise StoreError(f"no `frames` for the images {sorted(spaces.images)}")
        if frames is not None and frames.capacity != capacity:
            raise StoreError(f"frames have a capacity of {frames.capacity}, not {capacity}")
        self._check_memory(spaces, capacity, frames)
        self.spaces = spaces
        self.capacity = capacity
        self._exclude_flags = exclude_flags
        self._demo_exclude_flags = demo_exclude_flags
        self._successful_demos = successful_demos
        self._takeover_penalty = takeover_penalty
        self._lock = threading.RLock()
        columns = vars(Batch.empty(capacity, spaces))
        self._columns = {n: array for n, array in columns.items() if n not in _COMPUTED}
        self._next = np.full(capacity, -1, np.int64)  # -1: the next observation is not here
        self._flags = np.zeros(capacity, np.uint32)
        self._serial = np.full(capacity, -1, np.int64)
        self._allocated = 0
        self._episodes = 0
        self._stream = np.full(capacity, -1, np.int32)  # -1: the slot holds no step
        self._number = np.zeros(capacity, np.int64)  # of the episode within its stream
        self._success = np.zeros(capacity, np.bool_)  # of the episode, on all its steps
        self._use = np.zeros(capacity, np.int8)
        self._penalty = np.zeros(capacity, np.float32)
        self._streams: dict[str, int] = {}
        self._open: dict[str, _Open] = {}
        self._frames = frames if spaces.images else None
        self._rules = {view: _Rule(view) for view in BASE_VIEWS}
        self._views = {view: _IndexSet(capacity) for view in BASE_VIEWS}
        self._task = np.zeros(capacity, np.int32)
        self._tasks: dict[str, int] = {}
        self._counts = Counts()
        self.trajectories = Trajectories(capacity)
        self.relabel: Callable[[Batch, np.random.Generator], None] | None = None
        self._revision = 0

    @property
    def revision(self) -> int:
        """Number of changes so far (`add`, `revise`): says what a sample could have seen."""
        return self._revision

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let no other thread change the store, so that several calls see the same one."""
        with self._lock:
            yield

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays occupy when the ring is full."""
        own = [self._next, self._flags, self._serial, self._stream, self._number, self._task]
        arrays = [*self._columns.values(), *own, self._success, self._use, self._penalty]
        indices = len(self._views) + 1  # views and trajectories: two integers per slot each
        frames = self._frames.nbytes if self._frames is not None else 0
        return sum(a.nbytes for a in arrays) + indices * 16 * self.capacity + frames

    @staticmethod
    def bytes_per_slot(spaces: Spaces) -> int:
        """Bytes of memory that a slot takes, without frames and further views."""
        row = vars(Batch.empty(1, spaces))
        return sum(a.nbytes for n, a in row.items() if n not in _COMPUTED) + _OWN_BYTES

    @classmethod
    def _check_memory(cls, spaces: Spaces, capacity: int, frames: Frames | None) -> None:
        """The whole ring has to fit, although it fills up slowly: better now than after hours."""
        frame_bytes = frames.nbytes / capacity if frames is not None else 0.0
        per_slot = cls.bytes_per_slot(spaces) + frame_bytes
        free = available_memory()
        if capacity * per_slot > free:
            raise StoreError(
                f"a capacity of {capacity} slots needs {capacity * per_slot / 1e9:.1f} GB of "
                f"memory, {free / 1e9:.1f} GB are free: use at most {int(free / per_slot)}"
            )

    def batch(self, n: int) -> Batch:
        """Uninitialised batch of n rows for `sample` and `gather`."""
        return Batch.empty(n, self.spaces, self._frames)

    def define_view(self, name: View, of: View = "all", task: str = "", flags: int = 0) -> None:
        """Name the part of a view that is of one task or has certain flags, from now on kept.

        Args:
            name: new.
            of: "all" or "demo".
            task: `Step.task`; empty: of any.
            flags: steps with at least one of these; 0: whatever flags they have.

        Raises:
            StoreError: the name is taken, or `of` is not one of the two.
        """
        if name in self._views or of not in BASE_VIEWS:
            raise StoreError(f"view {name!r} of {of!r}: take a new name, of one of {BASE_VIEWS}")
        with self._lock:
            self._rules[name] = _Rule(of, task, flags)
            self._views[name] = _IndexSet(self.capacity)
            for slot in self._views[of].members():
                self._place(int(slot))

    @property
    def counts(self) -> Counts:
        """Running totals; they only grow, also when the ring wraps around."""
        return self._counts

    def size(self, view: View = "all") -> int:
        """Number of transitions that `sample` can return; 0 until `frames` are ready."""
        members = self._view(view)
        return 0 if self._frames is not None and self._frames.missing else len(members)

    def slots(self, view: View) -> Array:
        """(size,) int64 slots of a view, in no particular order."""
        with self._lock:
            return self._view(view).members()

    def add(self, step: Step) -> int:
        """Store a step and return its slot (see `Batch.slot`).

        Its transition can be sampled when its next observation has arrived.

        A step that does not follow the stream's previous one (a gap in `seq` or `step`, another
        episode, another session of the same actor) leaves that one without a next observation:
        it is dropped, as is a truncated step without `final_observation`.

        Raises:
            StoreError: shapes do not fit or values are not finite; nothing is stored.
        """
        row, final = self._validated(step)
        now, last = self._encode(step, final is not None)  # the slow part is outside the lock
        with self._lock:
            self._revision += 1
            previous = self._take_predecessor(step)
            slot = self._allocate(now)
            self._write(slot, step, row)
            if previous is None:
                episode_id = self._episodes
                self._episodes += 1
            else:
                episode_id = previous.episode_id
                if previous.slot == slot:  # the ring is full of other streams' steps
                    self._drop()
                else:
                    self._complete(previous.slot, slot)
            self._columns["episode"][slot] = episode_id
            self.trajectories.append(episode_id, step.step, slot)
            self._count(step)
            before = self._penalise(step, slot, previous.before if previous else ())
            if step.terminated or step.truncated:
                self._finish(slot, step, final, last)
            else:
                serial = int(self._serial[slot])
                self._open[step.stream] = _Open(
                    slot, serial, step.seq, step.episode, step.step, episode_id, before
                )
            return slot

    def sample(
        self, n: int, view: View, rng: np.random.Generator, out: Batch | None = None
    ) -> Batch:
        """Draw n transitions uniformly, with replacement.

        Args:
            n: number of transitions.
            view: "all" (online steps, interventions included) or "demo" (demonstrations and
                interventions).
            rng: source of randomness.
            out: optional batch of n rows to fill.

        Raises:
            StoreError: the view is empty or `out` has another number of rows.
        """
        with self._lock:
            members = self._view(view)
            if not len(members):
                raise StoreError(f"view {view!r} is empty")
            batch = self._gather(members.sample(n, rng), out, rng)
            batch.reward += self._penalty[batch.slot]
            if self.relabel is not None:
                self.relabel(batch, rng)
            return batch

    def gather(
        self, slots: Array, out: Batch | None = None, rng: np.random.Generator | None = None
    ) -> Batch:
        """Transitions at given slots (from `slots` or `Batch.slot`), as they were recorded.

        Args:
            slots: (n,).
            out: optional batch of n rows to fill.
            rng: draws the augmentations of images; None: the first one of each.
        """
        with self._lock:
            complete = self._views["all"], self._views["demo"]
            for slot in slots:
                if not any(view._position[slot] >= 0 for view in complete):
                    raise StoreError(f"slot {slot} holds no complete transition")
            return self._gather(np.asarray(slots, np.int64), out, rng)

    def states(self, slots: Array) -> Array:
        """(n, vector_size) states in slots that `trajectories` names; under the lock."""
        return np.take(self._columns["state"], slots, axis=0)

    def episode(self, stream: str, episode: int) -> EpisodeLabels:
        """Labels of an episode's steps that are held; none if it is unknown or overwritten."""
        with self._lock:
            slots = self._slots_of(stream, episode)
            return EpisodeLabels(
                stream,
                episode,
                success=bool(self._success[slots].any()),
                step=self._columns["step"][slots],
                reward=self._columns["reward"][slots],
                terminated=self._columns["mask"][slots] == 0.0,
                truncated=self._columns["truncated"][slots],
                use=self._use[slots],
            )

    def revise(self, labels: EpisodeLabels) -> None:
        """Write labels over those of an episode; steps that are no longer held are left out.

        A step that no longer terminates is sampled only if its final observation is known.

        Raises:
            StoreError: a reward is not finite; nothing is changed.
        """
        if not np.isfinite(labels.reward).all():
            raise StoreError(f"episode {labels.episode} of {labels.stream}: reward is not finite")
        with self._lock:
            self._revision += 1
            slots = self._slots_of(labels.stream, labels.episode)
            at = {int(number): i for i, number in enumerate(labels.step)}
            for slot in slots:
                self._success[slot] = labels.success
                i = at.get(int(self._columns["step"][slot]))
                if i is not None:
                    self._columns["reward"][slot] = labels.reward[i]
                    self._columns["mask"][slot] = 0.0 if labels.terminated[i] else 1.0
                    self._columns["truncated"][slot] = labels.truncated[i]
                    self._use[slot] = labels.use[i]
                self._place(int(slot))

    def _slots_of(self, stream: str, episode: int) -> Array:
        """Slots of the steps of an episode, in order."""
        index = self._streams.get(stream)
        if index is None:
            return np.zeros(0, np.int64)
        slots = np.flatnonzero((self._stream == index) & (self._number == episode))
        return slots[np.argsort(self._serial[slots])]

    def _view(self, view: str) -> _IndexSet:
        if view not in self._views:
            raise StoreError(f"no view {view!r}, there are {list(self._views)}")
        return self._views[view]

    def _gather(self, slots: Array, out: Batch | None, rng: np.random.Generator | None) -> Batch:
        batch = self.batch(len(slots)) if out is None else out
        if len(batch) != len(slots):
            raise StoreError(f"batch has {len(batch)} rows, not {len(slots)}")
        for name, array in self._columns.items():
            np.take(array, slots, axis=0, out=getattr(batch, name), mode="clip")
        state, following = self._columns["state"], self._next[slots]
        np.take(state, following, axis=0, out=batch.next_state, mode="clip")
        batch.slot[:] = slots
        if self._frames is not None:
            if missing := self._frames.missing:
                raise StoreError(f"{missing} more steps before images can be sampled")
            self._frames.take(slots, rng, batch.frames, batch.shift)
            self._frames.take(following, rng, batch.next_frames, batch.next_shift)
        return batch

    def _encode(self, step: Step, final: bool) -> tuple[Encoded | None, Encoded | None]:
        """Frames of the observation and of the final observation that will be stored."""
        if self._frames is None:
            return None, None
        serial, last = self._allocated, None
        now = self._frames.encode(serial, self.spaces.stack_images(step.observation))
        if final and (step.terminated or step.truncated) and step.final_observation is not None:
            images = self.spaces.stack_images(step.final_observation)
            last = self._frames.encode(serial + 1, images)
        return now, last

    def _validated(self, step: Step) -> tuple[dict[str, Array], Array | None]:
        """Everything that can fail, before anything is changed."""
        spaces = self.spaces
        try:
            row = {
                "state": spaces.flatten(step.observation),
                "action": spaces.check_action(step.action),
            }
            observations = [step.observation]
            final = None
            if step.final_observation is not None:
                observations.append(step.final_observation)
                final = spaces.flatten(step.final_observation)
            for observation in observations:
                spaces.check_images(observation)
        except ValueError as error:
            raise StoreError(f"{_name(step)}: {error}") from error
        penalty = np.asarray(step.grasp_penalty, np.float32)
        if penalty.size == 0:
            penalty = np.zeros(spaces.grippers, np.float32)
        if penalty.shape != (spaces.grippers,):
            raise StoreError(
                f"{_name(step)}: grasp_penalty has shape {penalty.shape}, not ({spaces.grippers},)"
            )
        if not (np.isfinite(penalty).all() and np.isfinite(np.float32(step.reward))):
            raise StoreError(f"{_name(step)}: reward or grasp_penalty is not finite")
        row["grasp_penalty"] = penalty
        return row, final

    def _take_predecessor(self, step: Step) -> _Open | None:
        """Close the stream's open step; return it if `step` is its successor."""
        if step.stream not in self._streams:
            self._streams[step.stream] = len(self._streams)
            self._interrupt(step.stream)
        previous = self._open.pop(step.stream, None)
        if previous is None:
            return None
        follows = (
            previous.serial == self._serial[previous.slot]
            and step.seq == previous.seq + 1
            and step.episode == previous.episode
            and step.step == previous.step + 1
        )
        if not follows:
            self._drop()
            return None
        return previous

    def _interrupt(self, stream: str) -> None:
        """A new session of an actor: what its former sessions left open stays incomplete."""
        actor = stream.rpartition("/")[0]
        for other in [s for s in self._open if actor and s.rpartition("/")[0] == actor]:
            del self._open[other]
            self._drop()

    def _allocate(self, encoded: Encoded | None = None) -> int:
        slot = self._allocated % self.capacity
        for view in self._views.values():
            view.discard(slot)
        self.trajectories.release(slot)
        self._serial[slot] = self._allocated
        self._next[slot] = self._stream[slot] = -1
        self._success[slot] = False
        self._use[slot] = Use.DEFAULT
        self._penalty[slot] = 0.0
        self._allocated += 1
        if self._frames is not None and encoded is not None:
            self._frames.put(slot, encoded)
        return slot

    def _write(self, slot: int, step: Step, row: dict[str, Array]) -> None:
        values: dict[str, Any] = {
            **row,
            "reward": step.reward,
            "mask": 0.0 if step.terminated else 1.0,
            "truncated": step.truncated,
            "intervened": step.intervened,
            "demo": bool(step.flags & FLAG_DEMO),
            "step": step.step,
            "policy_version": step.policy_version,
        }
        for name, value in values.items():
            self._columns[name][slot] = value
        self._flags[slot] = step.flags
        self._stream[slot] = self._streams[step.stream]
        self._number[slot] = step.episode
        self._task[slot] = self._tasks.setdefault(step.task, len(self._tasks))

    def _finish(self, slot: int, step: Step, final: Array | None, encoded: Encoded | None) -> None:
        """Complete the last step of an episode."""
        if final is not None:
            following = self._allocate(encoded)
            self._columns["state"][following] = final
            self.trajectories.append(int(self._columns["episode"][slot]), step.step + 1, following)
            self._complete(slot, following)
        elif step.terminated:
            self._complete(slot, slot)  # never bootstrapped: any finite state will do
        else:
            self._drop()
        if step.success:
            slots = self._slots_of(step.stream, step.episode)
            self._success[slots] = True
            for each in slots:
                self._place(int(each))
        if step.flags & self._exclude_flags:
            return
        if step.flags & FLAG_DEMO:
            self._counts = replace(self._counts, demo_episodes=self._counts.demo_episodes + 1)
        else:
            self._counts = replace(self._counts, episodes=self._counts.episodes + 1)

    def _complete(self, slot: int, following: int) -> None:
        """The next observation of `slot` is in `following`: it can be sampled."""
        self._next[slot] = following
        self._place(slot)

    def _place(self, slot: int) -> None:
        """Put a step into the views that it belongs to now, and out of the others."""
        columns, flags, use = self._columns, int(self._flags[slot]), self._use[slot]
        following, demo = self._next[slot], bool(columns["demo"][slot])
        known = following >= 0 and (following != slot or columns["mask"][slot] == 0.0)
        usable = known and use != Use.DROP and not flags & self._exclude_flags
        usable = usable and self._seen(slot) and self._seen(int(following))
        if demo:
            shown = self._success[slot] or not self._successful_demos
        else:
            shown = columns["intervened"][slot]
        chosen = (shown or use == Use.KEEP) and not flags & self._demo_exclude_flags
        wanted = {"all": usable and not demo, "demo": usable and chosen}
        for view, rule in self._rules.items():
            member = wanted[rule.of] and (not rule.flags or bool(flags & rule.flags))
            if rule.task:
                member = member and self._task[slot] == self._tasks.get(rule.task, -1)
            (self._views[view].add if member else self._views[view].discard)(slot)

    def _seen(self, slot: int) -> bool:
        """The frames of a slot are those of the step in it (a log that is read may lack some)."""
        return self._frames is None or self._frames.holds(slot, int(self._serial[slot]))

    def _count(self, step: Step) -> None:
        c = self._counts
        if step.flags & self._exclude_flags:
            self._counts = replace(c, excluded=c.excluded + 1)
        elif step.flags & FLAG_DEMO:
            self._counts = replace(c, demo=c.demo + 1)
        else:
            touched = c.intervened + bool(step.intervened)
            self._counts = replace(c, online=c.online + 1, intervened=touched)

    def _penalise(
        self, step: Step, slot: int, before: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[int, int], ...]:
        """Give the policy's steps before a takeover their penalty; return those up to now."""
        horizon = self._takeover_penalty.horizon
        if step.flags & FLAG_DEMO or not horizon:
            return ()
        if not step.intervened:  # also one that the takeover cut short
            before = (*before, (slot, int(self._serial[slot])))[-horizon:]
        if step.flags & FLAG_TAKEOVER:
            for each, serial in before:
                if self._serial[each] == serial:
                    self._penalty[each] = self._takeover_penalty.value
        return () if step.intervened or step.flags & FLAG_TAKEOVER else before

    def _drop(self) -> None:
        self._counts = replace(self._counts, dropped=self._counts.dropped + 1)


def _name(step: Step) -> str:
    return f"step {step.stream} seq {step.seq}"
