import numpy as np
import pytest
from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sensor_msgs.msg import Image

from hil_common import conversions, images, tensors

arrays = st.sampled_from(tensors.DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


@given(arrays)
def test_round_trip(value):
    back = tensors.from_msg(tensors.to_msg("x", value))
    assert back.dtype == value.dtype and back.shape == value.shape
    np.testing.assert_array_equal(back, value)


def test_reading_does_not_copy():
    message = tensors.to_msg("x", np.zeros((128, 128, 3), np.uint8))
    back = tensors.from_msg(message)
    message.data[0] = 7
    assert back[0, 0, 0] == 7 and not back.flags.writeable


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("dtype", "object", "unknown dtype"),
        ("shape", [2, 3], "needs"),
        ("shape", [2**31, 2**31], "limit"),
    ],
)
def test_parts_that_do_not_fit_are_refused(field, value, words):
    message = tensors.to_msg("x", np.zeros(3, np.float32))
    setattr(message, field, value)
    with pytest.raises(tensors.TensorError, match=words):
        tensors.from_msg(message)


def test_unsupported_dtype_and_repeated_name_are_refused():
    with pytest.raises(tensors.TensorError, match="complex"):
        tensors.to_msg("x", np.zeros(1, np.complex128))
    message = tensors.to_msg("x", np.zeros(1))
    with pytest.raises(tensors.TensorError, match="twice"):
        tensors.from_msgs([message, message])


def test_image_round_trip_and_channel_order():
    pixels = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    message = images.to_image(pixels, Time(sec=1), "wrist")
    np.testing.assert_array_equal(images.from_image(message), pixels)
    message.encoding = "bgr8"
    np.testing.assert_array_equal(images.from_image(message), pixels[:, :, ::-1])


def test_padded_rows_are_cut():
    message = Image(height=2, width=1, encoding="rgb8", step=4, data=[1, 2, 3, 0, 4, 5, 6, 0])
    np.testing.assert_array_equal(images.from_image(message), [[[1, 2, 3]], [[4, 5, 6]]])


@pytest.mark.parametrize("change", [{"step": 1}, {"height": 9}, {"width": 0}, {"encoding": "?"}])
def test_image_that_does_not_fit_is_refused(change):
    message = images.to_image(np.zeros((2, 4, 3), np.uint8), Time(), "wrist")
    for field, value in change.items():
        setattr(message, field, value)
    with pytest.raises(images.ImageError):
        images.from_image(message)


@given(st.integers(0, 2**31 * 10**9 - 1))
def test_stamp_round_trip(nanoseconds):
    assert conversions.to_ns(conversions.from_ns(nanoseconds)) == nanoseconds
