"""The device layer on real pyspacemouse decoding, with HID reports from a fake bus."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import itertools

from fake_hid import KEYBOARD, NAVIGATOR, Bus, install

from hil_teleop.spacemouse import (
    UDEV_RULE,
    SpaceMouse,
    SpaceMouseConfig,
    SpaceMouseError,
    list_devices,
)


class Clock:
    """A steady clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bus:
    return install(monkeypatch, tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def mouse_on(bus: Bus, clock: Clock, **config: object) -> SpaceMouse:
    mouse = SpaceMouse(SpaceMouseConfig(**config), clock)  # type: ignore[arg-type]
    mouse.open()
    return mouse


def test_axes_are_in_the_ros_convention(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock)
    plug.translation(x=70, y=-175, z=35)  # right, away from the person, down
    plug.rotation(rx=35, ry=70, rz=-105)
    sample = mouse.poll()
    assert sample is not None
    # x = away, y = left, z = up; roll = -Ry, pitch = -Rx, yaw = -Rz
    assert sample.axes == pytest.approx((0.5, -0.2, -0.1, -0.2, -0.1, 0.3))
    assert sample.reports == 2


def test_every_pending_report_is_read_in_one_poll(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock)
    for value in range(50):
        plug.translation(y=-value)
        plug.rotation(rz=-value)
    sample = mouse.poll()
    assert sample is not None
    assert sample.reports == 100
    assert not plug.reports
    assert sample.axes[0] == pytest.approx(49 / 350)
    assert sample.axes[5] == pytest.approx(49 / 350)


def test_draining_is_bounded(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock)
    for _ in range(1000):
        plug.translation(y=-350)
    sample = mouse.poll()
    assert sample is not None and 0 < sample.reports < 1000


def test_values_are_clipped_to_full_scale(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock)
    plug.translation(x=500, y=-500, z=500)
    sample = mouse.poll()
    assert sample is not None and sample.axes[:3] == (1.0, -1.0, -1.0)


def test_buttons_left_and_right(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock)
    for mask, expected in ((1, (1, 0)), (2, (0, 1)), (3, (1, 1)), (0, (0, 0))):
        plug.buttons(mask)
        sample = mouse.poll()
        assert sample is not None and sample.buttons == expected


def test_a_deflected_cap_without_reports_counts_as_released(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock, report_timeout=0.2)
    plug.translation(y=-350)
    assert mouse.poll().axes[0] == 1.0  # type: ignore[union-attr]
    clock.now += 0.15
    assert mouse.poll().axes[0] == 1.0  # type: ignore[union-attr]
    clock.now += 0.1
    assert mouse.poll().axes == (0.0,) * 6  # type: ignore[union-attr]
    assert mouse.stale
    plug.translation(y=-175)
    assert mouse.poll().axes[0] == 0.5  # type: ignore[union-attr]
    assert not mouse.stale


def test_a_cap_at_rest_is_not_stale(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock)
    plug.translation()
    mouse.poll()
    clock.now += 60.0
    assert mouse.poll() is not None and not mouse.stale


def test_unplugging_is_a_loss_and_plugging_in_again_is_found(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock, retry_min=0.5, retry_max=2.0)
    plug.translation(y=-350)
    assert mouse.poll() is not None
    bus.unplug(plug)
    assert mouse.poll() is None
    assert not mouse.connected and mouse.losses == 1
    assert mouse.problem.startswith("lost SpaceMouse Compact") and mouse.advice
    again = bus.plug()
    assert mouse.poll() is None  # backing off
    clock.now += 0.5
    sample = mouse.poll()
    assert sample is not None and sample.axes == (0.0,) * 6  # nothing left over from before
    again.translation(y=-35)
    assert mouse.poll().axes[0] == pytest.approx(0.1)  # type: ignore[union-attr]


def test_search_backs_off(bus: Bus, clock: Clock) -> None:
    mouse = SpaceMouse(SpaceMouseConfig(retry_min=0.5, retry_max=2.0), clock)
    attempts = []
    for _ in range(100):
        before = bus.enumerations
        assert mouse.poll() is None
        if bus.enumerations > before:
            attempts.append(clock.now)
        clock.now += 0.125
    gaps = [b - a for a, b in itertools.pairwise(attempts)]
    assert gaps[:3] == [0.5, 1.0, 2.0] and set(gaps[3:]) == {2.0}
    assert "no SpaceMouse is connected" in mouse.problem and "plug it in" in mouse.advice


def test_two_devices_by_serial(bus: Bus, clock: Clock) -> None:
    left, right = bus.plug("hidraw0", serial="A1"), bus.plug("hidraw1", serial="B2")
    left_mouse = mouse_on(bus, clock, serial="A1")
    right_mouse = mouse_on(bus, clock, serial="B2")
    left.translation(y=-350)
    right.translation(x=-350)
    assert left_mouse.poll().axes[:2] == (1.0, 0.0)  # type: ignore[union-attr]
    assert right_mouse.poll().axes[:2] == (0.0, 1.0)  # type: ignore[union-attr]
    bus.unplug(left)
    assert left_mouse.poll() is None
    right.translation(x=-175)
    assert right_mouse.poll().axes[1] == 0.5  # type: ignore[union-attr]
    clock.now += 10.0
    assert left_mouse.poll() is None  # never falls back to the other device
    assert "serial 'A1'" in left_mouse.problem and "serial 'B2'" in left_mouse.advice


def test_two_devices_by_path_also_through_a_link(bus: Bus, clock: Clock, tmp_path: Path) -> None:
    bus.plug("hidraw0")
    right = bus.plug("hidraw1", hid_id=NAVIGATOR, product="SpaceNavigator")
    link = tmp_path / "spacemouse_right"
    link.symlink_to(right.path)
    mouse = mouse_on(bus, clock, path=str(link))
    assert mouse.device is not None and mouse.device.path == right.path
    right.buttons(2)
    assert mouse.poll().buttons == (0, 1)  # type: ignore[union-attr]


def test_which_of_two_devices_is_never_guessed(bus: Bus, clock: Clock) -> None:
    bus.plug("hidraw0", serial="A1")
    bus.plug("hidraw1", serial="B2")
    with pytest.raises(SpaceMouseError, match="2 SpaceMouse devices fit") as caught:
        SpaceMouse(SpaceMouseConfig(), clock).open()
    assert "A1" in caught.value.advice and "B2" in caught.value.advice


def test_a_receiver_with_several_interfaces_is_one_device(bus: Bus, clock: Clock) -> None:
    receiver = (0x256F, 0xC652)
    bus.plug("hidraw0", hid_id=receiver, usage=(1, 6))
    motion = bus.plug("hidraw1", hid_id=receiver, usage=(1, 8))
    assert [d.path for d in list_devices()] == [motion.path]


def test_other_hid_devices_are_left_alone(bus: Bus, clock: Clock) -> None:
    keyboard = bus.plug("hidraw0", hid_id=KEYBOARD, product="Keyboard")
    assert list_devices() == []
    with pytest.raises(SpaceMouseError, match="no SpaceMouse is connected"):
        SpaceMouse(SpaceMouseConfig(), clock).open()
    assert keyboard.reads == 0 and not keyboard.written


def test_a_device_that_cannot_be_opened_brings_the_udev_rule(bus: Bus, clock: Clock) -> None:
    bus.plug(openable=False)
    with pytest.raises(SpaceMouseError, match="cannot open SpaceMouse Compact") as caught:
        SpaceMouse(SpaceMouseConfig(), clock).open()
    for line in UDEV_RULE.splitlines():
        assert line in caught.value.advice
    assert "/etc/udev/rules.d/" in caught.value.advice


def test_missing_hid_library_is_named(bus: Bus, clock: Clock) -> None:
    bus.missing_library = True
    mouse = SpaceMouse(SpaceMouseConfig(), clock)
    assert mouse.poll() is None
    assert "libhidapi-hidraw0" in mouse.advice


def test_led_shows_that_the_device_is_in_use(bus: Bus, clock: Clock) -> None:
    plug = bus.plug()
    mouse = mouse_on(bus, clock)
    assert plug.written[-1] == bytes([4, 1])
    mouse.close()
    assert plug.written[-1] == bytes([4, 0])
    assert not mouse.connected
