"""The learner in a graph: a made-up actor streams steps, gets policies, restarts, refuses."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.action import ActionServer
from rclpy.node import Node
from std_srvs.srv import Trigger

from hil_common import qos
from hil_common.testing import Ros
from hil_interfaces.action import UpdatePolicy
from hil_interfaces.msg import LearnerStatus, StepBytes
from hil_interfaces.srv import InsertSteps
from hil_learner.learner_node import LearnerNode
from hil_learner.records import FLAG_DEMO
from hil_learner.synthetic import Sent, SyntheticActor
from hil_rl.policy import Policy

TINY = {
    "run_id": "test",
    "task": "reach",
    "agent": ("hidden=[16, 16]", "state_encoder=8"),
    "batch_size": 16,
    "training_starts": 20,
    "publish_period_updates": 10,
    "metrics_period": 10,
    "capacity": 2000,
    "discovery_period_s": 0.02,
    "progress": "none",
}


class FakeActor:
    """Streams synthetic steps and serves `update_policy`."""

    def __init__(self, ros: Ros, learner: LearnerNode, name: str = "actor") -> None:
        self.ros = ros
        self.node: Node = ros.node(f"fake_{name}")
        self.name = name
        self.policies: list[UpdatePolicy.Goal] = []
        self.refuse = ""
        self.statuses: list[LearnerStatus] = []
        assert learner.learner is not None
        self.spec = learner.learner.spec
        self.source = SyntheticActor(self.spec, name, "s1", seed=0)
        self.client = self.node.create_client(InsertSteps, "learner/insert_steps")
        self.node.create_subscription(
            LearnerStatus, "learner/status", self.statuses.append, qos.LATCHED
        )
        self.server: ActionServer | None = None

    def serve(self) -> None:
        self.server = ActionServer(
            self.node, UpdatePolicy, f"{self.name}/update_policy", self._update
        )

    def _update(self, handle: Any) -> UpdatePolicy.Result:
        self.policies.append(handle.request)
        handle.succeed()
        version = 0 if self.refuse else handle.request.version
        return UpdatePolicy.Result(accepted=not self.refuse, reason=self.refuse, version=version)

    def restart(self) -> None:
        """Be killed and come back under the same name."""
        assert self.server is not None
        server, self.policies = self.server, []
        self.serve()
        server.destroy()

    def insert(self, *steps: Sent, **changes: str) -> InsertSteps.Response:
        request = InsertSteps.Request(
            run_id=self.spec.run_id,
            fingerprint=self.spec.fingerprint,
            actor_id=self.name,
            session=self.source.session,
            steps=[StepBytes(seq=s.seq, data=array("B", s.data)) for s in steps],
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return self.ros.call(self.client, request)

    def stream(self, count: int, **options: Any) -> None:
        for _ in range(count):
            answer = self.insert(self.source.next(**options))
            assert (answer.status, answer.last_seq) == (InsertSteps.Response.OK, self.source.seq)

    def save(self) -> Trigger.Response:
        client = self.node.create_client(Trigger, "learner/save")
        return self.ros.call(client, Trigger.Request())


Start = Callable[..., LearnerNode]


@pytest.fixture
def start(ros: Ros, tmp_path: Path) -> Start:
    def make(**params: Any) -> LearnerNode:
        node = ros.start(LearnerNode, **{**TINY, "run_dir": str(tmp_path), **params})
        assert node.learner is not None
        return node

    return make


def stop(ros: Ros, node: LearnerNode) -> None:
    node.trigger_deactivate()
    node.trigger_cleanup()
    assert node.learner is None


def test_an_actor_streams_and_gets_policies(ros: Ros, start: Start, tmp_path: Path) -> None:
    node = start(min_demo_steps=10)
    actor = FakeActor(ros, node)
    actor.serve()
    ros.wait_for(lambda: actor.statuses, what="the latched status")
    first = actor.statuses[0]
    assert (first.run_id, first.fingerprint) == ("test", actor.spec.fingerprint)
    assert first.phase == "waiting" and "demonstrations: 10" in first.waiting_for
    actor.stream(25, flags=FLAG_DEMO, intervened=True)
    actor.stream(35)
    ros.wait_for(lambda: actor.policies, what="the first policy")
    ros.wait_for(lambda: actor.statuses[-1].updates >= 15, what="updates")
    status = actor.statuses[-1]
    assert (status.env_steps, status.demo_steps) == (35, 25)
    assert status.phase == "training" and status.waiting_for == ""
    assert status.env_steps_allowed >= 20 + 20 + 15
    goal = actor.policies[0]
    policy = Policy.decode(bytes(goal.data), actor.spec.spaces, goal.fingerprint)
    assert (policy.version, policy.sha256) == (goal.version, goal.sha256)
    answer = actor.save()
    assert answer.success and Path(answer.message).exists()
    newest = node.learner.training.policy_version  # type: ignore[union-attr]
    ros.wait_for(lambda: actor.policies[-1].version == newest, what="the newest policy")
    stop(ros, node)
    curve = tmp_path / "test" / "learning_curve.png"
    assert curve.read_bytes().startswith(b"\x89PNG")
    ros.wait_for(lambda: actor.statuses[-1].phase == "stopped")


def test_refusals_say_what_is_wanted_and_why(ros: Ros, start: Start) -> None:
    actor = FakeActor(ros, start())
    sent = [actor.source.next() for _ in range(4)]
    response = InsertSteps.Response
    empty = actor.insert()
    assert (empty.status, empty.last_seq, empty.wanted_seq) == (response.OK, 0, 1)
    assert empty.run_id == "test"
    gap = actor.insert(sent[2])
    assert (gap.status, gap.wanted_seq) == (response.GAP, 1) and "wanted 1" in gap.reason
    assert actor.insert(sent[0], run_id="other").status == response.WRONG_RUN
    assert actor.insert(sent[0], fingerprint="other").status == response.WRONG_SPEC
    broken = actor.insert(sent[0], Sent(2, sent[1].data[:40], sent[1].message))
    assert (broken.status, broken.last_seq) == (response.MALFORMED, 1)
    assert broken.reason.startswith("step 2: data")
    again = actor.insert(*sent)
    assert (again.status, again.last_seq) == (response.OK, 4)


def test_new_and_restarted_actors_are_served_at_once(ros: Ros, start: Start) -> None:
    node = start(utd=1.0)
    actor = FakeActor(ros, node)
    actor.stream(40)
    ros.wait_for(lambda: node.learner.training.policy_version >= 2)  # type: ignore[union-attr]
    version = node.learner.training.policy_version  # type: ignore[union-attr]
    actor.serve()
    ros.wait_for(lambda: actor.policies, what="the policy for a new actor")
    assert actor.policies[0].version == version
    for _ in range(3):
        actor.restart()
        ros.wait_for(lambda: actor.policies, what="the policy for a restarted actor")
        assert actor.policies[0].version == version


def test_a_rejection_is_reported(ros: Ros, start: Start) -> None:
    node = start()
    actor = FakeActor(ros, node)
    actor.refuse = "no room for this policy"
    actor.serve()
    reports: list[DiagnosticStatus] = []
    actor.node.create_subscription(
        DiagnosticArray,
        "/diagnostics",
        lambda message: reports.extend(message.status),
        qos.DIAGNOSTICS,
    )
    actor.stream(31)
    ros.wait_for(lambda: any("no room for this policy" in r.message for r in reports))
    rejected = len(actor.policies)
    actor.refuse = ""
    actor.stream(10)
    ros.wait_for(lambda: len(actor.policies) > rejected, what="the next version")


def test_a_training_fault_deactivates_the_node_and_keeps_taking_steps(
    ros: Ros, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    learner = node.learner
    assert learner is not None

    def fail() -> dict[str, float]:
        raise ValueError("the loss is not finite")

    with monkeypatch.context() as patch:
        patch.setattr(learner.training._trainer, "step", fail)
        actor = FakeActor(ros, node)
        actor.stream(25)
        ros.wait_for(lambda: not node.active, what="the fault")
    ros.wait_for(lambda: "loss is not finite" in actor.statuses[-1].waiting_for)
    assert actor.statuses[-1].phase == "paused"
    actor.stream(10)
    assert learner.store.counts.online == 35
    node.trigger_activate()
    ros.wait_for(lambda: learner.training.updates >= 16, what="training to go on")


def test_a_failure_of_ingestion_is_never_taken_for_an_acknowledgement(
    ros: Ros, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    learner = node.learner
    assert learner is not None
    actor = FakeActor(ros, node)

    def fail(step: Any) -> None:
        raise RuntimeError("broken store")

    step = actor.source.next()
    with monkeypatch.context() as patch:
        patch.setattr(learner.store, "add", fail)
        answer = actor.insert(step)
    assert answer.status == InsertSteps.Response.BUSY and "broken store" in answer.reason
    assert actor.insert(step).status == InsertSteps.Response.BUSY
    ros.wait_for(lambda: not node.active)
    node.trigger_cleanup()
    node.trigger_configure()
    answer = actor.insert(step)
    assert (answer.status, answer.last_seq) == (InsertSteps.Response.OK, 1)


def test_a_restarted_node_continues_its_run(ros: Ros, start: Start) -> None:
    first = start()
    actor = FakeActor(ros, first)
    actor.stream(45)
    ros.wait_for(lambda: first.learner.training.updates >= 26)  # type: ignore[union-attr]
    version = first.learner.training.policy_version  # type: ignore[union-attr]
    stop(ros, first)
    first.trigger_configure()
    learner = first.learner
    assert learner is not None
    assert (learner.training.updates, learner.training.policy_version) == (26, version)
    assert actor.insert().last_seq == 45
    actor.serve()
    ros.wait_for(lambda: actor.policies, what="the restored policy")
    assert actor.policies[0].version == version
    stop_inactive(first)


def stop_inactive(node: LearnerNode) -> None:
    node.trigger_cleanup()
    assert node.learner is None


def test_a_run_folder_of_something_else_is_refused(ros: Ros, start: Start, tmp_path: Path) -> None:
    stop(ros, start())
    node = ros.make(LearnerNode, **{**TINY, "run_dir": str(tmp_path), "task": "peg_insert"})
    node.trigger_configure()
    assert node.learner is None
    assert node.diagnostics._error.startswith("RunFolderError")
