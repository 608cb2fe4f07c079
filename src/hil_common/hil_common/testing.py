"""pytest fixture for tests that talk through ROS: own domain, own executor, no sleeps."""

from __future__ import annotations

import fcntl
import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import rclpy
from ament_index_python.packages import get_package_share_directory
from rclpy.client import Client
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from hil_common.lifecycle import HilNode
from hil_common.params import override

N = TypeVar("N", bound=HilNode)
GENEROUS = 30.0
"""Seconds that a busy machine may take for what takes milliseconds."""


class Ros:
    """A ROS context in a domain of its own, with an executor in a background thread."""

    def __init__(self, domain: int) -> None:
        self.context = Context()
        rclpy.init(
            context=self.context,
            domain_id=domain,
            signal_handler_options=SignalHandlerOptions.NO,
        )
        self.executor = SingleThreadedExecutor(context=self.context)
        self._thread = threading.Thread(target=self.executor.spin, daemon=True)
        self._nodes: list[Node] = []
        self._thread.start()

    def node(self, name: str = "test", **options: Any) -> Node:
        """A plain node, spun in the background."""
        return self.add(Node(name, context=self.context, **options))

    def start(self, make: Callable[..., N], **params: Any) -> N:
        """A HilNode with parameters, configured and activated."""
        node = self.make(make, **params)
        node.trigger_configure()
        node.trigger_activate()
        return node

    def make(self, make: Callable[..., N], **params: Any) -> N:
        """A HilNode with parameters, not yet configured."""
        overrides = [override(name, value) for name, value in params.items()]
        return self.add(make(context=self.context, parameter_overrides=overrides))

    def add(self, node: Any) -> Any:
        """Spin a node in the background until the fixture ends."""
        self._nodes.append(node)
        self.executor.add_node(node)
        return node

    def call(self, client: Client, request: Any, timeout: float = GENEROUS) -> Any:
        """Call a service and return the response."""
        assert client.wait_for_service(timeout), f"no service {client.srv_name}"
        return self.result(client.call_async(request), timeout)

    def result(self, future: Future, timeout: float = GENEROUS) -> Any:
        """Result of a future that the background executor completes."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        assert done.wait(timeout), "no answer"
        return future.result()

    def wait_for(
        self, predicate: Callable[[], Any], timeout: float = GENEROUS, what: str = ""
    ) -> Any:
        """Wait until `predicate()` is true and return its value."""
        end = time.monotonic() + timeout
        pause = threading.Event()
        while not (value := predicate()):
            assert time.monotonic() < end, f"waited {timeout} s for {what or predicate}"
            pause.wait(0.005)
        return value

    def close(self) -> None:
        """Stop everything."""
        self.executor.shutdown()
        self._thread.join(GENEROUS)
        for node in self._nodes:
            node.destroy_node()
        self.context.try_shutdown()


@functools.cache
def _own_domain() -> int:
    """Number of a ROS domain that no other test process on this machine has.

    It is reserved by a lock that ends with this process.
    """
    for number in range(30, 66):
        path = Path(tempfile.gettempdir()) / f"hil-test-domain-{number}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # open for the process's life
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return number
    raise RuntimeError("all ROS domains for tests are in use")


@pytest.fixture
def ros(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ros]:
    """A Ros of this test's own, invisible to other test runs on the machine."""
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    profile = Path(get_package_share_directory("hil_common")) / "fastdds_profile.xml"
    monkeypatch.setenv("FASTRTPS_DEFAULT_PROFILES_FILE", str(profile))
    instance = Ros(domain=_own_domain())
    yield instance
    instance.close()
