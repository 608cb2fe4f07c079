"""Takes an actor through demonstrations, training and evaluation, and shows how it goes.

A process beside the graph of `hil demo`. It only asks: everything that acts, learns or judges is
in the nodes of the graph.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import rclpy
from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.action import ActionClient
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from hil_bringup.demo_result import Episode, Evaluation
from hil_common import qos
from hil_interfaces.action import RunEpisodes
from hil_interfaces.msg import ActorState, EpisodeSummary, LearnerStatus

_EVALUATION_SEED = 1_000_000
"""Added to the seed: evaluation episodes differ from those that were trained on."""
_LINE_PERIOD = 10.0
"""Seconds between two progress lines where there is no terminal."""
_ANSWER_LIMIT = 15.0
"""Seconds without an answer to a request after which it is made again. Discovery is not symmetric:
a request can reach a server that does not yet know the client, and the answer is then lost."""
_LOST_LIMIT = 5.0
"""Seconds without the actor's action server after which the request is made again."""


class DemoError(RuntimeError):
    """The demo cannot go on; the text says why."""


@dataclass
class Phase:
    """One request to the actor; it takes several goals if the actor's process is replaced."""

    mode: str
    seed: int
    episodes: int = 0
    """Episodes asked for; for demonstrations, successful ones."""
    steps: int = 0
    """Steps asked for; 0: no limit."""
    done_episodes: int = 0
    done_successes: int = 0
    done_steps: int = 0

    @property
    def goal(self) -> RunEpisodes.Goal:
        """What is left to be asked for."""
        demo = self.mode == RunEpisodes.Goal.DEMO
        done = self.done_successes if demo else self.done_episodes
        return RunEpisodes.Goal(
            mode=self.mode,
            episodes=max(0, self.episodes - done),
            count_successes=demo,
            seed=self.seed + self.done_episodes,
            max_steps=max(0, self.steps - self.done_steps),
        )

    @property
    def finished(self) -> bool:
        """All that was asked for is done."""
        goal = self.goal
        by_episodes = self.episodes > 0 and goal.episodes == 0
        by_steps = self.steps > 0 and goal.max_steps == 0
        return by_episodes or by_steps


@dataclass
class Seen:
    """Newest of what the graph says."""

    ready: bool = False
    status: str = "waiting for hil_manager"
    actor: ActorState | None = None
    actor_policy: int = 0
    """Version that the actor acts with."""
    learner: LearnerStatus | None = None
    training: list[Episode] = field(default_factory=list)
    recent: list[bool] = field(default_factory=list)
    """Success of the last training episodes that nobody intervened in."""


