"""Losses and updates of the agent against an independent computation."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from hil_rl.config import SACConfig
from hil_rl.sac import SACAgent, StateError, TrainingError
from hil_rl.spaces import SpaceError, Spaces
from hil_rl.store import Batch

SMALL = {"hidden": (16, 16), "grasp_hidden": (12, 8), "state_encoder": 6}


def make_spaces(grippers: int = 0) -> Spaces:
    return Spaces({"state": ((5,), "float32")}, 6 * max(grippers, 1), grippers)


def make_batch(spaces: Spaces, n: int = 32, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    batch = Batch.empty(n, spaces)
    batch.state[:] = rng.normal(size=batch.state.shape)
    batch.next_state[:] = rng.normal(size=batch.state.shape)
    batch.action[:] = rng.uniform(-1, 1, batch.action.shape)
    for i in spaces.gripper_indices:
        batch.action[:, i] = rng.integers(-1, 2, n)
    batch.reward[:] = rng.normal(size=n)
    batch.mask[:] = rng.random(n) < 0.7
    batch.grasp_penalty[:] = -0.02 * rng.integers(0, 2, batch.grasp_penalty.shape)
    return batch


class Reference:
    """The formulas of the paper's code in double precision, one sample at a time."""

    def __init__(self, agent: SACAgent) -> None:
        self.agent = agent
        self.p = {n: v.astype(np.float64) for n, v in agent.state().items() if v.ndim >= 1}
        self.generator = torch.Generator()
        self.generator.set_state(agent.generator.get_state())

    def noise(self, n: int) -> np.ndarray:
        size = (n, self.agent.spaces.action_dim)
        return torch.randn(size, generator=self.generator).numpy().astype(np.float64)

    def mlp(self, prefix: str, member: int, state: np.ndarray, action: object = None) -> object:
        x = state
        for layer in ("encoder", "hidden0", "hidden1", "head"):
            e = 0 if layer == "encoder" else member
            if layer == "hidden0" and action is not None:
                x = np.concatenate([x, np.asarray(action)])
            x = self.p[f"{prefix}{layer}_weight"][e] @ x + self.p[f"{prefix}{layer}_bias"][e]
            if f"{prefix}{layer}_scale" in self.p:
                x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
                x = x * self.p[f"{prefix}{layer}_scale"][e]
                x = np.tanh(x + self.p[f"{prefix}{layer}_shift"][e])
        return x

    def sample(self, state: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, float]:
        mean, log_std = np.split(np.asarray(self.mlp("actor.net.", 0, state)), 2)
        std = np.clip(np.exp(log_std), 1e-5, 5.0)
        u = mean + std * noise
        normal = Normal(torch.tensor(mean), torch.tensor(std)).log_prob(torch.tensor(u)).numpy()
        return np.tanh(u), float((normal - np.log1p(-(np.tanh(u) ** 2))).sum())

    def q(self, prefix: str, state: np.ndarray, action: np.ndarray) -> list[float]:
        members = self.agent.config.ensemble
        return [float(self.mlp(prefix, e, state, action)[0]) for e in range(members)]  # type: ignore[index]

    def bounded(self, target: float) -> float:
        limits = self.agent.config.value_range
        return min(max(target, limits[0]), limits[1]) if limits else target

    def metrics(self, batch: Batch) -> dict[str, float]:
        c, spaces, n = self.agent.config, self.agent.spaces, len(batch)
        next_noise = self.noise(n)
        order = list(range(c.ensemble))
        if c.target_subset:
            order = torch.randperm(c.ensemble, generator=self.generator).tolist()
            order = order[: c.target_subset]
        noise = self.noise(n)
        temperature = c.temperature_init
        critic, actor, entropy, grasp = [], [], [], []
        for i in range(n):
            s, s1 = batch.state[i].astype(float), batch.next_state[i].astype(float)
            a = batch.action[i].astype(float)
            continuous = np.delete(a, spaces.gripper_indices)
            a1, density1 = self.sample(s1, next_noise[i])
            target_q = self.q("target.critic.", s1, a1)
            value = min(target_q[e] for e in order)
            if c.backup_entropy:
                value -= temperature * density1
            r = batch.reward[i] + c.reward_bias
            y = self.bounded(r + c.discount * batch.mask[i] * value)
            critic += [(q - y) ** 2 for q in self.q("critic.", s, continuous)]
            a_new, density = self.sample(s, noise[i])
            q_new = self.q("critic.", s, a_new)
            best = np.mean(q_new) if c.actor_q == "mean" else min(q_new)
            actor.append(temperature * density - best)
            entropy.append(-density1)
            if spaces.grippers:
                digits = [round(float(a[j])) + 1 for j in spaces.gripper_indices]
                index = digits[0] if len(digits) == 1 else digits[0] * 3 + digits[1]
                online = np.asarray(self.mlp("grasp_critic.", 0, s1))
                frozen = np.asarray(self.mlp("target.grasp_critic.", 0, s1))
                y = r + batch.grasp_penalty[i].sum()
                y += c.discount * batch.mask[i] * frozen[online.argmax()]
                grasp.append((np.asarray(self.mlp("grasp_critic.", 0, s))[index] - y) ** 2)
        result = {
            "critic_loss": np.mean(critic),
            "actor_loss": np.mean(actor),
            "entropy": np.mean(entropy),
        }
        return result | ({"grasp_critic_loss": np.mean(grasp)} if grasp else {})


