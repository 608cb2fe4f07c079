"""The graphs of nodes, described once: `hil up` and the launch files start what stands here.

Plain data and the standard library only. Packages are named, not imported.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

from hil_bringup.arguments import Argument, ArgumentError, nearest, resolve

ParameterValue = bool | int | float | str | list[str] | list[float]


@dataclass(frozen=True)
class Respawn:
    """What happens when a process ends by itself."""

    policy: Literal["always", "on_failure", "never"] = "on_failure"
    delay: float = 0.5
    """s before the first restart; doubled with every further one."""
    longest_delay: float = 10.0
    """s."""
    limit: int = 5
    """Restarts within `window` before it is given up."""
    window: float = 60.0
    """s."""


NEVER = Respawn(policy="never")
ALWAYS = Respawn(policy="always")
"""Of nodes: one that was interrupted alone (`kill -INT`, to restart it) comes back, too."""


@dataclass(frozen=True)
class Node:
    """One process of a graph with one node."""

    package: str
    executable: str
    name: str
    namespace: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    parameter_files: tuple[str, ...] = ()
    """ROS parameter files, read before `parameters`, which win."""
    override_files: tuple[str, ...] = ()
    """ROS parameter files, read after `parameters`: they win."""
    remappings: tuple[tuple[str, str], ...] = ()
    respawn: Respawn = field(default_factory=lambda: ALWAYS)
    required: bool = True
    """The graph ends when this process has ended and is not started again."""
    managed: bool = True
    """A lifecycle node that hil_manager configures and activates."""
    uses: tuple[str, ...] = ()
    """Names of nodes that it talks to while it stops: they are stopped after it. Nodes may start
    in any order: each says what it waits for."""

    @property
    def full_name(self) -> str:
        """Fully qualified name, such as /left/actor."""
        parts = [part for part in self.namespace.split("/") if part]
        return "/" + "/".join([*parts, self.name])


@dataclass(frozen=True)
class Graph:
    """A named graph: documented arguments, and the nodes that follow from them."""

    name: str
    doc: str
    arguments: tuple[Argument, ...]
    describe: Callable[[SimpleNamespace], tuple[Node, ...]]

    def resolve(self, given: Mapping[str, str]) -> SimpleNamespace:
        """All arguments; a run id is made where none is given.

        Raises:
            ArgumentError: an unknown argument or an impossible value.
        """
        values = resolve(self.arguments, given)
        if not values.run_id:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            values.run_id = f"{values.task}-{stamp}-{secrets.token_hex(2)}"
        return values

    def nodes(self, values: SimpleNamespace) -> tuple[Node, ...]:
        """The nodes for resolved arguments.

        Raises:
            ArgumentError: a file that an argument names is not there, or arguments do not go
                together.
        """
        names = [name.strip() for name in values.params_file.split(",") if name.strip()]
        files = tuple(config_file(name, "params_file") for name in names)
        return tuple(replace(node, override_files=files) for node in self.describe(values))


def graph(name: str) -> Graph:
    """The graph of that name.

    Raises:
        ArgumentError: there is none.
    """
    if name not in GRAPHS:
        hint = nearest(name, GRAPHS)
        raise ArgumentError(f"no graph {name!r}; graphs: {', '.join(GRAPHS)}{hint}")
    return GRAPHS[name]


def config_file(name: str, argument: str, folder: str = "") -> str:
    """Absolute path of a YAML file that an argument names: in config/FOLDER, or by its path.

    Raises:
        ArgumentError: there is no such file; names those that are there.
    """
    shipped = config_folder() / folder
    for path in (Path(name).expanduser(), shipped / name, shipped / f"{name}.yaml"):
        if path.is_file():
            return str(path.absolute())
    known = sorted(str(p.relative_to(shipped).with_suffix("")) for p in shipped.rglob("*.yaml"))
    raise ArgumentError(
        f"{argument}:={name}: no such file; in {shipped}: {', '.join(known)}{nearest(name, known)}"
    )


def stop_order(nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes in the order of stopping, in groups that stop together: users before the used.

    Raises:
        ValueError: nodes use one another in a circle.
    """
    left = list(nodes)
    groups: list[list[Node]] = []
    while left:
        used = {name for node in left for name in node.uses}
        group = [node for node in left if node.name not in used]
        if not group:
            names = ", ".join(node.full_name for node in left)
            raise ValueError(f"nodes use one another in a circle: {names}")
        groups.append(group)
        left = [node for node in left if node not in group]
    return groups


