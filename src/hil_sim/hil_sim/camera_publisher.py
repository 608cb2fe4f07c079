"""Publishes the world's cameras: inline in lockstep, from an own thread in real time."""

from __future__ import annotations

import threading
from typing import Protocol

import mujoco
from builtin_interfaces.msg import Time
from rclpy.node import Node
from sensor_msgs.msg import Image

from hil_common import qos
from hil_common.images import to_image
from hil_sim.render import Renderer
from hil_sim.urdf import optical_frame


class Rendered(Protocol):
    """What can be looked at: a model, its state, and the names of its cameras."""

    model: mujoco.MjModel
    data: mujoco.MjData
    cameras: tuple[str, ...]


class CameraPublisher:
    """Publishes <camera>/image for every camera that somebody subscribes to.

    The picture is taken of a copy of the world's state, so that rendering does not delay physics.

    Args:
        node: publishes.
        world: whose cameras.
        size: edge of the images, pixels.
        lock: held while the state is copied.
    """

    def __init__(self, node: Node, world: Rendered, size: int, lock: threading.RLock) -> None:
        self._node, self._world, self._size, self._lock = node, world, size, lock
        self._publishers = {
            name: node.create_publisher(Image, f"{name}/image", qos.IMAGE)
            for name in world.cameras
        }
        self._data = mujoco.MjData(world.model)
        self._renderer: Renderer | None = None
        self.frozen: set[str] = set()

    def publish(self, stamp: Time) -> None:
        """Render and publish what is subscribed to. Always call it from one thread."""
        wanted = [
            name
            for name, publisher in self._publishers.items()
            if publisher.get_subscription_count() and name not in self.frozen
        ]
        if not wanted:
            return
        if self._renderer is None:
            self._renderer = Renderer(self._world.model, self._size)
        copied = Time(sec=stamp.sec, nanosec=stamp.nanosec)
        with self._lock:
            self._copy()
        for name in wanted:
            pixels = self._renderer.render(self._data, name)
            self._publishers[name].publish(to_image(pixels, copied, optical_frame(name)))

    def close(self) -> None:
        """Release renderer and publishers. Call it when no thread renders any more."""
        for publisher in self._publishers.values():
            self._node.destroy_publisher(publisher)
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _copy(self) -> None:
        source, data, model = self._world.data, self._data, self._world.model
        data.qpos[:] = source.qpos
        data.mocap_pos[:] = source.mocap_pos
        data.mocap_quat[:] = source.mocap_quat
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
