"""`hil status`: what is shown of what the graph says."""

import json
import math
import os

import pytest

from hil_bringup import status
from hil_bringup.manager_node import ManagerNode
from hil_bringup.status import MANAGER, Heard
from hil_common.lifecycle import HilNode
from hil_common.testing import Ros

LEARNER = {
    "run_id": "run-1",
    "phase": "waiting",
    "waiting_for": "12 more steps before training starts",
    "env_steps": 88,
    "demo_steps": 0,
    "episodes": 2,
    "updates": 0,
    "updates_per_s": 0.0,
    "policy_version": 3,
    "success_rate": math.nan,
}
ACTOR = {
    "actor_id": "actor",
    "mode": "train",
    "phase": "paused",
    "text": "the learner, at 88 training steps",
    "intervened": False,
    "episode": 2,
    "step": 7,
    "policy_version": 3,
}


@pytest.fixture
def heard() -> Heard:
    return Heard(
        diagnostics={
            MANAGER: (
                0, "ok",
                {"state": "active", "/actor": "active: ok", "/bridge": "unknown: not started"},
                9.5,
            ),
            "/actor": (
                1, "slow disk",
                {"state": "active", "pid": "7", "image.rate_hz": "10.0", "image.age_s": "0.050"},
                9.0,
            ),
        },
        summary="/bridge: not started",
        learner=dict(LEARNER),
        actors={"actor": dict(ACTOR)},
    )  # fmt: skip


def test_a_node_that_does_not_speak_is_shown_with_what_the_manager_says(heard: Heard) -> None:
    assert heard.missing == {"/bridge"}
    nodes = {node.name: node for node in heard.status(3, 10.0).nodes}
    assert nodes["/bridge"].level == "stale"
    assert nodes["/bridge"].text == "not started"
    assert nodes["/bridge"].age_s is None
    assert nodes["/actor"].age_s == 1.0
    assert nodes[MANAGER].values == {}, "what it says of others stands with them"


def test_text_says_who_waits_for_what(heard: Heard) -> None:
    text = status.text(heard.status(3, 10.0))
    for expected in (
        "ROS domain 3: /bridge: not started",
        "warning: slow disk",
        "waits for 12 more steps before training starts",
        "actor: train, paused (the learner, at 88 training steps); episode 2, step 7, policy 3",
        "/actor: image 10.0 Hz, 0.050 s ago",
    ):
        assert expected in text


def test_nothing_is_heard_of_a_learner(heard: Heard) -> None:
    heard.learner = None
    assert "learner: none speaks" in status.text(heard.status(3, 10.0))


class Worker(HilNode):
    """A node to look at."""


def test_a_running_graph_is_shown(
    ros: Ros, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(ros.context.get_domain_id()))
    assert status.main(["--wait", "0.1"]) == 1
    assert "no graph runs in ROS domain" in capsys.readouterr().err
    worker = ros.add(Worker("status_worker", context=ros.context))
    ros.start(ManagerNode, nodes=("/status_worker",))
    ros.wait_for(lambda: worker.active)
    assert status.main(["--json", "--wait", "30"]) == 0
    shown = json.loads(capsys.readouterr().out)
    nodes = {node["name"]: node for node in shown["nodes"]}
    assert nodes["/status_worker"]["state"] == "active"
    assert nodes["/status_worker"]["values"]["pid"] == str(os.getpid())
    assert shown["learner"] is None
    assert MANAGER in nodes
