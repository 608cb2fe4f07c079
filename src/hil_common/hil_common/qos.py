"""QoS profiles, one per kind of topic (docs/interfaces.md lists which topic uses which).

Two traps decide the shape of this file. A subscriber that asks for a deadline gets nothing from a
publisher that offers none, so no profile here asks for one. Lifespan compares the wall clocks of
two hosts, so it is not used at all: freshness is judged at the receiver, on its steady clock.
"""

from rclpy.qos import QoSDurabilityPolicy, QoSHistoryPolicy, QoSProfile, QoSReliabilityPolicy


def _profile(depth: int, reliable: bool, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        history=QoSHistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=(
            QoSReliabilityPolicy.RELIABLE if reliable else QoSReliabilityPolicy.BEST_EFFORT
        ),
        durability=(
            QoSDurabilityPolicy.TRANSIENT_LOCAL if latched else QoSDurabilityPolicy.VOLATILE
        ),
    )


COMMAND = _profile(1, reliable=True)
"""A command: only the newest counts, and it must arrive."""

RESULT = _profile(20, reliable=True)
"""Answers to commands."""

OPERATOR = _profile(1, reliable=True)
"""Operator commands, heartbeat included."""

STATE = _profile(1, reliable=False)
"""Measurements: the newest or nothing."""

IMAGE = _profile(1, reliable=False)
"""Camera frames: the newest or nothing."""

STEP = _profile(100, reliable=True)
"""Step records for recorders and monitors (the learner gets them through a service)."""

EVENT = _profile(20, reliable=True)
"""Rare events, each of which matters."""

LATCHED = _profile(1, reliable=True, latched=True)
"""Status: late joiners get the newest."""

PROMPTS = _profile(20, reliable=True, latched=True)
"""Questions to a person: late joiners get the newest of every asker."""

DIAGNOSTICS = _profile(10, reliable=True)
"""/diagnostics, as diagnostic_updater publishes it."""
