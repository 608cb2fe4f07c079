"""Process entry of a node: start, spin, and an orderly end on SIGINT or SIGTERM."""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from hil_common.lifecycle import HilNode
from hil_common.params import ParameterError

# How long a stop signal may wait for the executor to look up (s).
_STOP_LATENCY = 0.1


def main(
    node_class: Callable[[], HilNode],
    companions: Callable[[HilNode], list[Any]] | None = None,
    executor_class: Callable[[], Executor] = SingleThreadedExecutor,
) -> None:
    """Run one node until SIGINT or SIGTERM; a wrong parameter exits with code 2.

    Args:
        node_class: makes the node.
        companions: makes further rclpy nodes that live in this process, given the node.
        executor_class: rclpy's EventsExecutor halves what a message costs, but it knows no guard
            conditions, no callback groups and no coroutines as service callbacks: for nodes
            without them.
    """
    faulthandler.enable()  # SIGSEGV, SIGABRT and the like: every thread's stack on stderr
    stop = _StopSignal()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = node_class()
    except ParameterError as error:
        print(f"error: {error}", file=sys.stderr)
        rclpy.shutdown()
        sys.exit(2)
    executor = executor_class()
    nodes = [node, *(companions(node) if companions else [])]
    for each in nodes:
        executor.add_node(each)
    try:
        if node.params.autostart:
            node.trigger_configure()
            node.trigger_activate()
        # Nothing made so far is garbage: kept out of later collections, it costs no milliseconds.
        gc.collect()
        gc.freeze()
        _spin(executor, stop)
    finally:
        node.trigger_shutdown()
        for each in nodes:
            each.destroy_node()
        executor.shutdown()
        rclpy.try_shutdown()


class _StopSignal:
    """Notes SIGINT and SIGTERM."""

    def __init__(self) -> None:
        self.seen = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: Any) -> None:
        self.seen = True


def _spin(executor: Executor, stop: _StopSignal) -> None:
    # Not `spin_once`: the EventsExecutor forgets what has happened between two of them.
    never: Future = Future()
    while rclpy.ok() and not stop.seen:
        executor.spin_until_future_complete(never, _STOP_LATENCY)
