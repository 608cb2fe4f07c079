"""Set-up on a small tree with a small interpreter: what runs when, and what is said."""

import ast
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hil_bringup.cli import checks, interpreters, main, setup_steps, tests, workspace
from hil_bringup.cli.checks import Machine
from hil_bringup.cli.interpreters import Interpreter
from hil_bringup.cli.progress import CommandError, Progress
from hil_bringup.cli.setup_steps import Setup
from hil_bringup.cli.stamps import Stamp, digest, digest_files
from hil_bringup.cli.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]
CLI = ROOT / "src" / "hil_bringup" / "hil_bringup"
PYTHON = Interpreter("/usr/bin/python3.11", (3, 11, 2), has_venv=True, has_headers=True)
COMPLETE = Machine(
    which=lambda name: f"/usr/bin/{name}",
    loads=lambda name: True,
    disk_free=lambda path: 100 * checks.GIB,
    memory=lambda: 16 * checks.GIB,
    architecture="x86_64",
)


# ----------------------------------------------------------------------------------- bootstrap


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_what_runs_before_set_up_imports_only_the_standard_library() -> None:
    allowed = {"yaml", "ament_index_python.packages"}  # inside functions that need set-up
    todo, seen = {"hil_bringup.cli.main", "hil_bringup.up", "hil_bringup.demo"}, set()
    while todo:
        name = todo.pop()
        seen.add(name)
        path = ROOT / "src" / "hil_bringup" / f"{name.replace('.', '/')}.py"
        if not path.is_file():
            path = path.with_suffix("") / "__init__.py"
        for module in imported(path) - allowed:
            if module.split(".")[0] == "hil_bringup":
                names = {module, *(f"{module}.{p.stem}" for p in _modules(module, path))}
                todo |= {n for n in names if n not in seen and _exists(n)}
            else:
                assert module.split(".")[0] in sys.stdlib_module_names, f"{name} imports {module}"


def _modules(module: str, importer: Path) -> list[Path]:
    """Submodules that `from module import x` may mean."""
    folder = ROOT / "src" / "hil_bringup" / module.replace(".", "/")
    text = importer.read_text()
    return [p for p in folder.glob("*.py") if re.search(rf"import .*\b{p.stem}\b", text)]


def _exists(name: str) -> bool:
    base = ROOT / "src" / "hil_bringup" / name.replace(".", "/")
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


