"""The scripted expert without ROS: on a small physical stand-in and in the simulated world."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import hil_tasks
from hil_sim.local_env import LocalEnv
from hil_sim.world import World
from hil_tasks import MissingObject, OverrideError, Pose, Task
from hil_tasks.actions import delta_to_target
from hil_tasks.geometry import Array
from hil_teleop.expert import AttentionConfig, ExpertConfig, ScriptedExpert
from hil_teleop.mapping import ArmInput
from hil_teleop.skills import Judgement, View

SETTINGS = Path(__file__).parents[3] / "config" / "teleop" / "scripted_expert.yaml"


def apply(world: World, twist: tuple[float, ...] | Array) -> None:
    """One control step, as actor and bridge carry it out."""
    spec = world.task.spec
    world.set_target(
        delta_to_target(
            twist,
            world.target,
            world.pose,
            spec.action_scale,
            spec.action_frame,
            spec.reference,
            spec.leash.translation,
            spec.leash.rotation,
        )
    )
    world.advance()


@dataclasses.dataclass
class Episode:
    """What happened in one episode."""

    success: bool
    inputs: list[ArmInput]

    @property
    def engaged(self) -> list[bool]:
        return [each.engaged for each in self.inputs]


def start(world: World, seed: int, episode: int) -> None:
    pose, world_seed = world.task.episode(seed, episode)
    world.place_arm(pose)
    world.reset_world(world_seed)
    world.advance()


def run(
    world: World, expert: ScriptedExpert, episode: int, demo: bool, policy: float = 0.0
) -> Episode:
    """One episode; the policy is random (of this size) where the expert does not drive."""
    start(world, 7, episode)
    expert.begin(episode, demo)
    rng = np.random.default_rng(episode)
    inputs: list[ArmInput] = []
    for _ in range(world.task.spec.max_episode_steps):
        command = expert.act(world.reading())
        takeover = command.engaged and not demo and not (inputs and inputs[-1].engaged)
        inputs.append(command)
        if takeover:
            world.hold()
            world.advance()
        else:
            random = rng.uniform(-policy, policy, 6)
            apply(world, command.twist if command.engaged else random)
        outcome = world.task.reward(world.reading())
        if outcome.terminated:
            return Episode(outcome.success, inputs)
    return Episode(False, inputs)


@pytest.fixture(scope="module")
def peg_world() -> World:
    return World(hil_tasks.load("peg_insert"))


def test_inserts_pegs(peg_world: World) -> None:
    expert = ScriptedExpert(peg_world.task, ExpertConfig.load(SETTINGS), seed=3)
    episodes = [run(peg_world, expert, n, demo=True) for n in range(60)]
    assert sum(e.success for e in episodes) >= 54
    assert all(all(e.engaged) for e in episodes)  # a demonstration is driven from the first step


def test_reaches_goals() -> None:
    world = World(hil_tasks.load("reach"))
    expert = ScriptedExpert(world.task, ExpertConfig.load(SETTINGS))
    assert all(run(world, expert, n, demo=True).success for n in range(10))


def gripping_env() -> LocalEnv:
    return LocalEnv(hil_tasks.load("pick_lift"))


def pick(env: LocalEnv, expert: ScriptedExpert, episode: int, demo: bool) -> Episode:
    """One episode; where the expert does not drive, the policy is random, gripper included."""
    env.reset(seed=episode)
    expert.begin(episode, demo)
    rng = np.random.default_rng(episode)
    inputs: list[ArmInput] = []
    while True:
        command = expert.act(env.reading)
        inputs.append(command)
        random = np.append(rng.uniform(-1, 1, 6), rng.integers(-1, 2))
        given = np.append(command.twist, command.gripper)
        action = given if command.engaged else random
        *_, terminated, truncated, info = env.step(action.astype(np.float32))
        if terminated or truncated:
            return Episode(bool(info["success"]), inputs)


def test_picks_cubes() -> None:
    env = gripping_env()
    expert = ScriptedExpert(env.task, ExpertConfig.load(SETTINGS), seed=3)
    episodes = [pick(env, expert, n, demo=True) for n in range(20)]
    assert sum(e.success for e in episodes) >= 18
    assert all(any(i.gripper == -1 for i in e.inputs) for e in episodes)


def test_picks_cubes_that_a_random_policy_left_anyhow() -> None:
    env = gripping_env()
    expert = ScriptedExpert(env.task, ExpertConfig.load(SETTINGS), seed=3)
    episodes = [pick(env, expert, n, demo=False) for n in range(10)]
    assert all(any(e.engaged) for e in episodes)
    assert sum(e.success for e in episodes) >= 6


def test_same_seed_same_person() -> None:
    task = hil_tasks.load("peg_insert")
    # A world of its own for each: the filtered wrench and the solver remember what was before.
    runs = [
        run(World(task), ScriptedExpert(task, seed=seed), 1, demo=True).inputs
        for seed in (5, 5, 6)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_an_episode_does_not_depend_on_the_ones_before(peg_world: World) -> None:
    task = peg_world.task
    fresh, used = (ScriptedExpert(task, seed=5) for _ in range(2))
    run(peg_world, used, 0, demo=True)
    assert run(World(task), used, 2, True).inputs == run(World(task), fresh, 2, True).inputs


def test_rescues_a_policy_that_does_nothing_useful(peg_world: World) -> None:
    expert = ScriptedExpert(peg_world.task, ExpertConfig.load(SETTINGS), seed=1)
    episodes = [run(peg_world, expert, n, demo=False, policy=0.5) for n in range(10)]
    grace = round(expert.config.attention.grace / peg_world.task.spec.period)
    assert all(any(e.engaged) for e in episodes)
    assert all(not any(e.engaged[:grace]) for e in episodes)  # the policy may try first
    assert sum(e.success for e in episodes) >= 6


def test_leaves_a_policy_alone_that_gets_there() -> None:
    """Another expert plays a good policy: with a perfect estimate it need not search the rim."""
    exact = {"params": {"estimate_error_min": 0.0, "estimate_error": 0.0}}
    peg_world = World(hil_tasks.load("peg_insert", exact))
    policy = ScriptedExpert(peg_world.task, ExpertConfig.load(SETTINGS), seed=11)
    watcher = ScriptedExpert(peg_world.task, ExpertConfig.load(SETTINGS), seed=12)
    engaged = steps = 0
    for episode in range(10):
        start(peg_world, 7, episode)
        policy.begin(episode, demo=True)
        watcher.begin(episode)
        for _ in range(peg_world.task.spec.max_episode_steps):
            reading = peg_world.reading()
            engaged += watcher.act(reading).engaged
            steps += 1
            apply(peg_world, policy.act(reading).twist)
            if peg_world.task.reward(peg_world.reading()).terminated:
                break
    assert engaged / steps < 0.25


def test_does_not_see_the_truth(peg_world: World) -> None:
    """Moving the true hole in the reading changes nothing of what the person does."""
    task = peg_world.task
    start(peg_world, 7, 0)
    reading = peg_world.reading()
    lied = dict(reading.objects)
    for name in set(lied) - {"hole"}:
        lied[name] = Pose(lied[name].position + 0.1, lied[name].rotation)
    other = dataclasses.replace(reading, objects=lied)
    one, two = ScriptedExpert(task), ScriptedExpert(task)
    one.begin(0, demo=True)
    two.begin(0, demo=True)
    for _ in range(5):
        assert one.act(reading) == two.act(other)


def test_the_hand_has_a_persons_limits(peg_world: World) -> None:
    expert = ScriptedExpert(peg_world.task, ExpertConfig.load(SETTINGS), seed=2)
    inputs = np.array([e.twist for e in run(peg_world, expert, 3, demo=True).inputs])
    assert np.abs(inputs).max() <= 1.0
    first = np.abs(inputs[0, :3]).max()
    assert first < 0.7 * np.abs(inputs[:8, :3]).max()  # no jump at the start: low-pass


def test_missing_object_is_named(peg_world: World) -> None:
    reading = dataclasses.replace(peg_world.reading(), objects={})
    with pytest.raises(MissingObject, match="'hole'"):
        ScriptedExpert(peg_world.task).act(reading)


def test_unknown_task_is_refused() -> None:
    class Unknown(Task):
        name = "juggle"
        spec = hil_tasks.load("reach").spec

        def __init__(self) -> None:
            pass

        def build_spec(self) -> object:  # type: ignore[override]
            return self.spec

        observe = reward = sample_start = sample_world = scene = None  # type: ignore[assignment]

    with pytest.raises(ValueError, match="peg_insert, pick_lift, reach"):
        ScriptedExpert(Unknown())


# ------------------------------------------------------------------------------------- attention


class Watcher:
    """Attention of a person, driven by judgements made up for the test."""

    def __init__(self, demo: bool = False, **settings: float) -> None:
        from hil_teleop.expert import Attention

        self.period = 0.1
        self.attention = Attention(AttentionConfig(patience_spread=0.0, **settings))
        self.attention.begin(np.random.default_rng(0), demo)
        self.now = 0.0

    def step(
        self, remaining: float, bad: str = "", on_track: bool = False, force: float = 0.0
    ) -> bool:
        wrench: NDArray[np.float64] = np.array([force, 0, 0, 0, 0, 0], dtype=np.float64)
        view = View(self.now, Pose(np.zeros(3), Rotation.identity()), wrench, {})
        engaged = self.attention.decide(Judgement(remaining, bad, on_track), view, self.now)
        self.now += self.period
        return engaged

    def until(self, engaged: bool, **values: object) -> float:
        """Time at which the person starts (or stops) to drive."""
        values.setdefault("remaining", 1.0)
        for _ in range(1000):
            if self.step(**values) == engaged:  # type: ignore[arg-type]
                return self.now - self.period
        raise AssertionError("never")


def test_takes_over_after_patience_and_reaction() -> None:
    watcher = Watcher(grace=1.0, patience=2.0, reaction=0.3)
    assert watcher.until(True) == pytest.approx(2.4, abs=0.15)
    assert watcher.attention.reason == "no progress"


def test_grace_comes_first() -> None:
    watcher = Watcher(grace=5.0, patience=0.5, reaction=0.0)
    assert watcher.until(True) == pytest.approx(5.0, abs=0.15)


def test_progress_keeps_the_hands_off() -> None:
    watcher = Watcher(grace=0.0, patience=1.0, progress=0.1)
    assert not any(watcher.step(0.98**n) for n in range(300))


def test_bad_states_and_force() -> None:
    assert Watcher(grace=0.0, reaction=0.3).until(True, bad="beside") == pytest.approx(0.3)
    forced = Watcher(grace=9.0, reaction=0.3, bad_force=20.0)
    assert forced.until(True, force=25.0) == pytest.approx(0.3)
    assert forced.attention.reason == "force"


def test_a_short_scare_is_no_reason() -> None:
    watcher = Watcher(grace=0.0, reaction=0.3, patience=99.0)
    for _ in range(20):
        assert not watcher.step(1.0, force=99.0)
        assert not watcher.step(1.0)


def test_lets_go_when_it_looks_easy() -> None:
    watcher = Watcher(grace=0.0, patience=0.5, reaction=0.0, finish=0.0, min_bout=1.0, pause=2.0)
    taken = watcher.until(True)
    assert watcher.until(False, on_track=True) == pytest.approx(taken + 1.0, abs=0.11)
    assert watcher.until(True) >= taken + 1.0 + 2.0 - 0.11  # left alone for a while


def test_lets_go_after_the_longest_bout() -> None:
    watcher = Watcher(grace=0.0, patience=0.5, reaction=0.0, finish=0.0, max_bout=3.0)
    taken = watcher.until(True)
    assert watcher.until(False) == pytest.approx(taken + 3.0, abs=0.11)


def test_finishes_when_decided_so() -> None:
    watcher = Watcher(grace=0.0, patience=0.5, reaction=0.0, finish=1.0)
    watcher.until(True)
    assert all(watcher.step(1.0, on_track=True) for _ in range(300))


# -------------------------------------------------------------------------------------- settings


def test_the_settings_file_is_what_is_built_in() -> None:
    """One frozen source: the file names every setting, with the value that is built in."""
    assert ExpertConfig.load(SETTINGS) == ExpertConfig()
    assert yaml.safe_load(SETTINGS.read_text()) == dataclasses.asdict(ExpertConfig())


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "expert.yaml"
    path.write_text("attention: {patienc: 3.0}")
    with pytest.raises(OverrideError, match=r"expert.yaml.*patienc.*'patience'"):
        ExpertConfig.load(path)
    path.write_text("[1, 2]")
    with pytest.raises(OverrideError, match="mapping"):
        ExpertConfig.load(path)
