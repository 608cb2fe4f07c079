"""The documentation against the code: tables, links, commands, parameters, messages, examples."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import io
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

import hil_tasks
from hil_actor import spool_tool
from hil_bringup import demo, evaluate, train, up
from hil_bringup.arguments import split
from hil_bringup.cli.main import _parser
from hil_bringup.graph import GRAPHS
from hil_learner.episodes import Episode
from hil_robot_bridge import selftest_main
from hil_tasks.peg_insert import PegInsertParams

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LIMIT = 240.0
"""Seconds that a busy machine may take for what takes five."""

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A fenced block."""

    page: str
    language: str
    text: str


def read(path: Path) -> str:
    return _COMMENT.sub("", path.read_text(encoding="utf-8"))


def prose(path: Path) -> str:
    return _FENCE.sub("", read(path))


def blocks(language: str = "") -> list[Block]:
    found = [
        Block(path.name, kind, text) for path in PAGES for kind, text in _FENCE.findall(read(path))
    ]
    return [block for block in found if not language or block.language == language]


def block(start: str) -> str:
    """The one fenced block that begins with a text."""
    (found,) = [each.text for each in blocks() if each.text.startswith(start)]
    return found


# -------------------------------------------------------------------------------------- tables


def test_tables_are_as_the_code_has_them() -> None:
    command = [sys.executable, str(ROOT / "docs" / "make_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_is_explained() -> None:
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    source = (ROOT / "src" / "hil_rl" / "hil_rl" / "sac.py").read_text(encoding="utf-8")
    names = set(re.findall(r'terms\["(\w+)"\]', source))
    assert "critic_loss" in names
    names |= {field.name for field in dataclasses.fields(Episode)}
    names -= {"actor_id", "stream", "episode"}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_figures_of_the_demo() -> None:
    text = " ".join(read(ROOT / "README.md").split())
    options, task = demo.parse([]), PegInsertParams()
    low, high = task.estimate_error_min * 1e3, task.estimate_error * 1e3
    for figure in (
        f"gives {options.demos} demonstrations",
        f"trains for {options.steps} steps",
        f"evaluated in {options.eval_episodes} episodes",
        f"{task.clearance * 1e3:g} mm of play on each side",
        f"{low:g} to {high:g} mm beside where it is",
    ):
        assert figure in text


# --------------------------------------------------------------------------------------- links


def anchors(path: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_resolve(path: Path) -> None:
    broken = []
    for target in _LINK.findall(prose(path)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


# ------------------------------------------------------------------------------------ commands


def commands() -> list[tuple[str, list[str]]]:
    """Every command of this project in the pages: page, words."""
    found = []
    for path in PAGES:
        lines = [line for _, text in _FENCE.findall(read(path)) for line in text.splitlines()]
        for text in [*lines, *_SPAN.findall(prose(path))]:
            words = re.sub(r"\s+#.*$", "", text).removeprefix("$ ")
            words = re.sub(r"^(\w+=\S+ )*", "", words)
            if words.startswith(("./hil ", "ros2 ")) and "..." not in words:
                found.append((path.name, shlex.split(words)))
    assert len(found) > 30
    return found


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{page}: {' '.join(words)}") for page, words in commands()]
)
def test_commands_exist(words: list[str]) -> None:
    if words[0] == "./hil":
        check_hil(words[1:])
    elif words[1:] == ["launch"]:
        assert list((ROOT / "launch").glob("*.launch.py"))
    elif words[1] == "launch":
        check_launch(words[2:])
    elif words[1] == "run" and words[2].startswith("hil_"):
        check_run(words[2:])
    elif words[1:3] in (["action", "send_goal"], ["service", "call"]):
        check_request(*words[3:])


def check_hil(words: list[str]) -> None:
    options, rest = _parser().parse_known_args(words)
    if options.command == "up" and rest:
        graph, arguments = rest[0], rest[1:]
        assert graph in GRAPHS or graph == "GRAPH"
        if graph != "GRAPH" and "--help" not in arguments:
            up.parse(rest)
    elif options.command == "demo":
        demo.parse(rest)
    elif options.command == "train":
        train.parse(rest)
    elif options.command == "eval":
        evaluate.parse(rest)
    elif options.command == "spool":
        spool_tool.parse(rest)
    elif options.command == "robot":
        assert rest[0] == "selftest"
        selftest_main.parse(rest[1:])
    elif options.command == "bench" and rest:
        assert (ROOT / "bench" / f"{rest[0]}.py").is_file()
    elif options.command != "test":
        assert rest == []


def check_launch(words: list[str]) -> None:
    package, file, *arguments = words
    assert package == "hil_bringup"
    if file == "GRAPH.launch.py":
        return
    assert (ROOT / "launch" / file).is_file()
    given = [each for each in arguments if each != "--show-args"]
    GRAPHS[file.removesuffix(".launch.py")].resolve(split(given))


def check_run(words: list[str]) -> None:
    package, executable, *rest = words
    nodes = [n for g in GRAPHS.values() for n in g.nodes(g.resolve({}))]
    (name,) = {n.name for n in nodes if (n.package, n.executable) == (package, executable)}
    given = [value for flag, value in itertools.pairwise(rest) if flag == "-p"]
    assert set(split(given)) <= parameters()[name].keys()


def check_request(name: str, kind: str, request: str = "{}") -> None:
    page = (ROOT / "docs" / "interfaces.md").read_text(encoding="utf-8")
    assert f"`{name.strip('/')}`" in page
    module, _, what = kind.replace("/", ".").rpartition(".")
    interface = getattr(importlib.import_module(module), what)
    message = interface.Goal() if ".action" in module else interface.Request()
    check_fields(message, yaml.safe_load(request))


def check_fields(message: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            check_fields(getattr(message, key), value)
        else:
            setattr(message, key, value)


def test_checks_notice_what_is_wrong() -> None:
    for wrong in ("upp sim", "up sin", "up sim taks:=reach", "demo --stepz 3", "setup now"):
        with pytest.raises((SystemExit, AssertionError)):
            check_hil(wrong.split())
    with pytest.raises(AttributeError):
        check_request("actor/run_episodes", "hil_interfaces/action/RunEpisodes", "{mod: demo}")


# ------------------------------------------------------------------------- parameters and tasks


def parameters() -> dict[str, dict[str, str]]:
    """Node -> parameter -> type, from the page that another test compares with the code."""
    text = (ROOT / "docs" / "interfaces.md").read_text(encoding="utf-8")
    text = text.partition("\n## Parameters\n")[2].partition("\n## ")[0]
    found = {}
    for section in text.split("\n### ")[1:]:
        name, _, rest = section.partition("\n")
        found[name] = dict(re.findall(r"^\| `([^`]+)` \| (\S+) \|", rest, re.MULTILINE))
    return found


_TYPES: dict[str, Any] = {"bool": bool, "int": int, "float": (int, float), "str": str}


def test_parameter_files_name_parameters() -> None:
    known = parameters()
    seen = 0
    for each in blocks("yaml"):
        for node, content in yaml.safe_load(each.text).items():
            if not isinstance(content, dict) or "ros__parameters" not in content:
                continue
            for name, value in content["ros__parameters"].items():
                kind = known[node][name]
                assert isinstance(value, list) == kind.endswith("[]"), (each.page, name)
                for item in value if isinstance(value, list) else [value]:
                    assert isinstance(item, _TYPES[kind.removesuffix("[]")]), (each.page, name)
                seen += 1
    assert seen >= 10


@pytest.fixture(name="press")
def _press(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of howto_new_task.md, found as an installed one."""
    package = tmp_path / "my_tasks"
    info = tmp_path / "my_tasks-0.1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "press.py").write_text(block("# my_tasks/press.py"))
    project = block("# pyproject.toml")
    entries = project.partition("[project.entry-points.hil_tasks]\n")[2].replace('"', "")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_tasks\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[hil_tasks]\n{entries}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("my_tasks")]:
        del sys.modules[name]


@pytest.mark.usefixtures("press")
def test_a_new_task_works() -> None:
    task = hil_tasks.load("press")
    script: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()) as output:
        exec(compile(block("# try_press.py"), "try_press.py", "exec"), script)
    assert script["outcome"].success, output.getvalue()
    assert task.spec.observation_space.contains(task.observe(script["world"].reading()))
    assert script["step"] > 3


@pytest.mark.usefixtures("press")
def test_task_files_load_and_start_inside_their_box(tmp_path: Path) -> None:
    seen = 0
    for each in blocks("yaml"):
        if "task" not in yaml.safe_load(each.text):
            continue
        file = tmp_path / "task.yaml"
        file.write_text(each.text)
        task = hil_tasks.load_file(file)
        low, high = np.array(task.spec.workspace.low), np.array(task.spec.workspace.high)
        for seed in range(20):
            start = task.sample_start(np.random.default_rng(seed)).position
            assert (low <= start).all() and (start <= high).all(), each.page
        nominal = np.array(task.spec.reset.position)
        assert (low <= nominal).all() and (nominal <= high).all(), each.page
        seen += 1
    assert seen >= 2


def test_python_examples_compile_and_those_without_ros_run() -> None:
    for each in blocks("python"):
        compile(each.text, each.page, "exec")
    with redirect_stdout(io.StringIO()) as output:
        exec(compile(block("import hil_tasks\n"), "quick_start.md", "exec"), {})
    assert output.getvalue().startswith("Outcome(")


# ------------------------------------------------------------------------------------ messages


def texts_of_the_code() -> list[str]:
    """Every string of the sources; a NUL stands for what is filled in."""
    found = []
    for path in [ROOT / "hil", *sorted((ROOT / "src").glob("*/hil_*/**/*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
                found.append("".join(map(str, parts)))
    return found


def test_messages_are_those_of_the_code() -> None:
    known = "\n".join(texts_of_the_code())
    page = read(ROOT / "docs" / "troubleshooting.md")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 50
    wrong = [
        (message, part)
        for message in messages
        for part in message.split("<...>")
        if part not in known
    ]
    assert wrong == []
