"""The bridge through ROS, against a fake robot."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient
from std_srvs.srv import SetBool

import hil_tasks
from hil_common import qos
from hil_common.conversions import from_ns, pose_to_msg, to_ns
from hil_common.testing import Ros
from hil_interfaces.action import MoveTo, Recover, ResetEpisode
from hil_interfaces.msg import ArmCommand, ArmInput, CommandResult, OperatorCommand, RobotState
from hil_interfaces.srv import AcquireLease, Advance, ReleaseLease, SetCompliance
from hil_robot_bridge.bridge_node import BridgeNode
from hil_robot_bridge.drivers.franka_state import FrankaMode
from hil_robot_bridge.poses import RigidPose, distance

SPEC = hil_tasks.load("peg_insert").spec
START = RigidPose.of(SPEC.reset.pose)


class Client:
    """Actor, operator and person at the bridge."""

    def __init__(self, ros: Ros, tmp_path: Path, **params: Any) -> None:
        self.ros = ros
        self.stop_file = tmp_path / "stop"
        self.params = {"stop_file": str(self.stop_file), **params}
        self.node = ros.node("client")
        self.states: list[RobotState] = []
        self.results: list[CommandResult] = []
        self.feedback: list[Any] = []
        self.node.create_subscription(RobotState, "robot_state", self.states.append, qos.STATE)
        self.node.create_subscription(
            CommandResult, "command_result", self.results.append, qos.RESULT
        )
        self.commands = self.node.create_publisher(ArmCommand, "arm_command", qos.COMMAND)
        self.operator = self.node.create_publisher(
            OperatorCommand, "operator_command", qos.OPERATOR
        )
        self.advance = self.node.create_client(Advance, "/hil_sim/advance")
        self.seq = 0
        self.bridge: BridgeNode = ros.start(BridgeNode, **self.params)

    def ready(self, mode: int = RobotState.MODE_HOLD) -> RobotState:
        """Wait until the bridge's newest state has a mode."""
        self.ros.wait_for(
            lambda: self.states and self.states[-1].mode == mode,
            what=f"mode {mode}",
        )
        self.ros.wait_for(lambda: self.commands.get_subscription_count() > 0)
        self.ros.wait_for(lambda: self.bridge._result_publisher.get_subscription_count() > 0)
        return self.states[-1]

    @property
    def state(self) -> RobotState:
        return self.states[-1]

    def call(self, service: Any, name: str, request: Any) -> Any:
        client = self.node.create_client(service, f"robot_bridge/{name}")
        return self.ros.call(client, request)

    def acquire(self, owner: str = "me", started: int = 5) -> Any:
        request = AcquireLease.Request(owner=owner, name=owner, started=Time(sec=started))
        return self.call(AcquireLease, "acquire", request)

    def command(self, dx: float = 0.0, **fields: Any) -> ArmCommand:
        """A command for the newest state, `dx` beside the target."""
        state = self.state
        self.seq += 1
        command = ArmCommand(owner="me", seq=self.seq)
        command.header.stamp, command.header.frame_id = state.header.stamp, "base"
        command.pose = copy.deepcopy(state.target)
        command.pose.position.x += dx
        for name, value in fields.items():
            setattr(command, name, value)
        return command

    def send(self, command: ArmCommand) -> CommandResult:
        """Publish a command and wait for its result."""
        count = len(self.results)
        self.commands.publish(command)
        self.ros.wait_for(lambda: len(self.results) > count, what="command_result")
        assert self.results[-1].seq == command.seq
        return self.results[-1]

    def step(self, target_ns: int = 0) -> RobotState:
        """Simulate one period and wait for the bridge's state of it."""
        request = Advance.Request(owner="me", periods=1, target_stamp=from_ns(target_ns))
        stamp = self.ros.call(self.advance, request).stamp
        self.ros.wait_for(lambda: self.state.header.stamp == stamp, what="robot_state")
        return self.state

    def act(self, action: Any, name: str, goal: Any) -> Any:
        """Send a goal; returns its handle."""
        client = ActionClient(self.node, action, f"robot_bridge/{name}")
        self.ros._nodes.insert(0, _Destroys(client))
        assert client.wait_for_server(10.0)
        future = client.send_goal_async(
            goal, feedback_callback=lambda message: self.feedback.append(message.feedback)
        )
        handle = self.ros.result(future)
        assert handle.accepted
        return handle

    def result(self, handle: Any) -> Any:
        return self.ros.result(handle.get_result_async()).result

    def next(self) -> None:
        """Wait for the next state."""
        count = len(self.states)
        self.ros.wait_for(lambda: len(self.states) > count, what="robot_state")

    def stop(self, stopped: bool) -> SetBool.Response:
        return self.call(SetBool, "set_stop", SetBool.Request(data=stopped))

    def engage(self, seq: int, engaged: bool = True, session: str = "person") -> None:
        message = OperatorCommand(session=session, seq=seq, arms=[ArmInput(engaged=engaged)])
        self.operator.publish(message)

    def spun(self, *steps: Callable[[], Any]) -> None:
        """Run something between two callbacks of the executor."""
        for step in steps:
            self.ros.result(self.ros.executor.create_task(step))

    def restart(self) -> None:
        """The bridge dies and a new one comes."""

        def die() -> None:
            self.ros.executor.remove_node(self.bridge)
            self.bridge.destroy_node()

        self.spun(die)
        self.ros._nodes.remove(self.bridge)
        self.states.clear()
        self.bridge = self.ros.start(BridgeNode, **self.params)


