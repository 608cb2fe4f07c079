"""The launch files run the graphs, where launch is installed: it is not on PyPI."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from system import GENEROUS, Domain, wait_for

from hil_bringup.graph import GRAPHS

FOLDER = Path(__file__).parent


def missing(*names: str) -> list[str]:
    """Packages of these that cannot be imported.

    A folder of that name (the repository has `launch`) is found, too, but has no code.
    """
    specs = {name: importlib.util.find_spec(name) for name in names}
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]


def need(*names: str) -> None:
    """Skip the test where packages are missing, saying which."""
    lacking = missing(*names)
    if lacking:
        pytest.skip(f"not installed here (they are not on PyPI): {', '.join(lacking)}")


def test_sim_under_launch(domain: Domain, tmp_path: Path) -> None:
    """launch_sim.py passes: ready, an episode, an orderly end; and no process stays."""
    need("launch", "launch_ros", "launch_testing")
    environment = {**domain.environment(tmp_path), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "launch_testing.launch_test", str(FOLDER / "launch_sim.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=GENEROUS,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout[-8000:]}\n{ended.stderr[-4000:]}"
    wait_for(lambda: not domain.processes(), "all processes to end")


@pytest.mark.parametrize("name", GRAPHS)
def test_show_args(name: str, domain: Domain, tmp_path: Path) -> None:
    """`ros2 launch hil_bringup NAME.launch.py --show-args` lists every argument and its text."""
    need("launch", "launch_ros", "ros2cli", "ros2launch")
    main = "import sys; from ros2cli.cli import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", main, "launch", "hil_bringup", f"{name}.launch.py", "--show-args"],
        env=domain.environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GENEROUS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    for argument in GRAPHS[name].arguments:
        assert f"'{argument.name}':" in ended.stdout
        assert argument.doc in ended.stdout
