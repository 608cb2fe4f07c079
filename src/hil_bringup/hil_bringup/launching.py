"""From the description of a graph to launch actions. Needs `launch` and `launch_ros`."""

from __future__ import annotations

import os
from pathlib import Path

from ament_index_python.packages import get_package_prefix
from launch.actions import (
    DeclareLaunchArgument,
    OpaqueFunction,
    SetEnvironmentVariable,
    Shutdown,
)
from launch_ros.actions import Node as LaunchNode

from hil_bringup.arguments import Argument
from hil_bringup.cli.environment import runtime_defaults
from hil_bringup.console import FORMAT
from hil_bringup.graph import Graph, Node, graph, network_environment
from hil_bringup.processes import parameter_files
from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity


def launch_description(name: str) -> LaunchDescription:
    """The graph of that name with its arguments as launch arguments.

    The lifecycle of the nodes is hil_manager's business, under `ros2 launch` as under `hil up`.
    """
    chosen = graph(name)
    return LaunchDescription(
        [
            *_environment(),
            *(_declare(argument) for argument in chosen.arguments),
            OpaqueFunction(function=_start, args=[chosen]),
        ]
    )


def _environment() -> list[LaunchDescriptionEntity]:
    defaults = runtime_defaults(Path(get_package_prefix("hil_common")))
    defaults["RCUTILS_CONSOLE_OUTPUT_FORMAT"] = FORMAT
    defaults["PYTHONUNBUFFERED"] = "1"
    return [
        SetEnvironmentVariable(name, value)
        for name, value in defaults.items()
        if name not in os.environ
    ]


def _declare(argument: Argument) -> DeclareLaunchArgument:
    choices = list(argument.choices)
    if isinstance(argument.default, bool):
        choices = ["true", "false"]
    return DeclareLaunchArgument(
        argument.name,
        default_value=argument.default_text,
        description=argument.doc,
        choices=choices or None,
    )


def _start(context: LaunchContext, chosen: Graph) -> list[LaunchDescriptionEntity]:
    given = {a.name: context.launch_configurations[a.name] for a in chosen.arguments}
    values = chosen.resolve(given)
    folder = Path(values.run_dir).expanduser().absolute() / values.run_id
    network = network_environment(values)
    return [
        *(SetEnvironmentVariable(name, value) for name, value in network.items()),
        *(_action(node, folder, values.log_level) for node in chosen.nodes(values)),
    ]


def _action(node: Node, run_folder: Path, log_level: str) -> LaunchNode:
    """Launch starts a process again however it ended, after a fixed delay, `limit` times."""
    respawn = node.respawn.policy != "never"
    return LaunchNode(
        package=node.package,
        executable=node.executable,
        # No `name`: launch would give it to every node of the process.
        exec_name=node.name,
        namespace=node.namespace or None,
        parameters=parameter_files(node, run_folder),
        remappings=list(node.remappings),
        ros_arguments=["--log-level", log_level],
        respawn=respawn,
        respawn_delay=node.respawn.delay,
        respawn_max_retries=node.respawn.limit,
        on_exit=Shutdown(reason=f"{node.name} ended") if node.required and not respawn else None,
        output="screen",
    )