class _Destroys:
    def __init__(self, client: ActionClient) -> None:
        self._client = client

    def destroy_node(self) -> None:
        self._client.destroy()


def reset_goal(dx: float = 0.0, lift: float = 0.02, owner: str = "me") -> ResetEpisode.Goal:
    goal = ResetEpisode.Goal(owner=owner, lift=lift)
    goal.start.header.frame_id = "base"
    goal.start.pose = pose_to_msg(SPEC.reset.pose)
    goal.start.pose.position.x += dx
    return goal


@pytest.fixture
def client(ros: Ros, robot: Any, tmp_path: Path) -> Client:
    """A bridge in lockstep with a robot that holds, and its user."""
    user = Client(ros, tmp_path)
    user.ready()
    return user


# -- commands ------------------------------------------------------------------------------------


def test_a_command_moves_the_arm(client: Client, robot: Any) -> None:
    assert client.acquire().ok
    command = client.command(dx=0.004)
    result = client.send(command)
    assert (result.status, result.reason) == (CommandResult.ACCEPTED, "")
    assert result.header == command.header
    assert result.owner == "me"
    assert result.applied_pose == command.pose
    stamp = to_ns(command.header.stamp)
    state = client.step(stamp)
    assert robot.targets[-1] == (stamp, client.bridge.gate.target)
    assert state.mode == RobotState.MODE_MOVING
    assert state.pose.position.x == pytest.approx(START.position[0] + 0.8 * 0.004)
    assert state.target == command.pose
    assert state.command_fresh
    assert state.owner == "me"
    assert state.compliance == "policy"
    assert state.wrench.force.z == 5.0
    assert state.twist.linear.x == 0.01
    assert list(state.q) == robot.q
    assert state.control_command_success_rate == 0.97


def test_refusals_have_reasons_and_move_nothing(client: Client, robot: Any) -> None:
    nobody = client.send(client.command(0.004))
    assert nobody.status == CommandResult.REFUSED
    assert "lease" in nobody.reason
    client.acquire()
    before = len(robot.targets)
    not_a_number = client.command()
    not_a_number.pose.position.y = math.nan
    bad = {
        "held by me": client.command(owner="somebody"),
        "not finite": not_a_number,
        "control mode 'wrench'": client.command(control_mode=ArmCommand.MODE_WRENCH),
        "sequence number": client.command(seq=0),
        "no gripper": client.command(gripper=1),
    }
    frame = client.command()
    frame.header.frame_id = "world"
    bad["frame is 'world'"] = frame
    future = client.command()
    future.header.stamp = from_ns(to_ns(client.state.header.stamp) + 1)
    bad["after the newest"] = future
    for reason, command in bad.items():
        result = client.send(command)
        assert result.status == CommandResult.REFUSED
        assert reason in result.reason
        assert result.applied_pose == client.state.target
    client.step()
    assert len(robot.targets) == before
    counts = client.bridge.gate.counts
    assert counts["not_owner"] == counts["not_finite"] == counts["mode"] == 1


def test_big_steps_are_clipped(client: Client) -> None:
    client.acquire()
    result = client.send(client.command(dx=0.5))
    assert result.status == CommandResult.CLIPPED
    assert "workspace box" in result.reason
    moved = result.applied_pose.position.x - client.state.target.position.x
    assert 0.0 < moved <= SPEC.leash.translation * 1.001


