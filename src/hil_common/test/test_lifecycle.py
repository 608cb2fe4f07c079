import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.srv import ChangeState
from std_msgs.msg import Empty
from std_srvs.srv import Trigger

from hil_common import qos
from hil_common.lifecycle import HilNode
from hil_common.testing import Ros


class Arm(HilNode):
    def __init__(self, **options):
        super().__init__("arm", **options)
        self.calls = []
        self.broken = ""

    def on_setup(self):
        self.note("setup")
        self.subscribe(Empty, "explode", lambda _: self.note("callback"), qos.COMMAND)
        self.serve(Trigger, "~/do", self.do)

    def on_start(self):
        self.note("start")

    def on_hold(self):
        self.note("hold")

    def on_close(self):
        self.note("close")

    def do(self, request, response):
        self.note("service")
        response.success = True
        return response

    def note(self, name):
        self.calls.append(name)
        if self.broken == name:
            raise RuntimeError(f"{name} is broken")


def state_of(node):
    return node._state_machine.current_state[1]


class Watch:
    def __init__(self, ros: Ros):
        self.reports = []
        node = ros.node("watch")
        node.create_subscription(
            DiagnosticArray, "/diagnostics", lambda m: self.reports.extend(m.status), 10
        )

    def saw(self, level, text):
        return any(s.level == level and text in s.message for s in self.reports)


def test_normal_life(ros):
    arm = ros.start(Arm)
    assert arm.active and state_of(arm) == "active"
    arm.trigger_deactivate()
    assert not arm.active and state_of(arm) == "inactive"
    arm.trigger_activate()
    arm.trigger_shutdown()
    assert arm.calls == ["setup", "start", "hold", "start", "hold", "close"]


def test_setup_that_fails_stays_unconfigured(ros):
    watch = Watch(ros)
    arm = ros.make(Arm)
    arm.broken = "setup"
    arm.trigger_configure()
    assert state_of(arm) == "unconfigured"
    ros.wait_for(lambda: watch.saw(DiagnosticStatus.ERROR, "setup is broken"))
    arm.broken = ""
    arm.trigger_configure()
    assert state_of(arm) == "inactive"


def test_start_that_fails_is_not_active(ros):
    arm = ros.make(Arm)
    arm.trigger_configure()
    arm.broken = "start"
    arm.trigger_activate()
    assert not arm.active and state_of(arm) != "active"


@pytest.mark.parametrize("broken", ["callback", "service"])
def test_exception_in_a_callback_holds_the_node(ros, broken):
    watch = Watch(ros)
    arm = ros.start(Arm)
    arm.broken = broken
    client = ros.node("client")
    if broken == "callback":
        publisher = client.create_publisher(Empty, "explode", qos.COMMAND)
        ros.wait_for(lambda: publisher.get_subscription_count())
        publisher.publish(Empty())
    else:
        response = ros.call(client.create_client(Trigger, "/arm/do"), Trigger.Request())
        assert not response.success and "service is broken" in response.message
    ros.wait_for(lambda: state_of(arm) == "inactive")
    assert not arm.active and arm.calls[-1] == "hold"
    ros.wait_for(lambda: watch.saw(DiagnosticStatus.ERROR, f"{broken} is broken"))
    arm.broken = ""
    arm.trigger_activate()
    ros.wait_for(lambda: watch.reports and watch.reports[-1].level == DiagnosticStatus.OK)


@pytest.mark.parametrize("number", [1, 77, 255])
def test_impossible_transition_is_refused(ros, number):
    arm = ros.start(Arm)
    client = ros.node("client").create_client(ChangeState, "/arm/change_state")
    request = ChangeState.Request()
    request.transition.id = number  # 1: configure, although it is active
    assert not ros.call(client, request).success
    assert arm.active and state_of(arm) == "active"
    request.transition.id = 4
    assert ros.call(client, request).success
    assert state_of(arm) == "inactive"


def test_rates_and_waiting_are_reported(ros):
    watch = Watch(ros)
    arm = ros.start(Arm)
    arm.diagnostics.tick("state")
    arm.diagnostics.count("refused", 2)
    arm.waiting_for("the robot")
    ros.wait_for(lambda: watch.saw(DiagnosticStatus.OK, "waiting for the robot"))
    values = {v.key: v.value for v in watch.reports[-1].values}
    assert values["state"] == "active" and values["refused"] == "2"
    assert "state.rate_hz" in values