# -------------------------------------------------------------------- arguments of several graphs

_TASK = (
    Argument("task", "peg_insert", "what is learned; any task that hil_tasks knows"),
    Argument(
        "task_file",
        "",
        "the task with overrides: a file in config/tasks, by name or path; instead of task",
    ),
    Argument("seed", 0, "of episodes, exploration, network initialisation and sampling"),
    Argument(
        "mode",
        "",
        "episodes that actors run whenever none are asked for; empty: they wait to be asked",
        ("", "demo", "train", "evaluate"),
    ),
)
_RUN = (
    Argument("run_id", "", "name of the run and of its folder; empty: named by task and time"),
    Argument("run_dir", "runs", "folder that holds the run folders"),
    Argument("preset", "hil_serl", "named settings of the learning agent"),
    Argument("learner_file", "hil_serl", "learner: a file in config/learner, by name or path"),
    Argument(
        "params_file",
        "",
        "ROS parameter files for all nodes, which win: in config, or by path; a,b",
    ),
    Argument(
        "monitor",
        True,
        "the operator console, a web page on port 8642 (with one actor); network:=lan opens it to "
        "tablets, with token and TLS",
    ),
    Argument("log_level", "info", "how much the nodes say", ("debug", "info", "warn", "error")),
    Argument(
        "network",
        "localhost",
        "who sees the graph; localhost: this machine, unless ROS_AUTOMATIC_DISCOVERY_RANGE says "
        "otherwise; lan: everybody on the subnet, without any authentication",
        ("localhost", "lan"),
    ),
)


