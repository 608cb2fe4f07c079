"""The description of the graphs, and their arguments."""

import dataclasses
import importlib
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

from hil_bringup import arguments, up
from hil_bringup.arguments import Argument, ArgumentError
from hil_bringup.graph import (
    GRAPHS,
    Graph,
    Node,
    Respawn,
    config_file,
    config_folder,
    graph,
    network_environment,
    stop_order,
)
from hil_bringup.processes import parameter_files, process_name
from hil_bringup.supervisor import Process
from hil_common.lifecycle import HilNode

ARGUMENTS = (
    Argument("task", "reach", "what"),
    Argument("seed", 0, "of all"),
    Argument("rate", 1.5, "of it"),
    Argument("camera", False, "on"),
    Argument("pace", "slow", "how", ("slow", "fast")),
)


def test_defaults_and_given_values_have_the_type_of_the_default() -> None:
    given = {"seed": "7", "rate": "2", "camera": "True", "pace": "fast"}
    values = arguments.resolve(ARGUMENTS, given)
    assert vars(values) == {
        "task": "reach", "seed": 7, "rate": 2.0, "camera": True, "pace": "fast"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sed": "1"}, "unknown argument sed; did you mean seed?"),
        ({"xyzzy": "1"}, "unknown argument xyzzy; known: task, seed"),
        ({"seed": "1.5"}, "seed:=1.5: must be a whole number"),
        ({"rate": "quick"}, "rate:=quick: must be a number"),
        ({"camera": "maybe"}, "camera:=maybe: must be true or false"),
        ({"pace": "fasst"}, "must be one of slow, fast; did you mean fast?"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_possible(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        arguments.resolve(ARGUMENTS, given)
    assert message in str(error.value)


@pytest.mark.parametrize("texts", [["seed=1"], ["seed"], [":=1"], ["seed:=1", "seed:=2"]])
def test_wrong_form_is_refused(texts: list[str]) -> None:
    with pytest.raises(ArgumentError):
        arguments.split(texts)


def test_values_may_hold_the_separator() -> None:
    assert arguments.split(["a:=b:=c", "d:="]) == {"a": "b:=c", "d": ""}


def test_unknown_graph_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"did you mean real_franka\?"):
        graph("real_frank")


def test_up_ends_with_2_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert up_code(["simm"]) == 2
    assert "did you mean sim?" in capsys.readouterr().err
    assert up_code(["sim", "pase:=lockstep"]) == 2
    assert "unknown argument pase; did you mean pace?" in capsys.readouterr().err
    assert up_code(["sim", "task_file:=/nowhere.yaml"]) == 2
    assert "task_file:=/nowhere.yaml: no such file" in capsys.readouterr().err


def up_code(texts: list[str]) -> int:
    try:
        return up.main(texts)
    except SystemExit as end:
        return int(str(end.code))


@pytest.mark.parametrize("chosen", GRAPHS.values(), ids=lambda g: g.name)
def test_every_argument_is_documented_and_shown(
    chosen: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up_code([chosen.name, "--show-args"]) == 0
    text = capsys.readouterr().out
    for argument in chosen.arguments:
        assert argument.doc
        assert f"{argument.name}:=" in text
        assert not argument.choices or argument.default in argument.choices


NEEDED = {name: {"pace": "realtime"} for name in ("spacemouse", "joy", "console")}
"""Choices that need another argument, of graphs that have it."""


def variants(chosen: Graph) -> list[dict[str, str]]:
    """Defaults, and every choice of every argument on its own."""
    found: list[dict[str, str]] = [{}]
    names = {argument.name for argument in chosen.arguments}
    for argument in chosen.arguments:
        if argument.name == "log_level":
            continue
        choices = argument.choices or (
            ("true", "false") if isinstance(argument.default, bool) else ()
        )
        found += [{argument.name: choice, **_needed(choice, names)} for choice in choices]
    return found


def _needed(choice: str, names: set[str]) -> dict[str, str]:
    return {name: value for name, value in NEEDED.get(choice, {}).items() if name in names}


CASES = [(g, v) for g in GRAPHS.values() for v in variants(g)] + [
    (GRAPHS["sim"], {"actors": "3"}),
]


@pytest.mark.parametrize(("chosen", "given"), CASES, ids=lambda x: getattr(x, "name", str(x)))
def test_nodes_are_consistent(chosen: Graph, given: dict[str, str]) -> None:
    nodes = chosen.nodes(chosen.resolve(given))
    names = [node.full_name for node in nodes]
    assert len(set(names)) == len(names)
    manager = next(node for node in nodes if node.name == "hil_manager")
    assert manager.parameters["nodes"] == [node.full_name for node in nodes if node.managed]
    order = stop_order(nodes)
    assert sorted(n.full_name for group in order for n in group) == sorted(names)
    assert order[0] == [manager], "nobody wakes up what is being stopped"
    position = {node.name: i for i, group in enumerate(order) for node in group}
    for node in nodes:
        for used in node.uses:
            assert used not in position or position[node.name] < position[used]


def test_run_id_is_made_once_and_shared() -> None:
    chosen = graph("sim")
    values = chosen.resolve({"task": "reach"})
    assert values.run_id.startswith("reach-")
    nodes = {node.name: node for node in chosen.nodes(values)}
    assert nodes["learner"].parameters["run_id"] == values.run_id
    assert nodes["actor"].parameters["run_id"] == values.run_id


def test_several_actors_share_nothing_but_the_learner() -> None:
    chosen = graph("sim")
    nodes = chosen.nodes(chosen.resolve({"actors": "2", "seed": "5"}))
    shared = [node.full_name for node in nodes if not node.namespace]
    assert shared == ["/learner", "/hil_manager"]
    for number, name in ((1, "actor1"), (2, "actor2")):
        stack = [node for node in nodes if node.namespace == name]
        assert len(stack) == (len(nodes) - 2) / 2
        assert {n.parameters["seed"] for n in stack if "seed" in n.parameters} == {4 + number}
        actor = next(node for node in stack if node.name == "actor")
        assert actor.parameters["actor_id"] == name
        assert dict(actor.remappings)["learner/insert_steps"] == "/learner/insert_steps"
        for node in stack:
            assert dict(node.remappings)["/hil_sim/advance"] == f"/{name}/hil_sim/advance"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"actors": "0"}, "actors:=0: must be 1 to"),
        ({"actors": "1000"}, "actors:=1000: must be 1 to"),
        ({"actors": "2", "operator": "spacemouse"}, "one device cannot drive several arms"),
    ],
)
def test_impossible_numbers_of_actors_are_refused(given: dict[str, str], message: str) -> None:
    chosen = graph("sim")
    with pytest.raises(ArgumentError, match=message):
        chosen.nodes(chosen.resolve(given))


