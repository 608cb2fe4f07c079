"""Networks: ensembles of small MLPs (Dense -> LayerNorm -> tanh), their heads, initialisation.

Every parameter has a leading ensemble dimension, so an ensemble of critics is one module with
one set of tensors. On a CPU a network is one autograd node with a hand-written forward and
backward: oneDNN's matrix product (twice as fast as the default BLAS on many machines), fused
LayerNorm, NumPy's vectorised tanh, nothing computed that is not needed. Elsewhere the same
network is plain batched torch; both give the same numbers to rounding.

Initial values are drawn with NumPy, so the same seed gives the same network here and in
`hil_rl.policy`, which does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .architecture import (
    LAYER_NORM_EPS,
    Layer,
    MLPShape,
    VisionShape,
    initial_embedding,
    initial_parameters,
)
from .vision import convolve

LOG_2 = math.log(2.0)
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def _product() -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """Return oneDNN's x @ w.T + b for float32, or None where torch was built without it."""
    try:
        operator = torch.ops.mkldnn._linear_pointwise

        def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            return operator(x, w, b, "none", [], "")

        x, w, b = torch.ones(5, 3), torch.ones(3, 4).t(), torch.ones(4)
        good = torch.allclose(product(x, w, b), F.linear(x, w, b))
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    return product if good else None


_onednn_linear = _product()


def _linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Return x @ w.T + b, for (n, in) and (out, in), float32 on the CPU; no autograd."""
    return F.linear(x, w, b) if _onednn_linear is None else _onednn_linear(x, w, b)


_LOW_PRECISION_ROWS = 64
"""Smaller batches gain nothing, and acting agrees with `hil_rl.policy` to float32's rounding."""


def _low_linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """`_linear` with bfloat16 operands; sums and result are float32."""
    y = _linear(x.bfloat16(), w.bfloat16()).float()
    return y if b is None else y.add_(b)


def _by_layer(shape: MLPShape, tensors: Sequence[Any]) -> list[tuple[Layer, Sequence[Any]]]:
    """Split a flat list (the order of `MLPShape.parameters`) into that of each layer."""
    result, at = [], 0
    for layer in shape.layers:
        size = 4 if layer.activated else 2
        result.append((layer, tensors[at : at + size]))
        at += size
    return result


def plain_mlp(
    shape: MLPShape,
    state: Tensor,
    extra: Sequence[Tensor],
    parameters: Sequence[Tensor],
    dropout: float = 0.0,
) -> Tensor:
    """Run the network in plain torch: any device, any precision, with dropout.

    Args:
        shape: layer widths.
        state: (n, inputs), or (members, n, inputs) if every member has its own.
        extra: (n, ...) what is appended behind the encoder: embedding and action, if any.
        parameters: in the order of `MLPShape.parameters`.
        dropout: probability, in the hidden layers before LayerNorm.

    Returns:
        (members, n, outputs).
    """
    x = state if state.dim() == 3 else state.unsqueeze(0)
    for layer, (weight, bias, *affine) in _by_layer(shape, parameters):
        if layer.takes_extra and extra:
            x = torch.cat([x, *(t.expand(len(x), *t.shape) for t in extra)], -1)
        x = x.expand(layer.members, *x.shape[1:])
        x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        if affine:
            scale, shift = (t.unsqueeze(1) for t in affine)
            if dropout and layer.name != "encoder":
                x = F.dropout(x, dropout)
            x = F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)
            x = torch.tanh(torch.addcmul(shift, x, scale))
    return x