def test_hil_runs_without_the_environment_and_lists_its_commands() -> None:
    answer = subprocess.run(
        [sys.executable, "-S", "-I", str(ROOT / "hil"), "--help"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    for command in ("setup", "doctor", "demo", "test", "up", "status", "bench"):
        assert re.search(rf"^    {command} ", answer.stdout, re.MULTILINE)


def test_hil_file_is_readable_for_old_pythons() -> None:
    ast.parse((ROOT / "hil").read_text(), feature_version=(3, 5))


# -------------------------------------------------------------------------------------- checks


def test_complete_machine_lacks_nothing(tmp_path: Path) -> None:
    found = checks.run_checks(PYTHON, tmp_path, COMPLETE)
    assert checks.missing(found) == []
    assert checks.packages(found) == ()


@pytest.mark.parametrize(
    ("machine", "python", "named", "package"),
    [
        ({"which": lambda n: None if n == "c++" else n}, {}, "no c++", "build-essential"),
        ({"which": lambda n: None if n == "cmake" else n}, {}, "cmake", "cmake"),
        ({"which": lambda n: None if n == "make" else n}, {}, "make", "make"),
        ({"loads": lambda n: False}, {}, "neither OSMesa nor EGL", "libosmesa6"),
        ({}, {"has_venv": False}, "virtual environment", "python3.11-venv"),
        ({}, {"has_headers": False}, "Python.h missing", "python3.11-dev"),
    ],
)
def test_each_missing_thing_is_named_with_its_package(
    tmp_path: Path, machine: dict[str, object], python: dict[str, bool], named: str, package: str
) -> None:
    found = checks.run_checks(
        replace(PYTHON, **python),
        tmp_path,
        replace(COMPLETE, **machine),  # type: ignore[arg-type]
    )
    assert checks.missing(found)
    report = checks.report(found)
    assert named in report
    assert package in checks.packages(found)
    assert re.search(rf"apt-get install -y .*\b{re.escape(package)}", report) or named in report


def test_without_any_python_the_packages_are_named(tmp_path: Path) -> None:
    found = checks.run_checks(None, tmp_path, COMPLETE)
    assert "python3-venv" in checks.packages(found)


def test_python_from_elsewhere_gets_advice_instead_of_a_package(tmp_path: Path) -> None:
    python = Interpreter("/opt/py/bin/python3.12", (3, 12, 1), has_venv=True, has_headers=False)
    found = checks.run_checks(python, tmp_path, COMPLETE)
    assert checks.packages(found) == ()
    assert "not the distribution's" in checks.report(found)


def test_full_disk_is_refused_and_little_memory_is_a_warning(tmp_path: Path) -> None:
    machine = replace(COMPLETE, disk_free=lambda p: checks.GIB, memory=lambda: 2**20)
    lacking = checks.missing(checks.run_checks(PYTHON, tmp_path, machine))
    assert [check.name for check in lacking] == ["disk space"]


def test_missing_optional_things_do_not_stop_set_up(tmp_path: Path) -> None:
    machine = replace(COMPLETE, loads=lambda n: "hidapi" not in n)
    found = checks.run_checks(PYTHON, tmp_path, machine)
    assert checks.missing(found) == []
    assert checks.packages(found) == ("libhidapi-hidraw0",)


def test_install_command() -> None:
    install = "apt-get install -y --no-install-recommends cmake make"
    names = ["cmake", "make"]
    assert checks.install_command(names, root=True) == f"apt-get update && {install}"
    assert checks.install_command(names, root=False) == f"sudo apt-get update && sudo {install}"


# --------------------------------------------------------------------------------- interpreters


def test_own_interpreter_is_probed() -> None:
    found = interpreters.probe(sys.executable)
    assert found is not None
    assert found.version == sys.version_info[:3]
    assert found.supported
    assert interpreters.probe("/nowhere/python3") is None


def test_the_first_complete_interpreter_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "old": replace(PYTHON, version=(3, 9, 1)),
        "bare": replace(PYTHON, has_headers=False),
        "good": PYTHON,
    }
    monkeypatch.setattr(interpreters, "probe", known.get)
    assert interpreters.choose(["gone", "old", "bare", "good"]) is known["good"]
    assert interpreters.choose(["old", "bare"]) is known["bare"]
    assert interpreters.choose(["old", "gone"]) is None


# --------------------------------------------------------------------------------------- stamps


def test_stamp_says_from_what_a_thing_was_made(tmp_path: Path) -> None:
    stamp = Stamp(tmp_path / "thing" / "stamp")
    assert not stamp.fresh("a")
    stamp.set("a")
    assert stamp.fresh("a")
    assert not stamp.fresh("b")
    stamp.clear()
    assert not stamp.fresh("a")


def test_digest_knows_names_contents_and_borders(tmp_path: Path) -> None:
    assert digest("ab", "c") != digest("a", "bc")
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("y")
    files = [tmp_path / "a", tmp_path / "b"]
    first = digest_files(files, tmp_path)
    assert digest_files(reversed(files), tmp_path) == first
    (tmp_path / "b").write_text("z")
    assert digest_files(files, tmp_path) != first


# ---------------------------------------------------------------------------------------- steps


FAKE_PYTHON = """#!{shell}
# Stands for an interpreter: `-m venv DIR` makes an environment whose programs are this file.
echo "$(basename "$0") $*" >> {record}
[ -e "{fail}/$(basename "$0")" ] && {{ echo "cannot do that"; exit 3; }}
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; for p in python3 colcon; do cp "$0" "$3/bin/$p"; done ;;
  *"import sys, pip"*) echo 3.11 ;;
  *"pip install"*) [ -e {hang} ] && sleep 1000 ;;
esac
exit 0
"""


@pytest.fixture
def tree(tmp_path: Path) -> "Tree":
    return Tree(tmp_path)


class Tree:
    """A checkout with two packages and one foreign interface."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.record, self.fail, self.hang = folder / "record", folder / "fail", folder / "hang"
        self.fail.mkdir()
        for name in ("requirements.txt", "requirements-wheels.txt", "colcon.meta"):
            self.write(name, "1")
        self.write("src/hil_interfaces/package.xml", "<package/>")
        self.write("src/hil_interfaces/msg/A.msg", "int32 a")
        self.write("src/hil_actor/package.xml", "<package/>")
        self.write("src/hil_actor/setup.py", "setup()")
        self.write("src/hil_actor/hil_actor/node.py", "pass")
        self.write("compat_interfaces/franka_msgs/package.xml", "<package/>")
        self.python = folder / "bin" / "python3"
        self.python.parent.mkdir()
        self.python.write_text(
            FAKE_PYTHON.format(shell="/bin/sh", record=self.record, fail=self.fail, hang=self.hang)
        )
        self.python.chmod(0o755)
        self.output = io.StringIO()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def setup(self, **environment: str) -> Setup:
        interpreter = replace(PYTHON, executable=str(self.python))
        progress = Progress(self.root / "log" / "setup.log", self.output)
        base = {"PATH": os.environ["PATH"], **environment}
        return Setup(Workspace(self.root), interpreter, progress, base)

    def run(self) -> list[str]:
        """Run set-up; names of the steps that ran."""
        before = [step.name for step in self.setup().steps() if not step.fresh]
        self.setup().run()
        return before

    def commands(self) -> str:
        return self.record.read_text() if self.record.exists() else ""


ALL = ["venv", "pip", "exports", "interfaces", "packages"]


def test_first_run_does_everything_and_the_second_nothing(tree: Tree) -> None:
    assert tree.run() == ALL
    assert tree.run() == []
    assert tree.commands().count("pip install") == 1
    assert "--packages-select franka_msgs hil_interfaces" in tree.commands()
    assert "--packages-select hil_actor" in tree.commands()


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("requirements.txt", ["pip", "exports", "interfaces", "packages"]),
        ("requirements-wheels.txt", ["pip", "exports", "interfaces", "packages"]),
        ("src/hil_interfaces/msg/A.msg", ["interfaces"]),
        ("src/hil_interfaces/msg/B.msg", ["interfaces"]),
        ("colcon.meta", ["interfaces"]),
        ("src/hil_actor/setup.py", ["packages"]),
        ("src/hil_actor/config/new.yaml", ["packages"]),
        ("src/hil_other/package.xml", ["packages"]),
        ("src/hil_actor/hil_actor/node.py", []),
        ("src/hil_actor/hil_actor/more.py", []),
        ("src/hil_actor/test/test_more.py", []),
    ],
)
def test_only_what_changed_runs_again(tree: Tree, change: str, again: list[str]) -> None:
    tree.run()
    tree.write(change, "2")
    assert tree.run() == again
    assert tree.run() == []


def test_a_removed_environment_is_made_again_with_all_that_names_it(tree: Tree) -> None:
    tree.run()
    subprocess.run(["rm", "-r", str(tree.root / ".venv")], check=True)
    tree.run()
    assert tree.commands().count("colcon --log-base") == 4, "interfaces and packages, twice"
    assert tree.run() == []


def test_a_failed_step_shows_the_end_of_its_output_and_is_repeated(tree: Tree) -> None:
    (tree.fail / "colcon").touch()
    with pytest.raises(CommandError) as error:
        tree.run()
    assert "colcon failed with exit code 3" in str(error.value)
    assert "| cannot do that" in str(error.value)
    assert "setup.log" in str(error.value)
    (tree.fail / "colcon").unlink()
    assert tree.run() == ["interfaces", "packages"]


def test_an_interrupted_step_ends_what_it_started_and_is_repeated(tree: Tree) -> None:
    tree.hang.touch()
    with pytest.raises(KeyboardInterrupt), interrupt_when(tree.record, "pip install"):
        tree.run()
    tree.hang.unlink()
    assert tree.run() == ALL[1:]


@contextlib.contextmanager
def interrupt_when(record: Path, text: str) -> Iterator[None]:
    """Ctrl-C as soon as the record holds the text."""

    def watch() -> None:
        pause = threading.Event()
        while not (record.exists() and text in record.read_text()):
            pause.wait(0.01)
        os.kill(os.getpid(), 2)

    # A test run that was started in the background inherits an ignored SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()
        signal.signal(signal.SIGINT, before)


def test_progress_is_visible_without_a_terminal(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hil_bringup.cli.progress._REPORT_PERIOD", 0.0)
    tree.run()
    text = tree.output.getvalue()
    assert "[1/5] virtual environment ..." in text
    assert "done in" in text


def test_system_ros_takes_its_own_requirements_and_interfaces(tree: Tree, tmp_path: Path) -> None:
    tree.write("requirements-jazzy.txt", "numpy<2")
    prefix = tmp_path / "jazzy"
    for package in ("rclpy", "franka_msgs"):
        index = prefix / "share" / "ament_index" / "resource_index" / "packages" / package
        index.parent.mkdir(parents=True, exist_ok=True)
        index.touch()
    setup = tree.setup(ROS_DISTRO="jazzy", AMENT_PREFIX_PATH=str(prefix))
    assert setup.system_ros
    assert [path.name for path in setup.requirements()] == [
        "requirements.txt", "requirements-jazzy.txt"
    ]  # fmt: skip
    assert setup.interface_packages() == ["hil_interfaces"]
    assert [step.name for step in setup.steps()] == ["venv", "pip", "interfaces", "packages"]
    setup.run()
    assert "--system-site-packages" in tree.commands()


def test_environment_of_the_other_kind_is_not_replaced(tree: Tree, tmp_path: Path) -> None:
    tree.run()
    tree.write(".venv/pyvenv.cfg", "include-system-site-packages = false\n")
    tree.write("requirements-jazzy.txt", "")
    index = tmp_path / "jazzy" / "share" / "ament_index" / "resource_index" / "packages" / "rclpy"
    index.parent.mkdir(parents=True)
    index.touch()
    setup = tree.setup(ROS_DISTRO="jazzy", AMENT_PREFIX_PATH=str(tmp_path / "jazzy"))
    with pytest.raises(CommandError, match="made for the ROS wheels, and ROS 2 Jazzy is sourced"):
        setup.run()


def test_other_distribution_is_not_taken_for_jazzy() -> None:
    assert workspace.system_ros({"ROS_DISTRO": "humble", "AMENT_PREFIX_PATH": "/opt/ros"}) == ()
    assert workspace.system_ros({}) == ()


def test_exports_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = tmp_path / "share" / "std_msgs" / "cmake"
    share.mkdir(parents=True)
    file = share / "std_msgs__rosidl_generator_pyExport.cmake"
    file.write_text(
        'X "/opt/python/cp311-cp311/include/python3.11;'
        '/opt/python/cp311-cp311/lib/python3.11/site-packages/numpy/_core/include"\n'
    )
    code = f"import sys; sys.prefix = {str(tmp_path)!r}\n{setup_steps._REWRITE_EXPORTS}"
    subprocess.run([sys.executable, "-c", code], check=True)
    text = file.read_text()
    assert "/opt/python" not in text
    for path in re.findall(r'"(.*)"', text)[0].split(";"):
        assert Path(path).is_dir()


# ------------------------------------------------------------------------------------- the rest


def test_requirements_pin_exactly_and_name_no_host() -> None:
    for path in ROOT.glob("requirements*.txt"):
        for line in path.read_text().splitlines():
            code = line.split("#")[0].strip()
            if code and path.name != "requirements-jazzy.txt":
                assert re.fullmatch(
                    r"[a-z0-9.-]+(\[[a-z]+\])?==[0-9][0-9a-z.]*"
                    r'(; python_version (>=|<) "3\.11")?',
                    code,
                ), f"{path.name}: {line}"


def test_test_folders_are_found(tmp_path: Path) -> None:
    for name in ("src/a/test/test_a.py", "test/test_all.py", "src/b/test/helper.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert tests.test_folders(tmp_path) == ["src/a/test", "test"]


def test_unknown_benchmark_names_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench").mkdir()
    for name in ("loop.py", "test_figures.py", "_figures.py"):
        (tmp_path / "bench" / name).touch()
    assert main.main(str(tmp_path), ["bench", "lop"]) == 2
    assert "no benchmark 'lop'; benchmarks: loop\n" in capsys.readouterr().err


def test_mistakes_do_not_wait_for_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(str(tmp_path), ["up", "sim", "pase:=realtime"])
    assert end.value.code == 2
    assert "did you mean pace?" in capsys.readouterr().err
    assert not (tmp_path / ".venv").exists()
