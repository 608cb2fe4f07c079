"""A 3Dconnexion SpaceMouse that may come and go. No ROS.

On top of pyspacemouse (report decoding, device table, axis conventions) this layer adds what an
arm
needs: all pending reports are drained on every poll, values never latch when reports stop, a
    device that vanishes is lost (not "at rest") and is found again, and a device is chosen by
    serial or path, never by luck of the order.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Names of the axes in their order: REP-103, x away from the person, y left, z up.
AXES = ("x", "y", "z", "roll", "pitch", "yaw")

#: Reports drained in one poll; a device sends about 250 a second.
MAX_REPORTS = 256

_MULTI_AXIS = (1, 8)  # HID usage page, usage: "multi-axis controller"

UDEV_FILE = "/etc/udev/rules.d/70-spacemouse.rules"

#: The exact rule: the person at the seat (uaccess) and group plugdev may open the device, be it on
#: USB, on a receiver or on Bluetooth.
UDEV_RULE = "\n".join(
    f'KERNEL=="hidraw*", SUBSYSTEM=="hidraw", KERNELS=="{match}", '
    'MODE="0660", GROUP="plugdev", TAG+="uaccess"'
    for match in ("*:256F:*", "*:046D:C62*")
)

UDEV_ADVICE = (
    "install the udev rule: printf '%s\\n' '"
    + "' '".join(UDEV_RULE.splitlines())
    + f"' | sudo tee {UDEV_FILE} && sudo udevadm control --reload && "
    "sudo udevadm trigger --subsystem-match=hidraw"
)


class SpaceMouseError(RuntimeError):
    """The device cannot be used now.

    Attributes:
        advice: what the person can do about it.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


@dataclass(frozen=True)
class DeviceId:
    """A connected, supported device."""

    path: str
    name: str
    serial: str
    vendor_id: int
    product_id: int

    def __str__(self) -> str:
        """As it is shown to a person."""
        serial = f"serial '{self.serial}'" if self.serial else "no serial"
        hid_id = f"{self.vendor_id:04x}:{self.product_id:04x}"
        return f"{self.name} [{hid_id}], path '{self.path}', {serial}"


@dataclass(frozen=True)
class Sample:
    """State of the device after all pending reports were read.

    Attributes:
        axes: x y z roll pitch yaw in [-1, 1], ROS convention, no dead zone applied.
        buttons: 0 or 1 each, in the device's order (two-button devices: left, right).
        reports: how many reports this poll has read.
    """

    axes: tuple[float, float, float, float, float, float]
    buttons: tuple[int, ...]
    reports: int


@dataclass(frozen=True)
class SpaceMouseConfig:
    """Which device, and how its loss is handled.

    Attributes:
        serial: serial number of the device; "" for any.
        path: hidraw path of the device, also a symlink made by udev; "" for any.
        report_timeout: s without a report after which a deflected cap counts as released: devices
            report without pause while they are deflected, so silence means that the (wireless)
            link is gone.
        retry_min: s until the first attempt to find a lost device again; doubles up to retry_max.
        retry_max: s between attempts at most.
        led: switch the LED on while the device is in use.
    """

    serial: str = ""
    path: str = ""
    report_timeout: float = 0.25
    retry_min: float = 0.25
    retry_max: float = 2.0
    led: bool = True


def _pyspacemouse() -> tuple[Any, Any]:
    """The modules pyspacemouse and easyhid.

    Raises:
        SpaceMouseError: not installed.
    """
    try:
        easyhid = importlib.import_module("easyhid")
        return importlib.import_module("pyspacemouse"), easyhid
    except ImportError as error:
        raise SpaceMouseError(
            f"pyspacemouse: {error}", "pip install 'pyspacemouse>=2.1'"
        ) from error
    except OSError as error:
        raise SpaceMouseError(
            f"libhidapi: {error}", "sudo apt install libhidapi-hidraw0"
        ) from error