class _FusedMLP(torch.autograd.Function):
    """The same network as `plain_mlp`, float32 on the CPU, as one autograd node.

    With `low`, products of the hidden layers have bfloat16 operands: a LayerNorm follows them, so
    the rounding stays small. The head, whose outputs are values and actions, is always float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shape: MLPShape,
        low: bool,
        state: Tensor,
        embedding: Tensor | None,
        action: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        xs = [*state] if state.dim() == 3 else [state]  # one per member, or one for all
        steps = []
        extra = [t for t in (embedding, action) if t is not None]
        low = low and len(xs[0]) >= _LOW_PRECISION_ROWS
        for layer, (weight, bias, *affine) in _by_layer(shape, parameters):
            if layer.takes_extra and extra:
                xs = [torch.cat([x, *extra], 1) for x in xs]
            linear = _low_linear if low and layer.activated else _linear
            inputs, norms, ys = xs, [], []
            for e in range(layer.members):
                y = linear(inputs[e if len(inputs) > 1 else 0], weight[e], bias[e])
                if affine:
                    z, scale, shift = y, affine[0][e], affine[1][e]
                    y, mean, rstd = torch.native_layer_norm(
                        z, [layer.outputs], scale, shift, LAYER_NORM_EPS
                    )
                    np.tanh(y.numpy(), out=y.numpy())
                    norms.append((z, mean, rstd))
                ys.append(y)
            steps.append((inputs, norms, ys))
            xs = ys
        ctx.shape, ctx.steps, ctx.low, ctx.stacked = shape, steps, low, state.dim() == 3
        ctx.save_for_backward(*parameters)
        return torch.stack(xs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _, _, need_state, need_embedding, need_action, *need = ctx.needs_input_grad
        need_parameters = any(need)
        shape: MLPShape = ctx.shape
        layers = _by_layer(shape, ctx.saved_tensors)
        result: list[Sequence[Tensor | None]] = []
        d_embedding: Tensor | None = None
        d_action: Tensor | None = None
        dys = list(gradient.contiguous())
        for i in reversed(range(len(layers))):
            layer, (weight, _, *affine) = layers[i]
            inputs, norms, ys = ctx.steps[i]
            linear = _low_linear if ctx.low and layer.activated else _linear
            if affine:
                dzs, d_affine = _norm_tanh_backward(dys, norms, ys, affine, need_parameters)
            else:
                dzs, d_affine = dys, []
            if need_parameters:
                d_weight = torch.empty_like(weight)
                for e, dz in enumerate(dzs):
                    x = inputs[e if len(inputs) > 1 else 0]
                    d_weight[e] = linear(dz.t(), x.t())
                result.append([d_weight, torch.stack([dz.sum(0) for dz in dzs]), *d_affine])
            else:
                result.append([None] * (2 + len(affine)))

            own = layer.inputs
            if layer.takes_extra and shape.extra:
                own -= shape.extra
                start = own + shape.embedding
                if need_embedding:
                    d_embedding = _input_gradient(dzs, weight[:, :, own:start], 1, linear)[0]
                if need_action:
                    d_action = _input_gradient(dzs, weight[:, :, start:], 1, linear)[0]
                need_embedding = need_action = False
            if i > 0 and (need_parameters or need_state or need_embedding or need_action):
                dys = _input_gradient(dzs, weight[:, :, :own], len(inputs), linear)
            elif i > 0:
                result += [[None] * len(tensors) for _, tensors in reversed(layers[:i])]
                break
        d_state = None
        if need_state:
            inputs, weight = ctx.steps[0][0], layers[0][1][0]
            d_states = _input_gradient(dzs, weight[:, :, : shape.inputs], len(inputs), linear)
            d_state = torch.stack(d_states) if ctx.stacked else d_states[0]
        flat = [t for tensors in reversed(result) for t in tensors]
        return None, None, d_state, d_embedding, d_action, *flat


def _norm_tanh_backward(
    dys: list[Tensor],
    norms: list[tuple[Tensor, Tensor, Tensor]],
    ys: list[Tensor],
    affine: Sequence[Tensor],
    need_parameters: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of tanh(LayerNorm(z)) with respect to z, per member, and to scale and shift."""
    dzs, d_scale, d_shift = [], [], []
    mask = [True, need_parameters, need_parameters]
    for e, (dy, y, (z, mean, rstd)) in enumerate(zip(dys, ys, norms, strict=True)):
        dh = torch.ops.aten.tanh_backward(dy, y)
        dz, ds, dt = torch.ops.aten.native_layer_norm_backward(
            dh, z, z.shape[-1:], mean, rstd, affine[0][e], affine[1][e], mask
        )
        dzs.append(dz)
        d_scale.append(ds)
        d_shift.append(dt)
    if not need_parameters:
        return dzs, []
    return dzs, [torch.stack(d_scale), torch.stack(d_shift)]


def _input_gradient(
    dzs: list[Tensor], weight: Tensor, inputs: int, linear: Callable[[Tensor, Tensor], Tensor]
) -> list[Tensor]:
    """Gradient per input: of every member, or the sum if they share one."""
    # A slice with gaps between its rows would take oneDNN's reference path, 1000 times slower.
    weight = weight.contiguous()
    dxs = [linear(dz, weight[e].t()) for e, dz in enumerate(dzs)]
    if inputs == len(dxs):
        return dxs
    for other in dxs[1:]:
        dxs[0] += other
    return dxs[:1]


def run_mlp(
    shape: MLPShape,
    parameters: Sequence[Tensor],
    state: Tensor,
    embedding: Tensor | None = None,
    action: Tensor | None = None,
    dropout: float = 0.0,
    low: bool = False,
) -> Tensor:
    """The fastest way to the outputs (members, n, outputs); see `MLP.forward`."""
    if state.device.type == "cpu" and state.dtype == torch.float32 and not dropout:
        result: Tensor = _FusedMLP.apply(shape, low, state, embedding, action, *parameters)
        return result
    extra = [t for t in (embedding, action) if t is not None]
    return plain_mlp(shape, state, extra, parameters, dropout)


