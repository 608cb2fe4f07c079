"""The graph comes up in any order, does the same whatever the order, and leaves nothing behind."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from system import GENEROUS, Domain, Graph, Watch, content, wait_for

ORDERS = {
    "all at once by hil up": (),
    # Whoever comes first has nobody to talk to, and is active all the same.
    "users before the used": (
        "hil_manager", "learner", "actor", "scripted_expert", "robot_bridge", "hil_sim",
    ),
    "manager last": (
        "scripted_expert", "hil_sim", "actor", "robot_bridge", "learner", "hil_manager",
    ),
}  # fmt: skip


@dataclass
class Seen:
    """What the tests saw of the graph that was started first."""

    interfaces: set[tuple[str, str]] = field(default_factory=set)
    demonstration: list[Any] = field(default_factory=list)


@dataclass
class Run:
    """A running graph."""

    graph: Graph
    watch: Watch
    processes: list[Any]
    by_hil_up: bool


@pytest.fixture(scope="module")
def first() -> Seen:
    """Of the first order; the others are compared with it."""
    return Seen()


@pytest.fixture(scope="module", params=ORDERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The graph, started in one of the orders, ready."""
    folder = tmp_path_factory.mktemp("start")
    order = ORDERS[request.param]
    with (
        Domain() as domain,
        Watch(domain.number) as watch,
        Graph(domain, folder) as graph,
    ):
        assert not order or sorted(order) == sorted(graph.nodes)
        processes = [start_one(graph, watch, n, order) for n in order] or [graph.up()]
        graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active")
        yield Run(graph, watch, processes, not order)


def start_one(graph: Graph, watch: Watch, name: str, order: tuple[str, ...]) -> Any:
    """Start a node and wait until it is there, and as far as it can be brought."""
    process, node = graph.start(name), graph.nodes[name]
    graph.wait_for(lambda: watch.sees(node), f"{name} to appear")
    if order[0] == "hil_manager" and node.managed:
        graph.wait_for(
            lambda: watch.lifecycle(node.full_name) == {node.full_name: "active"},
            f"{name} to be active without those that come later",
        )
    return process


def test_running_state_is_the_same(run: Run, first: Seen) -> None:
    graph, watch = run.graph, run.watch
    first.interfaces = first.interfaces or watch.interfaces()
    graph.wait_for(lambda: watch.interfaces() == first.interfaces, "the same topics and services")
    graph.wait_for(lambda: watch.actor.phase == "waiting", "the actor to wait for a request")
    graph.wait_for(lambda: watch.learner.phase == "waiting", "the learner to wait for steps")
    graph.wait_for(lambda: set(graph.managed) <= set(watch.values), "everybody's diagnostics")
    graph.wait_for(
        lambda: all(watch.values[name]["state"] == "active" for name in graph.managed),
        "everybody's diagnostics to say active",
    )


def test_same_seed_same_demonstrations(run: Run, first: Seen) -> None:
    """Observations, actions and judgement of every step, bit for bit."""
    result = run.watch.episodes_of(run.graph, "demo", episodes=2, seed=11)
    run.graph.wait_for(lambda: len(run.watch.steps) == result.steps, "the steps")
    demonstration = [content(step) for step in run.watch.steps]
    assert len({episode for episode, *_ in demonstration}) == 2
    first.demonstration = first.demonstration or demonstration
    assert len(demonstration) == len(first.demonstration)
    for mine, wanted in zip(demonstration, first.demonstration, strict=True):
        assert mine == wanted, f"episode {mine[0]}, step {mine[1]}"


def test_ctrl_c_leaves_nothing(run: Run) -> None:
    """Also in the middle of an episode: no process, and no shared memory of hil up's graph."""
    graph, watch, domain = run.graph, run.watch, run.graph.domain
    begun = len(watch.steps)
    watch.ask(graph, "demo", episodes=0, seed=1)
    graph.wait_for(lambda: len(watch.steps) > begun + 3, "an episode to be under way")
    segments = domain.segments()
    assert segments
    for process in reversed(run.processes):
        os.killpg(process.pid, signal.SIGINT)
    for process in run.processes:
        assert process.wait(GENEROUS) == 0
    wait_for(lambda: not domain.processes(), "all processes to end", explain=graph.output)
    watch.close()
    if run.by_hil_up:
        wait_for(lambda: not domain.left_over(segments), "shared memory to be gone")


def test_killed_hil_up_leaves_nothing(domain: Domain, tmp_path: Path) -> None:
    with Graph(domain, tmp_path) as graph:
        up = graph.up()
        with Watch(domain.number) as watch:
            nodes = graph.nodes.values()
            graph.wait_for(lambda: all(watch.sees(n) for n in nodes), "all nodes to appear")
        segments = domain.segments()
        assert len(domain.processes()) >= len(graph.nodes) + 2
        up.kill()
        up.wait()
        wait_for(lambda: not domain.processes(), "all processes to end", explain=graph.output)
        wait_for(lambda: not domain.left_over(segments), "shared memory to be gone")
