"""Random histories of steps, and a naive model of what a store has to make of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from hil_rl.spaces import Spaces
from hil_rl.store import (
    FLAG_DEMO,
    FLAG_EVALUATION,
    FLAG_HELD,
    FLAG_TAKEOVER,
    FLAG_TELEOP_LOST,
    Counts,
    Step,
)

SPACES = Spaces(
    {"position": ((2,), "float32"), "contact": ((), "bool"), "wrench": ((2, 1), "float64")},
    action_dim=6,
    grippers=1,
)


def observation(value: float) -> dict[str, np.ndarray]:
    return {
        "wrench": np.full((2, 1), value + 0.5),
        "position": np.array([value, -value], np.float32),
        "contact": np.array(int(value) % 2 == 0),
        "camera": np.zeros(3, np.uint8),
    }


def state(value: float) -> list[float]:
    return [value, -value, float(int(value) % 2 == 0), value + 0.5, value + 0.5]


def make_step(value: int, stream: str = "arm/a", seq: int = 1, **fields: object) -> Step:
    """A step whose every field follows from `value`."""
    values: dict[str, object] = {
        "episode": 0,
        "step": seq - 1,
        "policy_version": value % 7,
        "observation": observation(value),
        "action": np.append(np.linspace(-1, 1, 6) * (value % 10) / 10.0, value % 3 - 1.0),
        "reward": value / 4.0,
        "grasp_penalty": np.array([-(value % 5) / 8.0]),
    }
    return Step(stream=stream, seq=seq, **(values | fields))  # type: ignore[arg-type]


class Model:
    """Keeps every step for ever and works out the transitions from the definition."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots = 0
        self.history: list[tuple[int, Step]] = []
        self.closed: set[int] = set()  # indices in history that a new session interrupted

    def add(self, step: Step) -> None:
        if all(s.stream != step.stream for _, s in self.history):
            actor = step.stream.split("/")[0]
            for i, (_, other) in enumerate(self.history):
                if other.stream.split("/")[0] == actor:
                    self.closed.add(i)
        self.history.append((self.slots, step))
        self.slots += 1
        if step.final_observation is not None and (step.terminated or step.truncated):
            self.slots += 1

    def next_state(self, i: int) -> list[float] | None:
        _, step = self.history[i]
        if step.terminated or step.truncated:
            if step.final_observation is not None:
                return state(float(step.final_observation["position"][0]))
            return state(float(step.observation["position"][0])) if step.terminated else None
        for j in range(i + 1, len(self.history)):
            following = self.history[j][1]
            if following.stream != step.stream:
                continue
            good = (
                following.seq == step.seq + 1
                and following.episode == step.episode
                and following.step == step.step + 1
                and not (i in self.closed and self.interrupted_between(i, j))
            )
            return state(float(following.observation["position"][0])) if good else None
        return None

    def interrupted_between(self, i: int, j: int) -> bool:
        actor = self.history[i][1].stream.split("/")[0]
        seen = {s.stream for _, s in self.history[: i + 1]}
        between = {s.stream for _, s in self.history[i + 1 : j]} - seen
        return any(name.split("/")[0] == actor for name in between)

    def transitions(self, view: str) -> dict[float, tuple[Step, list[float]]]:
        result = {}
        for i, (slot, step) in enumerate(self.history):
            following = self.next_state(i)
            if slot < self.slots - self.capacity or following is None:
                continue
            if step.flags & FLAG_EVALUATION:
                continue
            demo = bool(step.flags & FLAG_DEMO)
            succeeded = any(
                s.success and (s.stream, s.episode) == (step.stream, step.episode)
                for _, s in self.history
            )
            held = step.flags & (FLAG_TAKEOVER | FLAG_HELD | FLAG_TELEOP_LOST)
            chosen = not demo if view == "all" else (succeeded if demo else step.intervened)
            chosen = chosen and (view == "all" or not held)
            if chosen:
                result[float(step.observation["position"][0])] = step, following
        return result

    def counts(self) -> Counts:
        steps = [step for _, step in self.history]
        trained = [s for s in steps if not s.flags & FLAG_EVALUATION]
        online = [s for s in trained if not s.flags & FLAG_DEMO]
        demo = [s for s in trained if s.flags & FLAG_DEMO]
        return Counts(
            online=len(online),
            intervened=sum(s.intervened for s in online),
            demo=len(demo),
            excluded=len(steps) - len(trained),
            episodes=sum(s.terminated or s.truncated for s in online),
            demo_episodes=sum(s.terminated or s.truncated for s in demo),
        )


CAPACITY = st.sampled_from([2, 3, 4, 7, 13, 40])
SKIPS = ["lost", "seq", "number", "episode", "abandon"]
ENDS = ["terminate", "truncate", "cut", "bare"]
EVENT = st.tuples(
    st.sampled_from(["arm/a", "arm/b", "left/a", "right/a"]),
    st.sampled_from(["step"] * 8 + SKIPS + ENDS),
    st.booleans(),
    st.sampled_from([0] * 5 + [FLAG_DEMO, FLAG_EVALUATION, FLAG_TAKEOVER, FLAG_HELD | FLAG_DEMO]),
)


def history(events: list[tuple[str, str, bool, int]]) -> list[Step]:
    """Steps as several actors would send them, with gaps, interruptions and all kinds of ends."""
    steps = []
    where: dict[str, tuple[int, int, int]] = {}  # stream -> last seq, episode, step
    for value, (stream, kind, intervened, flags) in enumerate(events, 1):
        seq, episode, number = where.get(stream, (0, 0, -1))
        seq, number = seq + 1, number + 1
        seq += kind in ("lost", "seq")
        number += kind in ("lost", "number")
        episode += kind in ("episode", "abandon")
        number = 0 if kind == "abandon" else number
        step = make_step(
            value, stream, seq, episode=episode, step=number, intervened=intervened, flags=flags
        )
        if kind in ENDS:
            step.terminated = kind in ("terminate", "bare")
            step.truncated = kind in ("truncate", "cut")
            step.success = step.terminated
            if kind in ("terminate", "truncate"):
                step.final_observation = observation(value + 1000)
            episode, number = episode + 1, -1
        where[stream] = seq, episode, number
        steps.append(step)
    return steps
