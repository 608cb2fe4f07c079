"""Demonstrations, training and evaluation through the whole graph, step by step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from system import Domain, Graph, Watch

from hil_common import qos
from hil_interfaces.msg import ActorState, ArmInput, OperatorCommand, Step

LEARNER = """
learner:
  ros__parameters:
    agent: ["hidden=[32, 32]", "state_encoder=16"]
    batch_size: 32
    utd: 0.5
    training_starts: 20
    throttle_steps: 10
    publish_period_updates: 10
    tensorboard: false
"""
UTD, STARTS = 0.5, 20


@dataclass
class Run:
    """A running graph, and how many of its steps were looked at."""

    graph: Graph
    watch: Watch
    looked_at: int = 0

    def new_steps(self, number: int) -> list[Step]:
        """The next steps, once there are so many; no more come."""
        end = self.looked_at + number
        self.graph.wait_for(lambda: len(self.watch.steps) >= end, f"{number} steps")
        steps = self.watch.steps[self.looked_at :]
        self.looked_at = len(self.watch.steps)
        assert len(steps) == number
        return steps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """`hil up sim`, ready."""
    folder = tmp_path_factory.mktemp("episodes")
    settings = write(folder / "learner.yaml", LEARNER)
    task = write(folder / "task.yaml", "task: reach\nmax_episode_steps: 25\n")
    given = {"task_file": task, "learner_file": settings}
    with (
        Domain() as domain,
        Watch(domain.number) as watch,
        Graph(domain, folder, **given) as graph,
    ):
        graph.up()
        graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active")
        yield Run(graph, watch)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def follows_policy(steps: list[Step]) -> bool:
    """What was executed is what the policy proposed, apart from what the leash has cut."""
    executed = np.array([step.action for step in steps])
    proposed = np.array([step.policy_action for step in steps])
    assert len(steps) and np.abs(proposed).max() > 0.1
    return float(np.isclose(executed, proposed, atol=1e-4).mean()) > 0.5


def tensors(step: Step) -> list[str]:
    return [tensor.name for tensor in step.observation]


def test_demonstrations(run: Run) -> None:
    result = run.watch.episodes_of(run.graph, "demo", episodes=2, count_successes=True, seed=5)
    assert result.successes == 2
    steps = run.new_steps(result.steps)
    for step in steps:
        assert step.flags & Step.FLAG_DEMO and not step.flags & Step.FLAG_TAKEOVER
        assert list(step.intervened) == [True]
        assert step.policy_version == 0 and len(step.policy_action) == 0
        assert tensors(step) == ["achieved", "desired", "rotation", "twist"]
    assert any(np.abs(step.action).max() > 0.1 for step in steps)
    last = [step for step in steps if step.terminated or step.truncated]
    assert sum(step.success for step in last) == 2
    for step in steps:
        assert bool(step.final_observation) == (step.terminated or step.truncated)
    learner = run.watch
    run.graph.wait_for(lambda: learner.learner.demo_steps == result.steps, "the learner's count")
    assert learner.learner.env_steps == learner.learner.updates == 0
    assert learner.learner.demo_episodes == result.episodes


def test_training(run: Run) -> None:
    """Steps are taken in, policies come back and act, and the operator's steps are flagged."""
    graph, watch = run.graph, run.watch
    result = watch.episodes_of(graph, "train", max_steps=120, seed=6)
    assert result.steps == 120
    steps = run.new_steps(120)

    versions = [step.policy_version for step in steps]
    assert versions == sorted(versions)
    assert versions[0] == 0 and versions[-1] >= 2, "policies are applied while training goes on"
    driven = [step for step in steps if step.intervened[0]]
    assert 0 < len(driven) < len(steps)
    assert len(driven) == result.intervened_steps
    for step in steps:
        assert not step.flags & (Step.FLAG_DEMO | Step.FLAG_EVALUATION)
        assert len(step.policy_action) == len(step.action) == 6
    for step in driven:
        assert not np.allclose(step.action, step.policy_action)
    assert follows_policy([step for step in steps if not step.intervened[0] and not step.flags])

    begins = [
        step
        for before, step in zip([None, *steps], steps, strict=False)
        if step.intervened[0]
        and (before is None or before.episode != step.episode or not before.intervened[0])
    ]
    assert all(step.flags & Step.FLAG_TAKEOVER for step in begins)
    graph.wait_for(
        lambda: sum(e.steps for e in watch.episodes if e.mode == "train") == 120, "summaries"
    )
    summaries = [e for e in watch.episodes if e.mode == "train"]
    assert sum(e.intervened_steps for e in summaries) == len(driven)
    assert sum(e.interventions for e in summaries) == len(begins)

    def settled() -> bool:
        newest = watch.learner
        return newest.env_steps == 120 and newest.updates == int(UTD * (120 - STARTS + 1))

    graph.wait_for(settled, "the learner to do the updates that are due, and no more")
    assert watch.learner.intervened_steps == len(driven)
    graph.wait_for(
        lambda: watch.values["/actor"]["policy_version"] == str(watch.learner.policy_version),
        "the newest policy to be applied",
    )
    assert watch.learner.policy_version >= 5


