"""sensor_msgs/Image to arrays and back; unusual encodings need cv_bridge."""

from __future__ import annotations

import array
import importlib.util

import numpy as np
from builtin_interfaces.msg import Time
from numpy.typing import NDArray
from sensor_msgs.msg import Image

_CHANNELS = {"rgb8": 3, "bgr8": 3, "mono8": 1}


class ImageError(ValueError):
    """An image message whose parts do not fit together, or in an encoding not known here."""


def to_image(pixels: NDArray[np.uint8], stamp: Time, frame_id: str) -> Image:
    """RGB picture (H, W, 3) uint8 as a message. One copy, into the message's buffer."""
    height, width, channels = pixels.shape
    if channels != 3 or pixels.dtype != np.uint8:
        raise ImageError(f"expected (H, W, 3) uint8, not {pixels.shape} {pixels.dtype}")
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.header.stamp = stamp
    message.header.frame_id = frame_id
    message.data = array.array("B", np.ascontiguousarray(pixels).tobytes())
    return message


def from_image(message: Image) -> NDArray[np.uint8]:
    """RGB picture (H, W, 3) uint8; read-only and without a copy for rgb8.

    Raises:
        ImageError: sizes that do not fit, or an encoding that nothing here can read.
    """
    channels = _CHANNELS.get(message.encoding)
    if channels is None:
        return _through_cv_bridge(message)
    row, step = message.width * channels, message.step
    if step < row or len(message.data) != step * message.height or not row:
        raise ImageError(
            f"{message.width}x{message.height} {message.encoding} with step {step}"
            f" does not fit {len(message.data)} bytes"
        )
    flat = np.frombuffer(message.data, dtype=np.uint8).reshape(message.height, step)[:, :row]
    pixels = flat.reshape(message.height, message.width, channels)
    if message.encoding == "mono8":
        pixels = np.repeat(pixels, 3, axis=2)
    elif message.encoding == "bgr8":
        pixels = pixels[:, :, ::-1]
    pixels.flags.writeable = False
    return pixels


def _through_cv_bridge(message: Image) -> NDArray[np.uint8]:
    if importlib.util.find_spec("cv_bridge") is None:
        raise ImageError(
            f"encoding '{message.encoding[:20]}' needs cv_bridge, which is not installed;"
            f" without it: {', '.join(_CHANNELS)}"
        )
    from cv_bridge import CvBridge

    return np.asarray(CvBridge().imgmsg_to_cv2(message, desired_encoding="rgb8"))
