"""JSON objects between two processes of one machine: one per packet, nothing blocks."""

from __future__ import annotations

import json
import socket
from typing import Any

LARGEST = 65536  # bytes

Packet = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends. The other one notices when the last copy of an end is closed."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Packets:
    """One end.

    Attributes:
        closed: the other end is gone.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self.closed = False

    def fileno(self) -> int:
        """File descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, packet: Packet) -> bool:
        """Send one packet; returns whether there was room for it."""
        try:
            self._socket.send(json.dumps(packet).encode())
        except BlockingIOError:
            return False
        except OSError:
            self.closed = True
            return False
        return True

    def receive(self) -> list[Packet]:
        """All packets that have come, oldest first."""
        packets: list[Packet] = []
        while not self.closed:
            try:
                data = self._socket.recv(LARGEST)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if data:
                packets.append(json.loads(data))
            else:
                self.closed = True
        return packets

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
        self.closed = True
