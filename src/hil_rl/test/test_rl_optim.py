"""Adam against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hil_rl.optim import Adam


def test_equals_torch_adam() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    one, other = Adam(ours, 1e-2), torch.optim.Adam(theirs.parameters(), lr=1e-2)
    for _ in range(20):
        x = torch.randn(8, 4)
        for net, optimizer in ((ours, one), (theirs, other)):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_missing_gradient_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no gradient"):
        Adam(nn.Linear(2, 2), 1e-3).step()


def test_names_cover_the_state() -> None:
    names = [name for name, _ in Adam(nn.Linear(2, 2), 1e-3).tensors()]
    assert names == [f"{p}.{k}" for k in ("first", "second", "step") for p in ("weight", "bias")]
