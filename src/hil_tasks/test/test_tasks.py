"""Tasks: specifications, overrides, fingerprints, observations, rewards, sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import hil_tasks
from hil_tasks import MissingObject, OverrideError, Pose, Reading, UnknownTask
from hil_tasks.peg_insert import HOLE, HOLE_TRUE, PegInsert
from hil_tasks.pick_lift import CUBE, PickLift
from hil_tasks.reach import Reach
from hil_tasks.tabletop import tool_down

NAMES = ("reach", "peg_insert", "pick_lift")


def reading_at(pose: Pose, objects: dict[str, Pose], **changes: Any) -> Reading:
    values: dict[str, Any] = {
        "twist": np.zeros(6),
        "wrench": np.zeros(6),
        "q": np.zeros(7),
        "dq": np.zeros(7),
        "gripper_width": 0.0,
        "target": pose,
    }
    return Reading(pose=pose, objects=objects, **(values | changes))


@pytest.mark.parametrize("name", NAMES)
def test_observations_match_the_specification(name):
    task = hil_tasks.load(name)
    rng = np.random.default_rng(0)
    for _ in range(20):
        reading = reading_at(
            task.sample_start(rng),
            task.sample_world(rng),
            twist=rng.normal(size=6) * 100,
            wrench=rng.normal(size=6) * 1000,
        )
        observation = task.observe(reading)
        assert list(observation) == list(task.spec.observation)
        assert task.spec.observation_space.contains(observation)


@pytest.mark.parametrize("name", NAMES)
def test_starts_are_inside_the_limits_and_seeded(name):
    task = hil_tasks.load(name)
    low, high = np.array(task.spec.workspace.low), np.array(task.spec.workspace.high)
    for seed in range(50):
        start = task.sample_start(np.random.default_rng(seed))
        assert np.all(start.position > low) and np.all(start.position < high)
        again = task.sample_start(np.random.default_rng(seed))
        assert np.array_equal(start.position, again.position)
        one = task.sample_world(np.random.default_rng(seed))
        two = task.sample_world(np.random.default_rng(seed))
        assert all(np.array_equal(one[key].position, two[key].position) for key in one)


@pytest.mark.parametrize("name", NAMES)
def test_missing_object_is_named(name):
    task = hil_tasks.load(name)
    with pytest.raises(MissingObject, match="needs the pose of object"):
        task.observe(reading_at(Pose.identity(), {}))


def test_reach_reward_and_relabelling_agree():
    task = hil_tasks.load("reach")
    assert isinstance(task, Reach)
    goal = Pose(np.array([0.5, 0.05, 0.3]), tool_down())
    goals = task.goals()
    distances = (0.0, 0.014, 0.016, 0.1)
    observations, outcomes = [], []
    for distance in distances:
        pose = Pose(goal.position + np.array([distance, 0.0, 0.0]), tool_down())
        reading = reading_at(pose, {"goal": goal})
        outcomes.append(task.reward(reading))
        assert outcomes[-1].success == outcomes[-1].terminated == (distance <= 0.015)
        observations.append(task.observe(reading))
    achieved, desired = (
        {name: np.stack([seen[name] for seen in observations]) for name in names}
        for names in (goals.achieved, goals.desired)
    )
    assert goals.reward(achieved, desired).tolist() == [each.reward for each in outcomes]
    assert goals.terminated(achieved, desired).tolist() == [each.terminated for each in outcomes]
    assert goals.distance(achieved, desired) == pytest.approx(distances, abs=1e-6)
    assert hil_tasks.load("peg_insert").goals() is None


def test_peg_reward_uses_the_truth_and_the_observation_only_the_estimate():
    task = hil_tasks.load("peg_insert")
    assert isinstance(task, PegInsert)
    p = task.params
    true = Pose(np.array([0.51, -0.01, p.block_height]), Rotation.from_rotvec([0, 0, 0.1]))
    objects = {HOLE_TRUE: true, HOLE: Pose(true.position + np.array([0.003, 0, 0]), true.rotation)}

    def at(depth: float, side: float = 0.0) -> Reading:
        position = true.position + np.array([side, 0.0, p.peg_length - depth])
        return reading_at(Pose(position, tool_down(0.1)), objects)

    assert task.reward(at(p.success_depth + 0.001)).success
    assert not task.reward(at(p.success_depth - 0.001)).terminated
    assert not task.reward(at(p.success_depth + 0.001, side=0.02)).success
    position = task.observe(at(0.0))["position"] * 0.02
    assert position == pytest.approx([-0.003, 0.0, 0.0], abs=1e-6)
    assert task.observe(at(0.0))["rotation"] == pytest.approx(np.zeros(3), abs=1e-6)


def test_a_lifted_cube_counts_when_it_is_held_steadily():
    task = hil_tasks.load("pick_lift")
    assert isinstance(task, PickLift)
    assert task.spec.action_dim == 7 and task.spec.grippers == (True,)

    def at(height: float, apart: float = 0.0, speed: float = 0.0) -> Reading:
        cube = Pose(np.array([0.5, 0.0, task.params.half_edge + height]), Rotation.identity())
        hand = Pose(cube.position + np.array([0.0, apart, 0.0]), tool_down())
        twist = np.array([0.0, 0.0, speed, 0.0, 0.0, 0.0])
        return reading_at(hand, {CUBE: cube}, twist=twist)

    assert task.reward(at(0.101)).success and task.reward(at(0.101)).reward == 1.0
    assert not task.reward(at(0.099)).terminated
    assert not task.reward(at(0.101, apart=0.05)).success  # up, but not in the hand
    assert not task.reward(at(0.101, speed=0.2)).success  # on its way
    assert task.observe(at(0.05))["lifted"] == pytest.approx([0.5])


@pytest.mark.parametrize("turned", [-1.9, -0.3, 0.0, 0.3, 1.2, 3.0])
def test_the_nearest_side_of_the_cube_is_grasped(turned):
    task = hil_tasks.load("pick_lift")
    cube = Pose(np.zeros(3), Rotation.from_rotvec([0.0, 0.0, turned]))
    aligned = task.aligned(cube)
    assert (aligned * tool_down().inv()).magnitude() <= np.pi / 4 + 1e-9
    # the fingers close along the tool's y axis, which has to be an axis of the cube
    axes = np.abs(cube.rotation.inv().apply(aligned.apply([0.0, 1.0, 0.0])))
    assert axes.max() == pytest.approx(1.0)


def test_the_target_can_be_observed():
    task = hil_tasks.load("peg_insert", {"params": {"observe_target": True}})
    rng = np.random.default_rng(0)
    start, objects = task.sample_start(rng), task.sample_world(rng)
    ahead = Pose(start.position + np.array([0.005, 0.0, -0.01]), start.rotation)
    observation = task.observe(reading_at(start, objects, target=ahead))
    assert observation["command"] == pytest.approx([0.5, 0.0, -1.0, 0.0, 0.0, 0.0], abs=1e-5)
    with pytest.raises(ValueError, match="needs the target"):
        task.observe(reading_at(start, objects, target=None))


def test_peg_estimate_is_off_by_the_configured_distance():
    task = hil_tasks.load("peg_insert")
    assert isinstance(task, PegInsert)
    errors = []
    for seed in range(200):
        world = task.sample_world(np.random.default_rng(seed))
        errors.append(world[HOLE].distance(world[HOLE_TRUE])[0])
    assert min(errors) >= task.params.estimate_error_min
    assert max(errors) <= task.params.estimate_error


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"max_episode_step": 3}, "did you mean 'max_episode_steps'"),
        ({"params": {"clearence": 1.0}}, "params.clearence; did you mean 'clearance'"),
        ({"workspace": {"low": [1, 2]}}, "must have 3 elements"),
        ({"workspace": {"low": [1, 2, 3]}}, "low must be below"),
        ({"action_scale": {"translation": "a"}}, "must be of type float"),
        ({"action_scale": 3}, "must be a mapping"),
        ({"max_episode_steps": 1.5}, "must be of type int"),
        ({"max_episode_steps": True}, "must be of type int"),
        ({"reference": "goal"}, "one of target, measured"),
        ({"compliance": {"stiff": {}}}, "unknown setting peg_insert.compliance.stiff"),
        ({"compliance": {"policy": {"nullspace_damping": -1.0}}}, "must be finite and >= 0"),
        ({"compliance": {"policy": {"translational_damping": [0.0, 1, 1]}}}, "must be > 0"),
        ({"observation": {}}, "unknown setting"),
        ({"params": 3}, "must be a mapping"),
    ],
)
def test_wrong_overrides_are_refused_by_name(overrides, message):
    with pytest.raises(OverrideError, match=message):
        hil_tasks.load("peg_insert", overrides)


def test_overrides_reach_nested_values():
    task = hil_tasks.load(
        "peg_insert",
        {
            "max_episode_steps": 7,
            "compliance": {"policy": {"error_clip": [0.005] * 6}},
            "params": {"start_height": [0.005, 0.01], "peg_length": 0.045},
        },
    )
    assert isinstance(task, PegInsert)
    assert task.spec.max_episode_steps == 7
    assert task.spec.compliance["policy"].error_clip == (0.005,) * 6
    assert task.params.start_height == (0.005, 0.01)
    # What follows from parameters follows from overridden ones too.
    default = hil_tasks.load("peg_insert")
    assert task.spec.reset.position[2] < default.spec.reset.position[2]


def test_fingerprint_covers_meaning_and_nothing_else():
    base = hil_tasks.load("peg_insert").spec.fingerprint()
    assert base == hil_tasks.load("peg_insert").spec.fingerprint()
    same = hil_tasks.load("peg_insert", {"max_episode_steps": 7, "params": {"clearance": 0.001}})
    assert same.spec.fingerprint() == base
    different: list[dict[str, Any]] = [
        {"action_scale": {"translation": 0.02}},
        {"action_frame": "ee"},
        {"control_hz": 20.0},
        {"reference": "measured"},
        {"cameras": ["wrist"]},
        {"leash": {"rotation": 0.2}},
    ]
    prints = {hil_tasks.load("peg_insert", change).spec.fingerprint() for change in different}
    prints.add(hil_tasks.load("reach").spec.fingerprint())
    assert len(prints | {base}) == len(different) + 2


def test_images_join_the_observation_space():
    spec = hil_tasks.load("reach", {"cameras": ["wrist"]}).spec
    assert spec.observation_space["wrist"].shape == (128, 128, 3)


def test_unknown_task_names_the_known():
    with pytest.raises(UnknownTask, match="did you mean 'reach'"):
        hil_tasks.load("reech")
    with pytest.raises(UnknownTask, match="known: peg_insert, pick_lift, reach"):
        hil_tasks.load("xyz")


def test_shipped_files_load():
    folder = Path(__file__).parents[3] / "config" / "tasks"
    files = sorted(folder.glob("*.yaml"))
    assert {hil_tasks.load_file(file).spec.name for file in files} >= set(NAMES)


def test_a_file_is_named_in_its_errors(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text("task: reach\nparams: {tolerence: 1.0}\n")
    with pytest.raises(OverrideError, match=r"task\.yaml: .*did you mean 'tolerance'"):
        hil_tasks.load_file(file)
    file.write_text("max_episode_steps: 3\n")
    with pytest.raises(OverrideError, match=r"task\.yaml: must be a mapping with 'task: NAME'"):
        hil_tasks.load_file(file)
    file.write_text("task: [\n")
    with pytest.raises(OverrideError, match=r"task\.yaml: not valid YAML"):
        hil_tasks.load_file(file)