def _enumerate() -> list[tuple[DeviceId, Any, Any]]:
    """Supported devices that are connected: (id, pyspacemouse DeviceInfo, HID device)."""
    pyspacemouse, easyhid = _pyspacemouse()
    try:
        found = easyhid.Enumeration().find()
    except (AttributeError, TypeError) as error:  # easyhid loads a missing libhidapi as "None"
        raise SpaceMouseError(
            f"the HID library is missing or too old ({error})",
            "sudo apt install libhidapi-hidraw0",
        ) from error
    specs = {(s.vendor_id, s.product_id): s for s in pyspacemouse.get_device_specs().values()}
    devices = []
    for hid in found:
        spec = specs.get((hid.vendor_id, hid.product_id))
        if spec is not None:
            name = hid.product_string or spec.name
            identity = DeviceId(
                hid.path, name, hid.serial_number or "", hid.vendor_id, hid.product_id
            )
            devices.append((identity, spec, hid))
    # A receiver has several interfaces; where hidapi tells the usage, the one with axes is meant.
    motion = [d for d in devices if (_usage(d[2]) == _MULTI_AXIS)]
    known = {(d[0].vendor_id, d[0].product_id, d[0].serial) for d in motion}
    return motion + [
        d
        for d in devices
        if _usage(d[2]) == (0, 0) and (d[0].vendor_id, d[0].product_id, d[0].serial) not in known
    ]


def _usage(hid: Any) -> tuple[int, int]:
    return (getattr(hid, "usage_page", 0) or 0, getattr(hid, "usage", 0) or 0)


def list_devices() -> list[DeviceId]:
    """Supported devices that are connected now.

    Raises:
        SpaceMouseError: pyspacemouse or its HID library is not installed.
    """
    return [identity for identity, _, _ in _enumerate()]


def select(devices: Sequence[DeviceId], serial: str = "", path: str = "") -> int:
    """Index of the one device that is meant.

    Args:
        devices: the connected ones.
        serial: serial number, "" for any.
        path: hidraw path or a symlink to it, "" for any.

    Raises:
        SpaceMouseError: none fits, or several do: which one is meant is never guessed.
    """
    wanted = " and ".join(
        f"{what} '{value}'" for what, value in (("serial", serial), ("path", path)) if value
    )
    fits = [
        i
        for i, device in enumerate(devices)
        if (not serial or device.serial == serial)
        and (not path or os.path.realpath(device.path) == os.path.realpath(path))
    ]
    listed = "; ".join(str(d) for d in devices) or "none"
    if not devices:
        raise SpaceMouseError(
            "no SpaceMouse is connected" + (f" (wanted: {wanted})" if wanted else ""),
            "plug it in; if 'lsusb' shows it, check that /dev/hidraw* exists for it (in a "
            "container: pass the device through)",
        )
    if not fits:
        raise SpaceMouseError(f"no SpaceMouse with {wanted} is connected", f"connected: {listed}")
    if len(fits) > 1:
        raise SpaceMouseError(
            f"{len(fits)} SpaceMouse devices fit",
            f"choose one with the parameter 'serial' or 'path': {listed}",
        )
    return fits[0]


