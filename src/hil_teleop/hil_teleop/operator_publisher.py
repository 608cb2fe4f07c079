"""Publishes `operator_command`: a publisher's life is a session, every message one higher seq."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from builtin_interfaces.msg import Time
from rclpy.node import Node

from hil_common import qos
from hil_interfaces.msg import ArmInput as ArmInputMsg
from hil_interfaces.msg import OperatorCommand
from hil_teleop.mapping import ArmInput

#: `source` of the single last message of a lost device; after it there is silence.
LOST = "lost"


class OperatorPublisher:
    """Publisher of `operator_command`.

    Args:
        node: that publishes.
        source: what the person uses: spacemouse, joy, scripted_expert, ...
        frame_id: frame whose axes the twists have.
    """

    def __init__(self, node: Node, source: str, frame_id: str) -> None:
        self.session = str(uuid.uuid4())
        self.seq = 0
        self._node = node
        self._source = source
        self._frame_id = frame_id
        self._publisher = node.create_publisher(OperatorCommand, "operator_command", qos.OPERATOR)

    def publish(
        self,
        inputs: Sequence[ArmInput],
        stamp: Time,
        buttons: Sequence[int] = (),
        observation_stamp: Time | None = None,
        source: str = "",
    ) -> OperatorCommand:
        """Send what the person asks for.

        Args:
            inputs: one for each arm.
            stamp: when the input was read.
            buttons: all buttons, 0 or 1.
            observation_stamp: of the state that this answers, if it answers one.
            source: instead of the usual one.
        """
        self.seq += 1
        command = OperatorCommand(
            source=source or self._source,
            session=self.session,
            seq=self.seq,
            arms=[_arm_message(each) for each in inputs],
            buttons=[bool(b) for b in buttons],
        )
        command.header.stamp = stamp
        command.header.frame_id = self._frame_id
        if observation_stamp is not None:
            command.observation_stamp = observation_stamp
        self._publisher.publish(command)
        return command

    def close(self) -> None:
        """Remove the publisher."""
        self._node.destroy_publisher(self._publisher)


def _arm_message(value: ArmInput) -> ArmInputMsg:
    return ArmInputMsg(
        arm=value.arm, engaged=value.engaged, twist=value.twist, gripper=value.gripper
    )
