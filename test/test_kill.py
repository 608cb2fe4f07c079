"""SIGKILL of a node during training: it comes back, training goes on, and the arm holds."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from system import Domain, Graph, Watch

from hil_interfaces.msg import RobotState

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
"""


@dataclass
class Run:
    """A graph that trains by itself."""

    graph: Graph
    watch: Watch

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until a new process does the node's work."""
        graph, watch = self.graph, self.watch
        old = graph.pid(name)
        os.kill(old, signal.SIGKILL)
        graph.wait_for(lambda: graph.pid(name) not in (0, old), f"{name} to be started again")
        graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active again")

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
    with Domain() as domain, Watch(domain) as watch, Graph(domain, folder, **given) as graph:
        graph.up()
        run = Run(graph, watch)
        graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active")
        run.trains_on()
        yield run


def position(state: RobotState) -> np.ndarray:
    point = state.pose.position
    return np.array([point.x, point.y, point.z])


def test_killed_actor(run: Run) -> None:
    watch = run.watch
    old, before = watch.actor.session, watch.learner.env_steps
    run.kill("actor")
    run.graph.wait_for(
        lambda: watch.steps[-1].session not in ("", old), "a step of the actor's new life"
    )
    steps = [step for step in watch.steps if step.session != old]
    assert [step.seq for step in steps] == list(range(1, len(steps) + 1))
    assert (steps[0].episode, steps[0].step) == (0, 0)
    run.trains_on()
    assert watch.learner.env_steps > before


def test_killed_learner(run: Run) -> None:
    """The actor waits or goes on; what the learner had acknowledged it still has."""
    watch = run.watch
    session, before = watch.actor.session, watch.learner
    run.kill("learner")
    run.graph.wait_for(lambda: watch.learner.stamp != before.stamp, "the new learner's status")
    assert watch.learner.env_steps >= before.env_steps
    run.trains_on()
    assert watch.actor.session == session, "the actor has lived on"


def test_killed_bridge(run: Run) -> None:
    """The controller keeps its target; the new bridge begins with holding the measured pose."""
    watch = run.watch
    owner = watch.robot.owner
    assert owner
    run.kill("robot_bridge")
    run.trains_on()
    states = watch.robot_states
    fresh = next(i for i in range(len(states) - 1, 0, -1) if states[i].owner == "")
    old = max(i for i in range(fresh) if states[i].owner == owner)
    assert np.linalg.norm(position(states[fresh]) - position(states[old])) < 0.03
    target = states[fresh].target.position
    assert (
        np.linalg.norm(np.array([target.x, target.y, target.z]) - position(states[fresh])) < 0.03
    )
