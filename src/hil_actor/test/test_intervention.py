"""Who drives: edges, hysteresis, hold time."""

from __future__ import annotations

import numpy as np
import pytest

from hil_actor.intervention import ArmInput, ArmIntervention, Intervention, InterventionConfig

PLAIN = InterventionConfig()
STICKY = InterventionConfig(engage_threshold=0.2, release_threshold=0.1, hold_time=0.25)


def given(strength=0.0, engaged=True, gripper=0):
    twist = np.zeros(6)
    twist[3] = -strength
    return ArmInput(engaged, twist, gripper)


def random_inputs(seed, n=400):
    rng = np.random.default_rng(seed)
    engaged = False
    for _ in range(n):
        if rng.random() < 0.2:
            engaged = not engaged
        yield given(float(rng.uniform(0, 0.4)), engaged)


def run(config, inputs, period=0.1):
    arm = ArmIntervention(config)
    return [arm.update(one, k * period) for k, one in enumerate(inputs)]


@pytest.mark.parametrize("seed", range(5))
def test_without_thresholds_the_device_decides(seed):
    inputs = list(random_inputs(seed))
    assert [d.intervened for d in run(PLAIN, inputs)] == [i.engaged for i in inputs]


@pytest.mark.parametrize("config", [PLAIN, STICKY])
@pytest.mark.parametrize("seed", range(5))
def test_takeover_is_exactly_the_rising_edge(config, seed):
    decisions = run(config, random_inputs(seed))
    before = [False] + [d.intervened for d in decisions]
    for was, decision in zip(before, decisions, strict=False):
        assert decision.takeover == (decision.intervened and not was)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_drives_without_a_recent_reason(seed):
    inputs = list(random_inputs(seed))
    decisions = run(STICKY, inputs)
    for k, decision in enumerate(decisions):
        recent = inputs[max(0, k - 2) : k + 1]  # hold_time covers two periods
        wanted = any(i.engaged and i.strength >= STICKY.release_threshold for i in recent)
        assert decision.intervened <= wanted
        if inputs[k].engaged and inputs[k].strength >= STICKY.engage_threshold:
            assert decision.intervened


@pytest.mark.parametrize("seed", range(5))
def test_a_bout_lasts_at_least_the_hold_time(seed):
    driving = [d.intervened for d in run(STICKY, random_inputs(seed))]
    lengths, length = [], 0
    for value in driving:
        if value:
            length += 1
        elif length:
            lengths.append(length)
            length = 0
    assert lengths and min(lengths) >= 3


@pytest.mark.parametrize("seed", range(5))
def test_twist_is_the_persons_or_zero(seed):
    inputs = list(random_inputs(seed))
    for one, decision in zip(inputs, run(STICKY, inputs), strict=True):
        if decision.intervened and one.engaged:
            assert np.array_equal(decision.twist, one.twist)
        else:
            assert not decision.twist.any()


def test_between_the_thresholds_the_state_stays():
    middle = given(0.15)
    assert [d.intervened for d in run(STICKY, [middle] * 5)] == [False] * 5
    driving = run(STICKY, [given(0.3)] + [middle] * 5)
    assert all(d.intervened for d in driving)


def test_letting_go_pauses_before_the_policy_returns():
    inputs = [given(0.5), *[given(0.0, engaged=False)] * 4]
    assert [d.intervened for d in run(STICKY, inputs)] == [True, True, True, False, False]


def test_a_gripper_button_takes_over():
    decision = run(STICKY, [given(0.0, gripper=-1)])[0]
    assert decision.intervened and decision.gripper == -1


def test_reset_forgets():
    arm = ArmIntervention(STICKY)
    assert arm.update(given(1.0), 0.0).takeover
    arm.reset()
    assert not arm.update(None, 0.05).intervened
    assert arm.update(given(1.0), 0.1).takeover


def test_arms_are_independent():
    both = Intervention(("left", "right"), PLAIN)
    decisions = both.update({"left": given(1.0)}, 0.0)
    assert decisions["left"].takeover and not decisions["right"].intervened
    decisions = both.update({"left": given(1.0), "right": given(1.0)}, 0.1)
    assert not decisions["left"].takeover and decisions["right"].takeover
    assert both.update({"elsewhere": given(1.0)}, 0.2)["left"].intervened is False


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"engage_threshold": 1.5}, "engage_threshold"),
        ({"engage_threshold": 0.1, "release_threshold": 0.2}, "release_threshold"),
        ({"hold_time": -1.0}, "hold_time"),
        ({"hold_time": float("nan")}, "hold_time"),
    ],
)
def test_wrong_settings_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        InterventionConfig(**fields)
