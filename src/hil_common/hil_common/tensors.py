"""NumPy arrays to hil_interfaces/Tensor and back, without a copy where NumPy allows it."""

from __future__ import annotations

import array
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hil_interfaces.msg import Tensor

DTYPES = ("float32", "float64", "uint8", "int8", "int32", "int64", "bool")
MAX_BYTES = 64 * 1024 * 1024
"""Largest tensor accepted from outside: a full HD frame has 6 MB."""


class TensorError(ValueError):
    """A tensor message whose parts do not fit together."""


def to_msg(name: str, value: NDArray[np.generic]) -> Tensor:
    """Array as a message. One copy, into the message's buffer."""
    if value.dtype.name not in DTYPES:
        raise TensorError(f"tensor '{name}': dtype {value.dtype.name} is none of {DTYPES}")
    message = Tensor(name=name, dtype=value.dtype.name)
    message.shape = array.array("I", value.shape)
    # array.array is the type of the message's field: setting it skips a per-element check.
    message.data = array.array("B", np.ascontiguousarray(value).tobytes())
    return message


def from_msg(message: Tensor) -> NDArray[np.generic]:
    """Read-only array over the message's own bytes.

    Raises:
        TensorError: unknown dtype, too large, or size does not match the shape.
    """
    if message.dtype not in DTYPES:
        raise TensorError(f"tensor '{message.name}': unknown dtype '{message.dtype[:20]}'")
    dtype = np.dtype(message.dtype)
    size = math.prod(message.shape) * dtype.itemsize
    if size > MAX_BYTES:
        raise TensorError(f"tensor '{message.name}': {size} bytes, limit {MAX_BYTES}")
    if size != len(message.data):
        raise TensorError(
            f"tensor '{message.name}': shape {list(message.shape)} of {dtype} needs {size} bytes,"
            f" {len(message.data)} came"
        )
    value = np.frombuffer(message.data, dtype=dtype).reshape(tuple(message.shape))
    value.flags.writeable = False
    return value


def to_msgs(values: Mapping[str, NDArray[np.generic]]) -> list[Tensor]:
    """Named arrays as messages, in order."""
    return [to_msg(name, value) for name, value in values.items()]


def from_msgs(messages: Sequence[Tensor]) -> dict[str, NDArray[np.generic]]:
    """Named arrays from messages.

    Raises:
        TensorError: as from_msg, or a name comes twice.
    """
    values: dict[str, NDArray[np.generic]] = {}
    for message in messages:
        if message.name in values:
            raise TensorError(f"tensor '{message.name}' comes twice")
        values[message.name] = from_msg(message)
    return values
