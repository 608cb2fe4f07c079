"""Cartesian impedance law of crisp_controllers' shape, for a MuJoCo arm.

    e = [p_d - p, log(R_d R^T)], clamped per axis to the error clip
    tau = J^T (K e - D J dq) + N (k_n (q_ref - q) - d_n dq)
    with operational space: J^T Lambda (K e - D J dq), Lambda = (J M^-1 J^T)^-1

The nullspace torque is clamped, then the change of torque per cycle, then the torque itself.
Everything is written for few NumPy calls: one tick costs about ten microseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import mujoco
import numpy as np
from numpy.typing import NDArray

from hil_sim import fr3
from hil_tasks.geometry import Pose
from hil_tasks.spec import ComplianceSpec

Array = NDArray[np.float64]

CYCLE = 0.001  # s; the cycle that per-cycle parameters are meant for
NULLSPACE_TICKS = 5  # the slow posture torque is renewed every so many ticks
_DAMPED_PINV = 1e-4  # added to J J^T


def _six(value: float, angular: float) -> Array:
    return np.array([value] * 3 + [angular] * 3)


@dataclass
class Gains:
    """Live parameters of the law; the meaning (and the trap) of each is crisp's.

    Attributes:
        stiffness: (6,), N/m and Nm/rad.
        damping: (6,), N s/m and Nm s/rad; an element < 0 means critical for a unit mass,
            2 sqrt(stiffness).
        error_clip: (6,), m and rad.
        limit_error: use the error clip.
        nullspace_stiffness: Nm/rad.
        nullspace_damping: Nm s/rad. As in crisp a negative value is negative damping, which
            drives the elbow: set it.
        nullspace_max_tau: Nm.
        target_filter: share of the old target that is kept per 1 ms cycle, [0, 1).
        limit_torques: limit the change of torque per cycle.
        max_delta_tau: Nm per 1 ms cycle.
        use_operational_space: weigh the task force with the effector's inertia.
    """

    stiffness: Array = field(default_factory=lambda: _six(500.0, 30.0))
    damping: Array = field(default_factory=lambda: _six(-1.0, -1.0))
    error_clip: Array = field(default_factory=lambda: _six(0.1, 0.5))
    limit_error: bool = True
    nullspace_stiffness: float = 10.0
    nullspace_damping: float = 4.0
    nullspace_max_tau: float = 5.0
    target_filter: float = 0.1
    limit_torques: bool = True
    max_delta_tau: float = 0.5
    use_operational_space: bool = False

    @classmethod
    def from_compliance(cls, spec: ComplianceSpec) -> Gains:
        """Gains of a compliance preset; the rest as by default."""
        return cls(
            stiffness=np.array(spec.translational_stiffness + spec.rotational_stiffness),
            damping=np.array(spec.translational_damping + spec.rotational_damping),
            error_clip=np.array(spec.error_clip),
            nullspace_stiffness=spec.nullspace_stiffness,
            nullspace_damping=spec.nullspace_damping,
            nullspace_max_tau=spec.nullspace_max_tau,
        )


class CartesianImpedance:
    """The law for one arm of a model; writes joint torques into `data.qfrc_applied`.

    Args:
        model, data: the simulation.
        body: name of the controlled body (its frame is the tool centre point).
        period: time between ticks, s.
        posture: (7,) joint positions that the nullspace keeps to, rad.
    """

    def __init__(
        self, model: mujoco.MjModel, data: mujoco.MjData, body: str, period: float, posture: Array
    ) -> None:
        self._model, self._data = model, data
        self._body: int = model.body(body).id
        self._period = period
        self.posture = np.array(posture, dtype=np.float64)
        full = np.zeros((6, model.nv))
        self._jacp, self._jacr = full[:3], full[3:]
        self.jacobian: Array = full if model.nv == 7 else full[:, :7]
        self._xpos: Array = data.xpos[self._body]
        self._xquat: Array = data.xquat[self._body]
        self._xmat: Array = data.xmat[self._body].reshape(3, 3)
        self._q, self._dq = data.qpos[:7], data.qvel[:7]
        self._output: Array = data.qfrc_applied[:7]
        self._effort, self._negative_effort = fr3.EFFORT, -fr3.EFFORT
        self._error, self._velocity = np.zeros(6), np.zeros(6)
        self._error_p, self._error_r = self._error[:3], self._error[3:]
        self._local = np.zeros(3)
        self._tau, self._last, self._null = np.zeros(7), np.zeros(7), np.zeros(7)
        self._ticks = 0
        self._desired_p, self._desired_q = np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])
        self._target_p, self._target_q = np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])
        self._filtering = False
        self.gains = Gains()
        self.hold()

    @property
    def gains(self) -> Gains:
        """Gains in force; assign a new object to change them."""
        return self._gains

    @gains.setter
    def gains(self, gains: Gains) -> None:
        self._gains = gains
        self._stiffness = np.array(gains.stiffness, dtype=np.float64)
        damping = np.array(gains.damping, dtype=np.float64)
        self._damping = np.where(damping < 0.0, 2.0 * np.sqrt(self._stiffness), damping)
        clip_at = np.array(gains.error_clip) if gains.limit_error else np.full(6, np.inf)
        self._clip_low, self._clip_high = -clip_at, clip_at
        cycles = self._period / CYCLE
        limit = gains.max_delta_tau * cycles if gains.limit_torques else np.inf
        self._delta_low, self._delta_high = np.full(7, -limit), np.full(7, limit)
        self._keep = gains.target_filter**cycles

    @property
    def target(self) -> Pose:
        """Target pose, as it was set (not filtered)."""
        w, x, y, z = self._target_q
        return Pose.from_xyzw(self._target_p.copy(), [x, y, z, w])

    @target.setter
    def target(self, pose: Pose) -> None:
        x, y, z, w = pose.xyzw
        self._target_p[:] = pose.position
        self._target_q[:] = (w, x, y, z)
        self._filtering = True

    def hold(self) -> None:
        """Take the measured pose for the target, as on activation; torque begins at zero."""
        self._target_p[:], self._target_q[:] = self._xpos, self._xquat
        self._desired_p[:], self._desired_q[:] = self._xpos, self._xquat
        self._filtering = False
        self._last[:] = 0.0
        self._null[:] = 0.0
        self._ticks = 0

    @property
    def tau(self) -> Array:
        """Commanded joint torques (7,) of the last tick, Nm, without gravity compensation."""
        return self._output

    def update_jacobian(self) -> None:
        """Renew `jacobian` (6, 7): from joint speeds to the twist of the tool, base axes."""
        mujoco.mj_jacBody(self._model, self._data, self._jacp, self._jacr, self._body)

    def tick(self) -> None:
        """One control cycle. Positions in `data` must be of now (`mj_step1` or kinematics)."""
        error, velocity, tau, jacobian = self._error, self._velocity, self._tau, self.jacobian
        mujoco.mj_jacBody(self._model, self._data, self._jacp, self._jacr, self._body)
        if self._filtering:
            self._filter_target()
        np.subtract(self._desired_p, self._xpos, self._error_p)
        mujoco.mju_subQuat(self._local, self._desired_q, self._xquat)
        np.dot(self._xmat, self._local, self._error_r)
        np.minimum(error, self._clip_high, out=error)  # np.clip costs several times as much
        np.maximum(error, self._clip_low, out=error)
        np.dot(jacobian, self._dq, velocity)
        np.multiply(error, self._stiffness, error)
        np.multiply(velocity, self._damping, velocity)
        np.subtract(error, velocity, error)
        force = self._weighted(error) if self._gains.use_operational_space else error
        np.dot(force, jacobian, tau)
        if self._ticks % NULLSPACE_TICKS == 0:
            self._update_nullspace()
        self._ticks += 1
        np.add(tau, self._null, tau)
        np.subtract(tau, self._last, tau)
        np.minimum(tau, self._delta_high, out=tau)
        np.maximum(tau, self._delta_low, out=tau)
        np.add(self._last, tau, self._last)
        np.minimum(self._last, self._effort, out=self._last)
        np.maximum(self._last, self._negative_effort, out=self._last)
        self._output[:] = self._last

    def _filter_target(self) -> None:
        keep = self._keep
        self._desired_p += (1.0 - keep) * (self._target_p - self._desired_p)
        sign = math.copysign(1.0, float(self._target_q @ self._desired_q))
        self._desired_q *= sign * keep
        self._desired_q += (1.0 - keep) * self._target_q
        self._desired_q /= math.sqrt(float(self._desired_q @ self._desired_q))
        gap = float(np.abs(self._target_p - self._desired_p).max())
        turn = float(np.abs(self._target_q - self._desired_q).max())
        if max(gap, turn) < 1e-7:
            self._desired_p[:], self._desired_q[:] = self._target_p, self._target_q
            self._filtering = False

    def _update_nullspace(self) -> None:
        gains, jacobian = self._gains, self.jacobian
        posture = gains.nullspace_stiffness * (self.posture - self._q)
        posture -= gains.nullspace_damping * self._dq
        gram = jacobian @ jacobian.T
        gram.flat[::7] += _DAMPED_PINV
        posture -= np.linalg.solve(gram, jacobian @ posture) @ jacobian
        limit = gains.nullspace_max_tau
        np.clip(posture, -limit, limit, self._null)

    def _weighted(self, force: Array) -> Array:
        solved = np.zeros((6, self._model.nv))
        jacobian = np.vstack((self._jacp, self._jacr))
        mujoco.mj_solveM(self._model, self._data, solved, jacobian)
        inverse = solved @ jacobian.T
        inverse.flat[::7] += 1e-6
        weighted: Array = np.linalg.solve(inverse, force)
        return weighted


class JointTrajectory:
    """Joint servo that goes straight to its goal in a given time, then holds it.

    Args:
        data: of the arm, whose joints come first.
        period: time of a tick, s.
    """

    STIFFNESS = np.array([600.0] * 4 + [250.0, 150.0, 50.0])  # Nm/rad
    DAMPING = np.array([50.0] * 4 + [20.0, 15.0, 8.0])  # Nm s/rad

    def __init__(self, data: mujoco.MjData, period: float) -> None:
        self._q, self._dq = data.qpos[:7], data.qvel[:7]
        self._output: Array = data.qfrc_applied[:7]
        self._period = period
        self._from = self._to = self._q.copy()
        self._ticks, self._elapsed = 1, 1

    def go(self, q: Array, seconds: float) -> None:
        """Begin to move to joint positions (7,), rad."""
        self._from, self._to = self._q.copy(), np.array(q, dtype=np.float64)
        self._ticks, self._elapsed = max(1, round(seconds / self._period)), 0

    def tick(self) -> None:
        """One control cycle."""
        self._elapsed = min(self._elapsed + 1, self._ticks)
        share = self._elapsed / self._ticks
        smooth = share * share * (3.0 - 2.0 * share)
        wanted = self._from + smooth * (self._to - self._from)
        torque = self.STIFFNESS * (wanted - self._q) - self.DAMPING * self._dq
        np.clip(torque, -fr3.EFFORT, fr3.EFFORT, out=self._output)
