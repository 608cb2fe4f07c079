"""Camera topics to pictures: subscribed to, taken and encoded only while somebody wants them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from rclpy.node import Node
from sensor_msgs.msg import Image

from hil_common import qos
from hil_common.images import ImageError, from_image
from hil_common.polling import PolledSubscription
from hil_monitor.frames import Frame, FrameHub, encode

_SUFFIX = "/image"


class CameraReader:
    """Takes the newest pictures at a fixed rate, on a thread of its own.

    Args:
        node: owns the subscriptions.
        names: cameras; none: all whose topic NAME/image is published.
        hub: gets the pictures.
        wanted: whether anybody wants pictures now.
        on_frame: called with every picture, on the reader's thread.
        rate: pictures per second and camera at most.
        quality, largest: see `encode`.
    """

    def __init__(
        self,
        node: Node,
        names: Sequence[str],
        hub: FrameHub,
        wanted: Callable[[], bool],
        on_frame: Callable[[Frame], None],
        rate: float,
        quality: int,
        largest: int,
    ) -> None:
        self._node = node
        self._given = tuple(names)
        self._hub = hub
        self._wanted = wanted
        self._on_frame = on_frame
        self._period = 1.0 / rate
        self._encoding = quality, largest
        self.names: list[str] = list(names)
        self.problem = ""
        self._open: dict[str, PolledSubscription] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Find cameras, and subscribe to them or not. On the executor's thread, now and then."""
        if not self._given:
            self.names = self._published()
        wanted = self.names if self._wanted() else []
        for name in [name for name in self._open if name not in wanted]:
            self._open.pop(name).close()
        for name in wanted:
            if name not in self._open:
                topic = f"{name}{_SUFFIX}"
                self._open[name] = PolledSubscription(self._node, Image, topic, qos.IMAGE)

    def close(self) -> None:
        """Stop the thread and unsubscribe."""
        self._closing.set()
        self._thread.join()
        for subscription in self._open.values():
            subscription.close()
        self._open.clear()

    def _published(self) -> list[str]:
        space = self._node.get_namespace().rstrip("/") + "/"
        found = []
        for topic, types in self._node.get_topic_names_and_types():
            name = topic.removeprefix(space).removesuffix(_SUFFIX)
            is_image = types == ["sensor_msgs/msg/Image"] and topic.endswith(_SUFFIX)
            if is_image and topic.startswith(space) and "/" not in name:
                found.append(name)
        return sorted(found)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closing.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._period, time.monotonic())
            for name, subscription in list(self._open.items()):
                message = subscription.take()
                if message is not None:
                    self._encode(name, message)

    def _encode(self, name: str, message: Image) -> None:
        arrived = time.monotonic()
        try:
            jpeg = encode(from_image(message), *self._encoding)
        except ImageError as error:
            self.problem = f"{name}: {error}"
            return
        self._on_frame(self._hub.put(name, jpeg, arrived))
