"""hil_manager with real lifecycle nodes."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from hil_bringup.manager_node import ManagerNode
from hil_common import qos
from hil_common.lifecycle import HilNode
from hil_common.testing import GENEROUS, Ros

NUMBERS = itertools.count()


@pytest.fixture
def name() -> str:
    """A node name that no test before has used.

    rclpy keeps lifecycle services of a destroyed node for a while; a second node of that name in
    this process would not look ready.
    """
    return f"node_{next(NUMBERS)}"


class Worker(HilNode):
    """Notes what it was asked to do; refuses to configure while `broken`."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.calls: list[str] = []
        self.broken = False

    def on_setup(self) -> None:
        self.calls.append("setup")
        if self.broken:
            raise RuntimeError("no robot there")

    def on_start(self) -> None:
        self.calls.append("start")

    def on_hold(self) -> None:
        self.calls.append("hold")


class Watch:
    """What the manager says."""

    def __init__(self, ros: Ros) -> None:
        self.ready = False
        self.status = ""
        node = ros.node("watch")
        node.create_subscription(Bool, "hil_manager/ready", self._ready, qos.LATCHED)
        node.create_subscription(String, "hil_manager/status", self._status, qos.LATCHED)
        self.retry = node.create_client(Trigger, "hil_manager/retry")

    def _ready(self, message: Bool) -> None:
        self.ready = message.data

    def _status(self, message: String) -> None:
        self.status = message.data


def worker(ros: Ros, name: str) -> Worker:
    return ros.add(Worker(name, context=ros.context))


@pytest.mark.parametrize("manager_first", [True, False])
def test_nodes_are_brought_up_in_any_order(ros: Ros, name: str, manager_first: bool) -> None:
    watch = Watch(ros)
    if manager_first:
        ros.start(ManagerNode, nodes=(f"/{name}_a", f"/{name}_b"))
        ros.wait_for(lambda: "not started" in watch.status)
    workers = [worker(ros, n) for n in (f"{name}_b", f"{name}_a")]
    if not manager_first:
        ros.start(ManagerNode, nodes=(f"/{name}_a", f"/{name}_b"))
    ros.wait_for(lambda: watch.ready)
    assert all(w.active for w in workers)
    ros.wait_for(lambda: watch.status == "all nodes active")


def test_failed_configuration_is_reported_and_tried_again(ros: Ros, name: str) -> None:
    watch, one = Watch(ros), worker(ros, name)
    one.broken = True
    ros.start(ManagerNode, nodes=(f"/{name}",))
    ros.wait_for(lambda: "no robot there" in watch.status)
    one.broken = False
    ros.wait_for(lambda: watch.ready)


def test_fault_is_healed_and_the_reason_was_said(ros: Ros, name: str) -> None:
    watch, one = Watch(ros), worker(ros, name)
    ros.start(ManagerNode, nodes=(f"/{name}",))
    ros.wait_for(lambda: watch.ready)
    one.fault("camera unplugged")
    ros.wait_for(lambda: not watch.ready)
    ros.wait_for(lambda: watch.ready)
    assert one.calls == ["setup", "start", "hold", "start"]


def test_held_node_waits_for_retry(ros: Ros, name: str) -> None:
    watch, bridge = Watch(ros), worker(ros, name)
    ros.start(ManagerNode, nodes=(f"/{name}",), hold_on_fault=(f"/{name}",))
    ros.wait_for(lambda: watch.ready)
    bridge.fault("reflex")
    ros.wait_for(lambda: "holds after a fault (reflex)" in watch.status)
    assert ros.call(watch.retry, Trigger.Request()).success
    ros.wait_for(lambda: watch.ready)


WORKER = """
import signal
import sys
import threading

from hil_common.lifecycle import HilNode
from hil_common.run import main

class Worker(HilNode):
    def on_start(self):
        print("started", flush=True)

signal.signal(signal.SIGUSR1, lambda *_: threading.Event().wait())  # as a dead-locked callback
main(lambda: Worker(sys.argv[1]))
"""


@contextlib.contextmanager
def worker_process(ros: Ros, name: str) -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "ROS_DOMAIN_ID": str(ros.context.get_domain_id())}
    command = [sys.executable, "-c", WORKER, name]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()  # waits for the manager to activate it
            assert line == "started\n"
            yield process
        finally:
            process.kill()


def test_killed_and_restarted_process_is_brought_up_again(ros: Ros, name: str) -> None:
    watch = Watch(ros)
    ros.start(ManagerNode, nodes=(f"/{name}",))
    with worker_process(ros, name):
        ros.wait_for(lambda: watch.ready)
    with worker_process(ros, name):
        ros.wait_for(lambda: watch.ready)
    ros.wait_for(lambda: not watch.ready)


@pytest.fixture
def same_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager takes processes that this one has started for its siblings."""
    own = os.getpid()
    monkeypatch.setattr("hil_bringup.manager_node.os.getppid", lambda: own)


@pytest.mark.usefixtures("same_parent")
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGUSR1])
def test_wedged_process_is_ended_with_its_stack(ros: Ros, name: str, how: signal.Signals) -> None:
    """One that was stopped, which leaves the graph, and one that hangs, which stays in it."""
    watch = Watch(ros)
    manager = ros.start(
        ManagerNode, nodes=(f"/{name}",), heartbeat_limit_s=1.5, end_wedged_after_s=4.0
    )
    with worker_process(ros, name) as process:
        ros.wait_for(lambda: watch.ready)
        ros.wait_for(lambda: manager.plan.process(f"/{name}") == process.pid)
        process.send_signal(how)
        ros.wait_for(lambda: "not responding" in watch.status)
        _, errors = process.communicate(timeout=GENEROUS)
    assert process.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in errors
    assert "run.py" in errors, "its stack"


@pytest.mark.usefixtures("same_parent")
def test_process_that_was_stopped_for_a_while_goes_on(ros: Ros, name: str) -> None:
    watch = Watch(ros)
    manager = ros.start(ManagerNode, nodes=(f"/{name}",), heartbeat_limit_s=1.5)
    with worker_process(ros, name) as process:
        ros.wait_for(lambda: watch.ready)
        ros.wait_for(lambda: manager.plan.process(f"/{name}") == process.pid)
        process.send_signal(signal.SIGSTOP)
        ros.wait_for(lambda: f"process {process.pid} runs" in watch.status)
        process.send_signal(signal.SIGCONT)
        ros.wait_for(lambda: watch.ready)
        assert process.poll() is None


def test_a_process_with_another_parent_is_left_alone(ros: Ros, name: str) -> None:
    watch = Watch(ros)
    ros.start(ManagerNode, nodes=(f"/{name}",), heartbeat_limit_s=1.5, end_wedged_after_s=2.0)
    with worker_process(ros, name) as process:
        ros.wait_for(lambda: watch.ready)
        process.send_signal(signal.SIGSTOP)
        ros.wait_for(lambda: "not started or not found yet" in watch.status)
        assert process.poll() is None
