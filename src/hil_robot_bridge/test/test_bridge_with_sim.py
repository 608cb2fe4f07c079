"""The bridge and the simulator: two sides of one interface, written apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builtin_interfaces.msg import Time
from rcl_interfaces.srv import SetParameters
from rclpy.action import ActionClient
from rclpy.parameter import Parameter

import hil_tasks
from hil_common import qos
from hil_common.conversions import pose_to_msg, to_ns
from hil_common.testing import Ros
from hil_interfaces.action import Recover, ResetEpisode
from hil_interfaces.msg import ArmCommand, CommandResult, RobotState
from hil_interfaces.srv import AcquireLease, Advance
from hil_robot_bridge.bridge_node import BridgeNode
from hil_sim.sim_node import SimNode

SPEC = hil_tasks.load("peg_insert").spec


class Rig:
    """Simulator, bridge and someone who uses them."""

    def __init__(self, ros: Ros, tmp_path: Path, pace: str) -> None:
        self.ros = ros
        self.node = ros.node("user")
        self.states: list[RobotState] = []
        self.results: list[CommandResult] = []
        self.node.create_subscription(RobotState, "robot_state", self.states.append, qos.STATE)
        self.node.create_subscription(
            CommandResult, "command_result", self.results.append, qos.RESULT
        )
        self.commands = self.node.create_publisher(ArmCommand, "arm_command", qos.COMMAND)
        self.advance = self.node.create_client(Advance, "/hil_sim/advance")
        self.inject_client = self.node.create_client(SetParameters, "/hil_sim/set_parameters")
        self.sim = ros.start(SimNode, task="peg_insert", pace=pace, cameras=("side",))
        self.bridge = ros.start(
            BridgeNode,
            pace=pace,
            stop_file=str(tmp_path / "stop"),
            state_timeout=5.0,
            status_timeout=5.0,
        )
        self.actions = {
            name: ActionClient(self.node, action, f"robot_bridge/{name}")
            for name, action in (("reset_episode", ResetEpisode), ("recover", Recover))
        }
        self.wait_for_mode(RobotState.MODE_HOLD)
        ros.wait_for(lambda: self.commands.get_subscription_count() > 0)
        acquire = self.node.create_client(AcquireLease, "robot_bridge/acquire")
        request = AcquireLease.Request(owner="me", name="test", started=Time(sec=1))
        assert ros.call(acquire, request).ok

    def wait_for_mode(self, mode: int) -> RobotState:
        self.ros.wait_for(
            lambda: self.states and self.states[-1].mode == mode, what=f"mode {mode}"
        )
        return self.states[-1]

    def act(self, name: str, goal: Any) -> Any:
        client = self.actions[name]
        self.ros.wait_for(client.server_is_ready)
        handle = self.ros.result(client.send_goal_async(goal))
        return self.ros.result(handle.get_result_async()).result

    def reset(self, dx: float) -> ResetEpisode.Result:
        goal = ResetEpisode.Goal(owner="me", lift=SPEC.reset.lift)
        goal.start.header.frame_id = "base"
        goal.start.pose = pose_to_msg(SPEC.reset.pose)
        goal.start.pose.position.x += dx
        result: ResetEpisode.Result = self.act("reset_episode", goal)
        if result.ok:
            wanted, found = goal.start.pose.position, result.pose.position
            assert abs(wanted.x - found.x) < 0.003
            assert abs(wanted.z - found.z) < 0.003
        return result

    def inject(self, what: str) -> None:
        request = SetParameters.Request(
            parameters=[Parameter("inject", value=what).to_parameter_msg()]
        )
        assert self.ros.call(self.inject_client, request).results[0].successful


@pytest.fixture(params=["lockstep", "realtime"])
def rig(request: pytest.FixtureRequest, ros: Ros, tmp_path: Path) -> Any:
    made = Rig(ros, tmp_path, request.param)
    yield made
    for client in made.actions.values():
        client.destroy()


def test_reset_reflex_recover_and_user_stop(rig: Rig) -> None:
    assert rig.reset(0.03).ok
    rig.inject("cartesian_reflex")
    state = rig.wait_for_mode(RobotState.MODE_REFLEX)
    assert state.errors == ["cartesian_reflex"]
    result = rig.reset(-0.03)
    assert not result.ok
    assert "reflex" in result.reason
    recovered = rig.act("recover", Recover.Goal())
    assert recovered.ok, recovered.reason
    assert rig.wait_for_mode(RobotState.MODE_HOLD).recoveries == 1
    assert rig.reset(-0.03).ok
    rig.inject("user_stop")
    assert "release" in rig.wait_for_mode(RobotState.MODE_USER_STOPPED).mode_text
    assert not rig.act("recover", Recover.Goal()).ok
    rig.inject("released")
    rig.wait_for_mode(RobotState.MODE_IDLE)
    recovered = rig.act("recover", Recover.Goal())
    assert recovered.ok, recovered.reason
    assert rig.reset(0.0).ok


@pytest.mark.parametrize("rig", ["lockstep"], indirect=True)
def test_a_step_in_lockstep(rig: Rig) -> None:
    state = rig.states[-1]
    for seq in range(1, 21):
        command = ArmCommand(owner="me", seq=seq, pose=state.target)
        command.header = state.header
        command.pose.position.y += 0.002
        rig.commands.publish(command)
        rig.ros.wait_for(lambda: len(rig.results) == seq)  # noqa: B023
        assert rig.results[-1].status <= CommandResult.CLIPPED
        request = Advance.Request(
            step_id=str(seq), owner="me", periods=1, target_stamp=state.header.stamp
        )
        answer = rig.ros.call(rig.advance, request)
        assert answer.ok, answer.reason
        rig.ros.wait_for(lambda: rig.states[-1].header.stamp == answer.stamp)  # noqa: B023
        state = rig.states[-1]
    assert state.mode == RobotState.MODE_MOVING
    assert state.pose.position.y == pytest.approx(0.04, abs=0.004)
    assert to_ns(state.header.stamp) > 0