def scramble_targets(agent: SACAgent, seed: int = 5) -> None:
    """Make online and target critics differ, so that mixing them up shows."""
    generator = torch.Generator().manual_seed(seed)
    for target in agent.targets.values():
        for p in target.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))


@pytest.mark.parametrize("grippers", [0, 1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"actor_q": "min", "backup_entropy": True, "reward_bias": -0.5},
        {"ensemble": 5, "target_subset": 2, "grasp_activate_final": True},
        {"value_range": [-0.2, 0.3]},
    ],
)
def test_losses(grippers: int, options: dict) -> None:
    spaces = make_spaces(grippers)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL, **options), seed=1)
    scramble_targets(agent)
    batch = make_batch(spaces, 12)
    want = Reference(agent).metrics(batch)
    got = agent.update(batch)
    for name, value in want.items():
        assert got[name] == pytest.approx(value, rel=2e-4, abs=2e-5), name
    assert ("grasp_critic_loss" in got) == bool(grippers)


def test_only_termination_masks_the_target() -> None:
    """A time-out bootstraps; the next state of a terminated step does not matter."""
    spaces = make_spaces(1)
    config = SACConfig.preset("hil_serl", **SMALL)

    def loss(mask: float, next_state: float, truncated: bool) -> tuple[float, float]:
        batch = make_batch(spaces, 8)
        batch.mask[:], batch.next_state[:], batch.truncated[:] = mask, next_state, truncated
        metrics = SACAgent(spaces, config, seed=1).update(batch)
        return metrics["critic_loss"], metrics["grasp_critic_loss"]

    assert loss(0.0, 1.0, False) == loss(0.0, -1.0, False)
    assert loss(1.0, 1.0, True) == loss(1.0, 1.0, False)
    for one, other in zip(loss(1.0, 1.0, True), loss(1.0, -1.0, True), strict=True):
        assert one != other
    for one, other in zip(loss(1.0, 1.0, True), loss(0.0, 1.0, True), strict=True):
        assert one != other


def test_grasp_penalty_reaches_only_the_grasp_critic() -> None:
    spaces = make_spaces(1)
    config = SACConfig.preset("hil_serl", **SMALL)
    batch = make_batch(spaces, 16)
    metrics = []
    for penalty in (0.0, -5.0):
        batch.grasp_penalty[:] = penalty
        metrics.append(SACAgent(spaces, config, seed=1).update(batch))
    assert metrics[0]["critic_loss"] == metrics[1]["critic_loss"]
    assert metrics[0]["grasp_critic_loss"] != metrics[1]["grasp_critic_loss"]