class Intruder:
    """Pushes with all might, in answer to every step of an evaluation."""

    def __init__(self, watch: Watch) -> None:
        self.seq = 0
        self._publisher = watch.node.create_publisher(
            OperatorCommand, "operator_command", qos.OPERATOR
        )
        watch.node.create_subscription(ActorState, "actor/state", self._push, qos.LATCHED)

    def _push(self, state: ActorState) -> None:
        if state.mode == "evaluate":
            self.send(state, engaged=True)

    def send(self, state: ActorState, engaged: bool) -> None:
        """Publish one command."""
        self.seq += 1
        command = OperatorCommand(source="joy", session="intruder", seq=self.seq)
        command.header.frame_id = "base"
        command.observation_stamp = state.header.stamp
        command.arms = [ArmInput(engaged=engaged, twist=[1.0] * 6)]
        self._publisher.publish(command)


def test_evaluation_locks_the_operator_out(run: Run) -> None:
    graph, watch = run.graph, run.watch
    before = watch.learner
    intruder = Intruder(watch)
    graph.wait_for(
        lambda: watch.node.count_subscribers("operator_command") >= 2, "bridge and actor to listen"
    )
    states = len(watch.actor_states)
    result = watch.episodes_of(graph, "evaluate", episodes=2, seed=7)
    steps = run.new_steps(result.steps)
    assert intruder.seq > 2
    assert result.episodes == 2 and result.intervened_steps == 0
    for step in steps:
        assert step.flags & Step.FLAG_EVALUATION
        assert not step.flags & Step.FLAG_TAKEOVER
        assert list(step.intervened) == [False]
        assert step.policy_version == before.policy_version
    assert follows_policy([step for step in steps if step.flags == Step.FLAG_EVALUATION])
    told = [state for state in watch.actor_states[states:] if state.mode == "evaluate"]
    running = [state for state in told if state.phase == "running"]
    assert running and not any(state.operator_allowed for state in running)
    intruder.send(watch.actor, engaged=False)


def test_every_step_is_stored_exactly_once(run: Run) -> None:
    """What the learner has counted is what was seen on `step`, in all modes so far."""
    graph, watch = run.graph, run.watch
    more = watch.episodes_of(graph, "train", episodes=1, seed=8)
    run.new_steps(more.steps)
    steps = watch.steps
    assert [step.seq for step in steps] == list(range(1, len(steps) + 1))
    assert len({(step.session, step.run_id) for step in steps}) == 1
    demo = sum(bool(step.flags & Step.FLAG_DEMO) for step in steps)
    evaluation = sum(bool(step.flags & Step.FLAG_EVALUATION) for step in steps)
    assert demo and evaluation
    trained = len(steps) - demo - evaluation
    graph.wait_for(lambda: watch.learner.env_steps >= trained, "the learner's count")
    graph.wait_for(
        lambda: (
            (watch.values["/actor"]["steps"], watch.values["/actor"]["steps_pending"])
            == (str(len(steps)), "0")
        ),
        "all steps to be acknowledged",
    )
    assert (watch.learner.env_steps, watch.learner.demo_steps) == (trained, demo)
    assert watch.values["/learner"]["refused"] == "0"
    assert watch.learner.intervened_steps == sum(
        step.intervened[0] for step in steps if not step.flags & Step.FLAG_DEMO
    )
