"""The simulator's ROS interface: names, types, QoS; lockstep; recovery; gripper; parameters."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from action_msgs.msg import GoalStatus
from control_msgs.action import GripperCommand
from controller_manager_msgs.msg import ControllerManagerActivity
from controller_manager_msgs.srv import (
    ListControllers,
    ListHardwareComponents,
    SetHardwareComponentState,
    SwitchController,
)
from franka_msgs.action import ErrorRecovery, Grasp, Homing, Move
from franka_msgs.msg import FrankaRobotState
from franka_msgs.srv import SetForceTorqueCollisionBehavior
from geometry_msgs.msg import PoseStamped, WrenchStamped
from lifecycle_msgs.msg import State
from rcl_interfaces.msg import Parameter as ParameterMsg
from rcl_interfaces.srv import GetParameters, SetParametersAtomically
from rclpy.action import ActionClient
from rclpy.parameter import Parameter
from rclpy.qos import QoSDurabilityPolicy, QoSReliabilityPolicy
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger
from tf2_msgs.msg import TFMessage

from hil_common import qos
from hil_common.conversions import fill_pose, from_ns, to_ns
from hil_interfaces.msg import ObjectPoses
from hil_interfaces.srv import Advance, ResetWorld
from hil_sim import ledger
from hil_sim.sim_node import FIRST_STAMP, SimNode
from hil_tasks.geometry import Pose

PERIOD = 100_000_000
IMPEDANCE = "cartesian_impedance_controller"
BROADCASTER = "/franka_robot_state_broadcaster"

# Topic, type, reliable, latched: as franka_ros2 v3.4 and crisp offer them.
TOPICS = [
    ("/current_pose", "geometry_msgs/msg/PoseStamped", True, False),
    ("/current_twist", "geometry_msgs/msg/TwistStamped", True, False),
    (f"{BROADCASTER}/robot_state", "franka_msgs/msg/FrankaRobotState", True, False),
    (f"{BROADCASTER}/current_pose", "geometry_msgs/msg/PoseStamped", False, False),
    (f"{BROADCASTER}/last_desired_pose", "geometry_msgs/msg/PoseStamped", False, False),
    (f"{BROADCASTER}/desired_end_effector_twist", "geometry_msgs/msg/TwistStamped", False, False),
    (f"{BROADCASTER}/measured_joint_states", "sensor_msgs/msg/JointState", False, False),
    (f"{BROADCASTER}/desired_joint_states", "sensor_msgs/msg/JointState", False, False),
    (f"{BROADCASTER}/external_joint_torques", "sensor_msgs/msg/JointState", False, False),
    (
        f"{BROADCASTER}/external_wrench_in_base_frame",
        "geometry_msgs/msg/WrenchStamped",
        False,
        False,
    ),
    (
        f"{BROADCASTER}/external_wrench_in_stiffness_frame",
        "geometry_msgs/msg/WrenchStamped",
        False,
        False,
    ),
    ("/franka/joint_states", "sensor_msgs/msg/JointState", True, False),
    ("/joint_states", "sensor_msgs/msg/JointState", True, False),
    ("/franka_gripper/joint_states", "sensor_msgs/msg/JointState", True, False),
    ("/object_poses", "hil_interfaces/msg/ObjectPoses", False, False),
    (
        "/controller_manager/activity",
        "controller_manager_msgs/msg/ControllerManagerActivity",
        True,
        True,
    ),
    ("/wrist/image", "sensor_msgs/msg/Image", False, False),
    ("/side/image", "sensor_msgs/msg/Image", False, False),
    ("/clock", "rosgraph_msgs/msg/Clock", False, False),
    ("/tf", "tf2_msgs/msg/TFMessage", True, False),
    ("/tf_static", "tf2_msgs/msg/TFMessage", True, True),
    ("/robot_description", "std_msgs/msg/String", True, True),
]
SERVICES = {
    "/hil_sim/advance": "hil_interfaces/srv/Advance",
    "/hil_sim/reset_world": "hil_interfaces/srv/ResetWorld",
    "/controller_manager/list_controllers": "controller_manager_msgs/srv/ListControllers",
    "/controller_manager/switch_controller": "controller_manager_msgs/srv/SwitchController",
    "/controller_manager/list_hardware_components": "controller_manager_msgs/srv/ListHardwareComponents",  # noqa: E501
    "/controller_manager/set_hardware_component_state": "controller_manager_msgs/srv/SetHardwareComponentState",  # noqa: E501
    "/controller_manager/load_controller": "controller_manager_msgs/srv/LoadController",
    "/controller_manager/configure_controller": "controller_manager_msgs/srv/ConfigureController",
    "/service_server/set_force_torque_collision_behavior": "franka_msgs/srv/SetForceTorqueCollisionBehavior",  # noqa: E501
    "/service_server/set_full_collision_behavior": "franka_msgs/srv/SetFullCollisionBehavior",
    "/service_server/set_load": "franka_msgs/srv/SetLoad",
    "/service_server/set_cartesian_stiffness": "franka_msgs/srv/SetCartesianStiffness",
    "/service_server/set_joint_stiffness": "franka_msgs/srv/SetJointStiffness",
    "/service_server/set_tcp_frame": "franka_msgs/srv/SetTCPFrame",
    "/service_server/set_stiffness_frame": "franka_msgs/srv/SetStiffnessFrame",
    "/franka_gripper/stop": "std_srvs/srv/Trigger",
    f"/{IMPEDANCE}/set_parameters_atomically": "rcl_interfaces/srv/SetParametersAtomically",
    "/franka_gripper/homing/_action/send_goal": "franka_msgs/action/Homing_SendGoal",
    "/franka_gripper/move/_action/send_goal": "franka_msgs/action/Move_SendGoal",
    "/franka_gripper/grasp/_action/send_goal": "franka_msgs/action/Grasp_SendGoal",
    "/franka_gripper/gripper_action/_action/send_goal": "control_msgs/action/GripperCommand_SendGoal",  # noqa: E501
    "/action_server/error_recovery/_action/send_goal": "franka_msgs/action/ErrorRecovery_SendGoal",
}


class Bench:
    """A simulator and a node that talks to it, in one ROS domain."""

    def __init__(self, ros, **params) -> None:
        self.ros = ros
        self.sim: SimNode = ros.start(SimNode, **params)
        self.node = ros.node("client")
        self.clients: dict[str, object] = {}
        self.target = self.node.create_publisher(PoseStamped, "target_pose", qos.COMMAND)
        ros.wait_for(self.target.get_subscription_count)

    def call(self, kind, name, /, **fields):
        if name not in self.clients:
            self.clients[name] = self.node.create_client(kind, name)
        return self.ros.call(self.clients[name], kind.Request(**fields))

    def advance(self, step_id="", periods=1, target_stamp=0, observed_stamp=0):
        return self.call(
            Advance,
            "hil_sim/advance",
            step_id=step_id,
            observed_stamp=from_ns(observed_stamp),
            owner="test",
            periods=periods,
            target_stamp=from_ns(target_stamp),
        )

    def send_target(self, pose: Pose, stamp: int) -> None:
        message = PoseStamped()
        message.header.stamp = from_ns(stamp)
        fill_pose(message.pose, pose.position, pose.xyzw)
        self.target.publish(message)

    def listen(self, kind, topic, profile) -> list:
        heard: list = []
        subscription = self.node.create_subscription(kind, topic, heard.append, profile)
        publishers = self.node.count_publishers
        self.ros.wait_for(lambda: publishers(subscription.topic_name))
        self.ros.wait_for(lambda: self.heard_by_sim(subscription.topic_name))
        return heard

    def heard_by_sim(self, topic: str) -> bool:
        return any(
            publisher.topic_name == topic and publisher.get_subscription_count()
            for publisher in self.sim.publishers
        ) or topic.startswith("/controller_m")

    def set_parameters(self, node: str, **values):
        request = [
            Parameter(name.replace("__", "."), value=value).to_parameter_msg()
            for name, value in values.items()
        ]
        kind = SetParametersAtomically
        return self.call(kind, f"{node}/set_parameters_atomically", parameters=request).result

    def inject(self, what: str):
        return self.set_parameters("hil_sim", inject=what)

    def start_goal(self, kind, name, goal):
        client = ActionClient(self.node, kind, name)
        assert client.wait_for_server(30.0)
        handle = self.ros.result(client.send_goal_async(goal))
        assert handle.accepted
        return handle.get_result_async()

    def run_until(self, future, limit=100) -> tuple[object, int]:
        """Advance until a goal ends; returns its result and the periods it took."""
        for periods in range(limit):
            if self.settled(future):
                return future.result(), periods
            assert self.advance().ok
        raise AssertionError("goal did not end")

    def settled(self, future) -> bool:
        """Whether a result is there, once everything under way was delivered."""
        gripper = self.sim._companions.gripper
        if gripper._motion is not None:
            return False
        self.ros.wait_for(future.done)
        return True

    def recover(self) -> object:
        return self.ros.result(
            self.start_goal(ErrorRecovery, "action_server/error_recovery", ErrorRecovery.Goal())
        )

    def activate_hardware(self):
        return self.call(
            SetHardwareComponentState,
            "controller_manager/set_hardware_component_state",
            name="FrankaHardwareInterface",
            target_state=State(label="active", id=3),
        )

    def activate_controller(self):
        return self.call(
            SwitchController,
            "controller_manager/switch_controller",
            activate_controllers=[IMPEDANCE],
            strictness=SwitchController.Request.STRICT,
        )


@pytest.fixture
def bench(ros):
    return Bench(ros, task="peg_insert", target_timeout=30.0)


@pytest.fixture
def hasty(ros):
    """Return a bench whose simulator hardly waits for targets."""
    return Bench(ros, task="peg_insert", target_timeout=0.2)


def test_interface_is_that_of_the_robot(bench):
    node = bench.node
    for topic, kind, reliable, latched in TOPICS:
        infos = bench.ros.wait_for(
            lambda t=topic: node.get_publishers_info_by_topic(t), what=topic
        )
        assert [info.topic_type for info in infos] == [kind], topic
        profile = infos[0].qos_profile
        assert (profile.reliability == QoSReliabilityPolicy.RELIABLE) == reliable, topic
        durable = profile.durability == QoSDurabilityPolicy.TRANSIENT_LOCAL
        assert durable == latched, topic
    services = bench.ros.wait_for(lambda: _superset(node, SERVICES), what="services")
    for name, kind in SERVICES.items():
        assert services[name] == [kind], name
    info = node.get_subscriptions_info_by_topic("/target_pose")
    assert [each.topic_type for each in info] == ["geometry_msgs/msg/PoseStamped"]
    assert info[0].qos_profile.reliability == QoSReliabilityPolicy.RELIABLE
    names = set(node.get_node_names())
    assert {
        "hil_sim",
        IMPEDANCE,
        "controller_manager",
        "franka_gripper",
        "service_server",
        "action_server",
    } <= names


def _superset(node, wanted):
    there = dict(node.get_service_names_and_types())
    return there if set(wanted) <= set(there) else None


def test_one_stamp_for_everything_of_a_step(bench):
    poses = bench.listen(PoseStamped, "current_pose", qos.COMMAND)
    objects = bench.listen(ObjectPoses, "object_poses", qos.STATE)
    wrenches = bench.listen(
        WrenchStamped, f"{BROADCASTER}/external_wrench_in_base_frame", qos.STATE
    )
    states = bench.listen(FrankaRobotState, f"{BROADCASTER}/robot_state", qos.STATE)
    for count in range(1, 12):
        answer = bench.advance(f"step/{count}")
        assert answer.ok, answer.reason
        assert to_ns(answer.stamp) == FIRST_STAMP + count * PERIOD
        for heard in (poses, objects, wrenches):
            bench.ros.wait_for(lambda h=heard, n=count: len(h) >= n)
            assert heard[-1].header.stamp == answer.stamp
            assert heard[-1].header.frame_id == "base"
    assert set(objects[-1].names) == {"hole", "hole_true"}
    # The expensive one comes with every tenth state only.
    bench.ros.wait_for(lambda: states)
    assert len(states) == 1
    assert states[-1].robot_mode == FrankaRobotState.ROBOT_MODE_MOVE
    assert states[-1].control_command_success_rate == 1.0


def test_a_step_is_carried_out_once(bench):
    first = bench.advance("actor/1")
    assert bench.sim.world.time_ns == PERIOD
    again = bench.advance("actor/1")
    assert again.ok and again.stamp == first.stamp
    assert bench.sim.world.time_ns == PERIOD
    assert to_ns(bench.advance("actor/2", periods=3).stamp) == to_ns(first.stamp) + 3 * PERIOD
    # Motions of the bridge have no identity: each counts.
    bench.advance()
    bench.advance()
    assert bench.sim.world.time_ns == 6 * PERIOD


def test_a_step_from_another_state_is_refused(bench):
    first = to_ns(bench.advance("actor/1", observed_stamp=FIRST_STAMP).stamp)
    refused = bench.advance("actor/2", observed_stamp=first + PERIOD)  # of an earlier life
    assert not refused.ok and "restarted" in refused.reason
    assert bench.sim.world.time_ns == PERIOD
    assert bench.advance("actor/2", observed_stamp=first).ok
    again = bench.advance("actor/2", observed_stamp=first)
    assert again.ok and bench.sim.world.time_ns == 2 * PERIOD


def test_the_ledger_has_what_was_carried_out(ros, tmp_path):
    path = tmp_path / "ledger.jsonl"
    bench = Bench(ros, task="reach", ledger=str(path))
    first = bench.advance("actor/s/0/0")
    bench.advance("actor/s/0/0")  # a repeat
    bench.advance(periods=0)  # no time passes
    bench.advance(periods=2)
    entries = list(ledger.read(path))
    assert [(e.step, e.owner, e.periods) for e in entries] == [
        ("actor/s/0/0", "test", 1),
        ("", "test", 2),
    ]
    assert [(e.before, e.after) for e in entries] == [
        (FIRST_STAMP, to_ns(first.stamp)),
        (to_ns(first.stamp), FIRST_STAMP + 3 * PERIOD),
    ]
    assert entries[0].position_after == entries[1].position_before
    assert entries[1].position_after == tuple(bench.sim.world.pose.position)


def test_no_periods_publish_the_present_state_again(bench):
    poses = bench.listen(PoseStamped, "current_pose", qos.COMMAND)
    assert bench.inject("lose_state").successful
    answer = bench.advance("a")
    assert answer.ok
    again = bench.advance("a/again", periods=0)
    assert again.ok and again.stamp == answer.stamp
    bench.ros.wait_for(lambda: poses)
    assert [message.header.stamp for message in poses] == [answer.stamp]
    assert bench.sim.world.time_ns == PERIOD
    states = bench.listen(FrankaRobotState, f"{BROADCASTER}/robot_state", qos.STATE)
    bench.advance(periods=0)
    bench.ros.wait_for(lambda: states)  # all of it, the rare robot_state too


def test_advance_waits_for_the_target_it_names(bench):
    goal = Pose(
        bench.sim.world.pose.position + np.array([0.0, 0.0, 0.005]), bench.sim.world.pose.rotation
    )
    client = bench.node.create_client(Advance, "hil_sim/advance")
    assert client.wait_for_service(30.0)
    stamp = FIRST_STAMP + 5
    request = Advance.Request(step_id="s", periods=1, target_stamp=from_ns(stamp))
    waiting = threading.Event()
    wait = bench.sim._target.wait

    def noticed(*args):
        waiting.set()
        return wait(*args)

    bench.sim._target.wait = noticed
    future = client.call_async(request)
    assert waiting.wait(30.0) and not future.done()
    bench.send_target(goal, stamp)
    answer = bench.ros.result(future)
    assert answer.ok, answer.reason
    assert bench.sim.world.target.almost_equal(goal, 1e-9, 1e-6)
    # The newest target is in force when none is named, and an older one is not waited for.
    assert bench.advance(target_stamp=0).ok
    assert bench.advance(target_stamp=stamp - 1).ok


def test_a_target_that_does_not_come_is_an_answer_not_a_hang(hasty):
    answer = hasty.advance("lost", target_stamp=FIRST_STAMP + 7)
    assert not answer.ok and "no target_pose with stamp" in answer.reason
    assert hasty.sim.world.time_ns == 0
    # It was not carried out, so it may be asked for again.
    hasty.send_target(hasty.sim.world.pose, FIRST_STAMP + 7)
    assert hasty.advance("lost", target_stamp=FIRST_STAMP + 7).ok


def test_two_publishers_of_the_target_are_ignored(hasty):
    other = hasty.node.create_publisher(PoseStamped, "target_pose", qos.COMMAND)
    hasty.ros.wait_for(other.get_subscription_count)
    hasty.ros.wait_for(lambda: hasty.sim.count_publishers("/target_pose") == 2)
    before = hasty.sim.world.target
    hasty.send_target(Pose(before.position + 0.01, before.rotation), FIRST_STAMP)
    answer = hasty.advance(target_stamp=FIRST_STAMP)
    assert not answer.ok and "2 publishers" in answer.reason
    assert hasty.sim.world.target.almost_equal(before)


@pytest.mark.parametrize("broken", ["nan", "zero quaternion"])
def test_impossible_targets_are_dropped(hasty, broken):
    before = hasty.sim.world.target
    message = PoseStamped()
    message.header.stamp = from_ns(FIRST_STAMP)
    if broken == "nan":
        fill_pose(message.pose, np.full(3, np.nan), np.array([0.0, 0.0, 0.0, 1.0]))
    else:
        message.pose.orientation.w = 0.0
    hasty.target.publish(message)
    answer = hasty.advance(target_stamp=FIRST_STAMP)
    assert not answer.ok and "not a finite pose" in answer.reason
    assert hasty.sim.world.target.almost_equal(before)


def test_resets_of_the_world_are_seeded(bench):
    objects = bench.listen(ObjectPoses, "object_poses", qos.STATE)
    places = []
    for seed in (5, 6, 5):
        assert bench.call(ResetWorld, "hil_sim/reset_world", seed=seed).ok
        count = len(objects)
        assert bench.advance().ok
        bench.ros.wait_for(lambda n=count: len(objects) > n)
        places.append(objects[-1].poses[0])
    assert places[0] == places[2] != places[1]


def test_inactive_means_that_time_stands_still(bench):
    bench.sim.trigger_deactivate()
    answer = bench.advance("x")
    assert not answer.ok and "not active" in answer.reason
    bench.sim.trigger_activate()
    assert bench.advance("x").ok


def test_it_can_be_taken_down_and_set_up_again(bench):
    bench.advance("x")
    bench.sim.trigger_deactivate()
    bench.sim.trigger_cleanup()
    bench.ros.wait_for(lambda: not bench.node.get_publishers_info_by_topic("/current_pose"))
    bench.sim.trigger_configure()
    bench.sim.trigger_activate()
    for topic, *_ in TOPICS:
        bench.ros.wait_for(lambda t=topic: len(bench.node.get_publishers_info_by_topic(t)) == 1)
    answer = bench.advance("x")
    assert answer.ok and to_ns(answer.stamp) == FIRST_STAMP + PERIOD


def test_cameras_come_with_the_step(bench):
    wrist = bench.listen(Image, "wrist/image", qos.IMAGE)
    side = bench.listen(Image, "side/image", qos.IMAGE)
    answer = bench.advance("1")
    bench.ros.wait_for(lambda: wrist and side)
    for heard in (wrist, side):
        assert (heard[-1].height, heard[-1].width, heard[-1].encoding) == (128, 128, "rgb8")
        assert heard[-1].header.stamp == answer.stamp
    assert bench.inject("freeze wrist").successful
    bench.advance("2")
    bench.ros.wait_for(lambda: len(side) > 1)
    bench.advance("3")
    bench.ros.wait_for(lambda: len(side) > 2)
    assert len(wrist) == 1
    assert bench.inject("thaw wrist").successful
    bench.advance("4")
    bench.ros.wait_for(lambda: len(wrist) > 1)


def test_recovery_takes_its_three_steps_in_order(bench):
    states = bench.listen(FrankaRobotState, f"{BROADCASTER}/robot_state", qos.COMMAND)
    activity = bench.listen(ControllerManagerActivity, "controller_manager/activity", qos.LATCHED)
    assert bench.inject("cartesian_reflex").successful
    bench.ros.wait_for(lambda: states and states[-1].robot_mode == 4)
    assert states[-1].current_errors.cartesian_reflex
    bench.ros.wait_for(lambda: _states(activity) == ("inactive", "unconfigured"))
    before = bench.sim.world.pose
    bench.send_target(Pose(before.position + 0.01, before.rotation), FIRST_STAMP)
    assert bench.advance(target_stamp=FIRST_STAMP).ok
    assert bench.sim.world.pose.distance(before)[0] < 1e-3

    assert not bench.activate_hardware().ok
    assert not bench.activate_controller().ok
    assert bench.recover().status == GoalStatus.STATUS_SUCCEEDED
    bench.ros.wait_for(lambda: states[-1].robot_mode == FrankaRobotState.ROBOT_MODE_IDLE)
    assert not states[-1].current_errors.cartesian_reflex
    assert states[-1].last_motion_errors.cartesian_reflex
    refused = bench.activate_controller()
    assert not refused.ok and "unconfigured" in refused.message
    answer = bench.activate_hardware()
    assert answer.ok and answer.state.label == "active"
    assert bench.activate_controller().ok
    bench.ros.wait_for(lambda: _states(activity) == ("active", "active"))
    bench.ros.wait_for(lambda: states[-1].robot_mode == FrankaRobotState.ROBOT_MODE_MOVE)
    # It holds where it stands: the target from before is forgotten.
    assert bench.sim.world.target.distance(bench.sim.world.pose)[0] < 1e-6


def _states(activity):
    if not activity:
        return None
    names = {each.name: each.state.label for each in activity[-1].controllers}
    return names[IMPEDANCE], activity[-1].hardware_components[0].state.label


def test_user_stop_cannot_be_recovered_from_a_distance(bench):
    states = bench.listen(FrankaRobotState, f"{BROADCASTER}/robot_state", qos.COMMAND)
    assert bench.inject("user_stop").successful
    bench.ros.wait_for(lambda: states and states[-1].robot_mode == 5)
    assert bench.recover().status == GoalStatus.STATUS_ABORTED
    assert not bench.activate_hardware().ok
    assert bench.inject("released").successful
    assert bench.recover().status == GoalStatus.STATUS_SUCCEEDED
    assert bench.activate_hardware().ok and bench.activate_controller().ok
    refused = bench.inject("cartesian_reflexes")
    assert not refused.successful and "cannot inject" in refused.reason


def test_controllers_and_hardware_are_listed(bench):
    controllers = {
        each.name: each
        for each in bench.call(ListControllers, "controller_manager/list_controllers").controller
    }
    assert controllers[IMPEDANCE].state == "active"
    assert controllers[IMPEDANCE].type == "crisp_controllers/CartesianController"
    assert len(controllers[IMPEDANCE].claimed_interfaces) == 7
    (component,) = bench.call(
        ListHardwareComponents, "controller_manager/list_hardware_components"
    ).component
    assert component.name == "FrankaHardwareInterface" and component.state.label == "active"


def test_settings_of_the_robot_only_while_idle(bench):
    thresholds = {
        "upper_torque_thresholds_nominal": [50.0] * 7,
        "upper_force_thresholds_nominal": [20.0] * 6,
    }
    name = "service_server/set_force_torque_collision_behavior"
    answer = bench.call(SetForceTorqueCollisionBehavior, name, **thresholds)
    assert not answer.success and "not idle" in answer.error
    off = bench.call(
        SwitchController,
        "controller_manager/switch_controller",
        deactivate_controllers=[IMPEDANCE],
        strictness=2,
    )
    assert off.ok
    assert bench.call(SetForceTorqueCollisionBehavior, name, **thresholds).success
    thresholds["upper_force_thresholds_nominal"] = [-1.0] * 6
    answer = bench.call(SetForceTorqueCollisionBehavior, name, **thresholds)
    assert not answer.success and "must be > 0" in answer.error
    assert bench.activate_controller().ok


def test_gains_change_while_it_runs_and_wrong_ones_do_not(bench):
    values = {"task__k_pos_x": 1234.0, "task__error_clip__rz": 0.07, "nullspace__damping": 3.0}
    assert bench.set_parameters(IMPEDANCE, **values).successful
    gains = bench.sim.world.controller.gains
    assert gains.stiffness[0] == 1234.0 and gains.error_clip[5] == 0.07
    assert gains.nullspace_damping == 3.0
    refused = bench.set_parameters(IMPEDANCE, task__k_pos_x=1.0, task__k_pos_y=-5.0)
    assert not refused.successful and "task.k_pos_y" in refused.reason
    assert bench.sim.world.controller.gains.stiffness[0] == 1234.0
    assert not bench.set_parameters(IMPEDANCE, task__k_pos_x=float("nan")).successful
    assert not bench.set_parameters(IMPEDANCE, task__k_pos_z="stiff").successful
    assert not bench.set_parameters(IMPEDANCE, unknown=1.0).successful
    read = bench.call(
        GetParameters, f"{IMPEDANCE}/get_parameters", names=["task.k_pos_x", "limit_error"]
    )
    assert [_plain(value) for value in read.values] == [1234.0, True]


def _plain(value):
    return Parameter.from_parameter_msg(ParameterMsg(name="x", value=value)).value


def test_gripper_motion_takes_simulated_time_and_blocks_nothing(bench):
    peg = bench.sim.world.gripper.width
    future = bench.start_goal(Move, "franka_gripper/move", Move.Goal(width=0.06, speed=0.1))
    result, periods = bench.run_until(future)
    assert result.status == GoalStatus.STATUS_SUCCEEDED and result.result.success
    assert periods == pytest.approx((0.06 - peg) / 0.1 * 10, abs=1)
    # Nothing to do is done at once.
    future = bench.start_goal(Move, "franka_gripper/move", Move.Goal(width=0.06, speed=0.1))
    assert bench.ros.result(future).result.success


def test_grasp_succeeds_on_what_is_there(bench):
    goal = Grasp.Goal(width=0.02, speed=0.1, force=20.0)
    goal.epsilon.inner = goal.epsilon.outer = 0.005
    result, _ = bench.run_until(bench.start_goal(Grasp, "franka_gripper/grasp", goal))
    assert result.result.success
    goal.width = 0.05
    result, _ = bench.run_until(bench.start_goal(Grasp, "franka_gripper/grasp", goal))
    assert not result.result.success and result.status == GoalStatus.STATUS_ABORTED
    result, _ = bench.run_until(bench.start_goal(Homing, "franka_gripper/homing", Homing.Goal()))
    assert result.result.success and bench.sim.world.gripper.width == pytest.approx(0.08)


def test_gripper_action_has_the_quirks_of_the_robot(bench):
    goal = GripperCommand.Goal()
    goal.command.position = 0.03  # per finger
    result, _ = bench.run_until(
        bench.start_goal(GripperCommand, "franka_gripper/gripper_action", goal)
    )
    assert result.result.position == pytest.approx(0.06)  # the width
    assert result.result.reached_goal and result.result.effort == 0.0


def test_a_newer_gripper_goal_takes_over_and_stop_stops(bench):
    first = bench.start_goal(Move, "franka_gripper/move", Move.Goal(width=0.08, speed=0.01))
    bench.advance()
    second = bench.start_goal(Move, "franka_gripper/move", Move.Goal(width=0.07, speed=0.01))
    superseded = bench.ros.result(first)
    assert not superseded.result.success and "newer" in superseded.result.error
    bench.advance()
    assert bench.call(Trigger, "franka_gripper/stop").success
    assert not bench.ros.result(second).result.success
    refused = bench.start_goal(Move, "franka_gripper/move", Move.Goal(width=0.5, speed=0.1))
    answer = bench.ros.result(refused).result
    assert not answer.success and "outside" in answer.error


def test_rviz_gets_description_and_transforms(bench):
    description = bench.listen(String, "robot_description", qos.LATCHED)
    fixed = bench.listen(TFMessage, "/tf_static", qos.LATCHED)
    moving = bench.listen(TFMessage, "/tf", 10)
    bench.ros.wait_for(lambda: description and fixed)
    assert "<robot" in description[0].data
    bench.advance()
    bench.ros.wait_for(lambda: moving)
    children = {each.child_frame_id for each in moving[-1].transforms + fixed[-1].transforms}
    assert {
        "fr3_link0",
        "fr3_link7",
        "fr3_hand_tcp",
        "fr3_leftfinger",
        "hole",
        "side_optical_frame",
    } <= children


def test_realtime_runs_freely_and_follows_targets(ros):
    bench = Bench(ros, task="peg_insert", pace="realtime", state_rate_hz=50.0)
    poses = bench.listen(PoseStamped, "current_pose", qos.COMMAND)
    states = bench.listen(FrankaRobotState, f"{BROADCASTER}/robot_state", qos.COMMAND)
    images = bench.listen(Image, "side/image", qos.IMAGE)
    ros.wait_for(lambda: len(poses) > 5 and states and len(images) > 2)
    stamps = [to_ns(message.header.stamp) for message in poses]
    assert sorted(set(stamps)) == stamps
    answer = bench.advance("x")
    assert not answer.ok and "realtime" in answer.reason
    start = bench.sim.world.pose
    goal = Pose(start.position + np.array([0.0, 0.004, 0.0]), start.rotation)
    bench.send_target(goal, 1)
    ros.wait_for(lambda: bench.sim.world.pose.distance(goal)[0] < 1e-3)
    assert bench.inject("joint_reflex").successful
    ros.wait_for(lambda: states[-1].robot_mode == FrankaRobotState.ROBOT_MODE_REFLEX)
    future = bench.start_goal(Move, "franka_gripper/move", Move.Goal(width=0.03, speed=0.1))
    assert ros.result(future).result.success
    bench.sim.trigger_deactivate()
    still = bench.sim.world.time_ns
    assert bench.sim.world.time_ns == still