def test_continuous_critic_does_not_see_the_gripper() -> None:
    spaces = make_spaces(2)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL), seed=1)
    assert agent.critic.hidden0_weight.shape[-1] == 6 + 12
    batch = make_batch(spaces, 16)
    loss = agent.update(batch)["critic_loss"]
    batch.action[:, [6, 13]] = 1.0
    again = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL), seed=1).update(batch)
    assert again["critic_loss"] == loss


def snapshot(agent: SACAgent, prefix: str) -> np.ndarray:
    arrays = agent.state()
    return np.concatenate([arrays[n].ravel() for n in sorted(arrays) if n.startswith(prefix)])


def test_networks_that_are_not_updated_do_not_move() -> None:
    """Not even by momentum, which is what happens in HIL-SERL."""
    spaces = make_spaces(1)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL), seed=1)
    batch = make_batch(spaces)
    agent.update(batch)
    before = {n: snapshot(agent, f"{n}.") for n in agent.networks}
    metrics = agent.update(batch, actor=False)
    assert "actor_loss" not in metrics
    for name in agent.networks:
        moved = not np.array_equal(before[name], snapshot(agent, f"{name}."))
        assert moved == (name in ("critic", "grasp_critic")), name


def test_targets_follow_by_polyak() -> None:
    spaces = make_spaces(1)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL), seed=1)
    scramble_targets(agent)
    for actor in (True, False):
        before = agent.state()
        agent.update(make_batch(spaces), actor=actor)
        after = agent.state()
        names = [n for n in before if n.startswith("target.")]
        assert len(names) == len(agent.critic.shape.parameters()) + len(
            agent.architecture.grasp_shape.parameters()  # type: ignore[union-attr]
        )
        for name in names:
            online = after[name.removeprefix("target.")]
            want = 0.995 * before[name] + 0.005 * online
            np.testing.assert_allclose(after[name], want, atol=1e-6)
    assert not any(p.requires_grad for t in agent.targets.values() for p in t.parameters())


def test_first_step_is_adam() -> None:
    """Each parameter moves by the learning rate against the sign of its gradient."""
    spaces = make_spaces(0)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL), seed=1)
    before = snapshot(agent, "critic.")
    agent.update(make_batch(spaces))
    step = np.abs(snapshot(agent, "critic.") - before)
    assert np.median(step) == pytest.approx(3e-4, rel=1e-3)


@pytest.mark.parametrize(("scale", "sign"), [(100.0, -1.0), (-100.0, 1.0)])
def test_temperature_falls_above_the_target_entropy(scale: float, sign: float) -> None:
    spaces = make_spaces(0)
    config = SACConfig.preset("hil_serl", **SMALL, target_entropy_scale=scale)
    agent = SACAgent(spaces, config, seed=1)
    assert agent.target_entropy == -scale * 3.0
    before = agent.temperature
    metrics = agent.update(make_batch(spaces))
    assert metrics["temperature"] == pytest.approx(0.01, rel=1e-5)
    assert math.copysign(1.0, agent.temperature - before) == sign


@pytest.mark.parametrize(("grippers", "target"), [(0, -3.0), (1, -3.0), (2, -6.0)])
def test_target_entropy_counts_continuous_dimensions(grippers: int, target: float) -> None:
    agent = SACAgent(make_spaces(grippers), SACConfig.preset("hil_serl", **SMALL), seed=0)
    assert agent.target_entropy == target


def test_gradient_clip_bounds_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = make_spaces(0)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL, gradient_clip=1e-3), seed=1)
    agent.update(make_batch(spaces))
    for name in ("actor", "critic"):
        grads = [p.grad for p in agent.networks[name].parameters()]
        norm = torch.sqrt(sum(g.square().sum() for g in grads if g is not None))
        assert float(norm) <= 1.001e-3


def test_same_seed_same_parameters() -> None:
    spaces = make_spaces(1)
    config = SACConfig.preset("hil_serl", **SMALL)

    def run(seed: int) -> dict[str, np.ndarray]:
        torch.manual_seed(np.random.default_rng().integers(1000))  # must not matter
        agent = SACAgent(spaces, config, seed)
        for i in range(5):
            agent.update(make_batch(spaces, seed=i), actor=i % 2 == 1)
        return agent.state()

    first, again, other = run(3), run(3), run(4)
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert not np.array_equal(first["critic.hidden0_weight"], other["critic.hidden0_weight"])


