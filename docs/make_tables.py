"""Writes the tables of the documentation from the code: docs/interfaces.md, parts of other pages.

    python docs/make_tables.py           write
    python docs/make_tables.py --check   exit code 1, and what differs, where a page is out of date

Every node is made and configured in one private ROS context, without hardware; the ROS graph says
what each of them offers and uses. The meanings stand here. A name in the graph that has no meaning
here, and a meaning whose name is not in the graph, are errors.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import gc
import itertools
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Nothing outside of this process is seen or seen by: set before rclpy is imported.
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "OFF"

import rclpy
import rclpy.logging
from rclpy.action.graph import (
    get_action_client_names_and_types_by_node,
    get_action_server_names_and_types_by_node,
)
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSDurabilityPolicy, QoSProfile, QoSReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription

import hil_tasks
from hil_actor.actor_node import ActorNode
from hil_bringup.graph import GRAPHS
from hil_bringup.manager_node import ManagerNode
from hil_common.lifecycle import HilNode
from hil_common.params import describe, override
from hil_learner.learner_node import LearnerNode
from hil_monitor.monitor_node import MonitorNode
from hil_rl.config import DEVIATIONS, SAC_PRESETS, SACConfig
from hil_robot_bridge.bridge_node import BridgeNode
from hil_sim import crisp
from hil_sim.sim_node import INJECT, SimNode
from hil_tasks.peg_insert import PegInsert
from hil_tasks.spec import TaskSpec
from hil_teleop.scripted_expert_node import ScriptedExpertNode
from hil_teleop.spacemouse_node import SpaceMouseNode
from hil_teleop.teleop_node import TeleopNode

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BAR = "\\|"
LIMIT = 60.0
"""Seconds that a busy machine may take until the learner has found the actor."""

# ------------------------------------------------------------------------------------ meanings

NODES: dict[str, tuple[type[HilNode], str]] = {
    "robot_bridge": (
        BridgeNode,
        "the only node that commands the arm: gate, driver, resets, recovery, gripper",
    ),
    "actor": (ActorNode, "runs episodes: observation, policy, operator, command, reward, record"),
    "learner": (LearnerNode, "takes steps in, trains, sends policies to the actors"),
    "teleop": (TeleopNode, "maps the axes and buttons of a device to operator commands"),
    "spacemouse": (SpaceMouseNode, "reads a 3Dconnexion SpaceMouse"),
    "scripted_expert": (
        ScriptedExpertNode,
        "stands in for a person in demos, tests and benchmarks; simulation only",
    ),
    "monitor": (
        MonitorNode,
        "operator console: a web page; see [howto_console.md](howto_console.md)",
    ),
    "hil_sim": (SimNode, "simulated FR3 behind the ROS interface of the real one"),
    "hil_manager": (
        ManagerNode,
        "configures and activates the nodes of a graph, and says who waits for what",
    ),
}
"""The nodes with parameters of this project, in the order of the page."""

COMPANIONS: dict[str, str] = {
    "cartesian_impedance_controller": "the controller's parameters (crisp_controllers' names)",
    "controller_manager": "controllers and hardware component of ros2_control",
    "action_server": "error recovery of franka_hardware",
    "service_server": "settings of franka_hardware, accepted only while the robot is idle",
    "joint_trajectory_controller": "joint motions of a joint reset",
    "franka_gripper": "the hand",
}
"""Further nodes in the process of hil_sim: what franka_ros2 and ros2_control offer on a robot."""

TOPICS: dict[str, dict[str, str]] = {
    "Operator": {
        "joy": "axes and buttons of one device, also at rest; silence means that it is lost",
        "operator_command": "what the person asks of each arm, and whether he drives; in real "
        "time at least 50 Hz, in lockstep one answer per observation",
    },
    "Arm": {
        "arm_command": "one target pose or a hold, answering one observation; of the holder of "
        "the lease",
        "command_result": "accepted, clipped, refused or held, why, and the pose that was applied",
        "robot_state": "pose, twist, wrench, joints, target in force, mode and what to do about "
        "it; once per control period in lockstep, at `state_rate_hz` in real time",
        "object_poses": "poses of the task's objects; of the simulator, or of a tracker of yours",
        "wrist/image": "one topic `CAMERA/image` per camera of the task, rgb8, square",
        "side/image": "the same for the second camera of the shipped tasks",
    },
    "Actor and learner": {
        "actor/state": "what the actor is doing, published at the start of every control step",
        "episode": "summary of each episode that has ended",
        "step": "one record per control step, with everything that is needed to train again",
        "learner/status": "how far training is, what it waits for, and how many steps actors in "
        "lockstep may take",
    },
    "Whole graph": {
        "prompt": "a question to the person, from any node (`hil_common.prompts.Asker`), and what "
        "became of it; the asker takes the answer on its service `NODE/answer` "
        "([AnswerPrompt](../src/hil_interfaces/srv/AnswerPrompt.srv))",
        "hil_manager/ready": "all nodes are active and none is silent",
        "hil_manager/status": "in words: who is not active and why, who waits for what",
        "/diagnostics": "of every node, once a second: state, rates, ages, counters, what it "
        "waits for, what is wrong",
    },
    "Robot (published by hil_sim, or by franka_ros2, ros2_control and crisp_controllers)": {
        "target_pose": "target of the impedance controller, from the bridge only: the controller "
        "ignores a topic with two publishers",
        "joint_trajectory_controller/joint_trajectory": "joint positions to go to in a joint "
        "reset; taken only while that controller is active",
        "current_pose": "measured pose of the tool centre point (crisp's pose broadcaster)",
        "current_twist": "measured twist of it (crisp's twist broadcaster)",
        "franka_robot_state_broadcaster/robot_state": "franka_ros2's state: mode, errors, success "
        "rate. 1 kHz on the robot; the bridge looks at the newest when it needs it",
        "franka_robot_state_broadcaster/current_pose": "the same, as franka_ros2 has it",
        "franka_robot_state_broadcaster/last_desired_pose": "target in force",
        "franka_robot_state_broadcaster/desired_end_effector_twist": "desired twist",
        "franka_robot_state_broadcaster/measured_joint_states": "joints",
        "franka_robot_state_broadcaster/desired_joint_states": "desired joints",
        "franka_robot_state_broadcaster/external_joint_torques": "estimated external torques",
        "franka_robot_state_broadcaster/external_wrench_in_base_frame": "external wrench on the "
        "tool centre point, base axes",
        "franka_robot_state_broadcaster/external_wrench_in_stiffness_frame": "the same in the "
        "axes of the tool",
        "franka/joint_states": "the arm's joints",
        "joint_states": "joints of arm and fingers",
        "franka_gripper/joint_states": "the fingers; their sum is the width",
        "controller_manager/activity": "states of controllers and hardware component",
        "robot_description": "URDF, for rviz",
        "/tf": "links, fingers and objects; only while somebody listens",
        "/tf_static": "fixed frames and cameras",
        "/clock": "simulated time. No node of the graph uses it: set `use_sim_time` where you "
        "want it (rviz)",
    },
}

SERVICES: dict[str, dict[str, str]] = {
    "Arm": {
        "robot_bridge/acquire": "get the lease: the right to command the arm; a session that "
        "began later supersedes an older one",
        "robot_bridge/release": "give the lease back",
        "robot_bridge/set_stop": "latch (true) or release (false) the software stop. It survives "
        "a restart. It is no safety device",
        "robot_bridge/set_compliance": "apply a compliance preset of the task and read it back",
    },
    "Actor": {
        "actor/set_pause": "hold before the next step or reset (true), or go on (false)",
        "actor/skip_episode": "end the present episode without another step, as interrupted; the "
        "next one begins with a reset",
    },
    "Learner and manager": {
        "learner/insert_steps": "steps in, number of the last stored one out; exactly once",
        "learner/annotate": "what a person says about an episode afterwards: label, veto, keep, "
        "drop, relabel, undo; logged, applied, or refused with the reason",
        "learner/save": "write a checkpoint and the learning curve now",
        "hil_manager/retry": "try again with the nodes that are held after a fault",
    },
    "Simulation only": {
        "/hil_sim/advance": "lockstep: carry out control periods, publish the new state, return "
        "its stamp; a repeated `step_id` is answered and not carried out again",
        "/hil_sim/reset_world": "set the task's objects anew from a seed",
    },
    "Robot (offered by hil_sim, or by franka_ros2, ros2_control and crisp_controllers)": {
        "cartesian_impedance_controller/set_parameters_atomically": "how the bridge sets a "
        "compliance preset",
        "cartesian_impedance_controller/get_parameters": "how it reads the preset back",
        "controller_manager/list_controllers": "see ros2_control",
        "controller_manager/switch_controller": "recovery: activate the controller",
        "controller_manager/list_hardware_components": "see ros2_control",
        "controller_manager/set_hardware_component_state": "recovery: activate the hardware",
        "controller_manager/load_controller": "see ros2_control; in hil_sim all are loaded",
        "controller_manager/configure_controller": "see ros2_control; in hil_sim all are "
        "configured",
        "service_server/set_force_torque_collision_behavior": "thresholds of the reflex",
        "service_server/set_full_collision_behavior": "thresholds of the reflex, with those "
        "during acceleration",
        "service_server/set_load": "payload; checked, without effect in hil_sim",
        "service_server/set_cartesian_stiffness": "checked, without effect in hil_sim",
        "service_server/set_joint_stiffness": "checked, without effect in hil_sim",
        "service_server/set_tcp_frame": "checked, without effect in hil_sim",
        "service_server/set_stiffness_frame": "checked, without effect in hil_sim",
        "franka_gripper/stop": "stop the fingers",
    },
}

ACTIONS: dict[str, dict[str, str]] = {
    "Actor": {
        "actor/run_episodes": "ask for demonstrations, training or evaluation; `./hil demo` does",
        "actor/update_policy": "newest policy to an actor, applied between two steps; the answer "
        "says accepted or why not",
    },
    "Arm": {
        "robot_bridge/reset_episode": "lift, go slowly and straight to the start of an episode, "
        "hold",
        "robot_bridge/move_to": "go straight to a pose inside the box",
        "robot_bridge/recover": "clear the robot's error and hold; never resumes by itself",
    },
    "Robot (offered by hil_sim, or by franka_ros2)": {
        "action_server/error_recovery": "first step of a recovery",
        "franka_gripper/homing": "find the width of the hand",
        "franka_gripper/move": "open; used if the task has a gripper",
        "franka_gripper/grasp": "close with a force; used if the task has a gripper",
        "franka_gripper/gripper_action": "for other programs; its command counts per finger",
    },
}

EVERY_NODE = {"/parameter_events", "/rosout"}
_STANDARD = (
    "describe_parameters", "get_parameter_types", "get_parameters", "list_parameters",
    "set_parameters", "set_parameters_atomically", "get_type_description",
    "change_state", "get_state", "get_available_states", "get_available_transitions",
    "get_transition_graph",
)  # fmt: skip
"""Services that every ROS node or every lifecycle node has."""


# --------------------------------------------------------------------------- looking at the graph


class DocumentedTask(PegInsert):
    """A task that has everything a task can have for one arm: cameras and a gripper."""

    def build_spec(self) -> TaskSpec:
        """Specification; see `hil_tasks.task.Task`."""
        spec = super().build_spec()
        return dataclasses.replace(spec, grippers=(True,), cameras=("wrist", "side"))


@dataclass
class Name:
    """What the graph says about one topic, service or action."""

    types: set[str] = field(default_factory=set)
    offered: set[str] = field(default_factory=set)
    """Nodes that publish the topic, or serve the service or action."""
    used: set[str] = field(default_factory=set)
    """Nodes that subscribe to it, or are its clients."""


@dataclass
class Seen:
    """The graph: name without its leading slash -> what is known of it."""

    topics: dict[str, Name] = field(default_factory=dict)
    services: dict[str, Name] = field(default_factory=dict)
    actions: dict[str, Name] = field(default_factory=dict)
    qos: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)
    """Topic -> profiles of its publishers, of its subscriptions."""


def look() -> Seen:
    """Make and configure every node, and read the graph."""
    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    rclpy.logging.set_logger_level("", rclpy.logging.LoggingSeverity.ERROR)
    with tempfile.TemporaryDirectory() as folder, _documented_task():
        nodes = [_start(name, context, folder) for name in NODES]
        observer = Node("observer", context=context, enable_rosout=False)
        try:
            _let_learner_find_actor(nodes, observer, context)
            return _read(observer)
        finally:
            for node in nodes:
                node.trigger_shutdown()
            for each in (observer, *nodes):
                each.destroy_node()
            context.try_shutdown()


@contextmanager
def _documented_task() -> Iterator[None]:
    original = hil_tasks.load
    hil_tasks.load = lambda name, overrides=None: DocumentedTask(overrides)
    try:
        yield
    finally:
        hil_tasks.load = original


def _start(name: str, context: Context, folder: str) -> HilNode:
    overrides: dict[str, dict[str, Any]] = {
        "robot_bridge": {"stop_file": f"{folder}/stop"},
        "actor": {"spool_dir": f"{folder}/spool"},
        "learner": {"run_dir": folder, "tensorboard": False, "progress": "none"},
        "monitor": {"port": 0, "input": True},
        "hil_manager": {"nodes": tuple(f"/{node}" for node in NODES if node != "hil_manager")},
    }
    given = [override(key, value) for key, value in overrides.get(name, {}).items()]
    make: Callable[..., HilNode] = NODES[name][0]
    node = make(context=context, parameter_overrides=given)
    if node.get_name() != name:
        raise SystemExit(f"node {node.get_name()!r} is called {name!r} in docs/make_tables.py")
    node.trigger_configure()
    return node


def _let_learner_find_actor(nodes: Sequence[HilNode], observer: Node, context: Context) -> None:
    """The learner makes its clients when it has found an actor in the graph."""
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(next(node for node in nodes if node.get_name() == "learner"))
    end = time.monotonic() + LIMIT
    while not get_action_client_names_and_types_by_node(observer, "learner", "/"):
        if time.monotonic() > end:
            raise SystemExit("the learner did not find the actor")
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()


def _read(observer: Node) -> Seen:
    seen = Seen()
    for node, namespace in observer.get_node_names_and_namespaces():
        if node == observer.get_name():
            continue
        servers = functools.partial(get_action_server_names_and_types_by_node, observer)
        clients = functools.partial(get_action_client_names_and_types_by_node, observer)
        sources: list[tuple[dict[str, Name], str, Any]] = [
            (seen.topics, "offered", observer.get_publisher_names_and_types_by_node),
            (seen.topics, "used", observer.get_subscriber_names_and_types_by_node),
            (seen.services, "offered", observer.get_service_names_and_types_by_node),
            (seen.services, "used", observer.get_client_names_and_types_by_node),
            (seen.actions, "offered", servers),
            (seen.actions, "used", clients),
        ]
        for names, role, ask in sources:
            for name, types in ask(node, namespace):
                found = names.setdefault(name.strip("/"), Name())
                found.types.update(types)
                getattr(found, role).add(node)
    seen.topics = {n: t for n, t in seen.topics.items() if not _is_common_topic(n)}
    seen.services = {n: s for n, s in seen.services.items() if not _is_common_service(n, s)}
    _read_qos(seen)
    return seen


def _is_common_topic(name: str) -> bool:
    return f"/{name}" in EVERY_NODE or "/_action/" in name or name.endswith("/transition_event")


def _is_common_service(name: str, service: Name) -> bool:
    if "/_action/" in name:
        return True
    return name.rsplit("/", 1)[-1] in _STANDARD and not service.used - {"hil_manager"}


def _read_qos(seen: Seen) -> None:
    """Profiles from the endpoints of this process: the graph does not tell their depth."""
    for endpoint in gc.get_objects():
        if type(endpoint) not in (Publisher, Subscription):
            continue
        name = endpoint.topic_name.strip("/")
        if name in seen.topics:
            kinds = seen.qos.setdefault(name, (set(), set()))
            kinds[type(endpoint) is Subscription].add(_profile(endpoint.qos_profile))


def _profile(profile: QoSProfile) -> str:
    reliable = profile.reliability == QoSReliabilityPolicy.RELIABLE
    text = f"{'reliable' if reliable else 'best effort'}, last {profile.depth}"
    latched = profile.durability == QoSDurabilityPolicy.TRANSIENT_LOCAL
    return f"{text}, latched" if latched else text


def qos_text(profiles: tuple[set[str], set[str]]) -> str:
    """Profile of the publishers, and of the subscriptions where they ask for less."""
    offered, asked = profiles
    text = " or ".join(sorted(offered or asked))
    less = sorted(asked - offered) if offered else []
    return f"{text}; read: {' or '.join(less)}" if less else text


# ------------------------------------------------------------------------------------- the page


def check_names(kind: str, documented: Mapping[str, Mapping[str, str]], seen: set[str]) -> None:
    """Stop where documentation and graph name different things."""
    listed = [name.strip("/") for group in documented.values() for name in group]
    missing, vanished = seen - set(listed), set(listed) - seen
    problems = [f"undocumented {kind} {name}" for name in sorted(missing)]
    problems += [f"documented {kind} {name} does not exist" for name in sorted(vanished)]
    if problems:
        raise SystemExit("docs/make_tables.py: " + "; ".join(problems))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def page(seen: Seen) -> str:
    """docs/interfaces.md."""
    check_names("topic", TOPICS, set(seen.topics))
    check_names("service", SERVICES, set(seen.services))
    check_names("action", ACTIONS, set(seen.actions))
    names = [*seen.topics.values(), *seen.services.values(), *seen.actions.values()]
    there = set().union(*(each.offered | each.used for each in names))
    check_names("node", {"": {**COMPANIONS, **dict.fromkeys(NODES, "")}}, there)
    parts = [
        _HEAD, "## Nodes\n", _nodes(),
        "## Topics\n", _TOPIC_NOTE,
        _names(TOPICS, seen.topics, ("published by", "subscribed by"), seen.qos),
        "## Services\n", _SERVICE_NOTE,
        _names(SERVICES, seen.services, ("served by", "used by")),
        "## Actions\n", _names(ACTIONS, seen.actions, ("served by", "used by")),
        "## Parameters\n", _PARAMETER_NOTE, *map(_parameters, NODES),
        f"### {next(iter(COMPANIONS))}\n", _CONTROLLER_NOTE, _controller(),
        "## Arguments of the graphs\n", _ARGUMENT_NOTE, *map(_arguments, GRAPHS),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


_HEAD = """\
# Topics, services, actions and parameters

