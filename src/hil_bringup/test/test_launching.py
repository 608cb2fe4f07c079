"""The launch files start what `hil up` starts. Needs launch and launch_ros (not on PyPI)."""

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from hil_bringup.graph import GRAPHS, Graph
from hil_bringup.processes import process

# First launch_ros: `import launch` may find the folder of that name at the top of the repository.
pytest.importorskip("launch_ros", reason="launch_ros is not installed (not on PyPI)")
launch = pytest.importorskip("launch", reason="launch is not installed (not on PyPI)")

FILES = Path(__file__).resolve().parents[3] / "launch"


def load(name: str) -> Any:
    """The launch description of a graph's launch file."""
    return runpy.run_path(str(FILES / f"{name}.launch.py"))["generate_launch_description"]()


def entities(name: str, given: dict[str, str]) -> tuple[Any, list[Any]]:
    """Everything that the launch file of a graph comes to, arguments applied."""
    description = load(name)
    launch_context = launch.LaunchContext(argv=[])
    launch_context.launch_configurations.update(given)
    found: list[Any] = []
    todo = list(description.entities)
    while todo:
        entity = todo.pop(0)
        found.append(entity)
        if not is_node(entity):
            todo = list(entity.visit(launch_context) or []) + todo
    return launch_context, found


def is_node(entity: Any) -> bool:
    return hasattr(entity, "node_executable")


def command(node: Any, context: Any) -> list[str]:
    """What launch_ros executes."""
    node._perform_substitutions(context)
    return [launch.utilities.perform_substitutions(context, word) for word in node.cmd]


def parts(words: list[str]) -> tuple[str, list[str], list[str]]:
    """Executable, parameter files in order, and the other arguments sorted."""
    files = [words[i + 1] for i, word in enumerate(words) if word == "--params-file"]
    other = sorted(
        w for w in words[1:] if w not in files and w not in ("--params-file", "--ros-args")
    )
    return words[0], files, other


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # SetEnvironmentVariable changes os.environ of this process.
    monkeypatch.setattr(os, "environ", os.environ.copy())


CASES: list[tuple[str, dict[str, str]]] = [
    ("sim", {}),
    ("sim", {"task": "reach", "pace": "realtime", "operator": "spacemouse", "seed": "7"}),
    ("sim", {"operator": "none", "params_file": "graphs/demo", "log_level": "warn"}),
    ("real_franka", {}),
    ("real_franka", {"learner": "false", "operator": "joy"}),
]


@pytest.mark.parametrize(("name", "given"), CASES, ids=str)
def test_same_processes_with_the_same_parameters(
    name: str, given: dict[str, str], tmp_path: Path
) -> None:
    given = {**given, "run_id": "r", "run_dir": str(tmp_path)}
    context, found = entities(name, given)
    launched = {node.node_executable: node for node in found if is_node(node)}
    chosen = GRAPHS[name]
    nodes = chosen.nodes(chosen.resolve(given))
    assert len(launched) == len(nodes)
    for node in nodes:
        wanted = process(node, tmp_path / "r", given.get("log_level", "info"), os.environ)
        assert parts(command(launched[node.executable], context)) == parts(list(wanted.command))


@pytest.mark.parametrize("chosen", GRAPHS.values(), ids=lambda g: g.name)
def test_arguments_are_those_of_the_graph(chosen: Graph) -> None:
    description = load(chosen.name)
    declared = {a.name: a for a in description.get_launch_arguments()}
    assert list(declared) == [a.name for a in chosen.arguments]
    for argument in chosen.arguments:
        found = declared[argument.name]
        assert argument.doc in found.description
        context = launch.LaunchContext()
        default = launch.utilities.perform_substitutions(context, found.default_value)
        assert default == argument.default_text


def test_every_graph_has_a_launch_file() -> None:
    assert {path.name for path in FILES.glob("*.launch.py")} == {f"{n}.launch.py" for n in GRAPHS}


def test_environment_is_set_where_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    entities("sim", {"run_id": "r"})
    assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert os.environ["MUJOCO_GL"] == "egl"


def test_the_network_is_opened_by_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE", raising=False)
    entities("sim", {"run_id": "r", "network": "lan"})
    assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SUBNET"
