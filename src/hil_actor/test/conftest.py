"""Spools for the tests of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hil_actor.spool import Spool, SpoolOptions
from hil_actor.step_store import Stream

GENEROUS = 20.0


class PromptSpool(Spool):
    """A spool whose steps are committed when `append` returns."""

    def append(self, data: bytes) -> int:
        seq = super().append(data)
        assert self.settle(GENEROUS)
        return seq


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Callable[..., PromptSpool]]:
    """Makes spools of one session; options as those of SpoolOptions."""
    made: list[PromptSpool] = []

    def make(**options: int) -> PromptSpool:
        spool = PromptSpool(tmp_path / str(len(made)), "actor", SpoolOptions(**options))
        made.append(spool)
        spool.begin(Stream("run", "spec", "actor", "session"))
        return spool

    yield make
    for spool in made:
        assert spool.close(GENEROUS) == 0