<!-- Written by docs/make_tables.py; do not edit. -->

This page is generated from the code, and a test compares it with the code. Names are relative to
the namespace of the arm, which is the root where there is one arm; a leading `/` marks absolute
names. What the pieces do together is described in [architecture.md](architecture.md).
"""

_TOPIC_NOTE = """\
Every node also has `/rosout`, `/parameter_events` and, being a lifecycle node,
`NODE/transition_event`. QoS: reliability, history depth, and *latched* for transient local. *read*
says what subscribers ask for where that is not what is offered. No profile has a deadline or a
lifespan.
"""

_SERVICE_NOTE = """\
The parameter services of every node and the lifecycle services of the nodes with parameters below
(`NODE/change_state`, `NODE/get_state`, ..., which `hil_manager` uses) are left out.
"""

_PARAMETER_NOTE = """\
Parameters are read when a node starts. A wrong name, type or value stops the node (exit code 2)
with a message that names the parameter, the file it stands in and the nearest valid name. Where
several files set a parameter, the last one wins: first the shipped file (`learner_file`, `robot`),
then what the graph's arguments say, then `params_file`. Write the plain name of the node as the
key (`learner:`, not `/learner:` and no wildcard): ROS applies files in order only among equal
keys.
"""

_CONTROLLER_NOTE = """\
Parameters of the simulated controller, under the names that
`crisp_controllers/CartesianController` has. The bridge sets the gains, the clips, the nullspace
and the two `limit_` parameters from the task's compliance presets. They can change while the
controller runs.
"""

_ARGUMENT_NOTE = """\
`./hil up GRAPH key:=value ...` and `ros2 launch hil_bringup GRAPH.launch.py key:=value ...` take
the same arguments. `./hil up GRAPH --help` and `ros2 launch ... --show-args` list them.
"""


def _nodes() -> str:
    graphs = _graphs_of_nodes()
    rows = []
    for name, (_, doc) in NODES.items():
        packages = sorted({place for place, _ in graphs[name]})
        used = ", ".join(sorted({graph for _, graph in graphs[name]}))
        rows.append((f"[`{name}`](#{name})", ", ".join(packages), used, doc))
    first = table(("node", "package, executable", "in graphs", "what it does"), rows)
    second = table(
        ("node", "what it stands for"), [(f"`{name}`", doc) for name, doc in COMPANIONS.items()]
    )
    note = "In the process of `hil_sim` there are also the nodes that a real robot's software has:"
    return f"{first}\n\n{note}\n\n{second}\n"


def _graphs_of_nodes() -> dict[str, set[tuple[str, str]]]:
    """Node -> (package and executable, graph), over all choices of the arguments."""
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in NODES}
    for graph in GRAPHS.values():
        choices = [(a.name, c) for a in graph.arguments for c in a.choices if a.name == "operator"]
        for name, choice in choices or [("", "")]:
            given = {name: choice} if name else {}
            if any(a.name == "pace" for a in graph.arguments):
                given["pace"] = "realtime"  # no person drives in lockstep
            values = graph.resolve(given)
            for node in graph.nodes(values):
                found[node.name].add((f"`{node.package}` `{node.executable}`", graph.name))
    return found


def _names(
    documented: Mapping[str, Mapping[str, str]],
    names: Mapping[str, Name],
    roles: tuple[str, str],
    qos: Mapping[str, tuple[set[str], set[str]]] | None = None,
) -> str:
    head = ["name", "type", *(["QoS"] if qos is not None else []), *roles, "meaning"]
    parts = []
    for group, meanings in documented.items():
        rows = []
        for name, meaning in meanings.items():
            seen = names[name.strip("/")]
            row = [f"`{name}`", ", ".join(map(_type, sorted(seen.types)))]
            row += [qos_text(qos[name.strip("/")])] if qos is not None else []
            rows.append([*row, _who(seen.offered), _who(seen.used), meaning])
        parts += [f"### {group}\n", table(head, rows), ""]
    return "\n".join(parts)


def _who(nodes: set[str]) -> str:
    if set(NODES) <= nodes:
        return "every node"
    order = [*NODES, *COMPANIONS]
    return ", ".join(sorted(nodes, key=order.index)) or "-"


def _type(name: str) -> str:
    package, kind, what = name.split("/")
    for folder in ("src", "compat_interfaces"):
        path = ROOT / folder / package / kind / f"{what}.{kind}"
        if path.is_file():
            return f"[{package}/{what}](../{path.relative_to(ROOT)})"
    return f"{package}/{what}"


def _parameters(name: str) -> str:
    rows = [
        (f"`{key}`", kind, f"`{default}`", doc)
        for key, kind, default, doc in describe(NODES[name][0].Params)
    ]
    if name == "hil_sim":
        doc = "can be set while it runs: a fault for tests. Name of a robot error, `user_stop`, "
        doc += "`guiding`, `released`, `lose_state`, `freeze CAMERA` or `thaw CAMERA`"
        rows.append((f"`{INJECT}`", "str", '`""`', doc))
    rows = [(key, kind, _yaml(default), _range_in_words(doc)) for key, kind, default, doc in rows]
    return f"### {name}\n\n{table(('parameter', 'type', 'default', 'meaning'), rows)}\n"


def _yaml(default: str) -> str:
    """A default as YAML has it; long lists are cut."""
    text = {"`True`": "`true`", "`False`": "`false`"}.get(default, default)
    cut = text.startswith("`[") and len(text) > 70
    return text[:50].rsplit(",", 1)[0] + ", ...]`" if cut else text


def _range_in_words(doc: str) -> str:
    """Ranges with one end, and choices that may be empty, so that they can be read."""
    doc = re.sub(r"\((\S+) to \)$", r"(at least \1)", doc)
    return doc.replace("(one of , ", "(one of nothing, ")


def _controller() -> str:
    rows = [
        (f"`{name}`", f"`{str(each.default).lower()}`", _range(each), each.doc)
        for name, each in crisp.SETTINGS.items()
    ]
    return table(("parameter", "default", "range", "meaning"), rows) + "\n"


def _range(setting: crisp.Setting) -> str:
    return "" if isinstance(setting.default, bool) else f"{setting.low:g} to {setting.high:g}"


def _arguments(name: str) -> str:
    graph = GRAPHS[name]
    rows = [
        (f"`{each.name}`", f"`{each.default_text or chr(34) * 2}`", each.text)
        for each in graph.arguments
    ]
    words = graph.doc[0].upper() + graph.doc[1:]
    return f"### {name}\n\n{words}.\n\n{table(('argument', 'default', 'meaning'), rows)}\n"


# --------------------------------------------------------------------- parts of hand-written pages


def deviations() -> str:
    """Table of the named differences from HIL-SERL's code."""
    rows = [(f"`{name}`", reason) for name, reason in DEVIATIONS.items()]
    return table(("name", "what differs, and why"), rows)