def test_the_newest_session_has_the_arm(client: Client) -> None:
    assert client.acquire("old", started=10).ok
    older = client.acquire("older", started=9)
    assert not older.ok
    assert "newer session" in older.reason
    assert older.holder == "old"
    assert client.acquire("me", started=11).ok
    refused = client.send(client.command(owner="old"))
    assert refused.status == CommandResult.REFUSED
    answer = client.call(ReleaseLease, "release", ReleaseLease.Request(owner="old"))
    assert not answer.ok
    assert "me" in answer.reason
    assert client.call(ReleaseLease, "release", ReleaseLease.Request(owner="me")).ok
    assert "nobody" in client.send(client.command()).reason


# -- person --------------------------------------------------------------------------------------


def test_takeover_holds_until_a_command_has_seen_it(client: Client) -> None:
    client.acquire()
    client.engage(1, engaged=False)
    client.engage(2)
    client.ros.wait_for(lambda: client.state.operator_hold)
    assert "taken over" in client.state.mode_text
    unaware = client.command(0.004, operator_session="person", operator_seq=1)
    held = client.send(unaware)
    assert held.status == CommandResult.HELD
    assert held.reason
    aware = client.command(0.004, operator_session="person", operator_seq=2)
    assert client.send(aware).status == CommandResult.ACCEPTED
    assert not client.step(to_ns(aware.header.stamp)).operator_hold


def test_no_hold_if_the_command_that_saw_it_came_first(client: Client) -> None:
    client.acquire()
    hold = client.command(
        control_mode=ArmCommand.MODE_HOLD, operator_session="person", operator_seq=4
    )
    assert client.send(hold).status == CommandResult.ACCEPTED
    client.engage(4)
    client.step(to_ns(hold.header.stamp))
    assert client.send(client.command(0.004)).status == CommandResult.ACCEPTED


def test_stop_is_latched_across_a_restart(client: Client, robot: Any) -> None:
    client.acquire()
    assert client.stop(True).success
    held = client.send(client.command(0.004))
    assert held.status == CommandResult.HELD
    assert "stop" in held.reason
    assert client.stop_file.exists()
    client.restart()
    state = client.ready()
    assert state.stop_latched
    client.acquire()
    client.seq = 0
    assert client.send(client.command(0.004)).status == CommandResult.HELD
    assert client.stop(False).success
    assert not client.stop_file.exists()
    client.step()
    assert client.send(client.command(0.004)).status == CommandResult.ACCEPTED


# -- own motions ---------------------------------------------------------------------------------


def test_reset_lifts_then_goes_to_the_start(client: Client, robot: Any) -> None:
    client.acquire()
    handle = client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.03, lift=0.02))
    result = client.result(handle)
    assert result.ok, result.reason
    goal = (START.position[0] + 0.03, *START.position[1:])
    end = result.pose.position
    assert distance((end.x, end.y, end.z), goal) < 0.003
    way = [pose.position for _, pose in robot.targets]
    highest = max(z for _, _, z in way)
    assert highest == pytest.approx(START.position[2] + 0.02, abs=1e-3)
    lifted = next(i for i, p in enumerate(way) if p[2] > highest - 1e-6)
    assert all(abs(x - START.position[0]) < 1e-6 for x, _, _ in way[:lifted])
    steps = [distance(a, b) for a, b in itertools.pairwise(way)]
    assert max(steps) <= SPEC.reset.linear_speed * SPEC.period * 1.001
    assert client.feedback
    assert client.feedback[0].distance > 0.02
    named = [to_ns(each.target_stamp) for each in robot.advances if to_ns(each.target_stamp)]
    assert sorted(set(named)) == named
    client.ready(RobotState.MODE_HOLD)
    assert client.state.compliance == "policy"
    assert not client.state.reset_holds_lease


def test_commands_wait_for_the_reset(client: Client, robot: Any) -> None:
    client.acquire()
    robot.blocked = True
    client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.05))
    client.ready(RobotState.MODE_RESETTING)
    assert client.state.reset_holds_lease
    result = client.send(client.command(0.004))
    assert result.status == CommandResult.REFUSED
    assert "reset_episode" in result.reason


def test_a_reset_that_is_cancelled_holds(client: Client, robot: Any) -> None:
    client.acquire()
    robot.lose = 10**9
    handle = client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.05))
    client.ros.wait_for(lambda: len(robot.targets) >= 2)
    client.ros.result(handle.cancel_goal_async())
    result = client.result(handle)
    assert not result.ok
    robot.lose = 0
    client.step()
    client.ready(RobotState.MODE_HOLD)
    target = client.bridge.gate.target
    assert target is not None
    assert distance(target.position, START.position) < 0.03
    assert client.state.compliance == "policy"