class MLP(nn.Module):
    """State encoder, hidden layers and linear head of an ensemble.

    Args:
        shape: layer widths.
        rng: source of the initial values.
        input_bias: see `initial_parameters`.
        low: hidden layers of large batches multiply in bfloat16 (CPU only).
    """

    def __init__(
        self,
        shape: MLPShape,
        rng: np.random.Generator,
        input_bias: float = 0.0,
        low: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.low = shape, low
        for name, value in initial_parameters(shape, rng, input_bias).items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(value)))
        self._in_order = tuple(self.parameters())  # walking the module takes a while

    def forward(
        self,
        state: Tensor,
        action: Tensor | None = None,
        frozen: bool = False,
        dropout: float = 0.0,
        embedding: Tensor | None = None,
    ) -> Tensor:
        """Outputs for a batch.

        Args:
            state: (n, inputs), or (members, n, inputs) if every member has its own.
            action: (n, action), appended behind the embedding; None if there is none.
            frozen: give no gradient to the parameters (but to the inputs).
            dropout: probability in the hidden layers.
            embedding: (n, embedding), appended behind the state encoder; None if there is none.

        Returns:
            (members, n, outputs).
        """
        parameters: Sequence[Tensor] = self._in_order
        if frozen:
            parameters = [p.detach() for p in parameters]
        return run_mlp(self.shape, parameters, state, embedding, action, dropout, self.low)


class ImageEncoder(nn.Module):
    """Spatial learned embeddings and one dense layer per camera, behind features or images.

    Args:
        shape: layer shapes.
        rng: source of the initial values.
        low: as of `MLP`.
    """

    def __init__(self, shape: VisionShape, rng: np.random.Generator, low: bool = False) -> None:
        super().__init__()
        self.shape, self.low = shape, low
        for name, value in initial_embedding(shape, rng).items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(value)))
        named = dict(self.named_parameters())
        self._kernel = named["kernel"]
        self._dense = [named[name] for name in shape.dense.parameters()]
        self._convolutions = {n: p for n, p in named.items() if n.startswith("conv")}

    def forward(self, frames: Tensor) -> Tensor:
        """Embedding of a batch.

        Args:
            frames: (n, cameras, channels, positions) features, or
                (n, cameras, height, width, 3) uint8 images if the convolutions are trained.

        Returns:
            (n, cameras * embedding) float32.
        """
        s, n = self.shape, len(frames)
        if self._convolutions:
            frames = convolve(frames.flatten(0, 1), self._convolutions)
        features = frames.reshape(n, s.cameras * s.channels, s.positions).float()
        pooled = torch.bmm(features.transpose(0, 1), self._kernel)
        pooled = pooled.view(s.cameras, s.channels, n, s.pooled).transpose(1, 2)
        pooled = pooled.reshape(s.cameras, n, -1)
        embedding = run_mlp(s.dense, self._dense, pooled, low=self.low)
        return embedding.transpose(0, 1).reshape(n, -1)


class _SquashedSample(torch.autograd.Function):
    """tanh(mean + std * noise) and its log density, with std = exp(clipped log_std)."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor, low: float, high: float
    ) -> tuple[Tensor, Tensor]:
        clipped = log_std.clamp(low, high)
        spread = clipped.exp().mul_(noise)
        u = mean + spread
        action = torch.tanh(u)
        # log N(u) - sum log(1 - tanh(u)^2), with the numerically stable form of the latter
        squash = F.softplus(-2.0 * u).add_(u).sub_(LOG_2).mul_(2.0)
        density = squash.sub_(clipped).sub_(LOG_SQRT_2PI).addcmul_(noise, noise, value=-0.5)
        ctx.save_for_backward(action, spread, clipped == log_std)
        return action, density.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_action: Tensor, d_density: Tensor) -> Any:
        action, spread, inside = ctx.saved_tensors
        d_density = d_density.unsqueeze(-1)
        # d action / du = 1 - action^2, d density / du = 2 action
        d_mean = (1.0 - action * action).mul_(d_action).addcmul_(action, d_density, value=2.0)
        d_log_std = (d_mean * spread).sub_(d_density).mul_(inside)
        return d_mean, d_log_std, None, None, None


class Actor(nn.Module):
    """Diagonal Gaussian over the continuous action dimensions, squashed by tanh.

    The head gives (mean, log standard deviation); the standard deviation is clipped to
    [std_min, std_max].
    """

    def __init__(
        self,
        shape: MLPShape,
        std_min: float,
        std_max: float,
        rng: np.random.Generator,
        input_bias: float = 0.0,
        low: bool = False,
    ) -> None:
        super().__init__()
        self.net = MLP(shape, rng, input_bias, low)
        self._log_std_range = math.log(std_min), math.log(std_max)

    def forward(
        self, state: Tensor, dropout: float = 0.0, embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(n, inputs) -> mean, log standard deviation before tanh, each (n, action_dim)."""
        outputs = self.net(state, dropout=dropout, embedding=embedding)[0]
        mean, log_std = outputs.chunk(2, -1)
        return mean, log_std.clamp(*self._log_std_range)

    def sample(
        self, state: Tensor, noise: Tensor, embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Reparametrised sample.

        Args:
            state: (n, inputs).
            noise: (n, action_dim) standard normal.
            embedding: (n, embedding) of the images, if any.

        Returns:
            action (n, action_dim) in (-1, 1) and its log density (n,), in nats.
        """
        mean, log_std = self.net(state, embedding=embedding)[0].chunk(2, -1)
        return _SquashedSample.apply(mean, log_std, noise, *self._log_std_range)