def presets() -> str:
    """Table of the presets: values that differ from HIL-SERL's constants."""
    names = [name for name in SAC_PRESETS if SAC_PRESETS[name]]
    settings = dict.fromkeys(itertools.chain.from_iterable(SAC_PRESETS.values()))
    base = SACConfig()
    rows = [
        (f"`{key}`", f"`{_plain(getattr(base, key))}`",
         *(f"`{_plain(SAC_PRESETS[name][key])}`" if key in SAC_PRESETS[name] else ""
           for name in names))
        for key in settings
    ]  # fmt: skip
    return table(("setting", "`hil_serl`", *(f"`{name}`" for name in names)), rows)


def _plain(value: Any) -> str:
    """Value as it would be written in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value) if isinstance(value, tuple) else value)


PARTS: dict[str, Callable[[], str]] = {"deviations": deviations, "presets": presets}


def fill(text: str) -> str:
    """A page with its generated parts made anew."""
    for name, make in PARTS.items():
        start, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        if start in text:
            head, tail = pattern.split(text, maxsplit=1)
            text = f"{head}{start}\n{make()}\n{end}{tail}"
    return text


def pages() -> dict[Path, str]:
    """Every page with generated content, as it has to be."""
    found = {DOCS / "interfaces.md": page(look())}
    for path in sorted(DOCS.glob("*.md")):
        if "<!-- generated: " in path.read_text(encoding="utf-8"):
            found[path] = fill(path.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing, show what differs")
    options = parser.parse_args()
    stale = 0
    for path, text in pages().items():
        present = path.read_text(encoding="utf-8") if path.is_file() else ""
        if present == text:
            continue
        stale += 1
        name = str(path.relative_to(ROOT))
        if options.check:
            old, new = present.splitlines(), text.splitlines()
            print("\n".join(difflib.unified_diff(old, new, name, "code", lineterm="", n=0)))
        else:
            path.write_text(text, encoding="utf-8")
            print(f"written: {name}")
    if options.check and stale:
        print("\nout of date; run: python docs/make_tables.py")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
