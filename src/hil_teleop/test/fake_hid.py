"""A stand-in for the module ``easyhid``: same classes, reports come from a queue.

pyspacemouse itself is real.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

COMPACT = (0x256F, 0xC635)
NAVIGATOR = (0x046D, 0xC626)
KEYBOARD = (0x046D, 0xC31C)


class HIDException(Exception):
    """As easyhid's."""


@dataclass
class Plug:
    """One USB device as the kernel sees it."""

    path: str
    hid_id: tuple[int, int] = COMPACT
    serial: str | None = None
    product: str = "SpaceMouse Compact"
    usage: tuple[int, int] = (0, 0)
    openable: bool = True
    connected: bool = True
    reports: deque[bytes] = field(default_factory=deque)
    written: list[bytes] = field(default_factory=list)
    reads: int = 0

    def translation(self, x: int = 0, y: int = 0, z: int = 0) -> None:
        """Queue report 1 (raw HID axes: x right, y towards the person, z down; full scale 350)."""
        self.reports.append(_report(1, x, y, z))

    def rotation(self, rx: int = 0, ry: int = 0, rz: int = 0) -> None:
        """Queue report 2."""
        self.reports.append(_report(2, rx, ry, rz))

    def buttons(self, mask: int) -> None:
        """Queue report 3: bit 0 left, bit 1 right."""
        self.reports.append(bytes([3, mask, 0]))


def _report(channel: int, *values: int) -> bytes:
    return bytes([channel]) + b"".join(v.to_bytes(2, "little", signed=True) for v in values)


class HIDDevice:
    """As easyhid's: `read` returns a buffer of the size asked for, empty if nothing is pending."""

    def __init__(self, plug: Plug) -> None:
        self._plug = plug
        self._open = False
        self.path = plug.path
        self.vendor_id, self.product_id = plug.hid_id
        self.serial_number = plug.serial
        self.product_string = plug.product
        self.manufacturer_string = "3Dconnexion"
        self.release_number = 0x0437
        self.usage_page, self.usage = plug.usage
        self.interface_number = 0

    def open(self) -> None:
        if self._open or not (self._plug.openable and self._plug.connected):
            raise HIDException("Failed to open device")
        self._open = True

    def close(self) -> None:
        self._open = False

    def set_nonblocking(self, enable: bool) -> None:
        assert isinstance(enable, bool)

    def write(self, data: bytes, report_id: int = 0) -> int:
        if not self._plug.connected:
            raise HIDException("Failed to write to HID device: -1")
        self._plug.written.append(bytes(data))
        return len(data) + 1

    def read(self, size: int = 64, timeout: int | None = None) -> bytearray:
        self._plug.reads += 1
        if not self._open:
            raise HIDException("HIDDevice not open")
        if not self._plug.connected:
            raise HIDException("Failed to read from HID device: -1")
        if not self._plug.reports:
            return bytearray()
        return bytearray(self._plug.reports.popleft().ljust(size, b"\0")[:size])


class Bus:
    """The USB bus: which devices are plugged in, and the fake module that enumerates them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugs: list[Plug] = []
        self.enumerations = 0
        self.missing_library = False

    def plug(self, name: str = "hidraw0", **values: object) -> Plug:
        """Plug a device in; its path is a real, accessible file."""
        path = self.folder / name
        path.touch()
        device = Plug(str(path), **values)  # type: ignore[arg-type]
        self.plugs.append(device)
        return device

    def unplug(self, plug: Plug) -> None:
        """Pull it out: pending reports are gone, reading fails."""
        plug.connected = False
        plug.reports.clear()
        self.plugs.remove(plug)
        Path(plug.path).unlink()

    def module(self) -> types.ModuleType:
        """The fake ``easyhid``."""
        bus = self

        class Enumeration:
            def __init__(self, vid: int = 0, pid: int = 0) -> None:
                bus.enumerations += 1
                if bus.missing_library:
                    raise AttributeError("undefined symbol: hid_enumerate")
                self.device_list = [HIDDevice(p) for p in bus.plugs]

            def find(self) -> list[HIDDevice]:
                return self.device_list

        fake = types.ModuleType("easyhid")
        fake.Enumeration = Enumeration  # type: ignore[attr-defined]
        fake.HIDDevice = HIDDevice  # type: ignore[attr-defined]
        fake.Device = HIDDevice  # type: ignore[attr-defined]
        fake.HIDException = HIDException  # type: ignore[attr-defined]
        return fake


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Bus:
    """Put the fake in place of easyhid and have pyspacemouse imported afresh on top of it."""
    bus = Bus(folder)
    for name in [n for n in sys.modules if n.split(".")[0] == "pyspacemouse"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "easyhid", bus.module())
    return bus