def test_stop_ends_a_reset(client: Client, robot: Any) -> None:
    client.acquire()
    robot.lose = 10**9
    handle = client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.05))
    client.ros.wait_for(lambda: len(robot.targets) >= 2)
    assert client.stop(True).success
    robot.lose = 0
    result = client.result(handle)
    assert not result.ok
    assert "stop" in result.reason


def test_a_newer_session_ends_a_reset(client: Client, robot: Any) -> None:
    client.acquire("old", started=4)
    robot.lose = 10**9
    goal = reset_goal(dx=0.05, owner="old")
    handle = client.act(ResetEpisode, "reset_episode", goal)
    client.ros.wait_for(lambda: len(robot.targets) >= 2)
    assert client.acquire("me", started=5).ok
    assert not client.result(handle).ok
    robot.lose = 0
    client.step()
    client.ready(RobotState.MODE_HOLD)
    assert client.send(client.command(0.001)).status == CommandResult.ACCEPTED


def test_a_takeover_during_a_reset_counts_afterwards(client: Client, robot: Any) -> None:
    client.acquire()
    robot.lose = 2
    handle = client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.02))
    client.ready(RobotState.MODE_RESETTING)
    client.engage(1)
    client.ros.wait_for(lambda: client.state.operator_hold)
    assert client.result(handle).ok
    client.step()
    assert client.send(client.command(0.001)).status == CommandResult.HELD
    seen = client.command(0.001, operator_session="person", operator_seq=1)
    assert client.send(seen).status == CommandResult.ACCEPTED


def test_a_blocked_arm_is_noticed(client: Client, robot: Any) -> None:
    client.acquire()
    robot.blocked = True
    result = client.result(client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.05)))
    assert not result.ok
    assert "stands still" in result.reason


def test_goals_outside_are_refused(client: Client) -> None:
    client.acquire()
    result = client.result(client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.5)))
    assert not result.ok
    assert "outside the workspace box" in result.reason
    result = client.result(client.act(ResetEpisode, "reset_episode", reset_goal(owner="somebody")))
    assert not result.ok
    assert "lease is held by me" in result.reason
    goal = MoveTo.Goal(owner="me")
    goal.goal.header.frame_id = "world"
    assert "frame" in client.result(client.act(MoveTo, "move_to", goal)).reason


def test_move_to_is_slow_and_straight(client: Client, robot: Any) -> None:
    goal = MoveTo.Goal(owner="me", speed=0.05)
    goal.goal.header.frame_id = "base"
    goal.goal.pose = pose_to_msg(SPEC.reset.pose)
    goal.goal.pose.position.y += 0.02
    result = client.result(client.act(MoveTo, "move_to", goal))
    assert result.ok, result.reason
    way = [START.position] + [pose.position for _, pose in robot.targets]
    steps = [distance(a, b) for a, b in itertools.pairwise(way)]
    assert max(steps) <= 0.05 * SPEC.period * 1.001
    client.step()
    assert client.state.owner == ""


def test_states_that_are_lost_are_asked_for_again(client: Client, robot: Any) -> None:
    client.acquire()
    robot.lose = 1
    result = client.result(client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.02)))
    assert result.ok, result.reason
    assert any(each.periods == 0 for each in robot.advances)


# -- compliance ----------------------------------------------------------------------------------


def test_compliance_is_applied_and_read_back(client: Client, robot: Any) -> None:
    policy, reset = SPEC.compliance["policy"], SPEC.compliance["reset"]
    assert robot.get_parameter("task.error_clip.x").value == policy.error_clip[0]
    assert robot.get_parameter("nullspace.damping").value == policy.nullspace_damping
    assert robot.get_parameter("limit_error").value is True
    request = SetCompliance.Request(preset="reset")
    assert client.call(SetCompliance, "set_compliance", request).ok
    assert robot.get_parameter("task.error_clip.x").value == reset.error_clip[0]
    answer = client.call(SetCompliance, "set_compliance", SetCompliance.Request(preset="soft"))
    assert not answer.ok
    assert "policy, reset" in answer.reason


