"""What hil_manager decides, without ROS."""

import pytest

from hil_bringup.lifecycle_plan import Health, Plan, State, Timing, Transition

NODES = ("/sim", "/bridge", "/actor")


def bring_up(plan: Plan, name: str, now: float) -> None:
    plan.saw_state(name, State.UNCONFIGURED, now)
    assert (name, Transition.CONFIGURE) in plan.due(now)
    plan.answered(name, True, now)
    assert (name, Transition.ACTIVATE) in plan.due(now)
    plan.answered(name, True, now)
    plan.heard(name, Health.OK, "ok", "active", now)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_any_order_of_appearance_ends_ready(order: tuple[int, ...]) -> None:
    plan = Plan(NODES)
    for now, index in enumerate(order):
        assert not plan.ready(float(now))
        bring_up(plan, NODES[index], float(now))
    assert plan.ready(2.0)
    assert plan.summary(2.0) == "all nodes active"
    assert plan.due(2.0) == []


def test_a_transition_is_asked_for_once() -> None:
    plan = Plan(["/a"])
    plan.saw_state("/a", State.UNCONFIGURED, 0.0)
    assert plan.due(0.0) == [("/a", Transition.CONFIGURE)]
    assert plan.due(0.1) == []


def test_failures_are_retried_ever_more_slowly_and_reported_with_the_reason() -> None:
    plan = Plan(["/a"], timing=Timing(retry=1.0, longest_retry=3.0))
    now = 0.0
    plan.saw_state("/a", State.UNCONFIGURED, now)
    for expected in (1.0, 2.0, 3.0, 3.0):
        assert plan.due(now)
        plan.answered("/a", False, now)
        plan.heard("/a", Health.ERROR, "no robot at 10.0.0.1", "unconfigured", now)
        assert plan.due(now + expected - 0.01) == []
        now += expected
        plan.saw_state("/a", State.UNCONFIGURED, now)
    report = plan.reports(now)[0]
    assert report.health == Health.ERROR
    assert "failed 4 times: no robot at 10.0.0.1" in report.text


def test_respawned_node_is_brought_up_again() -> None:
    plan = Plan(["/a"])
    bring_up(plan, "/a", 0.0)
    plan.saw_nothing("/a")
    assert not plan.ready(1.0)
    assert "not started" in plan.summary(1.0)
    bring_up(plan, "/a", 2.0)
    assert plan.ready(2.0)


def test_respawn_between_two_looks_is_noticed() -> None:
    plan = Plan(["/a"])
    bring_up(plan, "/a", 0.0)
    plan.saw_state("/a", State.UNCONFIGURED, 1.0)
    assert plan.due(1.0) == [("/a", Transition.CONFIGURE)]


def test_request_to_a_process_that_died_is_made_again() -> None:
    timing = Timing()
    plan = Plan(["/a"], timing=timing)
    plan.saw_state("/a", State.UNCONFIGURED, 0.0)
    assert plan.due(0.0)
    later = timing.lost_limit + 0.1
    plan.saw_state("/a", State.UNCONFIGURED, later)
    assert plan.due(later) == [("/a", Transition.CONFIGURE)]


def test_unanswered_request_counts_as_failed() -> None:
    timing = Timing(request_limit=10.0)
    plan = Plan(["/a"], timing=timing)
    plan.saw_state("/a", State.INACTIVE, 0.0)
    assert plan.due(0.0)
    assert plan.due(10.1) == []
    assert plan.due(10.1 + timing.retry) == [("/a", Transition.ACTIVATE)]


def fault(plan: Plan, name: str, now: float) -> None:
    plan.saw_state(name, State.INACTIVE, now)
    assert plan.due(now) == [], "the reason is not known yet"
    plan.heard(name, Health.OK, "ok", "active", now)  # was under way before the fault
    assert plan.due(now) == []
    plan.heard(name, Health.ERROR, "KeyError: 'x'", "inactive", now)


def test_a_fault_is_retried_up_to_a_limit_then_waits_for_a_person() -> None:
    timing = Timing(fault_retries=2, retry=0.5)
    plan = Plan(["/a"], timing=timing)
    now = 0.0
    bring_up(plan, "/a", now)
    for _ in range(2):
        fault(plan, "/a", now)
        now += timing.retry
        assert plan.due(now) == [("/a", Transition.ACTIVATE)]
        plan.answered("/a", True, now)
    fault(plan, "/a", now)
    plan.heard("/a", Health.ERROR, "KeyError: 'x'", "inactive", now + 9.0)
    assert plan.due(now + 9.0) == []
    assert "3 faults in 60 s, the last: KeyError: 'x'" in plan.summary(now + 9.0)
    plan.retry(now + 9.0)
    assert plan.due(now + 9.0) == [("/a", Transition.ACTIVATE)]


def test_faults_long_ago_do_not_count() -> None:
    plan = Plan(["/a"], timing=Timing(fault_retries=1, fault_window=10.0))
    now = 0.0
    bring_up(plan, "/a", now)
    for _ in range(5):
        fault(plan, "/a", now)
        now += 1.0
        assert plan.due(now) == [("/a", Transition.ACTIVATE)]
        plan.answered("/a", True, now)
        now += 10.0


