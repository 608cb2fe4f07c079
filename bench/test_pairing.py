"""The comparison of ledger and log finds every kind of fault."""

# ruff: noqa: D103

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _pairing import Comparison, Logged, Place, Position, compare

from hil_sim.ledger import Entry


def at(stamp: int) -> Position:
    return (0.01 * stamp, 0.0, 0.0)


def carried(session: str, step: int, before: int, life: str = "life") -> Entry:
    after = before + 1
    name = f"actor/{session}/0/{step}"
    return Entry(life, name, session, 1, before, after, at(before), at(after), 0.0)


def logged(session: str, step: int, stamp: int, final: bool = False) -> Logged:
    place = Place("actor", session, 0, step)
    return Logged(place, step + 1, stamp, at(stamp), at(stamp + 1) if final else None)


LEDGER = [carried("a", 0, 1), carried("a", 1, 2), carried("a", 2, 3)]
LOG = [logged("a", 0, 1), logged("a", 1, 2), logged("a", 2, 3, final=True)]


def test_all_is_well() -> None:
    assert compare([LEDGER], LOG) == Comparison(steps=3)


def test_motions_of_the_bridge_are_no_steps() -> None:
    bridge = replace(LEDGER[0], step="")
    assert compare([[bridge, *LEDGER]], LOG) == Comparison(steps=3)


def test_the_last_step_is_lost_where_nobody_died() -> None:
    result = compare([LEDGER], LOG[:-1])
    assert result.lost == [Place("actor", "a", 0, 2)]


def test_one_step_may_be_in_flight_when_the_actor_dies() -> None:
    ledger = [*LEDGER, carried("b", 0, 4)]
    log = [*LOG[:2], logged("b", 0, 4)]
    result = compare([ledger], log)
    assert (result.lost, result.in_flight) == ([], [Place("actor", "a", 0, 2)])
    result = compare([ledger], [LOG[0], log[-1]])
    assert result.lost == [Place("actor", "a", 0, 1)]
    assert result.in_flight == [Place("actor", "a", 0, 2)]


def test_one_step_may_be_in_flight_when_the_simulator_dies() -> None:
    ledger = [*LEDGER, carried("a", 3, 1, life="next"), carried("a", 4, 2, life="next")]
    log = [*LOG[:2], logged("a", 3, 1), logged("a", 4, 2)]
    log = [replace(step, seq=number) for number, step in enumerate(log, 1)]
    result = compare([ledger], log)
    assert (result.lost, result.mispaired) == ([], [])
    assert result.in_flight_simulator == [Place("actor", "a", 0, 2)]


def test_duplicates_are_found() -> None:
    result = compare([LEDGER], [*LOG, LOG[1]])
    assert result.duplicated == [Place("actor", "a", 0, 1)]
    assert not result.mispaired


def test_wrong_stamp_position_end_number_and_invention_are_found() -> None:
    for index, wrong in (
        (1, replace(LOG[1], stamp=3)),
        (1, replace(LOG[1], position=at(3))),
        (2, replace(LOG[2], final_position=at(3))),
        (1, replace(LOG[1], seq=7)),
    ):
        log = [*LOG[:index], wrong, *LOG[index + 1 :]]
        assert compare([LEDGER], log).mispaired, wrong
    assert compare([LEDGER], [*LOG, logged("b", 0, 9)]).mispaired


def test_actors_of_several_simulators_do_not_mix() -> None:
    other = [replace(e, step=e.step.replace("actor", "second"), life="other") for e in LEDGER]
    log = [replace(s, place=s.place._replace(actor="second", session="z")) for s in LOG]
    other = [replace(e, step=e.step.replace("/a/", "/z/")) for e in other]
    assert compare([LEDGER, other], [*LOG, *log]) == Comparison(steps=6)
    assert len(compare([LEDGER, other], LOG).lost) == 3
