"""How time goes on while the bridge moves the arm by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builtin_interfaces.msg import Time
from rclpy.client import Client

from hil_common.conversions import from_ns, to_ns
from hil_interfaces.srv import Advance
from hil_robot_bridge.drivers.base import DriverError
from hil_robot_bridge.fibers import Promise, TimedOut, Timeouts
from hil_robot_bridge.ros_io import call

_ADVANCE_TIMEOUT = 10.0  # s of real time for one control period of a simulator
_STATE_TIMEOUT = 0.5  # s until a state that was lost on its way is asked for again
_STATE_ATTEMPTS = 4


class RealtimePacer:
    """Time goes on by itself; `tick` is called once per period."""

    def __init__(self, period: float) -> None:
        self.period = period
        self._waiting: list[Promise[None]] = []

    async def next_period(self, target_ns: int) -> None:
        """Wait for the next tick."""
        promise: Promise[None] = Promise()
        self._waiting.append(promise)
        await promise

    def tick(self) -> None:
        """Let go who waits."""
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.keep(None)


class LockstepPacer:
    """Time goes on only by the simulator's advance service.

    Args:
        client: of hil_interfaces/srv/Advance.
        period: control period, s.
        owner: who holds the arm's lease.
        newest_ns: stamp of the newest state.
        timeouts: deadlines.
    """

    def __init__(
        self,
        client: Client,
        period: float,
        owner: Callable[[], str],
        newest_ns: Callable[[], int | None],
        timeouts: Timeouts,
    ) -> None:
        self.period = period
        self._client = client
        self._owner = owner
        self._newest_ns = newest_ns
        self._timeouts = timeouts
        self._waiting: list[tuple[int, Promise[None]]] = []

    async def next_period(self, target_ns: int) -> None:
        """Simulate one control period and wait for its state."""
        stamp = await self._advance(1, target_ns)
        for attempt in range(_STATE_ATTEMPTS):
            try:
                await self._state(stamp)
                return
            except TimedOut:
                if attempt + 1 < _STATE_ATTEMPTS:
                    await self._advance(0, 0)
        raise DriverError("the simulator's state does not arrive")

    async def show(self) -> None:
        """Have the simulator publish its present state."""
        await self._advance(0, 0)

    def on_state(self) -> None:
        """Let go who waits for the newest state."""
        newest = self._newest_ns()
        if newest is None or not self._waiting:
            return
        ready = [promise for stamp, promise in self._waiting if stamp <= newest]
        self._waiting = [each for each in self._waiting if each[0] > newest]
        for promise in ready:
            promise.keep(None)

    async def _advance(self, periods: int, target_ns: int) -> int:
        request = Advance.Request(
            owner=self._owner(),
            periods=periods,
            target_stamp=from_ns(target_ns) if target_ns else Time(),
        )
        answer: Any = await call(self._client, request, self._timeouts, _ADVANCE_TIMEOUT)
        if not answer.ok:
            raise DriverError(f"simulator: {answer.reason}")
        return to_ns(answer.stamp)

    async def _state(self, stamp: int) -> None:
        newest = self._newest_ns()
        if newest is not None and newest >= stamp:
            return
        promise: Promise[None] = Promise()
        self._waiting.append((stamp, promise))
        try:
            await self._timeouts.wait(promise, _STATE_TIMEOUT, "the simulator's state")
        finally:
            self._waiting = [each for each in self._waiting if each[1] is not promise]
