"""A node ends during training: it comes back, training goes on, and the arm holds."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from geometry_msgs.msg import Pose
from system import Domain, Graph, Watch

from hil_common.conversions import to_ns

SETTINGS = """
learner:
  ros__parameters:
    agent: ["hidden=[32, 32]", "state_encoder=16"]
    batch_size: 32
    utd: 0.25
    training_starts: 20
    throttle_steps: 10
    publish_period_updates: 10
    checkpoint_period: 20
    tensorboard: false
actor:
  ros__parameters:
    autostart_mode: train
hil_manager:
  ros__parameters:
    end_wedged_after_s: 15.0
"""


@dataclass
class Run:
    """A graph that trains by itself."""

    graph: Graph
    watch: Watch

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal, and wait until a new process does the node's work.

        Returns:
            How many robot states had come when the old process was gone.
        """
        graph, watch = self.graph, self.watch
        old = graph.pid(name)
        watch.ready = watch.ready and name != "hil_manager"
        os.kill(old, number)
        graph.wait_for(lambda: graph.pid(name) != old, f"{name} to end")
        states = len(watch.robot_states)
        graph.wait_for(lambda: graph.pid(name) not in (0, old), f"{name} to be started again")
        graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active again")
        return states

    def trains_on(self, steps: int = 30, updates: int = 5) -> None:
        """Wait until the learner has got so many more steps and done so many more updates."""
        before, version = self.watch.learner, self.watch.learner.policy_version
        self.graph.wait_for(
            lambda: (
                self.watch.learner.env_steps >= before.env_steps + steps
                and self.watch.learner.updates >= before.updates + updates
            ),
            "training to go on",
        )
        self.graph.wait_for(
            lambda: self.watch.steps[-1].policy_version >= version, "its policies to be applied"
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """`hil up sim`, training."""
    folder = tmp_path_factory.mktemp("kill")
    settings = folder / "settings.yaml"
    settings.write_text(SETTINGS)
    given = {"task": "reach", "params_file": settings}
    with (
        Domain() as domain,
        Watch(domain.number) as watch,
        Graph(domain, folder, **given) as graph,
    ):
        graph.up()
        run = Run(graph, watch)
        graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active")
        run.trains_on()
        yield run


def position(pose: Pose) -> np.ndarray:
    return np.array([pose.position.x, pose.position.y, pose.position.z])


def test_killed_actor(run: Run) -> None:
    """Nobody commands the arm until the new actor does; its steps begin a new session."""
    watch = run.watch
    old, before = watch.actor.session, watch.learner.env_steps
    seen = run.kill("actor")
    run.trains_on()
    assert watch.learner.env_steps > before
    steps = [step for step in watch.steps if step.session != old]
    assert [step.seq for step in steps] == list(range(1, len(steps) + 1))
    assert (steps[0].episode, steps[0].step) == (0, 0)
    states = watch.robot_states[seen:]
    taken = next(i for i, state in enumerate(states) if state.owner not in ("", old))
    # The step under way may be completed; then time, and with it the arm, stands still.
    assert len({to_ns(state.header.stamp) for state in states[:taken]}) <= 2
    assert len({tuple(position(state.target)) for state in states[:taken]}) <= 2


def test_killed_learner(run: Run) -> None:
    """The actor lives on; what the learner had acknowledged it still has."""
    watch = run.watch
    session, before = watch.actor.session, watch.learner
    run.kill("learner")
    run.graph.wait_for(lambda: watch.learner.stamp != before.stamp, "the new learner's status")
    assert watch.learner.env_steps >= before.env_steps
    run.trains_on()
    assert watch.actor.session == session


def test_killed_bridge(run: Run) -> None:
    """The controller keeps its target; the new bridge begins with holding the measured pose."""
    watch = run.watch
    session = watch.actor.session
    seen = run.kill("robot_bridge")
    run.trains_on()
    assert watch.actor.session == session, "the actor has lived on"
    last, first = watch.robot_states[seen - 1], watch.robot_states[seen]
    assert np.linalg.norm(position(first.pose) - position(last.pose)) < 0.03
    assert np.linalg.norm(position(first.pose) - position(first.target)) < 0.03


@pytest.mark.parametrize("name", ["hil_sim", "scripted_expert", "hil_manager"])
def test_killed_other(run: Run, name: str) -> None:
    """Simulator (its time begins anew), operator, manager: training goes on."""
    run.kill(name)
    run.trains_on()


def test_interrupted_alone(run: Run) -> None:
    """`kill -INT` restarts a node, although it ends in good order."""
    run.kill("robot_bridge", signal.SIGINT)
    run.trains_on()


def test_wedged(run: Run) -> None:
    """A process that runs without responding is told of, ended and started again."""
    graph, watch = run.graph, run.watch
    old = graph.pid("scripted_expert")
    os.kill(old, signal.SIGSTOP)
    graph.wait_for(lambda: f"process {old} runs" in watch.status, "the manager to notice")
    graph.wait_for(lambda: graph.pid("scripted_expert") not in (0, old), "a new process")
    graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active again")
    run.trains_on()
    log = graph.folder / "run" / "log"
    reports = [path.read_text() for path in log.glob("crash-scripted_expert-*.txt")]
    (text,) = (each for each in reports if "was ended by SIGABRT" in each)
    assert "Fatal Python error: Aborted" in text, "its stack"
