"""What the simulator carried out against what the learner has: losses, duplicates, wrong pairs.

The truth is the simulator's ledger (hil_sim.ledger), not what any actor says of itself.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hil_sim.ledger import Entry

Position = tuple[float, float, float]

TOLERANCE = 1e-5
"""m between the simulator's position and the one in a float32 observation of the same state."""


class Place(NamedTuple):
    """Identity of a step."""

    actor: str
    session: str
    episode: int
    step: int


@dataclass(frozen=True)
class Logged:
    """A step in the learner's log.

    Attributes:
        place: identity.
        seq: number in the session.
        stamp: of the observation, ns.
        position: of the tool centre point in the observation, m.
        final_position: the same in the final observation; None: it is not an episode's last step.
    """

    place: Place
    seq: int
    stamp: int
    position: Position
    final_position: Position | None = None


@dataclass
class Comparison:
    """What came of it. The lists name the steps.

    Attributes:
        steps: carried out by the simulators.
        lost: not in the log, and without an excuse.
        duplicated: more than once in the log.
        mispaired: with an observation that is not the state in which the step was carried out, or
            not carried out at all.
        in_flight: lost, but the one step that was under way when its actor died.
        in_flight_simulator: lost, but the one step that was under way when its simulator died:
            nobody saw where it led.
    """

    steps: int = 0
    lost: list[Place] = field(default_factory=list)
    duplicated: list[Place] = field(default_factory=list)
    mispaired: list[str] = field(default_factory=list)
    in_flight: list[Place] = field(default_factory=list)
    in_flight_simulator: list[Place] = field(default_factory=list)


def place(step_id: str) -> Place:
    """Identity from its text in the ledger, ACTOR/SESSION/EPISODE/STEP."""
    actor, session, episode, step = step_id.rsplit("/", 3)
    return Place(actor, session, int(episode), int(step))


def compare(ledgers: Iterable[Sequence[Entry]], log: Iterable[Logged]) -> Comparison:
    """Compare the ledgers of all simulators, each in its order, with the log."""
    result = Comparison()
    carried_out: dict[Place, list[Entry]] = defaultdict(list)
    last_of_life: set[Place] = set()
    sessions: dict[str, dict[str, Place]] = defaultdict(dict)
    for ledger in ledgers:
        ends: dict[str, Place] = {}
        for entry in ledger:
            if entry.step:
                at = place(entry.step)
                carried_out[at].append(entry)
                ends[entry.life] = at
                sessions[at.actor].pop(at.session, None)
                sessions[at.actor][at.session] = at
        last_of_life.update(list(ends.values())[:-1])  # the last life ended in good order
    last_of_session = {at for ends in sessions.values() for at in list(ends.values())[:-1]}
    result.steps = len(carried_out)
    times = _check_log(carried_out, log, result)
    result.duplicated = [at for at, count in times.items() if count > 1]
    for at in carried_out:
        if at in times:
            continue
        if at in last_of_session:
            result.in_flight.append(at)
        elif at in last_of_life:
            result.in_flight_simulator.append(at)
        else:
            result.lost.append(at)
    return result


def _check_log(
    carried_out: dict[Place, list[Entry]], log: Iterable[Logged], result: Comparison
) -> Counter[Place]:
    """Look at every logged step; return how often each is there."""
    times: Counter[Place] = Counter()
    last_seq: dict[str, int] = defaultdict(int)
    for step in log:
        times[step.place] += 1
        if times[step.place] > 1:
            continue
        wanted = last_seq[step.place.session] + 1
        if step.seq != wanted:
            result.mispaired.append(f"{step.place} has number {step.seq}, not {wanted}")
        last_seq[step.place.session] = step.seq
        if problem := _mispaired(step, carried_out.get(step.place, [])):
            result.mispaired.append(f"{step.place} {problem}")
    return times


def _mispaired(step: Logged, entries: Sequence[Entry]) -> str:
    """Why a logged step is none of these advances; "" if it is one."""
    if not entries:
        return "was not carried out"
    problem = ""
    for entry in entries:
        problem = _difference(step, entry)
        if not problem:
            return ""
    return problem


def _difference(step: Logged, entry: Entry) -> str:
    if step.stamp != entry.before:
        return f"observed at {step.stamp}, carried out at {entry.before}"
    if math.dist(step.position, entry.position_before) > TOLERANCE:
        return f"observed {step.position}, carried out from {entry.position_before}"
    final = step.final_position
    if final is not None and math.dist(final, entry.position_after) > TOLERANCE:
        return f"ended at {final} in the record, at {entry.position_after} in truth"
    return ""