def test_nothing_moves_with_gains_that_read_back_wrong(client: Client, robot: Any) -> None:
    client.acquire()
    robot.forgetful = "task.error_clip.z"
    answer = client.call(SetCompliance, "set_compliance", SetCompliance.Request(preset="reset"))
    assert not answer.ok
    assert "task.error_clip.z" in answer.reason
    held = client.send(client.command(0.004))
    assert held.status == CommandResult.HELD
    assert "task.error_clip.z" in held.reason
    result = client.result(client.act(ResetEpisode, "reset_episode", reset_goal(dx=0.02)))
    assert not result.ok
    assert "task.error_clip.z" in result.reason
    robot.forgetful = ""
    client.ready(RobotState.MODE_HOLD)
    client.step()
    assert client.send(client.command(0.004)).status == CommandResult.ACCEPTED


# -- faults --------------------------------------------------------------------------------------


def test_recovery_takes_three_steps_in_their_order(client: Client, robot: Any) -> None:
    client.acquire()
    robot.fail("cartesian_reflex")
    client.ready(RobotState.MODE_REFLEX)
    assert client.state.errors == ["cartesian_reflex"]
    assert "recover" in client.state.mode_text
    held = client.send(client.command(0.004))
    assert held.status == CommandResult.HELD
    assert "reflex" in held.reason
    result = client.result(client.act(Recover, "recover", Recover.Goal()))
    assert result.ok, result.reason
    assert robot.calls == [
        "error_recovery",
        "hardware active",
        "controller cartesian_impedance_controller",
    ]
    assert [each.stage for each in client.feedback] == [
        "error recovery",
        "hardware",
        "controller",
        "state",
        "compliance",
    ]
    client.ready(RobotState.MODE_HOLD)
    assert client.state.recoveries == 1
    assert client.state.compliance == "policy"
    client.step()
    assert client.send(client.command(0.004)).status == CommandResult.ACCEPTED


def test_recovery_gives_up_a_step_that_hangs(ros: Ros, robot: Any, tmp_path: Path) -> None:
    client = Client(ros, tmp_path, recovery_timeout=0.3, service_timeout=0.3)
    client.ready()
    robot.fail("joint_reflex")
    client.ready(RobotState.MODE_REFLEX)
    robot.silent = {"error_recovery"}
    result = client.result(client.act(Recover, "recover", Recover.Goal()))
    assert not result.ok
    assert "error_recovery" in result.reason
    assert robot.calls == ["error_recovery"]
    robot.silent = {"hardware active"}
    robot.calls.clear()
    result = client.result(client.act(Recover, "recover", Recover.Goal()))
    assert not result.ok
    assert "set_hardware_component_state" in result.reason
    assert robot.calls == [
        "error_recovery",
        "hardware active",
        "hardware unconfigured",
        "hardware active",
    ]
    robot.silent = set()
    assert client.result(client.act(Recover, "recover", Recover.Goal())).ok


def test_user_stop_is_a_state_with_a_text(client: Client, robot: Any) -> None:
    robot.fail("", FrankaMode.USER_STOPPED)
    client.ready(RobotState.MODE_USER_STOPPED)
    assert "release" in client.state.mode_text
    assert client.state.errors == []
    robot.fail("", FrankaMode.GUIDING)
    client.ready(RobotState.MODE_GUIDING)
    result = client.result(client.act(Recover, "recover", Recover.Goal()))
    assert result.ok


def test_two_publishers_of_target_pose_hold_the_arm(client: Client) -> None:
    client.acquire()
    other = client.node.create_publisher(PoseStamped, "target_pose", qos.COMMAND)
    client.ros.wait_for(lambda: "also publishes" in client.state.mode_text)
    held = client.send(client.command(0.004))
    assert held.status == CommandResult.HELD
    assert "/client" in held.reason
    client.node.destroy_publisher(other)
    client.ready(RobotState.MODE_HOLD)


def test_nodes_may_start_in_any_order(ros: Ros, make_robot: Any, tmp_path: Path) -> None:
    client = Client(ros, tmp_path)
    ros.wait_for(lambda: "no publisher" in client.bridge.gate.blocked)
    make_robot()
    client.ready()
    assert client.acquire().ok
    assert client.send(client.command(0.004)).status == CommandResult.ACCEPTED


