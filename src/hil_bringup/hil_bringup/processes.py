"""From the description of a node to what is executed: command line and parameter files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hil_bringup.arguments import ArgumentError
from hil_bringup.graph import Node
from hil_bringup.supervisor import Process


def process(
    node: Node, run_folder: Path, log_level: str, environment: Mapping[str, str]
) -> Process:
    """The process of a node; its parameters are written into the run folder.

    Raises:
        ArgumentError: its package is not installed.
    """
    command = [str(find_executable(node, environment)), "--ros-args", "--log-level", log_level]
    for file in parameter_files(node, run_folder):
        command += ["--params-file", file]
    if node.namespace:
        command += ["-r", f"__ns:=/{node.namespace.strip('/')}"]
    for source, target in node.remappings:
        command += ["-r", f"{source}:={target}"]
    return Process(process_name(node), tuple(command), node.respawn, node.required)


def process_name(node: Node) -> str:
    """Name of a node's process in logs and file names."""
    return node.full_name.strip("/").replace("/", ".")


def parameter_files(node: Node, run_folder: Path) -> list[str]:
    """Parameter files of a node in the order in which they are read; its own one is written.

    That one names the node in full: other nodes of the same process do not get its parameters.
    """
    files = [*node.parameter_files, *node.override_files]
    if not node.parameters:
        return files
    import yaml  # not there before set-up

    path = run_folder / "parameters" / f"{process_name(node)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the leading slash, as people write it: rcl applies files in order only among equal
    # keys.
    content = {node.full_name.lstrip("/"): {"ros__parameters": dict(node.parameters)}}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    files.insert(len(node.parameter_files), str(path))
    return files


def find_executable(node: Node, environment: Mapping[str, str]) -> Path:
    """The executable of a node in the ament prefixes.

    Raises:
        ArgumentError: none has it.
    """
    for prefix in environment.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        path = Path(prefix) / "lib" / node.package / node.executable
        if prefix and os.access(path, os.X_OK):
            return path
    raise ArgumentError(
        f"package {node.package} with {node.executable} is not installed: "
        "build it with ./hil setup (or colcon build) and source the workspace"
    )
