"""Fused layers against plain torch; shapes; initial values; the NumPy forward."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hil_rl import networks
from hil_rl.architecture import LAYER_NORM_EPS, MLPShape, forward, initial_parameters
from hil_rl.networks import MLP, Actor, _SquashedSample, plain_mlp

SHAPES = {
    "actor": MLPShape(5, 12, (8, 7), encoder=6, heads=2),
    "no encoder": MLPShape(5, 12, (8, 7)),
    "critic": MLPShape(5, 1, (8, 7), encoder=6, action=3, members=3),
    "critic, no encoder": MLPShape(5, 1, (8,), action=3, members=2),
    "grasp": MLPShape(5, 9, (8, 7), encoder=6, activate_final=False),
    "actor with images": MLPShape(5, 12, (8, 7), encoder=6, embedding=4, heads=2),
    "critic with images": MLPShape(5, 1, (8, 7), encoder=6, embedding=4, action=3, members=3),
    "critic with images, no encoder": MLPShape(5, 1, (8,), embedding=4, action=3, members=2),
    "no head, an input per member": MLPShape(5, 0, (8,), members=2),
    "no head, one member": MLPShape(5, 0, (8,)),
}


def inputs(shape: MLPShape, n: int = 17) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    size = (n, shape.inputs) if shape.outputs else (shape.members, n, shape.inputs)
    sizes = {"state": size, "embedding": (n, shape.embedding), "action": (n, shape.action)}
    return {name: torch.randn(size) for name, size in sizes.items() if size[-1]}


def network(shape: MLPShape) -> MLP:
    net = MLP(shape, np.random.default_rng(0))
    torch.manual_seed(2)
    for p in net.parameters():  # no parameter at a special value
        p.data += 0.3 * torch.randn(p.shape)
    return net


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("wanted", ["", "state", "embedding", "action", "state embedding action"])
@pytest.mark.parametrize("name", SHAPES)
def test_fused_network_equals_plain_torch(
    onednn: bool, frozen: bool, wanted: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and every gradient, against autograd in double precision."""
    shape = SHAPES[name]
    if not onednn:
        monkeypatch.setattr(networks, "_onednn_linear", None)
    net, given = network(shape), inputs(shape)
    leaves = [given[kind] for kind in wanted.split() if kind in given]
    if frozen and not leaves:
        return
    for leaf in leaves:
        leaf.requires_grad_()
    got = net(**given, frozen=frozen)
    double = [p.detach().double().requires_grad_() for p in net.parameters()]
    doubles = {k: t.detach().double().requires_grad_() for k, t in given.items()}
    extra = [doubles[kind] for kind in ("embedding", "action") if kind in doubles]
    want = plain_mlp(shape, doubles["state"], extra, double)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    assert got.shape == (shape.members, 17, shape.outputs or shape.hidden[-1])

    weight = torch.randn(got.shape)
    ours = list(leaves)
    theirs = [doubles[kind] for kind in wanted.split() if kind in given]
    if not frozen:
        ours += list(net.parameters())
        theirs += double
    got_grad = torch.autograd.grad((got * weight).sum(), ours)
    want_grad = torch.autograd.grad((want * weight).sum(), theirs)
    for a, b in zip(got_grad, want_grad, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_bfloat16_products_stay_close(name: str) -> None:
    """Outputs and gradients of a large batch to some per cent; of a small one as without."""
    shape = SHAPES[name]
    net, given = network(shape), inputs(shape, 200)
    results = []
    for net.low in (False, True):
        outputs = net(**given)
        gradients = torch.autograd.grad(outputs.square().mean(), [*net.parameters()])
        results.append((outputs.detach(), *gradients))
    for i, (full, low) in enumerate(zip(*results, strict=True)):
        assert low.dtype == torch.float32
        tolerance = 0.1 if i else 0.02  # gradients are means of terms that cancel
        assert (full - low).norm() <= tolerance * full.norm() + 1e-4
    assert not torch.equal(results[0][0], results[1][0])
    few = {kind: tensor[..., :5, :] for kind, tensor in given.items()}
    got = net(**few)
    net.low = False
    assert torch.equal(got, net(**few))


def test_frozen_network_gives_its_parameters_no_gradient() -> None:
    net, given = network(SHAPES["critic"]), inputs(SHAPES["critic"])
    action = given["action"].requires_grad_()
    net(**given, frozen=True).sum().backward()
    assert action.grad is not None
    assert all(p.grad is None for p in net.parameters())


def test_dropout() -> None:
    """Half of the units in front of the LayerNorm are zero; without it, the fused path runs."""
    shape = MLPShape(64, 400, (400,))
    net = MLP(shape, np.random.default_rng(0))
    net.head_weight.data = torch.eye(400)[None]
    torch.manual_seed(0)
    hidden = net(torch.randn(20, 64), dropout=0.5)[0]
    # dropped units are equal after the norm: the most frequent value of each row
    share = [(row == row.mode().values).float().mean().item() for row in hidden]
    assert np.mean(share) == pytest.approx(0.5, abs=0.03)


def test_initial_values() -> None:
    shape = MLPShape(10, 8, (32, 16), encoder=4, action=3, members=2, heads=2)
    values = initial_parameters(shape, np.random.default_rng(0))
    assert {n: v.shape for n, v in values.items()} == shape.parameters()
    assert values["encoder_weight"].shape == (1, 4, 10)
    assert values["hidden0_weight"].shape == (2, 32, 7)
    assert values["head_weight"].shape == (2, 8, 16)
    bound = math.sqrt(6.0 / (16 + 4))  # fan-out of one of the two heads
    assert 0.9 * bound < np.abs(values["head_weight"]).max() <= bound
    assert not np.array_equal(values["hidden0_weight"][0], values["hidden0_weight"][1])
    assert not values["head_bias"].any() and not values["hidden0_shift"].any()
    assert (values["hidden0_scale"] == 1).all()


def test_inactive_final_layer_has_no_norm() -> None:
    shape = MLPShape(4, 3, (8, 6), activate_final=False)
    names = shape.parameters().keys()
    assert "hidden0_scale" in names and "hidden1_scale" not in names
    net = MLP(shape, np.random.default_rng(0))
    x = torch.randn(5, 4)
    p = dict(net.named_parameters())
    h = torch.tanh(F.layer_norm(x @ p["hidden0_weight"][0].T, (8,), eps=LAYER_NORM_EPS))
    want = (h @ p["hidden1_weight"][0].T) @ p["head_weight"][0].T
    torch.testing.assert_close(net(x)[0], want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("encoder", [0, 5])
@pytest.mark.parametrize("final", [True, False])
def test_numpy_forward_equals_torch(encoder: int, final: bool) -> None:
    shape = MLPShape(7, 4, (16, 8), encoder=encoder, activate_final=final)
    net = MLP(shape, np.random.default_rng(1))
    values = {n: p.detach().numpy() for n, p in net.named_parameters()}
    x = np.random.default_rng(2).normal(size=(9, 7)).astype(np.float32)
    want = net(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(forward(shape, values, x), want, atol=1e-5)
    np.testing.assert_allclose(forward(shape, values, x[3]), want[3], atol=1e-5)


def test_density_of_the_squashed_gaussian() -> None:
    actor = Actor(MLPShape(3, 4, (8,), heads=2), 1e-5, 5.0, np.random.default_rng(0))
    state, noise = torch.randn(50, 3), torch.randn(50, 2)
    action, density = actor.sample(state, noise)
    mean, std = (t.detach().double() for t in (actor(state)[0], actor(state)[1].exp()))
    u = mean + std * noise
    want = torch.distributions.Normal(mean, std).log_prob(u) - torch.log1p(-(torch.tanh(u) ** 2))
    torch.testing.assert_close(action.double(), torch.tanh(u), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(density.double(), want.sum(-1), atol=1e-3, rtol=1e-3)


def test_gradient_of_the_sample() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> torch.Tensor:
        return torch.randn(50, 2, generator=generator)

    mean, log_std, noise = draw().requires_grad_(), draw().requires_grad_(), draw()
    weight_action, weight_density = draw(), draw()[:, 0]
    got = _SquashedSample.apply(mean, log_std, noise, -0.5, 0.8)
    loss = (got[0] * weight_action).sum() + (got[1] * weight_density).sum()
    got_grad = torch.autograd.grad(loss, [mean, log_std])

    std = log_std.clamp(-0.5, 0.8).exp()
    u = (mean + std * noise).double()
    normal = torch.distributions.Normal(mean.double(), std.double()).log_prob(u)
    density = (normal - torch.log1p(-(torch.tanh(u) ** 2))).sum(-1)
    loss = (torch.tanh(u) * weight_action).sum() + (density * weight_density).sum()
    want_grad = torch.autograd.grad(loss, [mean, log_std])
    torch.testing.assert_close(got[1].double(), density, atol=1e-4, rtol=1e-4)
    for a, b in zip(got_grad, want_grad, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_density_is_finite_far_out() -> None:
    actor = Actor(MLPShape(3, 2, (8,), heads=2), 1e-5, 5.0, np.random.default_rng(0))
    actor.net.head_bias.data[:] = torch.tensor([40.0, 9.0])
    action, density = actor.sample(torch.randn(10, 3), torch.randn(10, 1) * 4)
    assert torch.isfinite(density).all() and (action.abs() <= 1).all()
    assert actor(torch.randn(2, 3))[1].exp().max().item() == pytest.approx(5.0)
