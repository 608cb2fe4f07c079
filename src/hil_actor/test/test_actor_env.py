"""RobotEnv against a small fake graph."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from rclpy.action import ActionServer, CancelResponse
from rclpy.node import Node

sys.path.insert(0, str(Path(__file__).parent))

from actor_fakes import FakeOperator, FakeRobot, populate

import hil_tasks
from hil_actor.control_step import Flag
from hil_actor.env import RobotEnv
from hil_actor.graph_io import GraphError, Stopped
from hil_actor.params import EnvParams
from hil_actor.poller import CallTimeout, Interrupted
from hil_common.conversions import to_ns
from hil_interfaces.action import ResetEpisode
from hil_interfaces.msg import CommandResult, RobotState
from hil_interfaces.srv import Advance


@pytest.fixture
def make(ros):
    """Make an environment with a fake robot around it."""
    opened = []

    def make(task=None, **fields):
        task = task or hil_tasks.load("reach")
        pace = fields.get("pace", "lockstep")
        robot = populate(ros, "robot", lambda node: FakeRobot(node, task, pace))
        fields = {"operator": "none", "answer_timeout_s": 20.0, **fields}
        env = RobotEnv(EnvParams(**fields), task=task, node=Node("env", context=ros.context))
        opened.append(env)
        return env, robot

    yield make
    for env in opened:
        env.close()
        env._node.destroy_node()


@pytest.mark.filterwarnings("ignore:.*maximum value is infinity")
def test_check_env(make):
    env, _ = make()
    env.spec = None  # the fake robot is deterministic: have that checked too
    check_env(env)


@pytest.mark.filterwarnings("ignore:.*maximum value is infinity")
def test_check_env_as_registered(make):
    """Also makes and closes another one by its registration, without a graph around it."""
    env, _ = make()
    check_env(env)
    assert env.spec.kwargs == {"operator": "none", "answer_timeout_s": 20.0}


def test_registered_with_gymnasium(make):
    spec = gymnasium.spec("hil_actor/RobotEnv-v0")
    assert spec.nondeterministic and spec.entry_point == "hil_actor.env:RobotEnv"


def test_same_seed_same_episode(make):
    env, robot = make()
    runs = []
    for _ in range(2):
        observation, _ = env.reset(seed=7)
        rng = np.random.default_rng(1)
        seen = [observation]
        for _ in range(10):
            observation, *_ = env.step(rng.uniform(-1, 1, 6).astype(np.float32))
            seen.append(observation)
        runs.append(seen)
    for a, b in zip(*runs, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert robot.world_seeds[0] == robot.world_seeds[1]


def test_a_step_is_one_command_and_one_period(make):
    env, robot = make()
    env.reset(seed=0)
    robot.advances.clear()
    before = robot.stamp
    env.step(np.full(6, 0.5, np.float32))
    command, advance = robot.commands[-1], robot.advances[-1]
    assert len(robot.advances) == 1 and advance.periods == 1
    assert robot.stamp - before == robot.period_ns
    assert advance.step_id == command.step_id == f"robot_env/{env.session}/0/0"
    assert advance.target_stamp == command.header.stamp
    assert advance.owner == command.owner == env.session


def test_executed_action_is_what_was_applied(make):
    env, robot = make()
    env.reset(seed=0)
    action = np.array([0.5, -0.3, 0.2, 0.1, 0.0, -0.4], np.float32)
    *_, info = env.step(action)
    assert np.allclose(info["action"], action, atol=1e-6) and info["flags"] == 0

    robot.answer_as = lambda _: (CommandResult.REFUSED, robot.target, "outside the box")
    done = env.control(action)
    assert done.flags == Flag.REFUSED and np.allclose(done.action, 0.0, atol=1e-6)
    assert done.reasons == ("outside the box",)
    assert robot.advances[-1].target_stamp.sec == 0  # nothing new for the simulator to wait for

    start = robot.target
    half = np.array([0.5, 0, 0, 0, 0, 0])

    def clip(command):
        scale = env.task.spec.action_scale.translation
        return (
            CommandResult.CLIPPED,
            hil_tasks.Pose(start.position + 0.5 * scale * np.eye(3)[0], start.rotation),
            "speed",
        )

    robot.answer_as = clip
    done = env.control(np.array([1, 0, 0, 0, 0, 0], np.float32))
    assert done.flags == Flag.CLIPPED and np.allclose(done.action, half, atol=1e-6)


def test_time_limit_truncates_and_success_terminates(make):
    env, robot = make(hil_tasks.load("reach", {"max_episode_steps": 5}))
    env.reset(seed=0)
    ends = [env.step(np.zeros(6, np.float32))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(6, np.float32))

    env.reset(seed=0)
    robot.objects["goal"] = robot.pose
    _, reward, terminated, truncated, info = env.step(np.zeros(6, np.float32))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_start_and_world_follow_the_seed_and_options(make):
    env, robot = make()
    env.reset(seed=3, options={"world_seed": 11})
    assert robot.world_seeds[-1] == 11
    start = hil_tasks.Pose(np.array([0.45, 0.05, 0.3]), env.task.spec.reset.pose.rotation)
    env.reset(options={"start": start})
    assert np.allclose(robot.pose.position, start.position)


def test_wrong_actions_are_refused_before_anything_moves(make):
    env, robot = make()
    env.reset(seed=0)
    count = len(robot.commands)
    for action in (np.zeros(5), np.full(6, np.nan)):
        with pytest.raises(ValueError):
            env.step(action)
    assert len(robot.commands) == count


def test_lost_state_is_asked_for_again(make):
    env, robot = make()
    env.reset(seed=0)
    robot.lose_states = 1
    env.step(np.zeros(6, np.float32))
    assert [a.periods for a in robot.advances[-2:]] == [1, 0]


def test_a_step_waits_for_a_bridge_that_shows_it_late(make):
    """Longer than any single answer may take: what was carried out must not get lost."""
    env, robot = make(answer_timeout_s=0.1)
    env.reset(seed=0)
    robot.lose_states = 3
    told = []
    env.graph._tell = told.append
    done = env.control(np.zeros(6, np.float32))
    assert done.flags == 0
    assert told[0] == "robot_state, object_poses of the new step" and told[-1] == ""
    assert [a.periods for a in robot.advances[-4:]] == [1, 0, 0, 0]


def test_a_step_names_the_observation_it_starts_from(make):
    env, robot = make()
    env.reset(seed=0)
    first = env.graph.stamp
    env.step(np.zeros(6, np.float32))
    env.step(np.zeros(6, np.float32))
    steps = [a for a in robot.advances if a.step_id]
    assert [to_ns(a.observed_stamp) for a in steps] == [first, first + robot.period_ns]


def test_a_simulator_that_was_restarted_in_a_step_is_noticed(make):
    env, robot = make()
    env.reset(seed=0)
    robot.lose_states = 1

    def restart():
        robot.on_advance = lambda: setattr(robot, "stamp", 1)

    robot.on_advance = restart
    with pytest.raises(GraphError, match="time went back"):
        env.step(np.zeros(6, np.float32))


def test_bridge_that_does_not_answer_is_named(make):
    env, robot = make(answer_timeout_s=0.5)
    env.reset(seed=0)
    robot.mute = True
    with pytest.raises(GraphError, match="bridge did not answer"):
        env.step(np.zeros(6, np.float32))


def test_reset_that_is_refused_says_why(make):
    env, robot = make()
    robot.refuse_reset = "outside the workspace"
    with pytest.raises(GraphError, match="outside the workspace"):
        env.reset(seed=0)


def test_policy_preset_is_applied_before_motion(make):
    env, robot = make()
    robot.compliance = "reset"
    env.reset(seed=0)
    assert robot.presets == ["policy"]


def test_reflex_is_flagged_and_waits_for_an_explicit_recovery(make, ros):
    env, robot = make()
    env.reset(seed=0)

    def collide():
        robot.on_advance = lambda: None
        robot.mode = RobotState.MODE_REFLEX

    robot.on_advance = collide
    tell = []
    env.graph._tell = lambda text: (tell.append(text), text and robot.recover())
    done = env.control(np.zeros(6, np.float32))
    assert done.flags == Flag.REFLEX | Flag.RECOVERED
    assert any("recovered" in text for text in tell)
    assert env.control(np.zeros(6, np.float32)).flags == 0


def test_auto_recover_asks_the_bridge(make):
    env, robot = make(auto_recover=True)
    env.reset(seed=0)

    def collide():
        robot.on_advance = lambda: None
        robot.mode = RobotState.MODE_REFLEX

    robot.on_advance = collide
    done = env.control(np.zeros(6, np.float32))
    assert done.flags == Flag.REFLEX | Flag.RECOVERED and robot.recoveries == 1


def test_software_stop_pauses_until_released(make):
    env, robot = make()
    env.reset(seed=0)

    def stop():
        robot.on_advance = lambda: None
        robot.stop_latched = True

    robot.on_advance = stop
    env.graph._tell = lambda text: text and setattr(robot, "stop_latched", False)
    done = env.control(np.zeros(6, np.float32))
    assert not done.flags & Flag.REFLEX


def test_lost_lease_is_taken_again(make):
    env, robot = make()
    env.reset(seed=0)
    robot.owner = "somebody"
    done = env.control(np.zeros(6, np.float32))
    assert done.flags & Flag.REFUSED
    assert robot.owner == env.session
    assert env.control(np.zeros(6, np.float32)).flags == 0


class Person:
    """Engages in given steps."""

    def __init__(self, engaged_steps, twist=(0.0, 0.0, -1.0, 0.0, 0.0, 0.0)):
        self.engaged_steps = engaged_steps
        self.twist = list(twist)

    def __call__(self, state):
        return state.step in self.engaged_steps, self.twist


def test_takeover_holds_then_moves_then_gives_back(make, ros):
    env, robot = make(operator="optional", operator_barrier_s=20.0)
    person = populate(ros, "person", lambda node: FakeOperator(node, Person({2, 3, 4})))
    ros.wait_for(lambda: env.graph.operator.present)
    env.reset(seed=0)
    action = np.array([1, 0, 0, 0, 0, 0], np.float32)
    steps = [env.control(action) for _ in range(6)]
    flags = [int(s.flags) for s in steps]
    assert flags == [0, 0, int(Flag.TAKEOVER), 0, 0, 0]
    assert [s.intervened for s in steps] == [(k in (2, 3, 4),) for k in range(6)]
    assert [s.takeover for s in steps] == [k == 2 for k in range(6)]
    assert np.allclose(steps[2].action, 0.0, atol=1e-6)
    assert np.allclose(steps[3].action, person.script.twist, atol=1e-6)
    assert all(np.allclose(s.proposal, action) for s in steps)
    assert len(person.answered) >= 6 and len(set(person.answered)) == len(person.answered)
    # Every command says which operator command it has seen.
    assert [c.operator_seq for c in robot.commands[-6:]] == list(range(1, 7))


def test_demonstration_has_no_takeover_hold(make, ros):
    env, _ = make(operator="required", operator_barrier_s=20.0)
    populate(
        ros,
        "person",
        lambda node: FakeOperator(node, Person({0, 1, 3}, (0.0, 0.0, -0.5, 0.0, 0.0, 0.0))),
    )
    env.demonstrating = True
    ros.wait_for(lambda: env.graph.operator.present)
    env.reset(seed=0)
    steps = [env.control(None) for _ in range(4)]
    assert [int(s.flags) for s in steps] == [0, 0, 0, 0]
    assert np.allclose([s.action[2] for s in steps], [-0.5, -0.5, 0, -0.5], atol=1e-6)
    assert all(s.proposal is None for s in steps)


def test_silent_operator_makes_the_step_hold(make, ros):
    env, _ = make(operator="optional", operator_barrier_s=0.3)
    populate(
        ros,
        "person",
        lambda node: FakeOperator(node, lambda s: None if s.step == 1 else (True, [1.0] * 6)),
    )
    ros.wait_for(lambda: env.graph.operator.present)
    env.reset(seed=0)
    steps = [env.control(np.ones(6, np.float32)) for _ in range(4)]
    assert steps[1].flags == Flag.TELEOP_LOST | Flag.HELD
    assert np.allclose(steps[1].action, 0.0, atol=1e-6) and steps[1].intervened == (False,)
    assert steps[2].takeover and not steps[3].takeover  # it takes over again when it is back


def test_locked_out_operator_is_not_waited_for(make, ros):
    env, _ = make(operator="optional", operator_barrier_s=60.0)
    person = populate(ros, "person", lambda node: FakeOperator(node, Person(set(range(99)))))
    ros.wait_for(lambda: env.graph.operator.present)
    env.allow_operator(False)
    env.reset(seed=0)
    action = np.full(6, 0.25, np.float32)
    steps = [env.control(action) for _ in range(3)]
    assert all(not s.flags and s.intervened == (False,) for s in steps)
    assert all(np.allclose(s.action, action, atol=1e-6) for s in steps)
    assert not person.answered


def test_a_takeover_in_the_course_of_a_step_flags_that_step(make):
    env, robot = make(operator="optional")
    env.reset(seed=0)
    robot.on_advance = lambda: setattr(robot, "operator_hold", True)
    assert env.control(np.zeros(6, np.float32)).flags == Flag.TAKEOVER
    env.allow_operator(False)
    assert env.control(np.zeros(6, np.float32)).flags == Flag.HELD
    robot.on_advance = lambda: setattr(robot, "operator_hold", False)
    assert env.control(np.zeros(6, np.float32)).flags == 0


def test_a_simulator_that_was_restarted_ends_the_episode(make):
    env, robot = make()
    env.reset(seed=0)
    env.control(np.zeros(6, np.float32))
    robot.stamp = 0
    with pytest.raises(GraphError, match="restarted"):
        env.control(np.zeros(6, np.float32))
    observation, _ = env.reset(seed=0)
    assert np.allclose(
        observation["achieved"] * 0.1 + hil_tasks.reach.CENTRE, robot.pose.position, atol=1e-6
    )


def test_poses_in_a_foreign_frame_are_refused(make):
    env, _ = make(base_frame="other")
    with pytest.raises(GraphError, match="frame 'base'"):
        env.reset(seed=0)


def test_waits_can_be_broken_off_from_another_thread(make):
    env, robot = make()
    env.reset(seed=0)
    robot.mute = True
    timer = threading.Timer(0.1, env.poller.interrupt)
    timer.start()
    with pytest.raises(Interrupted):
        env.control(np.zeros(6, np.float32))
    env.poller.resume()
    env.graph.stopping = lambda: True
    robot.mode = RobotState.MODE_REFLEX
    robot.mute = False
    with pytest.raises(Stopped):
        env.control(np.zeros(6, np.float32))


def test_deadlines_of_services_and_actions(make, ros):
    env, _ = make()
    absent = env.poller.client(Advance, "nobody/advance")
    with pytest.raises(CallTimeout, match="nobody/advance"):
        env.poller.call(absent, Advance.Request(), 0.1)
    action = env.poller.action(ResetEpisode, "nobody/reset")
    with pytest.raises(CallTimeout, match="no action server nobody/reset"):
        env.poller.run(action, ResetEpisode.Goal(), 0.1)

    held = []
    server = ActionServer(
        ros.node("slow"),
        ResetEpisode,
        "nobody/reset",
        lambda _: ResetEpisode.Result(),
        handle_accepted_callback=held.append,
        cancel_callback=lambda _: CancelResponse.ACCEPT,
    )
    ros.wait_for(action.server_is_ready)
    with pytest.raises(CallTimeout, match="given up"):
        env.poller.run(action, ResetEpisode.Goal(), 20.0, give_up=lambda: held)
    ros.wait_for(lambda: held[0].is_cancel_requested)
    server.destroy()


def test_cameras_are_part_of_the_observation(make):
    task = hil_tasks.load("reach", {"cameras": ("wrist", "side"), "image_size": 32})
    env, _robot = make(task)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    first = int(observation["wrist"][0, 0, 0])
    done = env.control(np.zeros(6, np.float32))
    assert int(done.next_observation["wrist"][0, 0, 0]) == first + 2
    assert done.observation["wrist"] is observation["wrist"]


def test_realtime_steps_are_paced_and_a_stale_state_holds(make, ros):
    task = hil_tasks.load("reach", {"control_hz": 20.0})
    env, robot = make(task, pace="realtime", max_state_age_s=0.2)
    env.reset(seed=0)
    ages = [env.control(np.zeros(6, np.float32)) for _ in range(5)]
    stamps = [a.stamp for a in ages]
    assert stamps == sorted(stamps) and stamps[-1] > stamps[0]
    robot.lose_states = 10**6
    held = [env.control(np.full(6, 0.5, np.float32)) for _ in range(8)][-1]
    assert held.flags & Flag.STALE_OBSERVATION and held.flags & Flag.HELD
    assert "robot_state is" in held.reasons[0]
    robot.lose_states = 0
    ros.wait_for(lambda: not env.control(np.zeros(6, np.float32)).flags & Flag.HELD)


def test_realtime_operator_who_falls_silent_is_lost(make, ros):
    task = hil_tasks.load("reach", {"control_hz": 20.0})
    env, _ = make(task, pace="realtime", operator="optional", operator_silence_s=0.5)
    person = populate(ros, "person", lambda node: FakeOperator(node, lambda _: None))
    ros.wait_for(lambda: env.graph.operator.present)
    env.reset(seed=0)
    zero = np.zeros(6, np.float32)
    assert not env.control(zero).flags & Flag.TELEOP_LOST  # never heard: optional

    def drives():
        person.say(True, [0.5] * 6)
        return env.control(zero).takeover

    ros.wait_for(drives)
    ros.wait_for(lambda: env.control(zero).flags & Flag.TELEOP_LOST)
    ros.wait_for(drives)
