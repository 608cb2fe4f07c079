"""Coroutines that are resumed by whoever keeps a promise."""

from __future__ import annotations

from typing import Any

import pytest

from hil_robot_bridge.fibers import Cancelled, Fiber, Promise, TimedOut, Timeouts


class End:
    """Notes how a fiber ended."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self.count = 0

    def __call__(self, value: Any, error: Exception | None) -> None:
        self.value, self.error = value, error
        self.count += 1


def test_a_fiber_waits_for_promises() -> None:
    first: Promise[int] = Promise()
    second: Promise[int] = Promise()
    second.keep(20)

    async def add() -> int:
        return await first + await second

    end = End()
    fiber = Fiber(add(), end)
    assert fiber.alive
    first.keep(1)
    first.keep(100)
    assert (end.value, end.error, end.count) == (21, None, 1)
    assert not fiber.alive
    fiber.cancel()
    assert end.count == 1


def test_errors_arrive_where_they_are_awaited() -> None:
    promise: Promise[int] = Promise()
    seen = []

    async def careful() -> str:
        try:
            await promise
        except ValueError as error:
            seen.append(str(error))
        raise KeyError("mine")

    end = End()
    Fiber(careful(), end)
    promise.fail(ValueError("theirs"))
    assert seen == ["theirs"]
    assert isinstance(end.error, KeyError)


def test_cancelling_runs_what_cleans_up() -> None:
    promise: Promise[int] = Promise()
    cleaned = []

    async def busy() -> None:
        try:
            await promise
        finally:
            cleaned.append(True)

    end = End()
    fiber = Fiber(busy(), end)
    fiber.cancel()
    assert cleaned == [True]
    assert isinstance(end.error, Cancelled)
    promise.keep(1)
    assert end.count == 1


def test_a_fiber_may_cancel_itself() -> None:
    promise: Promise[int] = Promise()
    fibers: list[Fiber] = []
    begin: Promise[None] = Promise()

    async def suicidal() -> None:
        await begin
        fibers[0].cancel()
        await promise

    end = End()
    fibers.append(Fiber(suicidal(), end))
    begin.keep(None)
    assert isinstance(end.error, Cancelled)


def test_many_may_wait_for_one_promise() -> None:
    promise: Promise[int] = Promise()

    async def wait() -> int:
        return await promise

    ends = [End() for _ in range(3)]
    for end in ends:
        Fiber(wait(), end)
    promise.keep(5)
    assert [end.value for end in ends] == [5, 5, 5]


def test_time_runs_out() -> None:
    now = [0.0]
    timeouts = Timeouts(clock=lambda: now[0])
    never: Promise[int] = Promise()
    end, slept = End(), End()
    Fiber(timeouts.wait(never, 2.0, "the oracle"), end)
    Fiber(timeouts.sleep(1.0), slept)
    timeouts.check()
    assert (end.count, slept.count) == (0, 0)
    now[0] = 1.5
    timeouts.check()
    assert (end.count, slept.count) == (0, 1)
    now[0] = 2.5
    timeouts.check()
    assert isinstance(end.error, TimedOut)
    assert "the oracle" in str(end.error)


def test_what_comes_in_time_is_returned() -> None:
    timeouts = Timeouts(clock=lambda: 0.0)
    promise: Promise[str] = Promise()
    end = End()
    Fiber(timeouts.wait(promise, 1.0, "it"), end)
    promise.keep("here")
    assert end.value == "here"


def test_a_coroutine_that_fails_at_once() -> None:
    async def broken() -> None:
        raise RuntimeError("at once")

    end = End()
    Fiber(broken(), end)
    with pytest.raises(RuntimeError):
        raise end.error or AssertionError
