"""Robot topics of franka_ros2 and crisp's broadcasters, published from the world's state."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from franka_msgs.msg import Errors, FrankaRobotState
from geometry_msgs.msg import (
    PoseStamped,
    Transform,
    TransformStamped,
    TwistStamped,
    Wrench,
    WrenchStamped,
)
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage

from hil_common import qos
from hil_common.conversions import fill_pose, pose_to_msg
from hil_interfaces.msg import ObjectPoses
from hil_sim import fr3, urdf
from hil_sim.robot import Robot
from hil_sim.world import World
from hil_tasks.geometry import Pose

BROADCASTER = "franka_robot_state_broadcaster"
STIFFNESS_FRAME = "fr3_hand_tcp"
ERROR_NAMES = tuple(Errors.get_fields_and_field_types())


class RobotInterface:
    """Publishes the arm's state. Messages are made once and used again.

    All messages share one stamp object, so setting it stamps everything. What nobody subscribes
    to is not filled.

    Args:
        node: publishes; names are relative to its namespace.
        world, robot: whose state it is.
        base_frame: frame id of poses, twists and wrenches.
    """

    def __init__(self, node: Node, world: World, robot: Robot, base_frame: str) -> None:
        self._node, self._world, self._robot = node, world, robot
        self._base_frame = base_frame
        self.stamp = Time()
        pose, twist = self._stamped(PoseStamped), self._stamped(TwistStamped)
        wrench, wrench_k = self._stamped(WrenchStamped), self._stamped(WrenchStamped)
        wrench_k.header.frame_id = STIFFNESS_FRAME
        desired, desired_twist = self._stamped(PoseStamped), self._stamped(TwistStamped)
        self._pose, self._twist, self._desired = pose, twist, desired
        self._wrench, self._wrench_k = wrench, wrench_k
        self._joints = self._joint_message(fr3.JOINTS)
        self._desired_joints = self._joint_message(fr3.JOINTS)
        self._external = self._joint_message(fr3.JOINTS)
        self._all_joints = self._joint_message(fr3.JOINTS + fr3.FINGER_JOINTS)
        self._fingers = self._joint_message(fr3.FINGER_JOINTS)
        self._objects = ObjectPoses()
        self._objects.header.stamp = self.stamp
        self._objects.header.frame_id = base_frame
        self._state = self._robot_state_message()

        reliable, best_effort = qos.COMMAND, qos.STATE
        self._outputs: list[tuple[Publisher, Any]] = [
            (
                self._publisher(
                    f"{BROADCASTER}/external_wrench_in_base_frame", wrench, best_effort
                ),
                wrench,
            ),
            (
                self._publisher(
                    f"{BROADCASTER}/external_wrench_in_stiffness_frame", wrench_k, best_effort
                ),
                wrench_k,
            ),
            (self._publisher(f"{BROADCASTER}/last_desired_pose", desired, best_effort), desired),
            (
                self._publisher(
                    f"{BROADCASTER}/desired_end_effector_twist", desired_twist, best_effort
                ),
                desired_twist,
            ),
            (
                self._publisher(f"{BROADCASTER}/measured_joint_states", self._joints, best_effort),
                self._joints,
            ),
            (
                self._publisher(
                    f"{BROADCASTER}/desired_joint_states", self._desired_joints, best_effort
                ),
                self._desired_joints,
            ),
            (
                self._publisher(
                    f"{BROADCASTER}/external_joint_torques", self._external, best_effort
                ),
                self._external,
            ),
            (self._publisher("franka/joint_states", self._joints, reliable), self._joints),
            (self._publisher("joint_states", self._all_joints, reliable), self._all_joints),
            (
                self._publisher("franka_gripper/joint_states", self._fingers, reliable),
                self._fingers,
            ),
            (self._publisher("object_poses", self._objects, best_effort), self._objects),
            (self._publisher("current_twist", twist, reliable), twist),
            (self._publisher(f"{BROADCASTER}/current_pose", pose, best_effort), pose),
            (self._publisher("current_pose", pose, reliable), pose),
        ]
        self._state_output = self._publisher(f"{BROADCASTER}/robot_state", self._state, reliable)
        self._tf_output = node.create_publisher(TFMessage, "/tf", 100)
        self._tf_static = node.create_publisher(TFMessage, "/tf_static", qos.LATCHED)
        self._description = node.create_publisher(String, "robot_description", qos.LATCHED)

    def close(self) -> None:
        """Drop the publishers."""
        publishers = [publisher for publisher, _ in self._outputs]
        publishers += [self._state_output, self._tf_output, self._tf_static, self._description]
        for publisher in publishers:
            self._node.destroy_publisher(publisher)

    def describe(self) -> None:
        """Publish what does not change: robot_description and the fixed transforms."""
        self._description.publish(String(data=urdf.build(self._base_frame)))
        cameras = [
            camera
            for camera in self._world.task.scene().cameras
            if camera.name in self._world.cameras
        ]
        fixed = urdf.fixed_transforms(self._base_frame, cameras)
        self._tf_static.publish(TFMessage(transforms=[self._transform(*each) for each in fixed]))

    def publish(self) -> None:
        """Publish measurements of now, with the present stamp."""
        reading = self._world.reading()
        position, xyzw = reading.pose.position, reading.pose.xyzw
        fill_pose(self._pose.pose, position, xyzw)
        fill_six(self._twist.twist.linear, self._twist.twist.angular, reading.twist)
        fill_six(self._wrench.wrench.force, self._wrench.wrench.torque, reading.wrench)
        self._fill_joints(reading.q, reading.dq, reading.gripper_width)
        self._fill_objects(reading.objects)
        for publisher, message in self._outputs:
            if publisher.get_subscription_count():
                if message is self._wrench_k:
                    self._fill_stiffness_wrench(reading.wrench, reading.pose)
                elif message is self._desired:
                    target = self._world.target
                    fill_pose(message.pose, target.position, target.xyzw)
                elif message is self._external:
                    message.effort = doubles(self._world.external_torques)
                publisher.publish(message)

    def publish_transforms(self) -> None:
        """Publish the moving transforms of links, fingers and objects on /tf, if heard."""
        if not self._tf_output.get_subscription_count():
            return
        q = [float(value) for value in self._world.data.qpos[:7]]
        moving = [self._transform(*each) for each in urdf.transforms(q, self._world.gripper.width)]
        for name, pose in self._world.objects.items():
            place = tuple(float(value) for value in pose.position)
            turn = tuple(float(value) for value in pose.xyzw)
            moving.append(self._transform(self._base_frame, name, place, turn))
        self._tf_output.publish(TFMessage(transforms=moving))

    def publish_robot_state(self) -> None:
        """Publish FrankaRobotState: mode and errors, with the measurements of now. Expensive."""
        if not self._state_output.get_subscription_count():
            return
        state, robot, world = self._state, self._robot, self._world
        reading = world.reading()
        joints = state.measured_joint_state
        joints.position, joints.velocity = doubles(reading.q), doubles(reading.dq)
        joints.effort = doubles(world.controller.tau)
        state.desired_joint_state.position = joints.position
        state.measured_joint_motor_state.position = joints.position
        state.tau_ext_hat_filtered.effort = doubles(world.external_torques)
        fill_pose(state.o_t_ee.pose, reading.pose.position, reading.pose.xyzw)
        target = world.target
        for desired in (state.o_t_ee_d, state.o_t_ee_c):
            fill_pose(desired.pose, target.position, target.xyzw)
        wrench = state.o_f_ext_hat_k.wrench
        fill_six(wrench.force, wrench.torque, reading.wrench)
        self._fill_stiffness_wrench(reading.wrench, reading.pose, state.k_f_ext_hat_k.wrench)
        state.time = world.time
        state.control_command_success_rate = 1.0 if robot.controlled else 0.0
        state.robot_mode = robot.mode
        for name in ERROR_NAMES:
            setattr(state.current_errors, name, name in robot.errors)
            setattr(state.last_motion_errors, name, name in robot.last_errors)
        self._state_output.publish(state)

    # -- inside ----------------------------------------------------------------------------------

    def _publisher(self, topic: str, message: Any, profile: Any) -> Publisher:
        return self._node.create_publisher(type(message), topic, profile)

    def _stamped(self, kind: type) -> Any:
        message = kind()
        message.header.stamp = self.stamp
        message.header.frame_id = self._base_frame
        return message

    def _joint_message(self, names: Sequence[str]) -> JointState:
        message = JointState(name=list(names))
        message.header.stamp = self.stamp
        message.header.frame_id = self._base_frame
        zeros = array("d", [0.0] * len(names))
        message.position, message.velocity, message.effort = zeros, zeros, zeros
        return message

    def _robot_state_message(self) -> FrankaRobotState:
        state = FrankaRobotState()
        for field in state.get_fields_and_field_types():
            part = getattr(state, field)
            header = part if field == "header" else getattr(part, "header", None)
            if header is not None:
                header.stamp = self.stamp
                header.frame_id = self._base_frame
        for joints in (
            state.measured_joint_state,
            state.desired_joint_state,
            state.measured_joint_motor_state,
            state.tau_ext_hat_filtered,
        ):
            joints.name = list(fr3.JOINTS)
        state.k_f_ext_hat_k.header.frame_id = STIFFNESS_FRAME
        return state

    def _fill_joints(self, q: NDArray[Any], dq: NDArray[Any], width: float) -> None:
        tau = self._world.controller.tau
        half = width / 2
        joints, everything, fingers = self._joints, self._all_joints, self._fingers
        joints.position, joints.velocity = doubles(q), doubles(dq)
        joints.effort = doubles(tau)
        self._desired_joints.position = joints.position
        everything.position = joints.position + array("d", (half, half))
        everything.velocity = joints.velocity + array("d", (0.0, 0.0))
        everything.effort = joints.effort + array("d", (0.0, 0.0))
        fingers.position = array("d", (half, half))

    def _fill_stiffness_wrench(
        self, wrench: NDArray[Any], pose: Pose, message: Wrench | None = None
    ) -> None:
        message = self._wrench_k.wrench if message is None else message
        turned = pose.rotation.inv().apply(wrench.reshape(2, 3)).reshape(6)
        fill_six(message.force, message.torque, turned)

    def _fill_objects(self, objects: Mapping[str, Pose]) -> None:
        if self._objects.names != list(objects):
            self._objects.names = list(objects)
            self._objects.poses = [pose_to_msg(pose) for pose in objects.values()]
            return
        for message, pose in zip(self._objects.poses, objects.values(), strict=True):
            fill_pose(message, pose.position, pose.xyzw)

    def _transform(
        self, parent: str, child: str, place: Sequence[float], turn: Sequence[float]
    ) -> TransformStamped:
        message = TransformStamped(child_frame_id=child, transform=Transform())
        message.header.stamp = self.stamp
        message.header.frame_id = parent
        translation, rotation = message.transform.translation, message.transform.rotation
        translation.x, translation.y, translation.z = place
        rotation.x, rotation.y, rotation.z, rotation.w = turn
        return message


def doubles(values: NDArray[np.float64]) -> array[float]:
    """Values as the array that a message field takes without checking each element."""
    return array("d", values.tobytes())


def fill_six(linear: Any, angular: Any, values: NDArray[np.float64]) -> None:
    """Six numbers into two Vector3 messages."""
    linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = values.tolist()
