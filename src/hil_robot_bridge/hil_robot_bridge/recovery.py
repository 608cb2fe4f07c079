"""When a robot may be recovered without being asked, and the way back out of a contact. No ROS."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from hil_robot_bridge.drivers.base import RobotMode
from hil_robot_bridge.poses import RigidPose, distance


@dataclass(frozen=True)
class RecoveryConfig:
    """Numbers of the recovery.

    Attributes:
        count: reflexes that are recovered without being asked, at most so many
        period: in this time, s. 0: a person is needed each time.
        delay: how long the robot stands before that, s.
        contact: external force above which the arm is still in contact after recovery, N.
        retreat: longest way back along which it came then, m; 0: it stays.
        speed: of the way back, m/s and rad/s.
    """

    count: int = 0
    period: float = 600.0
    delay: float = 0.5
    contact: float = 8.0
    retreat: float = 0.03
    speed: tuple[float, float] = (0.02, 0.2)


class AutomaticRecovery:
    """Counts what has been recovered without being asked.

    Attributes:
        done: since start.
    """

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._times: deque[float] = deque()
        self._since = math.inf
        self.done = 0

    def due(self, mode: RobotMode, now: float) -> bool:
        """Whether a recovery may begin at `now` (s). Only a reflex qualifies, never a person."""
        if mode != RobotMode.REFLEX:
            self._since = math.inf
            return False
        self._since = min(self._since, now)
        return now - self._since >= self._config.delay and self.left(now) > 0

    def left(self, now: float) -> int:
        """Recoveries that are left at the moment."""
        while self._times and now - self._times[0] > self._config.period:
            self._times.popleft()
        return self._config.count - len(self._times)

    def note(self, now: float) -> None:
        """A recovery begins."""
        self._times.append(now)
        self._since = math.inf
        self.done += 1


class Trail:
    """The way that the arm came: poses some millimetres apart.

    Args:
        length: of the way that is remembered, m.
        spacing: of its poses, m.
    """

    _JUMP = 0.05  # m; what is further away was not a motion

    def __init__(self, length: float, spacing: float = 0.004) -> None:
        self._spacing = spacing
        self._poses: deque[RigidPose] = deque(maxlen=max(1, math.ceil(length / spacing)))

    def put(self, pose: RigidPose) -> None:
        """Take a measured pose of a moving arm."""
        if self._poses:
            way = distance(self._poses[-1].position, pose.position)
            if way < self._spacing:
                return
            if way > self._JUMP:
                self._poses.clear()
        self._poses.append(pose)

    def way_back(self, present: RigidPose) -> list[RigidPose]:
        """Poses to go back through, nearest first; none if the arm is not on the trail's end."""
        if not self._poses or distance(self._poses[-1].position, present.position) > self._JUMP:
            return []
        return list(reversed(self._poses))
