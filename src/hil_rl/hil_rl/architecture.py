"""Layer shapes and initial values of the networks, in NumPy only.

Shared by the learner (`hil_rl.networks`, torch) and the actor (`hil_rl.policy`, NumPy).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .spaces import Array

LAYER_NORM_EPS = 1e-6


@dataclass(frozen=True)
class Layer:
    """One dense layer of an ensemble.

    Attributes:
        name: prefix of its parameters (NAME_weight, NAME_bias, NAME_scale, NAME_shift).
        members: size of the leading dimension.
        inputs: width of the input.
        outputs: width of the output.
        activated: followed by LayerNorm and tanh.
        takes_extra: embedding and action are appended to the input of this layer.
        heads: the output consists of that many blocks that are initialised on their own.
    """

    name: str
    members: int
    inputs: int
    outputs: int
    activated: bool
    takes_extra: bool = False
    heads: int = 1

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape."""
        shapes: dict[str, tuple[int, ...]] = {
            f"{self.name}_weight": (self.members, self.outputs, self.inputs),
            f"{self.name}_bias": (self.members, self.outputs),
        }
        if self.activated:
            shapes[f"{self.name}_scale"] = (self.members, self.outputs)
            shapes[f"{self.name}_shift"] = (self.members, self.outputs)
        return shapes


