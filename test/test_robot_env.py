"""RobotEnv is a gymnasium environment over the real graph: simulator and bridge, in lockstep."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from system import Domain, Graph, Watch

from hil_actor.env import RobotEnv


@pytest.fixture
def arm(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Graph, Watch]]:
    """Simulator and bridge, each in a process, each activating itself."""
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain.number))
    with Watch(domain.number) as watch, Graph(domain, tmp_path, task="reach") as graph:
        for name in ("robot_bridge", "hil_sim"):
            graph.start(name, "-p", "autostart:=true")
        yield graph, watch


@pytest.mark.filterwarnings("ignore:.*maximum value is infinity")
def test_check_env(arm: tuple[Graph, Watch]) -> None:
    with RobotEnv(task="reach", pace="lockstep", operator="none", answer_timeout_s=60.0) as env:
        check_env(env)
        env.reset(seed=1)
        start = env.observation["achieved"]
        action = np.array([0.5, 0, 0, 0, 0, 0], np.float32)
        for _ in range(8):
            observation, _, terminated, truncated, info = env.step(action)
            assert not terminated and not truncated
            np.testing.assert_allclose(info["action"], action, atol=1e-5)
        moved = observation["achieved"] - start
        assert moved[0] > 0.3, "the arm has moved along x, in units of 0.1 m"
        assert np.abs(moved[1:]).max() < 0.1
