"""Find tasks by name (entry-point group "hil_tasks") and load their override files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import yaml

from hil_tasks.overrides import OverrideError, nearest
from hil_tasks.task import Task

GROUP = "hil_tasks"


class UnknownTask(ValueError):
    """No installed package registers a task of this name."""


def available() -> dict[str, EntryPoint]:
    """Return the registered tasks by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Task:
    """Make a task.

    Args:
        name: registered name.
        overrides: see `hil_tasks.task.Task`.

    Raises:
        UnknownTask: with the nearest or all known names.
        OverrideError: unknown setting or wrong type.
    """
    points = available()
    if name not in points:
        raise UnknownTask(f"unknown task {name!r}{nearest(name, points)}")
    task: Task = points[name].load()(overrides)
    return task


def load_file(path: str | Path) -> Task:
    """Make a task from a YAML file: `task: NAME` and overrides beside it.

    Raises:
        FileNotFoundError: no such file.
        OverrideError: not a mapping, no task named, or a setting is wrong; names the file.
        UnknownTask: the file names a task that is not installed.
    """
    with open(path, encoding="utf-8") as stream:
        try:
            content = yaml.safe_load(stream)
        except yaml.YAMLError as error:
            raise OverrideError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("task"), str):
        raise OverrideError(f"{path}: must be a mapping with 'task: NAME'")
    settings = dict(content)
    name = settings.pop("task")
    try:
        return load(name, settings)
    except OverrideError as error:
        raise OverrideError(f"{path}: {error}") from error
    except UnknownTask as error:
        raise UnknownTask(f"{path}: {error}") from error
