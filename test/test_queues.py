"""No queue without a bound: every one in the packages has a length, or stands here with its bound.

A queue that only grows while somebody is slow or gone is how a system that ran for an hour dies
in the night.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from rclpy.qos import QoSHistoryPolicy, QoSProfile

from hil_common import qos

SOURCES = Path(__file__).resolve().parents[1] / "src"

QUEUES = {"deque", "Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "ThreadPoolExecutor"}

BOUNDS = {
    "hil_bringup/supervisor.py: restarts": "Respawn.limit: one more ends the process for good",
    "hil_actor/spool.py: sizes": "spool_steps, spool_keep_steps: a full one pauses recording",
    "hil_actor/spool.py: self._waiting": "QUEUE_STEPS, QUEUE_BYTES: the same",
    "hil_actor/sender.py: self._left": "sessions that predecessors left in the spool; it shrinks",
    "hil_learner/training.py: self._requests": "service calls under way, one per actor, and one "
    "renumbering per policy that an actor refused",
    "hil_learner/learner.py: self._samples": "one per 0.1 s of _RATE_WINDOW",
    "hil_robot_bridge/recovery.py: self._times": "count recoveries per period, then none is made",
    "hil_sim/fci/server.py: self.requests": "emptied in every period; its sender waits for each",
}
"""File: variable -> what bounds it."""


def queues(path: Path) -> Iterator[tuple[str, bool]]:
    """Variable of each queue that a module makes, and whether it is given a length there."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        for part in ast.walk(node.value):
            if isinstance(part, ast.Call) and _name(part.func) in QUEUES:
                yield ast.unparse(target), _has_length(part)
            if _is_factory(part):
                yield ast.unparse(target), False


def _is_factory(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.keyword)
        and node.arg == "default_factory"
        and _name(node.value) in QUEUES
    )


def mentions(path: Path) -> int:
    """How often a module makes a queue or has one made, wherever that stands."""
    tree = ast.parse(path.read_text())
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    handed_on = [k.value for k in ast.walk(tree) if isinstance(k, ast.keyword)]
    return sum(_name(each) in QUEUES for each in (*calls, *handed_on))


def _name(node: ast.expr) -> str:
    """Last part of a dotted name; "" of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _has_length(call: ast.Call) -> bool:
    name, position = ("maxlen", 1) if _name(call.func) == "deque" else ("maxsize", 0)
    given = [keyword.value for keyword in call.keywords if keyword.arg == name]
    given += call.args[position : position + 1]
    return any(not isinstance(value, ast.Constant) or bool(value.value) for value in given)


def modules() -> list[Path]:
    return sorted(SOURCES.glob("*/*/**/*.py"))


def is_test(path: Path) -> bool:
    return "test" in path.relative_to(SOURCES).parts


def test_every_queue_has_a_bound() -> None:
    unbounded = set()
    for path in modules():
        if is_test(path):
            continue
        found = list(queues(path))
        where = "/".join(path.relative_to(SOURCES).parts[1:])
        assert len(found) == mentions(path), f"{where}: give each queue a variable of its own"
        unbounded |= {f"{where}: {target}" for target, bounded in found if not bounded}
    assert unbounded - BOUNDS.keys() == set(), "give it a length, or write down what bounds it"
    assert BOUNDS.keys() - unbounded == set(), "no such queue any more"


def test_profiles_keep_few_messages() -> None:
    profiles = {n: p for n, p in vars(qos).items() if isinstance(p, QoSProfile)}
    assert profiles
    for name, profile in profiles.items():
        assert profile.history == QoSHistoryPolicy.KEEP_LAST, name
        assert 1 <= profile.depth <= 100, name
    keep_all = [p for p in modules() if not is_test(p) and "KEEP_ALL" in p.read_text()]
    assert keep_all == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a = deque()", [("a", False)]),
        ("a = deque(maxlen=None)", [("a", False)]),
        ("self.a: deque[int] = collections.deque([], 5)", [("self.a", True)]),
        ("a = deque(things)", [("a", False)]),
        ("a = deque(maxlen=limit)", [("a", True)]),
        ("a = queue.Queue()", [("a", False)]),
        ("a = queue.Queue(0)", [("a", False)]),
        ("a = asyncio.Queue(10)", [("a", True)]),
        ("a = Queue(maxsize=limit)", [("a", True)]),
        ("a = SimpleQueue()", [("a", False)]),
        ("a: deque[int] = field(default_factory=deque)", [("a", False)]),
        ("a: deque[int] = field(default_factory=lambda: deque(maxlen=3))", [("a", True)]),
    ],
)
def test_the_check_sees_what_it_should(
    tmp_path: Path, code: str, expected: list[tuple[str, bool]]
) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert list(queues(path)) == expected
    assert mentions(path) == 1