def test_a_bridge_that_is_not_active_moves_nothing(client: Client, robot: Any) -> None:
    client.acquire()
    bridge = client.bridge
    client.spun(bridge.trigger_deactivate)
    client.ready(RobotState.MODE_IDLE)
    held = client.send(client.command(0.004))
    assert held.status == CommandResult.HELD
    assert "not active" in held.reason
    result = client.result(client.act(ResetEpisode, "reset_episode", reset_goal()))
    assert not result.ok
    client.spun(bridge.trigger_activate)
    client.ready()
    assert client.send(client.command(0.004)).status == CommandResult.ACCEPTED
    client.spun(bridge.trigger_deactivate, bridge.trigger_cleanup)
    client.spun(bridge.trigger_configure, bridge.trigger_activate)
    client.ros.wait_for(client.advance.service_is_ready)
    client.step()
    client.ready()


# -- real time -----------------------------------------------------------------------------------


@pytest.fixture
def realtime(ros: Ros, robot: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Client:
    """A bridge in real time, patient with a busy machine."""
    robot.stamp_ns = robot.get_clock().now().nanoseconds
    robot.run()
    patience = getattr(request, "param", 10.0)
    user = Client(ros, tmp_path, pace="realtime", state_timeout=patience, status_timeout=patience)
    user.ready()
    return user


def test_silence_of_the_actor_holds_the_arm(realtime: Client) -> None:
    realtime.acquire()
    ros = realtime.ros

    def moves() -> bool:
        realtime.send(realtime.command(0.001))
        realtime.next()
        return any(state.mode == RobotState.MODE_MOVING for state in realtime.states)

    ros.wait_for(moves)
    ros.wait_for(lambda: not realtime.state.command_fresh)
    assert realtime.ready().mode == RobotState.MODE_HOLD
    ros.wait_for(lambda: realtime.send(realtime.command(0.001)).status <= CommandResult.CLIPPED)


@pytest.mark.parametrize("realtime", [1.0], indirect=True)
def test_a_state_that_stops_coming_holds_the_arm(realtime: Client, robot: Any) -> None:
    realtime.acquire()
    robot.lose = 10**9
    realtime.ready(RobotState.MODE_DISCONNECTED)
    held = realtime.send(realtime.command(0.004))
    assert held.status == CommandResult.HELD
    assert "older than" in held.reason
    robot.lose = 0
    realtime.ready()


def test_reset_in_real_time(realtime: Client) -> None:
    realtime.acquire()
    goal = reset_goal(dx=0.02, lift=0.01)
    result = realtime.result(realtime.act(ResetEpisode, "reset_episode", goal))
    assert result.ok, result.reason


# -- gripper -------------------------------------------------------------------------------------


@pytest.fixture
def with_gripper(ros: Ros, robot: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A task with a gripper."""
    task = hil_tasks.load("peg_insert")
    object.__setattr__(task.spec, "grippers", (True,))
    monkeypatch.setattr(hil_tasks, "load", lambda name: task)
    user = Client(ros, tmp_path, gripper_dwell=0.25)
    user.ready()
    return user


def test_gripper_commands_dwell_and_never_block(with_gripper: Client, robot: Any) -> None:
    client = with_gripper
    client.acquire()
    closing = client.send(client.command(gripper=-1))
    assert (closing.status, closing.gripper) == (CommandResult.ACCEPTED, -1)
    client.ros.wait_for(lambda: len(robot.gripper_goals) == 1)
    assert robot.gripper_goals[0].request.force == 30.0
    client.step()
    again = client.send(client.command(gripper=-1))
    assert (again.status, again.gripper) == (CommandResult.ACCEPTED, 0)
    early = client.send(client.command(gripper=1))
    assert (early.status, early.gripper) == (CommandResult.CLIPPED, 0)
    assert "dwell" in early.reason
    for _ in range(3):
        state = client.step()
    assert state.gripper_command == -1
    assert state.gripper_width == pytest.approx(0.06)
    opening = client.send(client.command(gripper=1))
    assert (opening.status, opening.gripper) == (CommandResult.ACCEPTED, 1)
    assert len(robot.gripper_goals) == 1
    robot.finish_gripper()
    client.ros.wait_for(lambda: len(robot.gripper_goals) == 1)
    assert robot.gripper_goals[0].request.width == 0.08
    robot.finish_gripper(success=False)
    client.ros.wait_for(lambda: client.bridge.gate.gripper_command == 0)


def test_an_arm_that_the_task_lacks_is_named(ros: Ros, robot: Any, tmp_path: Path) -> None:
    bridge = ros.make(BridgeNode, arm="left", stop_file=str(tmp_path / "stop"))
    bridge.trigger_configure()
    assert not bridge.active
    bridge.diagnostics.publish()
    assert "no arm 'left'" in bridge.diagnostics._error
