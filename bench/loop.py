"""How well the real-time loop keeps its time while the learner trains on the same cores.

Real-time pace, two cameras, the scripted expert as operator, the learner with its shipped
settings. The figures begin when training has begun. First at 10 Hz:

- `loop.late_10hz_pct`: steps that ended more than 10 ms after their period.
- `loop.takeover_hold_p99_ms`: from the operator's engaging command to the bridge's state that says
  it holds (both at the moment of publication).
- `loop.policy_update_p50_ms`: from sending a policy of 5 MB until the actor has it in force, which
  is at the start of its next step; `..._first_step_...`: until that start.
- `loop.step_to_batch_p50_s`: from the end of an intervened step until a training batch has it.

Then at 20 Hz: `loop.late_20hz_pct`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import _graph
import numpy as np
from _figures import (
    NANOSECONDS,
    Engagement,
    Report,
    StepMark,
    batch_delays,
    hold_delays,
    next_after,
    percentile,
    share,
    step_intervals,
    takeover_edges,
)
from rclpy.serialization import deserialize_message

import hil_tasks
from hil_actor.actor_node import policy_spaces
from hil_common import qos
from hil_interfaces.action import RunEpisodes
from hil_interfaces.msg import ActorState, LearnerStatus, OperatorCommand, RobotState
from hil_interfaces.msg import Step as StepMessage
from hil_learner.links import ActionLink
from hil_learner.publisher import Outcome
from hil_learner.publisher import Policy as SentPolicy
from hil_rl.config import SACConfig
from hil_rl.policy import ActorArchitecture, Policy

CAMERAS = ["wrist", "side"]
# Half the motion in half the period: the arm does at 20 Hz what it does at 10 Hz.
AT_20_HZ = {
    "control_hz": 20.0,
    "max_episode_steps": 120,
    "action_scale": {"translation": 0.0025, "rotation": 0.0125},
}
# A person who takes over, and lets go, as often as it is useful to measure.
EAGER = {
    "attention": {
        "grace": 0.3, "patience": 0.5, "progress": 1.0, "reaction": 0.1, "finish": 0.0,
        "min_bout": 0.5, "max_bout": 0.8, "pause": 0.5,
    }
}  # fmt: skip
POLICY_BYTES = 5_000_000
POLICY_PERIOD = 3.0
"""Seconds between two policies."""
HOLD_LIMIT = 1.0
"""Seconds after which a hold does not belong to a takeover any more."""
LATE_AFTER = 0.01
"""Seconds after the end of its period from which on a step is late."""
TRAINING_STARTS = 100
"""Steps before the first update; the default of the learner."""
MARGIN = 20
"""Steps that are taken before the learner's first update is heard of."""
SETTLE = 10.0
"""Seconds before the end: steps that come later are not expected in a batch."""


def measure(report: Report, chosen: argparse.Namespace, rate: int, steps: int) -> None:
    """One graph at a control rate in Hz; the latencies are measured at 10 Hz only."""
    task = {"task": chosen.task, "control_hz": 10.0, **(AT_20_HZ if rate == 20 else {})}
    setting = _graph.Setting(
        task={**task, "cameras": CAMERAS},
        parameters={
            "learner": {"progress": "none", "training_starts": TRAINING_STARTS},
            "actor": {"late_tolerance_s": LATE_AFTER},
            "scripted_expert": {"expert_file": "expert.yaml"},
        },
        files={"expert.yaml": EAGER},
        arguments={"pace": "realtime", "operator": "scripted_expert"},
    )
    _graph.say(f"{rate} Hz: {steps} steps, {steps / rate:.0f} s")
    with _graph.folder(chosen.keep, f"loop-{rate}hz") as where:
        with _graph.running(setting, chosen.seed, where) as client:
            ears = Ears(client)
            policies = Policies(client, ears) if rate == 10 else None

            def turn() -> None:
                if ears.training_since and policies is not None:
                    policies.keep_going()

            goal = RunEpisodes.Goal(
                mode=RunEpisodes.Goal.TRAIN,
                seed=chosen.seed,
                max_steps=TRAINING_STARTS + MARGIN + steps,
            )
            client.run(goal, turn)
            if ears.usage is None:
                raise _graph.BenchError(f"no training:\n{client.graph.last_words()}")
            used, updates = client.graph.usage().since(ears.usage), ears.updates
            marks = [m for m in client.marks() if m.published >= ears.training_since]
        batches = first_batches(client.graph.run_folder / "metrics.jsonl")
    timing(report, f"{rate}hz", marks)
    report.add(f"loop.updates_per_s_{rate}hz", updates / used.at, "1/s", updates)
    if policies is not None:
        takeover(report, ears)
        policy_update(report, policies, ears)
        step_to_batch(report, marks, batches)
    _graph.report_load(report, f"loop.{rate}hz", used, len(marks))


