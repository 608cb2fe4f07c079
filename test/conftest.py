"""Fixtures of the system tests: whole graphs, each in a ROS domain of its own."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ament_index_python.packages import get_package_prefix

sys.path.insert(0, str(Path(__file__).parent))

from system import Domain

from hil_bringup.cli.environment import runtime_defaults


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A whole graph takes long to start where other things run."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", autouse=True)
def runtime_environment() -> None:
    """What every process of a graph needs, unless somebody has set it."""
    for name, value in runtime_defaults(Path(get_package_prefix("hil_common"))).items():
        os.environ.setdefault(name, value)


@pytest.fixture
def domain() -> Iterator[Domain]:
    """A ROS domain that nobody else on this machine uses."""
    with Domain() as reserved:
        yield reserved