def test_params_files_go_to_every_node_and_win(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("/**: {ros__parameters: {}}\n")
    chosen = graph("real_franka")
    nodes = chosen.nodes(chosen.resolve({"params_file": f"graphs/demo, {file}"}))
    for node in nodes:
        files = parameter_files(node, tmp_path)
        assert [Path(path).name for path in files[-2:]] == ["demo.yaml", "mine.yaml"]
        assert not node.parameters or files[-3] == str(
            tmp_path / "parameters" / f"{process_name(node)}.yaml"
        )
    bridge = next(node for node in nodes if node.name == "robot_bridge")
    assert Path(parameter_files(bridge, tmp_path)[0]).name == "fr3.yaml"


def test_parameters_are_written_for_the_node_alone(tmp_path: Path) -> None:
    node = Node("p", "e", "actor", "left", parameters={"a": 1, "b": "1", "c": True, "d": 1e-5})
    (path,) = parameter_files(node, tmp_path)
    assert yaml.safe_load(Path(path).read_text()) == {
        "left/actor": {"ros__parameters": {"a": 1, "b": "1", "c": True, "d": 1e-5}}
    }


def test_files_by_name_and_by_path(tmp_path: Path) -> None:
    file = config_folder() / "robots" / "fr3.yaml"
    assert config_file("fr3", "robot", "robots") == str(file)
    assert config_file(str(file), "robot") == str(file)
    assert config_file("robots/fr3", "params_file") == str(file)
    with pytest.raises(ArgumentError, match=r"robot:=fr33: no such file; .*did you mean fr3\?"):
        config_file("fr33", "robot", "robots")


@pytest.mark.parametrize(
    "path", sorted((config_folder() / "graphs").glob("*.yaml")), ids=lambda p: p.name
)
def test_shipped_parameter_files_name_nodes_of_a_graph(path: Path) -> None:
    nodes = {n.name: n for g in GRAPHS.values() for n in g.nodes(g.resolve({}))}
    for name, section in yaml.safe_load(path.read_text()).items():
        fields = {f.name for f in dataclasses.fields(node_class(nodes[name].executable).Params)}
        assert set(section["ros__parameters"]) <= fields


def test_full_name() -> None:
    assert Node("p", "e", "actor").full_name == "/actor"
    assert Node("p", "e", "actor", namespace="/left/").full_name == "/left/actor"


def test_a_circle_of_users_is_refused() -> None:
    nodes = [Node("p", "e", "a", uses=("b",)), Node("p", "e", "b", uses=("a",))]
    with pytest.raises(ValueError, match="circle"):
        stop_order(nodes)


def node_class(executable: str) -> type[HilNode]:
    """The node that an executable runs: the only HilNode that its module defines."""
    entry = next(iter(entry_points(group="console_scripts", name=executable)))
    module = importlib.import_module(entry.module)
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, HilNode)
        and value.__module__ == module.__name__
    )
    return found


