"""50,000 hostile requests and files; `./hil bench fuzz` makes more."""

# ruff: noqa: D103

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import _fuzz


@pytest.mark.timeout(1200)
def test_every_case_is_refused_with_a_reason_or_harmless(
    capfd: pytest.CaptureFixture[str],
) -> None:
    result = _fuzz.run(50_000, seed=1)
    assert result.cases.total() >= 50_000
    for name, cases in result.cases.items():
        assert cases // 5 < result.refused[name] <= cases, (name, result)
    capfd.readouterr()  # the middleware's C code reports every malformed message