def test_diverged_update_changes_nothing() -> None:
    spaces = make_spaces(1)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL), seed=1)
    batch = make_batch(spaces)
    agent.update(batch)
    before = {n: snapshot(agent, f"{n}.") for n in (*agent.networks, "target", "adam")}
    batch.reward[3] = np.inf
    with pytest.raises(TrainingError, match="critic_loss"):
        agent.update(batch)
    for name, value in before.items():
        np.testing.assert_array_equal(value, snapshot(agent, f"{name}."))


def test_state_round_trip_and_mismatch() -> None:
    spaces = make_spaces(1)
    config = SACConfig.preset("hil_serl_normalized", **SMALL)
    agent, other = SACAgent(spaces, config, 1), SACAgent(spaces, config, 2)
    for i in range(3):
        agent.update(make_batch(spaces, seed=i))
    other.load_state(agent.state())
    for name, value in agent.state().items():
        np.testing.assert_array_equal(value, other.state()[name], err_msg=name)
    assert agent.update(make_batch(spaces, seed=9)) == other.update(make_batch(spaces, seed=9))

    wide = SACAgent(spaces, config.replace(hidden=(8, 16)), 1)
    before = copy.deepcopy(wide.state())
    with pytest.raises(StateError, match="shape"):
        wide.load_state(agent.state())
    with pytest.raises(StateError, match="missing"):
        other.load_state({n: v for n, v in agent.state().items() if "raw" not in n})
    with pytest.raises(StateError, match="unknown"):
        other.load_state(agent.state() | {"extra": np.zeros(1)})
    for name, value in wide.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_normalization_makes_units_irrelevant() -> None:
    """Scaling and shifting the observations changes nothing once they are normalised."""
    spaces = make_spaces(0)
    config = SACConfig.preset("hil_serl_normalized", **SMALL, normalize_min_std=1e-9)
    metrics = []
    for gain, offset in ((1.0, 0.0), (1e-3, 40.0), (500.0, -3.0)):
        agent = SACAgent(spaces, config, seed=1)
        for i in range(3):
            batch = make_batch(spaces, 64, seed=i)
            batch.next_state[:] = batch.state[::-1]
            for array in (batch.state, batch.next_state):
                array[:] = array * gain + offset
            result = agent.update(batch)
        metrics.append(result["critic_loss"])
    assert metrics[1] == pytest.approx(metrics[0], rel=0.02)
    assert metrics[2] == pytest.approx(metrics[0], rel=1e-3)


def test_images_are_refused() -> None:
    spaces = Spaces({"wrist": ((8, 8, 3), "uint8"), "q": ((7,), "float32")}, 6)
    with pytest.raises(SpaceError, match="wrist"):
        SACAgent(spaces, SACConfig(), 0)


def test_acting() -> None:
    spaces = make_spaces(2)
    agent = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL), seed=1)
    observation = {"state": np.arange(5.0)}
    mode = agent.act(observation, deterministic=True)
    np.testing.assert_array_equal(mode, agent.act(observation, deterministic=True))
    generator = torch.Generator().manual_seed(0)
    samples = [agent.act(observation, generator=generator) for _ in range(20)]
    assert mode.shape == (14,) and np.abs(samples).max() <= 1.0
    assert len({s.tobytes() for s in samples}) == 20
    assert {s[6] for s in samples} == {mode[6]} and mode[13] in (-1.0, 0.0, 1.0)
    eager = SACAgent(spaces, SACConfig.preset("hil_serl", **SMALL, grasp_epsilon=1.0), seed=1)
    grips = {(a[6], a[13]) for a in (eager.act(observation) for _ in range(200))}
    assert len(grips) == 9
    assert eager.act(observation, deterministic=True).tolist() == mode.tolist()