@pytest.mark.parametrize(("chosen", "given"), CASES, ids=lambda x: getattr(x, "name", str(x)))
def test_names_and_parameters_are_those_of_the_code(chosen: Graph, given: dict[str, str]) -> None:
    for node in chosen.nodes(chosen.resolve(given)):
        fields = {f.name for f in dataclasses.fields(node_class(node.executable).Params)}
        assert set(node.parameters) <= fields, node.name


@pytest.mark.parametrize("operator", ["spacemouse", "joy"])
def test_a_person_cannot_answer_in_lockstep(operator: str) -> None:
    chosen = graph("sim")
    with pytest.raises(ArgumentError, match="needs pace:=realtime"):
        chosen.nodes(chosen.resolve({"operator": operator}))
    assert chosen.nodes(chosen.resolve({"operator": operator, "pace": "realtime"}))


@pytest.mark.parametrize("chosen", GRAPHS.values(), ids=lambda g: g.name)
def test_only_an_explicit_argument_opens_the_network(chosen: Graph) -> None:
    assert network_environment(chosen.resolve({})) == {}
    environment = network_environment(chosen.resolve({"network": "lan"}))
    assert environment == {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}


@pytest.mark.parametrize(("network", "expected"), [("localhost", "LOCALHOST"), ("lan", "SUBNET")])
def test_processes_get_the_discovery_range(
    network: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    chosen = graph("sim")
    given = {"network": network, "run_dir": str(tmp_path), "run_id": "run"}
    values = chosen.resolve(given)
    code = "import os; print(os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'])"
    shows = Process("shows", (sys.executable, "-c", code), Respawn("never"))
    assert up.run(up.Request(chosen, values), [], more=[shows]) == 0
    assert f" {expected}\n" in (tmp_path / "run" / "log" / "shows.log").read_text()


def test_a_node_that_was_interrupted_alone_comes_back() -> None:
    for chosen in GRAPHS.values():
        for node in chosen.nodes(chosen.resolve({})):
            assert node.respawn.policy == "always", node.full_name
