"""From action to target, and back to what was executed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import hil_tasks
from hil_actor.control_step import (
    ActionLayout,
    Answer,
    ArmPlan,
    ArmView,
    Flag,
    Status,
    flags_of,
    twist_in_action_frame,
)
from hil_actor.intervention import ArmDecision
from hil_interfaces.msg import CommandResult, Step
from hil_tasks import Pose

SPEC = hil_tasks.load("reach").spec
NOBODY = {"": ArmDecision()}


def spec_with(**fields):
    return replace(SPEC, **fields)


def near(rng, pose, translation=0.01, rotation=0.05):
    turn = Rotation.from_rotvec(rng.uniform(-rotation, rotation, 3))
    return Pose(pose.position + rng.uniform(-translation, translation, 3), turn * pose.rotation)


def random_view(rng):
    measured = Pose(rng.uniform(-1, 1, 3), Rotation.random(random_state=int(rng.integers(2**31))))
    return ArmView(measured, near(rng, measured))


@pytest.mark.parametrize("frame", ["base", "ee"])
@pytest.mark.parametrize("reference", ["target", "measured"])
def test_an_accepted_action_is_recorded_as_it_was(frame, reference):
    layout = ActionLayout(spec_with(action_frame=frame, reference=reference))
    rng = np.random.default_rng(0)
    for _ in range(50):
        views = {"": random_view(rng)}
        action = layout.check(rng.uniform(-0.4, 0.4, 6))
        plan = layout.plan(action, NOBODY, views)[""]
        executed = layout.executed({"": Answer(Status.ACCEPTED, plan.target)}, views)
        assert np.allclose(executed, action, atol=1e-5)


def test_whatever_is_applied_is_recorded_inside_the_box():
    layout = ActionLayout(SPEC)
    rng = np.random.default_rng(1)
    for _ in range(50):
        view = random_view(rng)
        applied = near(rng, view.measured, 0.5, 2.0)
        executed = layout.executed({"": Answer(Status.CLIPPED, applied)}, {"": view})
        assert executed.dtype == np.float32 and (np.abs(executed) <= 1.0).all()


def test_refused_and_unanswered_commands_are_no_motion():
    layout = ActionLayout(SPEC)
    view = random_view(np.random.default_rng(2))
    still = Answer(Status.REFUSED, view.target, reason="no")
    assert np.allclose(layout.executed({"": still}, {"": view}), 0.0, atol=1e-6)
    assert not layout.executed({"": None}, {"": view}).any()


def test_the_persons_motion_replaces_the_policys():
    layout = ActionLayout(SPEC)
    view = {"": ArmView(SPEC.reset.pose, SPEC.reset.pose)}
    twist = np.array([0.2, 0.0, -0.3, 0.0, 0.1, 0.0])
    decision = {"": ArmDecision(True, False, twist)}
    plan = layout.plan(layout.check(np.full(6, 0.9)), decision, view)[""]
    executed = layout.executed({"": Answer(Status.ACCEPTED, plan.target)}, view)
    assert plan.intervened and np.allclose(executed, twist, atol=1e-6)


def test_a_takeover_holds_unless_demonstrating():
    layout = ActionLayout(SPEC)
    view = {"": ArmView(SPEC.reset.pose, SPEC.reset.pose)}
    edge = {"": ArmDecision(True, True, np.ones(6))}
    plan = layout.plan(layout.check(np.ones(6)), edge, view)[""]
    assert plan.target is None and plan.takeover and plan.intervened
    plan = layout.plan(None, edge, view, takeover_holds=False)[""]
    assert plan.target is not None and not plan.takeover
    plan = layout.plan(layout.check(np.ones(6)), NOBODY, view, hold=True)[""]
    assert plan.target is None and not plan.intervened


def two_arms(grippers):
    return ActionLayout(spec_with(arms=("left", "right"), grippers=grippers))


def test_arms_do_not_share_actions():
    layout = two_arms((True, True))
    assert layout.size == 14 and layout.gripper_indices == (6, 13)
    pose = SPEC.reset.pose
    views = {arm: ArmView(pose, pose) for arm in ("left", "right")}
    action = layout.check(np.concatenate((np.full(6, 0.1), [1], np.full(6, -0.1), [-1])))
    decisions = {"left": ArmDecision(True, False, np.full(6, 0.3), -1), "right": ArmDecision()}
    plans = layout.plan(action, decisions, views)
    assert (plans["left"].gripper, plans["right"].gripper) == (-1, -1)
    answers = {
        arm: Answer(Status.ACCEPTED, plan.target, plan.gripper) for arm, plan in plans.items()
    }
    executed = layout.executed(answers, views)
    expected = np.concatenate((np.full(6, 0.3), [-1], np.full(6, -0.1), [-1]))
    assert np.allclose(executed, expected, atol=1e-6)


def test_grasp_penalty_counts_effective_commands():
    layout = ActionLayout(spec_with(grippers=(True,)))
    pose = SPEC.reset.pose
    for command, now, penalty in ((1, -1, -0.02), (-1, -1, 0.0), (0, 1, 0.0), (-1, 0, -0.02)):
        action = np.zeros(7, np.float32)
        action[6] = command
        views = {"": ArmView(pose, pose, now)}
        assert np.allclose(layout.grasp_penalty(action, views, -0.02), [penalty])
    assert ActionLayout(SPEC).grasp_penalty(np.zeros(6), {}, -0.02).shape == (0,)


def test_gripper_command_without_gripper_is_dropped():
    view = {"": ArmView(SPEC.reset.pose, SPEC.reset.pose)}
    decision = {"": ArmDecision(True, False, np.zeros(6), -1)}
    assert ActionLayout(SPEC).plan(None, decision, view)[""].gripper == 0


def test_flags():
    pose = SPEC.reset.pose
    move, hold = ArmPlan(pose), ArmPlan(None)
    cases = [
        (move, Status.ACCEPTED, Flag(0)),
        (move, Status.CLIPPED, Flag.CLIPPED),
        (move, Status.REFUSED, Flag.REFUSED),
        (move, Status.HELD, Flag.HELD),
        (hold, Status.HELD, Flag(0)),
        (ArmPlan(None, takeover=True), Status.HELD, Flag.TAKEOVER),
    ]
    for plan, status, flags in cases:
        assert flags_of({"": plan}, {"": Answer(status, pose)}) == flags
    assert flags_of({"": move}, {"": None}) == Flag.REFUSED | Flag.HELD


def test_numbers_are_those_of_the_interface():
    for flag in Flag:
        assert getattr(Step, f"FLAG_{flag.name}") == flag
    for status in Status:
        assert getattr(CommandResult, status.name) == status


@pytest.mark.parametrize("in_tool_frame", [False, True])
@pytest.mark.parametrize("frame", ["base", "ee"])
def test_operators_twist_is_turned_block_by_block(frame, in_tool_frame):
    spec = spec_with(action_frame=frame)
    rng = np.random.default_rng(3)
    pose = random_view(rng).measured
    twist = rng.uniform(-0.5, 0.5, 6)
    turned = twist_in_action_frame(twist, in_tool_frame, spec, pose)
    for block in (slice(0, 3), slice(3, 6)):
        assert np.isclose(np.linalg.norm(turned[block]), np.linalg.norm(twist[block]))
    back = ActionLayout(spec)
    view = {"": ArmView(pose, pose)}
    plan = back.plan(None, {"": ArmDecision(True, False, turned)}, view)[""]
    moved = plan.target.position - pose.position
    wanted = pose.rotation.apply(twist[:3]) if in_tool_frame else twist[:3]
    assert np.allclose(moved, wanted * spec.action_scale.translation, atol=1e-9)


def test_operators_twist_stays_in_the_box():
    pose = Pose(np.zeros(3), Rotation.from_rotvec([0.0, 0.0, np.pi / 4]))
    turned = twist_in_action_frame(np.ones(6), False, spec_with(action_frame="ee"), pose)
    assert (np.abs(turned) <= 1.0).all()


@pytest.mark.parametrize("action", [np.zeros(5), np.array([np.inf, 0, 0, 0, 0, 0])])
def test_bad_actions_are_refused(action):
    with pytest.raises(ValueError, match="action must"):
        ActionLayout(SPEC).check(action)
    assert (ActionLayout(SPEC).check(np.full(6, 7.0)) == 1.0).all()