class Driver(Node):
    """Client of the actor and listener of the graph."""

    def __init__(self, options: argparse.Namespace, executor: SingleThreadedExecutor) -> None:
        super().__init__("demo")
        self._options = options
        self._executor = executor
        self.seen = Seen()
        self._client = ActionClient(self, RunEpisodes, "actor/run_episodes")
        self._save = self.create_client(Trigger, "learner/save")
        seen = self.seen
        self.create_subscription(
            Bool, "hil_manager/ready", lambda m: setattr(seen, "ready", m.data), qos.LATCHED
        )
        self.create_subscription(
            String, "hil_manager/status", lambda m: setattr(seen, "status", m.data), qos.LATCHED
        )
        self.create_subscription(
            ActorState, "actor/state", lambda m: setattr(seen, "actor", m), qos.LATCHED
        )
        self.create_subscription(
            LearnerStatus, "learner/status", lambda m: setattr(seen, "learner", m), qos.LATCHED
        )
        self.create_subscription(EpisodeSummary, "episode", self._on_episode, qos.EVENT)
        self.create_subscription(
            DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.DIAGNOSTICS
        )
        executor.add_node(self)

    def _on_episode(self, message: EpisodeSummary) -> None:
        if message.mode != RunEpisodes.Goal.TRAIN or message.steps == 0:
            return
        self.seen.training.append(Episode(message.steps, message.intervened_steps))
        if message.intervened_steps == 0:
            self.seen.recent = [*self.seen.recent[-19:], message.success]

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        """An actor that rests between two requests shows its policy only here."""
        for status in message.status:
            if status.name == "/actor":
                values = {each.key: each.value for each in status.values}
                self.seen.actor_policy = int(values.get("policy_version", 0))

    def run(self, view: View) -> Evaluation:
        """Everything from start to evaluation."""
        options, begun = self._options, time.monotonic()
        view.phase("starting", None)
        self._until(lambda: self.seen.ready, view, lambda: self.seen.status)

        goal = RunEpisodes.Goal
        demos = Phase(goal.DEMO, options.seed, episodes=options.demos)
        view.phase("demonstrations", options.demos)
        self._carry_out(demos, view, lambda: demos.done_successes)

        train = Phase(goal.TRAIN, options.seed, steps=options.steps)
        view.phase("training", options.steps)
        training_begun = time.monotonic()
        self._carry_out(train, view, lambda: train.done_steps)
        self._settle(view)
        train_s = time.monotonic() - training_begun

        seed = options.seed + _EVALUATION_SEED
        evaluate = Phase(goal.EVALUATE, seed, episodes=options.eval_episodes)
        view.phase("evaluation", options.eval_episodes)
        self._carry_out(evaluate, view, lambda: evaluate.done_episodes)
        return Evaluation(
            task=options.task,
            seed=options.seed,
            successes=evaluate.done_successes,
            eval_episodes=evaluate.done_episodes,
            env_steps=train.done_steps,
            demos=demos.done_successes,
            episodes=self.seen.training,
            train_s=train_s,
            wall_s=time.monotonic() - begun,
        )

    def _carry_out(self, phase: Phase, view: View, done: Callable[[], int]) -> None:
        """Have the actor do a phase; a replaced actor is asked for what is left."""
        while not phase.finished:
            self._until(self._client.server_is_ready, view, lambda: "waiting for the actor")
            before = (phase.done_episodes, phase.done_successes, phase.done_steps)

            def note(message: RunEpisodes.Feedback | RunEpisodes.Result) -> None:
                phase.done_episodes = before[0] + message.episodes  # noqa: B023
                phase.done_successes = before[1] + message.successes  # noqa: B023
                phase.done_steps = before[2] + message.steps  # noqa: B023

            sent = self._client.send_goal_async(
                phase.goal,
                feedback_callback=lambda m: note(m.feedback),
            )
            if not self._answer(sent, view, done, _ANSWER_LIMIT):
                continue
            handle = sent.result()
            if not handle.accepted:
                raise DemoError(f"the actor refuses to {phase.mode}: {self.seen.status}")
            result = handle.get_result_async()
            if not self._answer(result, view, done):
                view.say("the actor was replaced; asking the new one for what is left")
                continue
            note(result.result().result)
            if result.result().status != GoalStatus.STATUS_SUCCEEDED:
                raise DemoError(f"{phase.mode} stopped: {result.result().result.reason}")
            view.update(done(), self._figures())
            if not phase.finished:
                reason = result.result().result.reason or "no reason given"
                raise DemoError(f"{phase.mode} ended early: {reason}")

    def _answer(
        self, future: Future, view: View, done: Callable[[], int], limit: float = math.inf
    ) -> bool:
        """Wait for an answer of the actor; False when its action server has vanished.

        False also when nothing has come after `limit` seconds.
        """
        session = self.seen.actor.session if self.seen.actor else ""
        begun = last_there = time.monotonic()
        while not future.done():
            if time.monotonic() - begun > limit:
                return False
            self._executor.spin_once(timeout_sec=0.2)
            view.update(done(), self._figures())
            now = time.monotonic()
            if self._client.server_is_ready():
                last_there = now
            replaced = bool(session and self.seen.actor and self.seen.actor.session != session)
            if replaced or now - last_there > _LOST_LIMIT:
                return False
        return True

    def _settle(self, view: View) -> None:
        """Let the learner finish what is due, save, and let the actor get the last policy."""
        self._until(
            lambda: self.seen.learner is not None and self.seen.learner.phase != "training",
            view,
            lambda: "the learner finishes its updates",
        )
        self._until(self._save.service_is_ready, view, lambda: "waiting for the learner")
        saved = self._save.call_async(Trigger.Request())
        self._until(saved.done, view, lambda: "saving")
        if not saved.result().success:
            raise DemoError(f"the learner cannot save: {saved.result().message}")
        self._until(self._policy_current, view, lambda: "the actor gets the last policy")

    def _policy_current(self) -> bool:
        learner = self.seen.learner
        return learner is not None and self.seen.actor_policy >= learner.policy_version

    def _until(self, condition: Callable[[], bool], view: View, what: Callable[[], str]) -> None:
        while not condition():
            self._executor.spin_once(timeout_sec=0.2)
            view.update(None, what())

    def _figures(self) -> str:
        """How training goes, in words."""
        parts = []
        learner, actor, recent = self.seen.learner, self.seen.actor, self.seen.recent
        if actor and actor.phase != "running" and actor.text:
            parts.append(f"actor: {actor.text}")
        if learner and learner.updates:
            parts.append(f"{learner.updates} updates")
            if learner.success_rate == learner.success_rate:  # not NaN
                parts.append(f"success {learner.success_rate:.0%}")
        if recent:
            parts.append(f"alone {sum(recent) / len(recent):.0%}")
        if learner and learner.intervention_rate == learner.intervention_rate and learner.updates:
            parts.append(f"intervened {learner.intervention_rate:.0%}")
        if learner and learner.policy_version:
            parts.append(f"policy {self.seen.actor_policy} of {learner.policy_version}")
        return ", ".join(parts)


class View:
    """Progress of the phases: bars on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description:<15}"),
            BarColumn(30),
            TextColumn("{task.completed:>6.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._name, self._total, self._shown = "", 0, 0.0

    def __enter__(self) -> View:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def phase(self, name: str, total: int | None) -> None:
        """Begin a phase with so many items."""
        if self._task is not None:
            self._bars.update(self._task, text="")
            self._bars.stop_task(self._task)
        self._name, self._total, self._shown = name, total or 1, 0.0
        self._task = self._bars.add_task(name, total=self._total, text="")

    def update(self, done: int | None, text: str) -> None:
        """Show how far the phase is."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, text=text)
        if not self._console.is_terminal and time.monotonic() - self._shown > _LINE_PERIOD:
            self._shown = time.monotonic()
            count = "" if done is None else f" {done}/{self._total}"
            self.say(f"{self._name}{count}  {text}")

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._console.print(text, highlight=False, soft_wrap=True)


def main() -> int:
    """Entry point; writes the result to the file that the first argument names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path)
    parser.add_argument("--task", required=True)
    for name in ("--seed", "--demos", "--steps", "--eval-episodes"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    rclpy.init(signal_handler_options=SignalHandlerOptions.ALL)
    try:
        with View() as view:
            evaluation = Driver(options, SingleThreadedExecutor()).run(view)
    except DemoError as error:
        print(f"hil demo: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, ExternalShutdownException):
        return 130
    finally:
        rclpy.try_shutdown()
    temporary = options.result.with_suffix(".tmp")
    temporary.write_text(json.dumps(evaluation.line()) + "\n")
    os.replace(temporary, options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
