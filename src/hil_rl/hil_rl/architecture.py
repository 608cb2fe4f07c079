"""Layer shapes and initial values of the networks, in NumPy only.

Shared by the learner (`hil_rl.networks`, torch) and the actor (`hil_rl.policy`, NumPy).
"""

from __future__ import annotations

import math
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
        takes_action: the action is appended to the input of this layer.
        heads: the output consists of that many blocks that are initialised on their own.
    """

    name: str
    members: int
    inputs: int
    outputs: int
    activated: bool
    takes_action: bool = False
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
        outputs: width of the head.
        hidden: widths of the hidden layers.
        encoder: width of the state encoder (one member, shared by an ensemble); 0 for none.
        action: width of the action that is appended behind the encoder; 0 for none.
        members: size of the ensemble.
        activate_final: the last hidden layer has LayerNorm and tanh, too.
        heads: equal blocks of the head, initialised separately.
    """

    inputs: int
    outputs: int
    hidden: tuple[int, ...]
    encoder: int = 0
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
        width += self.action
        for i, size in enumerate(self.hidden):
            last = i == len(self.hidden) - 1
            active = self.activate_final or not last
            layers.append(Layer(f"hidden{i}", self.members, width, size, active, i == 0))
            width = size
        layers.append(Layer("head", self.members, width, self.outputs, False, heads=self.heads))
        return layers

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


def forward(shape: MLPShape, parameters: dict[str, Array], state: Array) -> Array:
    """Outputs of the first member.

    Args:
        shape: layer shapes, without action input.
        parameters: name -> array, as in `MLPShape.parameters`.
        state: (inputs,) or (n, inputs) float32.

    Returns:
        (outputs,) or (n, outputs) float32.
    """
    x = state
    for layer in shape.layers:
        x = x @ parameters[f"{layer.name}_weight"][0].T + parameters[f"{layer.name}_bias"][0]
        if layer.activated:
            x = x - x.mean(-1, keepdims=True)
            x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + LAYER_NORM_EPS)
            scale, shift = parameters[f"{layer.name}_scale"], parameters[f"{layer.name}_shift"]
            x = np.tanh(x * scale[0] + shift[0])
    return x