@dataclass(frozen=True)
class MLPShape:
    """Optional state encoder, hidden layers, linear head.

    Attributes:
        inputs: width of the state.
        outputs: width of the head; 0: the last hidden layer is the output.
        hidden: widths of the hidden layers.
        encoder: width of the state encoder (one member, shared by an ensemble); 0 for none.
        embedding: width of the image embedding that is appended behind the encoder; 0 for none.
        action: width of the action that is appended behind the embedding; 0 for none.
        members: size of the ensemble.
        activate_final: the last hidden layer has LayerNorm and tanh, too.
        heads: equal blocks of the head, initialised separately.
    """

    inputs: int
    outputs: int
    hidden: tuple[int, ...]
    encoder: int = 0
    embedding: int = 0
    action: int = 0
    members: int = 1
    activate_final: bool = True
    heads: int = 1

    @cached_property
    def layers(self) -> list[Layer]:
        """Layers in order."""
        layers = []
        width = self.inputs
        if self.encoder:
            layers.append(Layer("encoder", 1, width, self.encoder, True))
            width = self.encoder
        width += self.extra
        for i, size in enumerate(self.hidden):
            last = i == len(self.hidden) - 1
            active = self.activate_final or not last
            layers.append(Layer(f"hidden{i}", self.members, width, size, active, i == 0))
            width = size
        if self.outputs:
            head = Layer("head", self.members, width, self.outputs, False, heads=self.heads)
            layers.append(head)
        return layers

    @property
    def extra(self) -> int:
        """Width of what is appended behind the encoder."""
        return self.embedding + self.action

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter."""
        return {n: s for layer in self.layers for n, s in layer.parameters().items()}


def initial_parameters(
    shape: MLPShape, rng: np.random.Generator, input_bias: float = 0.0
) -> dict[str, Array]:
    """Xavier-uniform weights (per member and head), zero biases and shifts, unit scales.

    Args:
        shape: layer shapes.
        rng: source of randomness.
        input_bias: size of the first layer's biases relative to the effect of standardised
            inputs on it. See `SACConfig.input_bias`.
    """
    values: dict[str, Array] = {}
    for i, layer in enumerate(shape.layers):
        bound = math.sqrt(6.0 / (layer.inputs + layer.outputs // layer.heads))
        bias = input_bias * bound * math.sqrt(layer.inputs) if i == 0 else 0.0
        for name, size in layer.parameters().items():
            if name.endswith("_weight"):
                values[name] = rng.uniform(-bound, bound, size).astype(np.float32)
            elif name.endswith("_bias") and bias:
                values[name] = rng.uniform(-bias, bias, size).astype(np.float32)
            elif name.endswith("_scale"):
                values[name] = np.ones(size, np.float32)
            else:
                values[name] = np.zeros(size, np.float32)
    return values


def forward(
    shape: MLPShape,
    parameters: Mapping[str, Array],
    state: Array,
    embedding: Array | None = None,
    member: int = 0,
) -> Array:
    """Outputs of one member.

    Args:
        shape: layer shapes, without action input.
        parameters: name -> array, as in `MLPShape.parameters`.
        state: (inputs,) or (n, inputs) float32.
        embedding: (shape.embedding,) or (n, shape.embedding) float32.
        member: of the ensemble.

    Returns:
        (outputs,) or (n, outputs) float32.
    """
    x = state
    for layer in shape.layers:
        if layer.takes_extra and embedding is not None:
            x = np.concatenate([x, embedding], -1)
        m = member if layer.members > 1 else 0
        x = x @ parameters[f"{layer.name}_weight"][m].T + parameters[f"{layer.name}_bias"][m]
        if layer.activated:
            x = x - x.mean(-1, keepdims=True)
            x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + LAYER_NORM_EPS)
            scale, shift = parameters[f"{layer.name}_scale"], parameters[f"{layer.name}_shift"]
            x = np.tanh(x * scale[m] + shift[m])
    return x


@dataclass(frozen=True)
class VisionShape:
    """From images to an embedding: backbone, projection, spatial pooling, one dense layer.

    Pooling and dense layer are those of HIL-SERL: per camera and channel `pooled` learned weighted
    sums over the positions, then Dense -> LayerNorm -> tanh.

    Attributes:
        cameras: number of images.
        height, width: of an image, pixels.
        backbone: see `VisionConfig`.
        weights: SHA-256 of the frozen backbone's weights; empty if it is trained.
        backbone_channels: of the backbone's output.
        channels: behind the projection; as many as `backbone_channels`: there is none.
        positions: of the backbone's output, height times width.
        pooled: learned embeddings per channel.
        embedding: per camera.
        filters: widths of the trained backbone's layers; empty if it is frozen.
    """

    cameras: int
    height: int
    width: int
    backbone: str
    weights: str
    backbone_channels: int
    channels: int
    positions: int
    pooled: int
    embedding: int
    filters: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """Width of the embedding of all cameras."""
        return self.cameras * self.embedding

    @property
    def projects(self) -> bool:
        """There is a projection between backbone and pooling."""
        return self.channels != self.backbone_channels

    @property
    def kernel_shape(self) -> tuple[int, int, int]:
        """Of the pooling kernel: (cameras * channels, positions, pooled)."""
        return self.cameras * self.channels, self.positions, self.pooled

    @cached_property
    def dense(self) -> MLPShape:
        """The layer behind the pooling; the cameras are its members."""
        inputs = self.channels * self.pooled
        return MLPShape(inputs, 0, (self.embedding,), members=self.cameras)

    def trainable(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what is trained."""
        shapes: dict[str, tuple[int, ...]] = {"kernel": self.kernel_shape}
        shapes |= self.dense.parameters()
        inputs = 3
        for i, width in enumerate(self.filters):
            shapes[f"conv{i}_weight"] = (width, inputs, 3, 3)
            shapes[f"conv{i}_bias"] = (width,)
            inputs = width
        return shapes

    def fixed(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the projection; empty without one."""
        if not self.projects:
            return {}
        return {
            "projection_mean": (self.backbone_channels,),
            "projection_weight": (self.channels, self.backbone_channels),
        }


def initial_embedding(shape: VisionShape, rng: np.random.Generator) -> dict[str, Array]:
    """Initial values of `VisionShape.trainable`: LeCun-normal, He-normal in front of a ReLU."""
    values: dict[str, Array] = {}
    for name, size in shape.trainable().items():
        if name.endswith("_scale"):
            values[name] = np.ones(size, np.float32)
            continue
        if name == "kernel":
            std = 1.0 / math.sqrt(shape.channels * shape.positions)
        elif name.startswith("conv") and name.endswith("_weight"):
            std = math.sqrt(2.0 / (size[1] * size[2] * size[3]))
        elif name.endswith("_weight"):
            std = 1.0 / math.sqrt(size[-1])
        else:
            std = 0.0
        values[name] = (std * rng.standard_normal(size)).astype(np.float32)
    return values


def embed(shape: VisionShape, parameters: Mapping[str, Array], features: Array) -> Array:
    """Embedding of the frames of one observation.

    Args:
        shape: layer shapes.
        parameters: name -> array, as in `VisionShape.trainable`.
        features: (cameras, channels, positions).

    Returns:
        (outputs,) float32: the cameras one after the other.
    """
    kernel = parameters["kernel"].reshape(shape.cameras, shape.channels, shape.positions, -1)
    pooled = np.einsum("kcp,kcpf->kcf", features.astype(np.float32), kernel)
    rows = [
        forward(shape.dense, parameters, pooled[camera].reshape(-1), member=camera)
        for camera in range(shape.cameras)
    ]
    return np.concatenate(rows)
