"""The simulated world: FR3 with hand, impedance controller, a task's objects. No ROS.

Deterministic: the same seed and the same calls give the same bits. Time moves only in `advance`
and `tick`.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from hil_sim import fr3, mjcf
from hil_sim.controller import Array, CartesianImpedance, Gains, JointTrajectory
from hil_sim.gripper import Fingers, Gripper, Hand
from hil_sim.render import Renderer
from hil_tasks.geometry import Pose, pose_offset
from hil_tasks.spec import ComplianceSpec
from hil_tasks.task import Reading, Task

WRENCH_TIME_CONSTANT = 0.02  # s; of the low-pass on the external torques
BRAKE_DAMPING = 1e4  # Nm s/rad; brakes engaged
TCP = "fr3_hand_tcp"


class World:
    """One arm, one task.

    Args:
        task: what stands on the table and what the hand holds.
        seed: of the first `reset_world`.
        cameras: cameras to render; all of the scene's when empty.
        render_size: edge of the images, pixels.
        physics_hz: physics steps per second.
        control_hz: ticks of the impedance law per second; divides physics_hz.
    """

    def __init__(
        self,
        task: Task,
        seed: int = 0,
        cameras: tuple[str, ...] = (),
        render_size: int = 128,
        physics_hz: int = 1000,
        control_hz: int = 500,
    ) -> None:
        if physics_hz % control_hz or 1_000_000_000 % control_hz:
            raise ValueError("control_hz must divide physics_hz and a second")
        self.task = task
        scene = task.scene()
        known = tuple(camera.name for camera in scene.cameras)
        unknown = set(cameras) - set(known)
        if unknown:
            raise ValueError(
                f"no camera {', '.join(sorted(unknown))}; the task has: {', '.join(known)}"
            )
        self.cameras = cameras or known
        self.tick_ns = 1_000_000_000 // control_hz
        self._ticks_per_period = round(control_hz * task.spec.period)
        self._substeps = physics_hz // control_hz
        self._render_size = render_size
        self.model = mujoco.MjModel.from_xml_string(mjcf.build(scene, 1.0 / physics_hz))
        self.data = mujoco.MjData(self.model)
        self._tcp: int = self.model.body(TCP).id
        self._bodies = {item.name: self.model.body(item.name).id for item in scene.objects}
        self._free = {item.name for item in scene.objects if item.free}
        self._objects: dict[str, Pose] = {}
        self.gripper: Hand
        if scene.grasping:
            self.gripper = Fingers(self.model, self.data)
        else:
            self.gripper = Gripper(scene.tool_width)
        self._drawn = not scene.grasping
        self._fingers = [self.model.body(f"fr3_{side}finger").id for side in ("left", "right")]
        self._damping = self.model.dof_damping[:7].copy()
        self._constraint: Array = self.data.qfrc_constraint[:7]
        self._external = np.zeros(7)
        self._scratch = np.zeros(7)
        self._smooth = 1.0 - np.exp(-1.0 / (control_hz * WRENCH_TIME_CONSTANT))
        self.set_collision_thresholds(np.full(6, np.inf), np.full(7, np.inf))
        self.fault = ""
        self._braked = False
        self._joints: JointTrajectory | None = None
        self._ticks = 0
        self._renderer: Renderer | None = None
        self.data.qpos[:7] = fr3.HOME
        self._refresh()
        self.controller = CartesianImpedance(
            self.model, self.data, TCP, 1.0 / control_hz, fr3.HOME
        )
        self.set_compliance(task.spec.compliance["policy"])
        self.place_arm(task.spec.reset.pose)
        self.reset_world(seed)

    # -- time ------------------------------------------------------------------------------------

    @property
    def time_ns(self) -> int:
        """Simulated time since construction, ns (exact)."""
        return self._ticks * self.tick_ns

    @property
    def time(self) -> float:
        """Simulated time since construction, s."""
        return self.time_ns * 1e-9

    def advance(self, periods: int = 1) -> None:
        """Simulate control periods of the task."""
        self.tick(periods * self._ticks_per_period)

    def tick(self, ticks: int) -> None:
        """Simulate ticks of the impedance law."""
        model, data, law = self.model, self.data, self.controller
        external, scratch, constraint = self._external, self._scratch, self._constraint
        for _ in range(ticks):
            mujoco.mj_step1(model, data)
            if self._joints is not None:
                self._joints.tick()
            elif not self._braked:
                law.tick()
            mujoco.mj_step2(model, data)
            for _ in range(self._substeps - 1):
                mujoco.mj_step(model, data)
            np.subtract(constraint, external, scratch)
            np.multiply(scratch, self._smooth, scratch)
            np.add(external, scratch, external)
            self._ticks += 1
            if self._ticks % 5 == 0:
                self._check_limits()
        self.gripper.advance(ticks * self.tick_ns * 1e-9)
        self._refresh()

    # -- commands --------------------------------------------------------------------------------

    @property
    def target(self) -> Pose:
        """Target of the impedance controller."""
        return self.controller.target

    def set_target(self, pose: Pose) -> None:
        """Set the target pose of the tool centre point (base frame). Checked by no one here."""
        self.controller.target = pose

    def set_compliance(self, compliance: ComplianceSpec) -> None:
        """Gains and clips of a preset, from the next tick on."""
        self.controller.gains = Gains.from_compliance(compliance)

    def set_collision_thresholds(self, force: Array, torque: Array) -> None:
        """External wrench (6,) and joint torques (7,) above which the arm stops with a reflex."""
        self._force_threshold, self._torque_threshold = force, torque
        self._watch_force = bool(np.isfinite(force).any())

    def hold(self) -> None:
        """Measured pose becomes the target."""
        self.controller.hold()

    def brake(self) -> None:
        """Stop the arm where it is; the controller is off until `release`."""
        self._braked = True
        self._joints = None
        self.model.dof_damping[:7] = BRAKE_DAMPING
        self.data.qfrc_applied[:7] = 0.0

    def release(self) -> None:
        """Let the controller act again, holding the measured pose; clears the fault."""
        self.fault = ""
        self._braked = False
        self.model.dof_damping[:7] = self._damping
        self._external[:] = 0.0
        self.data.qvel[:7] = 0.0
        self.hold()

    def release_to_joints(self) -> None:
        """Let a joint servo hold the arm where it is, instead of the impedance law."""
        self.release()
        self._joints = JointTrajectory(self.data, self.tick_ns * 1e-9)

    def go_to_joints(self, q: Array, seconds: float) -> None:
        """Move to joint positions (7,), rad; nothing happens unless the joint servo is on."""
        if self._joints is not None:
            self._joints.go(q, seconds)

    @property
    def braked(self) -> bool:
        """Whether the brakes are engaged."""
        return self._braked

    def raise_fault(self, name: str) -> None:
        """Robot error (a name of franka_msgs/Errors): the arm brakes."""
        self.fault = name
        self.brake()

    # -- state -----------------------------------------------------------------------------------

    @property
    def pose(self) -> Pose:
        """Measured pose of the tool centre point in the base frame."""
        w, x, y, z = self.data.xquat[self._tcp]
        return Pose.from_xyzw(self.data.xpos[self._tcp].copy(), [x, y, z, w])

    @property
    def twist(self) -> Array:
        """Twist (6,) of the tool centre point, base axes, m/s and rad/s."""
        twist: Array = self.controller.jacobian @ self.data.qvel[:7]
        return twist

    @property
    def wrench(self) -> Array:
        """External wrench (6,) on the tool centre point, base axes, N and Nm.

        What the environment does to the arm: pressing on the table gives a positive force along z.
        Estimated as on the robot, from the (low-passed) external joint torques.
        """
        jacobian = self.controller.jacobian
        gram = jacobian @ jacobian.T
        gram.flat[::7] += 1e-6
        wrench: Array = np.linalg.solve(gram, jacobian @ self._external)
        return wrench

    @property
    def external_torques(self) -> Array:
        """External joint torques (7,), low-passed, Nm."""
        return self._external.copy()

    @property
    def objects(self) -> dict[str, Pose]:
        """Poses of all objects in the base frame, estimates included."""
        poses = dict(self._objects)
        for name in self._free:
            body = self._bodies[name]
            w, x, y, z = self.data.xquat[body]
            poses[name] = Pose.from_xyzw(self.data.xpos[body].copy(), [x, y, z, w])
        return poses

    def reading(self) -> Reading:
        """Everything that is measured now."""
        return Reading(
            pose=self.pose,
            twist=self.twist,
            wrench=self.wrench,
            q=self.data.qpos[:7].copy(),
            dq=self.data.qvel[:7].copy(),
            gripper_width=self.gripper.width,
            objects=self.objects,
            target=self.target,
        )

    def render(self, camera: str) -> NDArray[np.uint8]:
        """Image (size, size, 3) uint8 RGB of a camera. Always call it from the same thread."""
        if self._renderer is None:
            self._renderer = Renderer(self.model, self._render_size)
        return self._renderer.render(self.data, camera)

    def close(self) -> None:
        """Release the renderer, if there is one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    # -- resets ----------------------------------------------------------------------------------

    def reset_world(self, seed: int) -> None:
        """Set the task's objects anew, and open a hand that grasps.

        The arm, time and controller stay as they are.
        """
        self.gripper.reset()
        self._objects = self.task.sample_world(np.random.default_rng(seed))
        for name, body in self._bodies.items():
            pose = self._objects[name]
            x, y, z, w = pose.xyzw
            if name in self._free:
                start = self.model.jnt_qposadr[self.model.body_jntadr[body]]
                speed = self.model.jnt_dofadr[self.model.body_jntadr[body]]
                self.data.qpos[start : start + 7] = (*pose.position, w, x, y, z)
                self.data.qvel[speed : speed + 6] = 0.0
            else:
                mocap = self.model.body_mocapid[body]
                self.data.mocap_pos[mocap] = pose.position
                self.data.mocap_quat[mocap] = (w, x, y, z)
        self._refresh()

    def place_arm(self, pose: Pose) -> None:
        """Put the arm at a pose at once, at rest, holding it (not a motion: for starts and tests).

        Raises:
            ValueError: the pose cannot be reached.
        """
        self.data.qpos[:7] = self.solve(pose, fr3.HOME)  # whatever was before: the same bits
        self.data.qvel[:7] = 0.0
        self.data.qacc_warmstart[:] = 0.0
        self.data.qfrc_applied[:] = 0.0
        self._external[:] = 0.0
        self._refresh()
        self.controller.hold()

    def solve(self, pose: Pose, start: Array) -> Array:
        """Joint positions (7,) that reach a pose, near `start` and the home posture.

        Raises:
            ValueError: the pose cannot be reached.
        """
        scratch = mujoco.MjData(self.model)
        law = CartesianImpedance(self.model, scratch, TCP, 0.002, fr3.HOME)
        q: Array = np.array(start, dtype=np.float64)
        for _ in range(200):
            scratch.qpos[:7] = q
            mujoco.mj_kinematics(self.model, scratch)
            mujoco.mj_comPos(self.model, scratch)
            w, x, y, z = scratch.xquat[self._tcp]
            error = pose_offset(pose, Pose.from_xyzw(scratch.xpos[self._tcp], [x, y, z, w]))
            law.update_jacobian()
            jacobian = law.jacobian
            posture = 0.1 * (fr3.HOME - q)
            inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + 1e-5 * np.eye(6))
            rest = posture - inverse @ (jacobian @ posture)
            if np.abs(error).max() < 1e-9:
                return q
            q = np.clip(
                q + inverse @ error + rest, fr3.LIMITS[:, 0] + 0.01, fr3.LIMITS[:, 1] - 0.01
            )
        if np.abs(error).max() < 1e-5:
            return q
        raise ValueError(f"pose {pose.position} {pose.xyzw} cannot be reached")

    # -- inside ----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Bring everything that follows from positions up to now: kinematics and cameras."""
        if self._drawn:
            half = self.gripper.width / 2
            self.model.body_pos[self._fingers[0], 1] = half
            self.model.body_pos[self._fingers[1], 1] = -half
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        if hasattr(self, "controller"):
            self.controller.update_jacobian()

    def _check_limits(self) -> None:
        if self._braked:
            return
        if (np.abs(self._external) > self._torque_threshold).any():
            self.raise_fault("joint_reflex")
        elif (np.abs(self.data.qvel[:7]) > fr3.VELOCITY).any():
            self.raise_fault("joint_velocity_violation")
        elif self._watch_force and (np.abs(self.wrench) > self._force_threshold).any():
            self.raise_fault("cartesian_reflex")