def timing(report: Report, kind: str, marks: Sequence[StepMark]) -> None:
    """Lateness, and what was not done because something was too old or too late."""
    late = sum(bool(m.flags & StepMessage.FLAG_LATE) for m in marks)
    report.add(f"loop.late_{kind}_pct", share(late, len(marks)), "%", len(marks))
    for name, flag in (
        ("stale", StepMessage.FLAG_STALE_OBSERVATION),
        ("teleop_lost", StepMessage.FLAG_TELEOP_LOST),
    ):
        held = sum(bool(m.flags & flag) for m in marks)
        report.add(f"loop.{name}_{kind}_pct", share(held, len(marks)), "%", len(marks))
    intervals = step_intervals(marks)
    if intervals:
        report.add(f"loop.interval_mean_{kind}_ms", 1e3 * fmean(intervals), "ms", len(intervals))
        longest = 1e3 * percentile(intervals, 99.0)
        report.add(f"loop.interval_p99_{kind}_ms", longest, "ms", len(intervals))


@dataclass
class Ears:
    """Listens to what the figures need, without looking at it while the loop runs.

    Attributes:
        training_since: when the first update was reported, ns; 0: not yet.
        usage: processor time at that moment.
        updates: of the learner since then.
        policy_version: newest version that the learner has published.
    """

    client: _graph.Client
    training_since: int = 0
    usage: _graph.Usage | None = None
    updates: int = 0
    policy_version: int = 0
    _first_updates: int = 0
    _commands: list[tuple[bytes, int]] = field(default_factory=list)
    _states: list[tuple[bytes, int]] = field(default_factory=list)
    _actor: list[tuple[bytes, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for kind, topic, into, profile in (
            (OperatorCommand, "operator_command", self._commands, qos.OPERATOR),
            (RobotState, "robot_state", self._states, qos.STATE),
            (ActorState, "actor/state", self._actor, qos.LATCHED),
        ):
            self.client.listen(kind, topic, _appender(into), profile)
        self.client.listen(LearnerStatus, "learner/status", self._on_status, qos.LATCHED)

    def _on_status(self, data: bytes, published: int) -> None:
        status = deserialize_message(data, LearnerStatus)
        self.policy_version = status.policy_version
        if status.updates and not self.training_since:
            self.training_since, self._first_updates = published, status.updates
            self.usage = self.client.graph.usage()
        self.updates = status.updates - self._first_updates

    def engagements(self) -> list[Engagement]:
        """Operator commands since training began."""
        return [
            Engagement(sent, message.session, any(arm.engaged for arm in message.arms))
            for message, sent in self._since_training(self._commands, OperatorCommand)
        ]

    def holds(self) -> list[tuple[int, bool]]:
        """Bridge states since training began: when, and whether a takeover holds the arm."""
        return [
            (sent, message.operator_hold)
            for message, sent in self._since_training(self._states, RobotState)
        ]

    def step_starts(self) -> list[int]:
        """When the actor began its steps since training began, ns."""
        starts, seen = [], None
        for message, sent in self._since_training(self._actor, ActorState):
            step = (message.episode, message.step)
            if message.phase == "running" and step != seen:
                starts.append(sent)
                seen = step
        return starts

    def _since_training(self, heard: list[tuple[bytes, int]], kind: Any) -> list[tuple[Any, int]]:
        return [
            (deserialize_message(data, kind), sent)
            for data, sent in heard
            if sent >= self.training_since
        ]


def _appender(into: list[tuple[bytes, int]]) -> Callable[[bytes, int], None]:
    return lambda data, published: into.append((data, published))


class Policies:
    """Sends a large policy every few seconds, in the way in which the learner sends its own.

    It takes the version that the actor has, so that the learner's next one replaces it. Where the
    learner was faster, the actor refuses it: that one does not count.

    Attributes:
        accepted: (s from sending to acceptance, when that was in ns).
        refused: number of policies that the learner overtook.
        size: bytes of one policy.
    """

    def __init__(self, client: _graph.Client, ears: Ears) -> None:
        task = hil_tasks.load_file(client.graph.task_file)
        self._spaces, self._fingerprint = policy_spaces(task), task.spec.fingerprint()
        width = math.isqrt(POLICY_BYTES // 4)
        self._architecture = ActorArchitecture.from_config(
            self._spaces, SACConfig(hidden=(width, width))
        )
        rng = np.random.default_rng(0)
        self._parameters = {
            name: rng.uniform(-0.03, 0.03, shape).astype(np.float32)
            for name, shape in self._architecture.parameters().items()
        }
        self.accepted: list[tuple[float, int]] = []
        self.refused = 0
        self.size = 0
        self._ears = ears
        self._link = ActionLink(client.node, "actor/update_policy", lambda callback: callback)
        self._due, self._under_way = time.monotonic(), False

    def keep_going(self) -> None:
        """Send the next one if it is due and the last one has arrived."""
        if self._under_way or time.monotonic() < self._due or not self._link.ready():
            return
        policy = Policy.create(
            self._parameters,
            self._architecture,
            self._spaces,
            max(1, self._ears.policy_version),
            self._fingerprint,
        )
        message = SentPolicy(policy.version, self._fingerprint, policy.sha256, policy.data)
        self.size = len(policy.data)
        self._under_way = True
        began = time.monotonic()
        self._due = began + POLICY_PERIOD

        def done(outcome: Outcome) -> None:
            self._under_way = False
            if outcome.accepted:
                self.accepted.append((time.monotonic() - began, time.time_ns()))
            else:
                self.refused += 1

        self._link.send(message, done)


def takeover(report: Report, ears: Ears) -> None:
    """From the engaging command to the hold."""
    edges = takeover_edges(ears.engagements())
    delays = hold_delays(edges, ears.holds(), int(HOLD_LIMIT * NANOSECONDS))
    held = [1e3 * delay for delay in delays if delay is not None]
    for percent in (50, 99):
        value = percentile(held, percent)
        report.add(f"loop.takeover_hold_p{percent}_ms", value, "ms", len(held))
    report.add("loop.takeovers_without_hold", len(delays) - len(held), "takeovers", len(delays))


def policy_update(report: Report, policies: Policies, ears: Ears) -> None:
    """From sending a policy to having it in force, and to the first step with it."""
    starts = ears.step_starts()
    taken = [1e3 * seconds for seconds, _ in policies.accepted]
    first = [
        1e3 * seconds + (start - at) * 1e3 / NANOSECONDS
        for seconds, at in policies.accepted
        if (start := next_after(starts, at)) is not None
    ]
    report.add("loop.policy_update_p50_ms", percentile(taken, 50), "ms", len(taken))
    report.add("loop.policy_update_p90_ms", percentile(taken, 90), "ms", len(taken))
    report.add("loop.policy_update_first_step_p50_ms", percentile(first, 50), "ms", len(first))
    report.add("loop.policy_bytes", policies.size, "bytes", 1)


def step_to_batch(
    report: Report, marks: Sequence[StepMark], batches: Mapping[tuple[str, int], float]
) -> None:
    """From the end of an intervened step to its first batch."""
    until = marks[-1].published - int(SETTLE * NANOSECONDS)
    delays = batch_delays(marks, batches, until)
    never = sum(math.isinf(delay) for delay in delays)
    report.add("loop.step_to_batch_p50_s", percentile(delays, 50), "s", len(delays))
    report.add("loop.step_to_batch_p90_s", percentile(delays, 90), "s", len(delays))
    report.add("loop.step_to_batch_never_pct", share(never, len(delays)), "%", len(delays))


def first_batches(path: Path) -> Mapping[tuple[str, int], float]:
    """(session, seq) -> when a batch had the step first, s of the wall clock; see the metrics."""
    found: dict[tuple[str, int], float] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "first_batch":
            session = row["stream"].rpartition("/")[2]
            found.update({(session, s): at for s, at in zip(row["seq"], row["at"], strict=True)})
    return found


def run(chosen: argparse.Namespace, report: Report) -> None:
    """Measure both rates."""
    if chosen.steps:
        measure(report, chosen, 10, chosen.steps)
    if chosen.steps_20hz:
        measure(report, chosen, 20, chosen.steps_20hz)


if __name__ == "__main__":
    sys.exit(
        _graph.main(
            run,
            _graph.options(
                __doc__ or "",
                {
                    "steps": (3000, "at 10 Hz; 0: none"),
                    "steps-20hz": (1000, "at 20 Hz; 0: none"),
                },
            ),
        )
    )