class SpaceMouse:
    """One SpaceMouse, polled. Not thread-safe: one thread polls.

    Attributes:
        device: the device in use, None while it is lost.
        problem: why there is no device, "" while there is one.
        advice: what to do about it.
        losses: how often a device in use has vanished.
        stale: the cap was deflected when its reports stopped.
    """

    def __init__(
        self,
        config: SpaceMouseConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config if config is not None else SpaceMouseConfig()
        self.device: DeviceId | None = None
        self.problem = "not opened yet"
        self.advice = ""
        self.losses = 0
        self.stale = False
        self._clock = clock
        self._mouse: Any = None
        self._state: Any = None
        self._lost = ""
        self._reports = 0
        self._last_report = -math.inf
        self._next_attempt = -math.inf
        self._wait = self.config.retry_min
        self._hid_error: type[Exception] = OSError

    @property
    def connected(self) -> bool:
        """A device is open."""
        return self._mouse is not None

    def open(self) -> DeviceId:
        """Find and open the device now.

        Raises:
            SpaceMouseError: with the reason and what to do.
        """
        self.close()
        devices = _enumerate()
        identity, spec, hid = devices[
            select([d[0] for d in devices], self.config.serial, self.config.path)
        ]
        pyspacemouse, easyhid = _pyspacemouse()
        self._hid_error = easyhid.HIDException
        info = pyspacemouse.apply_axis_convention(spec, pyspacemouse.AxisConvention.ROS)
        mouse = pyspacemouse.SpaceMouseDevice(info=info, device=hid)
        mouse.configure(callback=self._count)
        try:
            mouse.open()
            hid.set_nonblocking(True)
        except (RuntimeError, self._hid_error, OSError) as error:
            raise self._open_failed(identity, error) from error
        mouse.set_led(self.config.led)
        self._mouse, self.device = mouse, identity
        self.problem = self.advice = self._lost = ""
        self.stale = False
        self._wait = self.config.retry_min
        self._last_report = self._clock()
        return identity

    def poll(self) -> Sample | None:
        """Read all pending reports; while the device is lost, look for it (with back-off).

        Returns:
            The state now, None while there is no device.
        """
        if not self.connected and not self._reconnect():
            return None
        before = self._reports
        try:
            self._drain()
        except (self._hid_error, OSError) as error:
            self._lose(str(error))
            return None
        return self._sample(self._reports - before)

    def close(self) -> None:
        """Release the device; `poll` opens it again."""
        mouse, self._mouse, self.device = self._mouse, None, None
        if mouse is None:
            return
        try:
            mouse.set_led(False)
            mouse.close()
        except (self._hid_error, OSError) as error:
            self.problem = f"closing failed: {error}"

    def _count(self, _state: Any) -> None:
        self._reports += 1

    def _drain(self) -> None:
        for _ in range(MAX_REPORTS):
            before = self._reports
            self._state = self._mouse.read()
            if self._reports == before:
                return

    def _sample(self, reports: int) -> Sample:
        now = self._clock()
        if reports:
            self._last_report = now
        x, y, z, roll, pitch, yaw = (
            min(1.0, max(-1.0, float(getattr(self._state, name)))) for name in AXES
        )
        axes = (x, y, z, roll, pitch, yaw)
        buttons = tuple(int(b) for b in self._state.buttons)
        self.stale = any(axes) and now - self._last_report > self.config.report_timeout
        return Sample((0.0,) * 6 if self.stale else axes, buttons, reports)

    def _reconnect(self) -> bool:
        now = self._clock()
        if now < self._next_attempt:
            return False
        try:
            self.open()
        except SpaceMouseError as error:
            self.problem = "; ".join(filter(None, (self._lost, str(error))))
            self.advice = error.advice
            self._next_attempt = now + self._wait
            self._wait = min(2.0 * self._wait, self.config.retry_max)
            return False
        return True

    def _lose(self, reason: str) -> None:
        name = str(self.device)
        self.close()
        self.losses += 1
        self._lost = f"lost {name}"
        self.problem = f"{self._lost}: {reason}"
        self.advice = "plug it in again, or check its battery and receiver"
        self._wait = self.config.retry_min
        self._next_attempt = self._clock() + self._wait

    @staticmethod
    def _open_failed(identity: DeviceId, error: Exception) -> SpaceMouseError:
        readable = os.access(identity.path, os.R_OK | os.W_OK)
        if os.path.exists(identity.path) and not readable:
            return SpaceMouseError(f"no permission to open {identity}", UDEV_ADVICE)
        return SpaceMouseError(
            f"cannot open {identity}: {error}",
            f"close other programs that use it (spacenavd?); or {UDEV_ADVICE}",
        )
