"""The self-test: what it makes of motions of a known arm, and of a simulated one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import hil_tasks
from hil_common.testing import Ros
from hil_interfaces.msg import RobotState
from hil_robot_bridge.bridge_node import BridgeNode
from hil_robot_bridge.selftest import AxisResult, Result, Sample, Tolerance, stiffness, trailing
from hil_robot_bridge.selftest_main import Selftest
from hil_sim.sim_node import SimNode

SPEC = hil_tasks.load("peg_insert").spec
POLICY = SPEC.compliance["policy"]


class Slider:
    """A mass on a spring and damper with Coulomb friction, along z."""

    def __init__(self, stiffness: float, damping: float, friction: float) -> None:
        self.stiffness, self.damping, self.friction = stiffness, damping, friction
        self.position = self.speed = self.time = self.target = 0.0

    def move(self, goal: float, speed: float, every: float = 0.02) -> list[Sample]:
        """Lead the target to a goal, a step `every` seconds."""
        samples = []
        while abs(goal - self.target) > 1e-9:
            step = min(speed * every, abs(goal - self.target))
            self.target += math.copysign(step, goal - self.target)
            for _ in range(round(every / 1e-4)):
                self._step(1e-4)
            self.time += every
            place = (0.0, 0.0, self.position)
            samples.append(Sample(self.time, (0.0, 0.0, self.target), place))
        return samples

    def _step(self, dt: float) -> None:
        pull = self.stiffness * (self.target - self.position) - self.damping * self.speed
        pull -= self.friction * math.tanh(self.speed / 1e-4)
        self.speed += pull / 6.0 * dt
        self.position += self.speed * dt


def motions(arm: Slider, every: float = 0.02) -> list[list[Sample]]:
    arm.move(0.03, 0.03, every)
    speeds = (0.01, 0.01, 0.03, 0.03)
    goals = (-0.03, 0.03, -0.03, 0.03)
    return [arm.move(goal, speed, every) for goal, speed in zip(goals, speeds, strict=True)]


@pytest.mark.parametrize("friction", [0.0, 3.0])
@pytest.mark.parametrize("every", [0.02, 0.1])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_stiffness_is_found_whatever_the_friction(
    share: float, every: float, friction: float
) -> None:
    wanted = POLICY.translational_stiffness[2] * share
    arm = Slider(wanted, POLICY.translational_damping[2], friction)
    found = stiffness(motions(arm, every), 2, POLICY)
    assert found.measured == pytest.approx(wanted, rel=0.15)
    assert found.right(Tolerance(0.3)) == (share == 1.0)


def test_motions_that_do_not_tell_are_refused() -> None:
    arm = Slider(2000.0, 170.0, 0.0)
    with pytest.raises(ValueError, match="too few"):
        trailing(arm.move(0.02, 0.05)[:3], 2)
    still = [Sample(0.1 * n, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)) for n in range(20)]
    with pytest.raises(ValueError, match="steadily"):
        trailing(still, 2)
    same = [arm.move(-0.03, 0.05), arm.move(0.03, 0.05)]
    with pytest.raises(ValueError, match="same speed"):
        stiffness(same, 2, POLICY)


def test_problems_are_named() -> None:
    good = AxisResult("x", 2000.0, 1900.0, 0.09)
    soft = dataclasses.replace(good, axis="z", measured=900.0)
    assert Result((good,), 0.99).problems(Tolerance()) == []
    problems = Result((good, soft), 0.9).problems(Tolerance())
    assert len(problems) == 2
    assert "along z is 900 N/m instead of 2000" in problems[0]
    assert "90.0 %" in problems[1]


@pytest.fixture
def test_of_sim(ros: Ros, tmp_path: Path) -> Iterator[Selftest]:
    ros.start(SimNode, task="peg_insert", pace="lockstep", cameras=("side",))
    ros.start(BridgeNode, pace="lockstep", stop_file=str(tmp_path / "stop"))
    made = Selftest(ros.node("selftest_client"), SPEC)
    ros.executor.remove_node(made._node)  # the test spins it itself
    made._executor.add_node(made._node)
    yield made
    made.close()


def test_the_simulated_arm_is_right_and_can_be_stopped(test_of_sim: Selftest) -> None:
    result = test_of_sim.run()
    assert result.problems(Tolerance()) == [], result.table()
    assert [each.axis for each in result.axes] == ["x", "y", "z"]
    assert result.axes[0].expected == 2000.0
    test_of_sim.stop()
    test_of_sim._until(lambda: test_of_sim.states[-1].stop_latched, "stop")
    assert test_of_sim.states[-1].mode == RobotState.MODE_HOLD