def network_environment(values: SimpleNamespace) -> dict[str, str]:
    """Environment variables that follow from the argument `network`."""
    return {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"} if values.network == "lan" else {}


def _task_parameters(values: SimpleNamespace) -> dict[str, ParameterValue]:
    file = config_file(values.task_file, "task_file", "tasks") if values.task_file else ""
    return {"task": values.task, "task_file": file}


def _learner(values: SimpleNamespace, task: Mapping[str, ParameterValue], pace: str) -> Node:
    return Node(
        "hil_learner",
        "learner_node",
        "learner",
        parameters={
            **task,
            "run_id": values.run_id,
            "run_dir": str(Path(values.run_dir).expanduser().absolute()),
            "preset": values.preset,
            "seed": values.seed,
            "throttle": pace == "lockstep",
        },
        parameter_files=(config_file(values.learner_file, "learner_file", "learner"),),
    )


def _actor(
    values: SimpleNamespace,
    task: Mapping[str, ParameterValue],
    pace: str,
    uses: tuple[str, ...],
    actor_id: str = "actor",
) -> Node:
    # The scripted expert is part of what is measured: without it, steps would go on unwatched.
    presence = {"scripted_expert": "required", "none": "none"}
    return Node(
        "hil_actor",
        "actor_node",
        "actor",
        parameters={
            **task,
            "actor_id": actor_id,
            "pace": pace,
            "seed": values.seed,
            "autostart_mode": values.mode,
            "run_id": values.run_id,
            "preset": values.preset,
            "spool_dir": str(Path(values.run_dir).expanduser().absolute() / "_spool"),
            "operator": presence.get(values.operator, "optional"),
        },
        uses=uses,
    )


def _monitor(values: SimpleNamespace, keep_episodes: int) -> tuple[Node, ...]:
    """The operator console. Nothing needs it: the graph goes on without it."""
    if not values.monitor:
        return ()
    parameters: dict[str, ParameterValue] = {
        "network": values.network,
        "run_folder": str(Path(values.run_dir).expanduser().absolute() / values.run_id),
        "input": values.operator == "console",
        "keep_episodes": keep_episodes,
    }
    monitor = Node("hil_monitor", "monitor_node", "monitor", parameters=parameters, required=False)
    return (monitor,)


def _manager(nodes: Iterable[Node], *, hold_on_fault: Sequence[str] = ()) -> Node:
    """The manager of these nodes. It stops first: nobody wakes up what is being stopped."""
    managed = [node for node in nodes if node.managed]
    names = [node.full_name for node in managed]
    return Node(
        "hil_bringup",
        "manager_node",
        "hil_manager",
        parameters={
            "nodes": names,
            "hold_on_fault": [n.full_name for n in managed if n.name in hold_on_fault],
            "autostart": True,
        },
        managed=False,
        uses=tuple(node.name for node in managed),
    )


# ------------------------------------------------------------------------------------------- sim

_MAX_ACTORS = 32
# What an actor calls or hears of the learner, which is in no actor's namespace.
_LEARNER_NAMES = ("insert_steps", "status")
# Absolute names that every simulator has: one set per simulator.
_SIM_GLOBAL_NAMES = ("/hil_sim/advance", "/hil_sim/reset_world", "/clock", "/tf", "/tf_static")


def _sim_nodes(values: SimpleNamespace) -> tuple[Node, ...]:
    _check_actors(values)
    task = _task_parameters(values)
    learner = [_learner(values, task, values.pace)] if values.learner else []
    if values.actors == 1:
        nodes = [*_sim_stack(values, "actor"), *learner, *_monitor(values, keep_episodes=0)]
    else:
        stacks = (_numbered_stack(values, n) for n in range(1, values.actors + 1))
        nodes = [*(node for stack in stacks for node in stack), *learner]
    return (*nodes, _manager(nodes))


def _check_actors(values: SimpleNamespace) -> None:
    if not 1 <= values.actors <= _MAX_ACTORS:
        raise ArgumentError(f"actors:={values.actors}: must be 1 to {_MAX_ACTORS}")
    if values.actors > 1 and values.operator not in ("scripted_expert", "none"):
        raise ArgumentError(
            f"actors:={values.actors}: one device cannot drive several arms; "
            "operator must be scripted_expert or none"
        )


def _sim_stack(values: SimpleNamespace, actor_id: str) -> tuple[Node, ...]:
    """One simulated arm with everything that it takes to act: all but the learner."""
    task = _task_parameters(values)
    pace = {"pace": values.pace}
    seed = {"seed": values.seed}
    return (
        Node("hil_sim", "sim_node", "hil_sim", parameters={**task, **pace, **seed}),
        Node(
            "hil_robot_bridge",
            "bridge_node",
            "robot_bridge",
            parameters={**task, **pace},
            uses=("hil_sim",),
        ),
        *_operator(values, task, values.pace),
        _actor(values, task, values.pace, ("robot_bridge", "learner", "hil_sim"), actor_id),
    )


def _numbered_stack(values: SimpleNamespace, number: int) -> tuple[Node, ...]:
    """The stack of one of several actors: a namespace of its own, a seed of its own."""
    name = f"actor{number}"
    seeded = SimpleNamespace(**{**vars(values), "seed": values.seed + number - 1})
    remappings = (
        *((f"learner/{topic}", f"/learner/{topic}") for topic in _LEARNER_NAMES),
        *((topic, f"/{name}{topic}") for topic in _SIM_GLOBAL_NAMES),
    )
    return tuple(
        replace(node, namespace=name, remappings=remappings) for node in _sim_stack(seeded, name)
    )


def _operator(
    values: SimpleNamespace, task: Mapping[str, ParameterValue], pace: str
) -> tuple[Node, ...]:
    if values.operator == "scripted_expert":
        expert = config_file("teleop/scripted_expert", "operator")
        parameters = {**task, "pace": pace, "seed": values.seed, "expert_file": expert}
        return (
            Node(
                "hil_teleop", "scripted_expert_node", "scripted_expert",
                parameters=parameters, uses=("robot_bridge",),
            ),
        )  # fmt: skip
    if values.operator == "none":
        return ()
    if pace == "lockstep":
        raise ArgumentError(
            f"operator:={values.operator} needs pace:=realtime: in lockstep every step waits for "
            "the operator's answer to it, which no person can give"
        )
    teleop = Node("hil_teleop", "teleop_node", "teleop", uses=("robot_bridge",))
    if values.operator == "joy":
        return (teleop,)
    if values.operator == "console":
        return (replace(teleop, parameters={"source": "console"}),)
    device = Node("hil_teleop", "spacemouse_node", "spacemouse", required=False)
    return (device, teleop)


_SIM = Graph(
    "sim",
    "the whole graph on the simulated arm",
    (
        *_TASK,
        Argument(
            "pace",
            "lockstep",
            "lockstep: as fast as it goes and repeatable; realtime: as on the robot",
            ("lockstep", "realtime"),
        ),
        Argument(
            "operator",
            "scripted_expert",
            "who may take over; joy: another node publishes joy; console: the web page",
            ("scripted_expert", "spacemouse", "joy", "console", "none"),
        ),
        Argument(
            "actors",
            1,
            "simulated arms that feed one learner, each with its own simulator, bridge and "
            "operator; several are in the namespaces actor1, actor2, ...",
        ),
        Argument("learner", True, "start the learner here; false: it is started elsewhere"),
        *_RUN,
    ),
    _sim_nodes,
)


# ----------------------------------------------------------------------------------- real_franka


def _real_franka_nodes(values: SimpleNamespace) -> tuple[Node, ...]:
    task = _task_parameters(values)
    pace = {"pace": "realtime"}
    nodes = [
        Node(
            "hil_robot_bridge",
            "bridge_node",
            "robot_bridge",
            parameters={**task, **pace},
            parameter_files=(config_file(values.robot, "robot", "robots"),),
        ),
        *_operator(values, task, "realtime"),
        _actor(values, task, "realtime", ("robot_bridge", "learner")),
    ]
    if values.learner:
        nodes.append(_learner(values, task, "realtime"))
    nodes += _monitor(values, keep_episodes=20)
    return (*nodes, _manager(nodes, hold_on_fault=("robot_bridge",)))


_REAL_FRANKA = Graph(
    "real_franka",
    "the graph on a Franka arm that franka_ros2 and a Cartesian impedance controller drive "
    "(started beforehand; not tried on hardware)",
    (
        *_TASK,
        Argument("robot", "fr3", "the arm: a file in config/robots, by name or path"),
        Argument(
            "operator",
            "spacemouse",
            "who may take over; joy: another node publishes joy; console: the web page",
            ("spacemouse", "joy", "console", "none"),
        ),
        Argument("learner", True, "start the learner here; false: it runs on another machine"),
        *_RUN,
    ),
    _real_franka_nodes,
)

# --------------------------------------------------------------------------------------- fci_sim

# An address of the loopback network of its own: the robot's ports are fixed.
_FCI_SIM_HOST = "127.0.0.50"


def _fci_sim_nodes(values: SimpleNamespace) -> tuple[Node, ...]:
    task = _task_parameters(values)
    robot = {"host": _FCI_SIM_HOST, "seed": values.seed}
    driver: dict[str, ParameterValue] = {
        "driver": "fci",
        "fci_host": _FCI_SIM_HOST,
        "fci_realtime": False,
        "fci_priority": 10,
    }
    nodes = [
        Node("hil_sim", "fci_sim_node", "hil_sim", parameters={**task, **robot}),
        Node(
            "hil_robot_bridge",
            "bridge_node",
            "robot_bridge",
            parameters={**task, **driver, "pace": "realtime"},
            uses=("hil_sim",),
        ),
        *_operator(values, task, "realtime"),
        _actor(values, task, "realtime", ("robot_bridge", "learner", "hil_sim")),
        _learner(values, task, "realtime"),
        *_monitor(values, keep_episodes=0),
    ]
    return (*nodes, _manager(nodes))


_FCI_SIM = Graph(
    "fci_sim",
    "the graph on a simulated Franka arm that speaks the robot's own protocol (franka-sim; needs "
    "requirements-fci.txt, and requirements-fci-sim.txt in .venv-fci)",
    (
        *_TASK,
        Argument(
            "operator",
            "scripted_expert",
            "who may take over; joy: another node publishes joy; console: the web page",
            ("scripted_expert", "spacemouse", "joy", "console", "none"),
        ),
        *_RUN,
    ),
    _fci_sim_nodes,
)

GRAPHS: dict[str, Graph] = {g.name: g for g in (_SIM, _REAL_FRANKA, _FCI_SIM)}


def config_folder() -> Path:
    """The folder `config`: of the checkout, or as installed in the share folder."""
    checkout = Path(__file__).resolve().parents[3] / "config"
    if checkout.is_dir():
        return checkout
    from ament_index_python.packages import get_package_share_directory

    return Path(get_package_share_directory("hil_bringup")) / "config"
