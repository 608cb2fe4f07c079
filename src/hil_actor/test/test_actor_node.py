"""The actor node against a fake robot, operator and learner."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from rclpy.action import ActionClient

sys.path.insert(0, str(Path(__file__).parent))

from actor_fakes import FakeLearner, FakeOperator, FakeRobot, Recording, populate

import hil_tasks
from hil_actor.actor_node import ActorNode, policy_spaces
from hil_common.params import override
from hil_common.tensors import from_msgs
from hil_interfaces.action import RunEpisodes
from hil_interfaces.msg import Step
from hil_rl.config import SACConfig
from hil_rl.policy import Policy

EPISODE = 5


class Bench:
    """Actor, robot and a recording of what the actor says."""

    def __init__(self, ros, tmp_path):
        self.ros = ros
        self.file = tmp_path / "task.yaml"
        self.file.write_text(f"task: reach\nmax_episode_steps: {EPISODE}\ncontrol_hz: 20.0\n")
        self.task = hil_tasks.load_file(self.file)
        self.fingerprint = self.task.spec.fingerprint()
        self.recording = populate(ros, "recording", Recording)
        self.robot: FakeRobot
        self.actor: ActorNode
        self._episodes = populate(
            ros, "helper", lambda node: ActionClient(node, RunEpisodes, "actor/run_episodes")
        )

    def start(self, robot=True, **params):
        pace = params.get("pace", "lockstep")
        if robot:
            self.robot = populate(self.ros, "robot", lambda node: FakeRobot(node, self.task, pace))
        params = {
            "task_file": str(self.file),
            "spool_dir": str(self.file.parent / "spool"),
            "run_id": "run",
            "operator": "none",
            "operator_barrier_s": 20.0,
            "flush_timeout_s": 0.2,
            **params,
        }
        overrides = [override(name, value) for name, value in params.items()]
        self.actor = ActorNode(context=self.ros.context, parameter_overrides=overrides)
        self.actor.trigger_configure()
        self.ros.add(self.actor)
        self.actor.trigger_activate()
        assert self.actor.active
        self.ros.wait_for(self._episodes.server_is_ready)
        return self.actor

    def learner(self, **options):
        made = populate(self.ros, "learner", lambda node: FakeLearner(node, **options))
        self.ros.wait_for(made.policy_server_ready)
        return made

    def operator(self, script):
        made = populate(self.ros, "person", lambda node: FakeOperator(node, script))
        self.ros.wait_for(lambda: self.actor._parts.env.graph.operator.present)
        return made

    def ask(self, mode, episodes=0, **fields):
        """Goal handle of a run."""
        goal = RunEpisodes.Goal(mode=mode, episodes=episodes, **fields)
        self.feedback = []
        handle = self.ros.result(
            self._episodes.send_goal_async(
                goal, feedback_callback=lambda m: self.feedback.append(m.feedback)
            )
        )
        assert handle.accepted
        return handle

    def result(self, handle):
        return self.ros.result(handle.get_result_async()).result

    def run(self, mode, episodes=0, **fields):
        return self.result(self.ask(mode, episodes, **fields))

    def steps(self, n):
        """The first n records, once they are there."""
        self.ros.wait_for(lambda: len(self.recording.steps) >= n, what=f"{n} steps")
        return self.recording.steps[:n]

    def wait_text(self, phase, text):
        self.ros.wait_for(lambda: self.recording.said(phase, text), what=f"{phase}: {text}")


@pytest.fixture
def bench(ros, tmp_path):
    made = Bench(ros, tmp_path)
    yield made
    if hasattr(made, "actor"):
        made.actor.trigger_shutdown()


def test_training_episodes_are_streamed_in_order(bench):
    bench.start()
    learner = bench.learner()
    result = bench.run("train", 3, seed=5)
    assert result.ok and (result.episodes, result.steps) == (3, 3 * EPISODE)
    bench.ros.wait_for(lambda: len(learner.steps) == 3 * EPISODE)
    assert [s.seq for s in learner.steps] == list(range(1, 3 * EPISODE + 1))
    assert [(s.episode, s.step) for s in learner.steps] == [
        (e, k) for e in range(3) for k in range(EPISODE)
    ]
    for this, following in zip(learner.steps, learner.steps[1:], strict=False):
        last = this.step == EPISODE - 1
        assert this.truncated == last and bool(this.final_observation) == last
        assert (this.episode == following.episode) != last
    assert all(s.run_id == "run" and s.fingerprint == bench.fingerprint for s in learner.steps)
    assert all(s.policy_version == 0 and len(s.policy_action) == 6 for s in learner.steps)
    bench.steps(15)
    assert bench.recording.raw == learner.raw
    assert len(bench.recording.episodes) == 3 and len(bench.feedback) == 3
    summary = bench.recording.episodes[-1]
    assert (summary.steps, summary.truncated, summary.mode) == (EPISODE, True, "train")
    assert np.isclose(summary.duration, EPISODE / 20.0)


def test_the_same_seed_gives_the_same_records(bench):
    bench.start()
    bench.run("train", 2, seed=5)
    bench.run("train", 2, seed=5)
    steps = bench.steps(4 * EPISODE)
    for a, b in zip(steps[: 2 * EPISODE], steps[2 * EPISODE :], strict=True):
        assert a.observation == b.observation and a.action == b.action


def test_demonstrations_are_the_operators(bench):
    bench.start(operator="required")
    bench.operator(lambda state: (True, [0.0, 0.0, -0.5, 0.0, 0.0, 0.0]))
    result = bench.run("demo", 1)
    assert result.ok and result.intervened_steps == EPISODE
    for step in bench.steps(EPISODE):
        assert step.flags == Step.FLAG_DEMO and list(step.intervened) == [True]
        assert len(step.policy_action) == 0 and np.allclose(step.action[:3], [0, 0, -0.5])
    assert bench.recording.episodes[0].interventions == 0


def test_demonstrations_without_an_operator_are_refused(bench):
    bench.start()
    result = bench.run("demo", 1)
    assert not result.ok and "need an operator" in result.reason


def test_count_only_successes(bench):
    bench.start(operator="required")
    robot = bench.robot

    def script(state):
        if state.episode % 2:
            robot.objects["goal"] = robot.pose  # success follows
        return False, [0.0] * 6

    bench.operator(script)
    result = bench.run("demo", 2, count_successes=True)
    assert result.ok and (result.successes, result.episodes) == (2, 4)


def test_a_takeover_is_recorded_once_with_both_actions(bench):
    bench.start(operator="optional")
    bench.operator(lambda state: (state.step in (1, 2), [0.3, 0.0, 0.0, 0.0, 0.0, 0.0]))
    result = bench.run("train", 1)
    assert result.intervened_steps == 2
    steps = bench.steps(EPISODE)
    assert [list(s.intervened) for s in steps] == [[False], [True], [True], [False], [False]]
    assert [bool(s.flags & Step.FLAG_TAKEOVER) for s in steps] == [k == 1 for k in range(5)]
    assert np.allclose(steps[1].action, 0.0, atol=1e-6)
    assert np.allclose(steps[2].action[:3], [0.3, 0.0, 0.0], atol=1e-6)
    assert all(len(s.policy_action) == 6 for s in steps)
    assert bench.recording.episodes[0].interventions == 1


def test_evaluation_is_deterministic_and_locks_the_operator_out(bench):
    bench.start(operator="optional")
    person = bench.operator(lambda state: (True, [1.0] * 6))
    first = bench.run("evaluate", 2, seed=1)
    second = bench.run("evaluate", 2, seed=1)
    assert first.ok and second.ok and not first.intervened_steps
    steps = bench.steps(4 * EPISODE)
    for a, b in zip(steps[: 2 * EPISODE], steps[2 * EPISODE :], strict=True):
        assert a.flags & Step.FLAG_EVALUATION and list(a.intervened) == [False]
        assert a.observation == b.observation and a.policy_action == b.policy_action
    assert not person.answered
    running = [s for s in bench.recording.states if s.phase == "running"]
    assert running and not any(s.operator_allowed for s in running)


def policy_data(bench, version, fingerprint=None):
    made = Policy.random(
        policy_spaces(bench.task), SACConfig(), version, fingerprint or bench.fingerprint
    )
    return Policy.create(
        made._parameters, made.architecture, made.spaces, version, made.fingerprint
    )


def send(bench, learner, made, **changes):
    fields = {
        "version": made.version,
        "fingerprint": made.fingerprint,
        "sha256": made.sha256,
        "data": made.data,
        **changes,
    }
    handle = bench.ros.result(learner.send_policy(**fields))
    return bench.result(handle)


def test_a_policy_is_applied_between_steps_and_outlives_the_learner(bench):
    bench.start()
    learner = bench.learner()
    made = policy_data(bench, 7)
    result = send(bench, learner, made)
    assert result.accepted and result.version == 7 and not result.reason
    learner.vanish()
    assert bench.run("evaluate", 1, seed=3).ok
    for step in bench.steps(EPISODE):
        assert step.policy_version == 7
        expected = made.act(from_msgs(step.observation), True, np.random.default_rng(0))
        assert np.allclose(step.policy_action, expected, atol=1e-6)
    bench.ros.wait_for(lambda: any(s.policy_version == 7 for s in bench.recording.states))


def test_bad_policies_are_rejected_with_the_reason(bench):
    bench.start()
    learner = bench.learner()
    good = policy_data(bench, 3)
    rubbish = b"not a policy"
    cases = [
        (send(bench, learner, policy_data(bench, 3, "other")), "specification"),
        (send(bench, learner, good, sha256="0" * 64), "sha256"),
        (
            send(bench, learner, good, data=rubbish, sha256=hashlib.sha256(rubbish).hexdigest()),
            "safetensors",
        ),
        (send(bench, learner, good, version=4), "announced"),
    ]
    for result, reason in cases:
        assert not result.accepted and reason in result.reason and result.version == 0
    assert send(bench, learner, good).accepted
    assert not send(bench, learner, policy_data(bench, 2)).accepted


def test_policies_arrive_while_episodes_run(bench):
    bench.start()
    learner = bench.learner()
    handle = bench.ask("train")
    bench.steps(EPISODE)
    assert send(bench, learner, policy_data(bench, 2)).accepted
    bench.ros.wait_for(lambda: bench.recording.steps[-1].policy_version == 2)
    bench.ros.result(handle.cancel_goal_async())
    assert bench.result(handle).reason == "cancelled"
    versions = [s.policy_version for s in bench.recording.steps]
    assert versions == sorted(versions)


def test_throttle_stops_exactly_at_the_bound(bench):
    bench.start()
    learner = bench.learner()
    learner.report(allowed=7)
    bench.ros.wait_for(lambda: bench.actor._parts is not None)
    handle = bench.ask("train", 2)
    bench.wait_text("paused", "at 7 training steps")
    assert len(bench.steps(7)) == len(bench.recording.steps) == 7
    bench.ros.wait_for(lambda: len(learner.steps) == 7)  # they are there although it waits
    learner.report(allowed=9)
    bench.wait_text("paused", "at 9 training steps")
    assert len(bench.recording.steps) == 9
    learner.report(allowed=1000)
    assert bench.result(handle).ok


def test_without_a_learner_the_actor_acts_until_the_spool_is_full(bench):
    bench.start(spool_steps=8)
    handle = bench.ask("train", 2)
    bench.wait_text("paused", "spool is full: 8 steps")
    bench.wait_text("paused", "the learner is not there")
    assert len(bench.steps(8)) == len(bench.recording.steps) == 8
    learner = bench.learner()
    assert bench.result(handle).ok
    bench.ros.wait_for(lambda: len(learner.steps) == 10)
    assert [s.seq for s in learner.steps] == list(range(1, 11))


def test_a_successor_sends_what_was_left_then_its_own(bench):
    first = bench.start()
    assert bench.run("train", 2).ok
    sessions = [first.session]
    first.trigger_shutdown()  # nobody took the steps
    second = bench.start(robot=False)
    sessions.append(second.session)
    learner = bench.learner()
    assert bench.run("train", 1).ok
    bench.ros.wait_for(lambda: len(learner.steps) == 3 * EPISODE)
    assert [(s.session, s.seq) for s in learner.steps] == [
        (session, seq)
        for session, count in zip(sessions, (2, 1), strict=True)
        for seq in range(1, count * EPISODE + 1)
    ]


def test_steps_of_another_run_are_set_aside_and_told(bench):
    first = bench.start()
    assert bench.run("train", 1).ok
    first.trigger_shutdown()
    second = bench.start(robot=False, run_id="other")
    learner = bench.learner(run_id="other")
    assert bench.run("train", 1).ok
    bench.ros.wait_for(lambda: len(learner.steps) == EPISODE)
    assert {s.session for s in learner.steps} == {second.session}
    (notice,) = second._parts.spool.notices
    assert f"{EPISODE} steps of run run wait" in notice and "hil spool import" in notice


def test_a_learner_of_another_run_stops_the_episode_with_the_reason(bench):
    bench.start()
    learner = bench.learner(run_id="other")
    handle = bench.ask("train")
    bench.wait_text("paused", "this is run other")
    count = len(bench.recording.steps)
    learner.run_id = "run"
    bench.steps(count + 3)
    bench.ros.result(handle.cancel_goal_async())
    total = bench.result(handle).steps
    bench.ros.wait_for(lambda: len(learner.steps) == total)


def test_the_run_is_taken_from_the_learner(bench):
    bench.start(run_id="")
    handle = bench.ask("train", 1)
    bench.wait_text("paused", "name of the run")
    assert not bench.recording.steps
    learner = bench.learner(run_id="found")
    learner.report(allowed=1000)
    assert bench.result(handle).ok
    bench.ros.wait_for(lambda: len(learner.steps) == EPISODE)
    assert {s.run_id for s in learner.steps} == {"found"}


def test_cancelling_closes_the_episode(bench):
    bench.start()
    handle = bench.ask("train")
    bench.steps(EPISODE + 2)
    bench.ros.result(handle.cancel_goal_async())
    result = bench.result(handle)
    assert not result.ok and result.reason == "cancelled" and result.steps > EPISODE
    bench.ros.wait_for(lambda: len(bench.recording.steps) == result.steps)
    last = bench.recording.steps[-1]
    assert last.truncated and last.final_observation
    if last.step < EPISODE - 1:
        assert last.flags & Step.FLAG_INTERRUPTED
        bench.ros.wait_for(lambda: bench.recording.episodes[-1].interrupted)
    assert bench.run("train", 1).ok  # and another run follows
    assert bench.recording.steps[-1].episode == last.episode + 1


def test_max_steps_ends_the_run(bench):
    bench.start()
    result = bench.run("train", max_steps=EPISODE + 2)
    assert result.ok and result.steps == EPISODE + 2
    last = bench.steps(EPISODE + 2)[-1]
    assert last.flags & Step.FLAG_INTERRUPTED and last.truncated and last.final_observation


def test_one_run_at_a_time(bench):
    bench.start()
    handle = bench.ask("train")
    second = bench.run("evaluate", 1)
    assert not second.ok and "mode train are running" in second.reason
    bench.ros.result(handle.cancel_goal_async())
    bench.result(handle)
    unknown = bench.run("dance", 1)
    assert not unknown.ok and "none of demo, train, evaluate" in unknown.reason


def test_autostart_gives_way_and_comes_back(bench):
    bench.start(autostart_mode="train")
    bench.steps(3)
    assert bench.run("evaluate", 1).ok
    n = len(bench.recording.steps)
    bench.ros.wait_for(lambda: len(bench.recording.steps) > n + EPISODE)
    kinds = [bool(s.flags & Step.FLAG_EVALUATION) for s in bench.recording.steps]
    assert kinds.count(True) == EPISODE and not kinds[0] and not kinds[-1]


def test_deactivation_holds_gives_the_lease_back_and_can_be_undone(bench):
    actor = bench.start(autostart_mode="train")
    bench.steps(2)
    actor.trigger_deactivate()
    assert not actor.active
    bench.ros.wait_for(lambda: bench.robot.owner == "")
    assert bench.robot.commands[-1].control_mode == bench.robot.commands[-1].MODE_HOLD
    bench.ros.wait_for(lambda: bench.recording.states[-1].phase == "waiting")
    refused = bench.run("train", 1)
    assert not refused.ok and "not active" in refused.reason
    n = len(bench.recording.steps)
    actor.trigger_activate()
    bench.ros.wait_for(lambda: len(bench.recording.steps) > n)
    assert bench.robot.owner == actor.session


def test_deactivation_breaks_off_every_wait(bench):
    actor = bench.start(robot=False, autostart_mode="train")
    bench.wait_text("waiting", "robot_bridge/acquire")
    actor.trigger_deactivate()
    assert not actor.active
    actor.trigger_activate()
    assert actor.active


def test_a_bridge_that_dies_interrupts_the_episode_and_it_goes_on(bench):
    bench.start(answer_timeout_s=0.5)
    bench.robot.mute = True
    handle = bench.ask("train", 1)
    bench.wait_text("waiting", "bridge did not answer")
    assert not bench.recording.steps
    bench.robot.mute = False
    assert bench.result(handle).ok
    assert len(bench.steps(EPISODE)) == EPISODE


def test_cleanup_flushes_and_a_new_life_is_a_new_session(bench):
    actor = bench.start(flush_timeout_s=20.0, send_interval_s=1.0)
    learner = bench.learner()
    bench.run("train", 2)
    first = actor.session
    actor.trigger_deactivate()
    actor.trigger_cleanup()
    assert len(learner.steps) == 2 * EPISODE
    actor.trigger_configure()
    actor.trigger_activate()
    bench.ros.wait_for(learner.policy_server_ready)
    assert actor.session != first
    assert bench.run("train", 1).ok
    bench.ros.wait_for(lambda: len(learner.steps) == 3 * EPISODE)
    assert [s.seq for s in learner.steps[2 * EPISODE :]] == list(range(1, EPISODE + 1))


def test_a_policy_file_is_the_first_policy(bench, tmp_path):
    made = policy_data(bench, 42)
    path = tmp_path / "policy.safetensors"
    path.write_bytes(made.data)
    bench.start(policy_file=str(path))
    assert bench.run("evaluate", 1).ok
    assert all(s.policy_version == 42 for s in bench.steps(EPISODE))


def test_realtime_training(bench):
    bench.start(pace="realtime", max_state_age_s=5.0)
    learner = bench.learner()
    result = bench.run("train", 2)
    assert result.ok and result.steps == 2 * EPISODE
    bench.ros.wait_for(lambda: len(learner.steps) == 2 * EPISODE)
    stamps = [s.header.stamp.sec * 10**9 + s.header.stamp.nanosec for s in learner.steps]
    assert stamps == sorted(stamps) and stamps[-1] > stamps[0]