def test_a_node_that_holds_on_fault_waits_for_a_person_at_once() -> None:
    plan = Plan(["/bridge"], hold_on_fault=["/bridge"])
    bring_up(plan, "/bridge", 0.0)
    fault(plan, "/bridge", 1.0)
    assert plan.due(100.0) == []
    plan.retry(100.0)
    assert plan.due(100.0) == [("/bridge", Transition.ACTIVATE)]


def test_a_held_node_that_was_restarted_is_brought_up() -> None:
    plan = Plan(["/bridge"], hold_on_fault=["/bridge"])
    bring_up(plan, "/bridge", 0.0)
    fault(plan, "/bridge", 1.0)
    bring_up(plan, "/bridge", 2.0)
    assert plan.ready(2.0)


def test_a_person_who_deactivates_a_node_is_not_fought() -> None:
    plan = Plan(["/a"])
    bring_up(plan, "/a", 0.0)
    plan.saw_state("/a", State.INACTIVE, 1.0)
    plan.heard("/a", Health.OK, "ok", "inactive", 1.5)
    assert plan.due(100.0) == []
    assert "deactivated by somebody" in plan.reports(2.0)[0].text


def test_a_faulty_node_that_says_nothing_is_treated_as_faulty() -> None:
    timing = Timing()
    plan = Plan(["/a"], timing=timing)
    bring_up(plan, "/a", 0.0)
    plan.saw_state("/a", State.INACTIVE, 1.0)
    assert plan.due(1.0 + timing.verdict_limit + 0.1) == []
    assert plan.due(2.0 + timing.verdict_limit + timing.retry)


def test_silence_is_reported() -> None:
    plan = Plan(["/a"], timing=Timing(heartbeat_limit=5.0))
    bring_up(plan, "/a", 0.0)
    assert plan.reports(4.0)[0].health == Health.OK
    report = plan.reports(7.0)[0]
    assert report.health == Health.STALE
    assert report.text == "not responding for 7 s"
    assert plan.ready(4.0)
    assert not plan.ready(7.0)


WEDGED = Timing(heartbeat_limit=5.0, wedged_limit=30.0)


def test_a_process_that_hangs_is_to_be_ended_once() -> None:
    plan = Plan(["/a"], timing=WEDGED)
    bring_up(plan, "/a", 0.0)
    plan.heard("/a", Health.OK, "ok", "active", 0.0, process=7)
    assert plan.wedged(29.0) == []
    assert plan.wedged(31.0) == [("/a", 7, 31.0)]
    assert plan.wedged(32.0) == []


def test_a_stopped_process_that_left_the_graph_is_told_from_one_that_ended() -> None:
    plan = Plan(["/a"], timing=WEDGED)
    bring_up(plan, "/a", 0.0)
    plan.heard("/a", Health.OK, "ok", "active", 0.0, process=7)
    plan.saw_nothing("/a", process_runs=True)
    assert plan.summary(1.0) == "/a: has left the graph, process 7 still runs"
    assert plan.summary(6.0) == "/a: not responding for 6 s, but process 7 runs"
    assert plan.wedged(31.0) == [("/a", 7, 31.0)]
    plan.saw_nothing("/a")
    assert plan.summary(32.0) == "/a: not started or not found yet"


def test_a_process_that_goes_on_is_left_alone() -> None:
    plan = Plan(["/a"], timing=WEDGED)
    bring_up(plan, "/a", 0.0)
    plan.heard("/a", Health.OK, "ok", "active", 0.0, process=7)
    plan.saw_nothing("/a", process_runs=True)
    plan.saw_state("/a", State.ACTIVE, 8.0)
    assert plan.ready(8.0)
    assert plan.wedged(31.0) == []


def test_a_transition_may_take_long() -> None:
    plan = Plan(["/a"], timing=WEDGED)
    plan.saw_state("/a", State.UNCONFIGURED, 0.0)
    plan.heard("/a", Health.OK, "ok", "unconfigured", 0.0, process=7)
    assert plan.due(0.0)
    assert plan.wedged(300.0) == []


def test_what_is_of_unknown_origin_is_never_ended() -> None:
    plan = Plan(["/a"], timing=WEDGED)
    bring_up(plan, "/a", 0.0)
    assert plan.wedged(1000.0) == []


def test_a_manager_that_was_stopped_itself_blames_nobody() -> None:
    plan = Plan(["/a"], timing=WEDGED)
    bring_up(plan, "/a", 0.0)
    plan.heard("/a", Health.OK, "ok", "active", 0.0, process=7)
    plan.overslept(40.0)
    assert plan.ready(41.0)
    assert plan.wedged(41.0) == []


def test_summary_says_who_waits_for_what() -> None:
    plan = Plan(["/actor", "/learner"])
    for name in plan.names:
        bring_up(plan, name, 0.0)
    plan.heard("/actor", Health.OK, "waiting for robot_state", "active", 0.0)
    plan.heard("/learner", Health.WARN, "slow disk", "active", 0.0)
    assert plan.summary(0.0) == "/learner: slow disk; /actor: waiting for robot_state"


def test_hold_on_fault_of_an_unknown_node_is_refused() -> None:
    with pytest.raises(ValueError, match="/brdge"):
        Plan(["/bridge"], hold_on_fault=["/brdge"])
