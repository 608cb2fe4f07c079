"""Adam for one network, with little overhead and a plain state."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BETAS = 0.9, 0.999
EPS = 1e-8


class Adam:
    """Adam with a constant learning rate (the fused kernel of torch.optim.Adam).

    Args:
        network: whose parameters are optimised.
        learning_rate: step size.
        clip: global norm of the gradient; 0 for none.
    """

    def __init__(self, network: nn.Module, learning_rate: float, clip: float = 0.0) -> None:
        named = dict(network.named_parameters())
        self._names = list(named)
        self._parameters: list[Tensor] = list(named.values())
        self._learning_rate = learning_rate
        self._clip = clip
        self._first = [torch.zeros_like(p, requires_grad=False) for p in self._parameters]
        self._second = [torch.zeros_like(p, requires_grad=False) for p in self._parameters]
        self._steps = [torch.zeros((), device=p.device) for p in self._parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters from their gradients.

        Raises:
            RuntimeError: a parameter has no gradient.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if len(gradients) != len(self._parameters):
            raise RuntimeError("a parameter of the network got no gradient")
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        torch._foreach_add_(self._steps, 1.0)
        torch._fused_adam_(
            self._parameters,
            gradients,
            self._first,
            self._second,
            [],
            self._steps,
            lr=self._learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Name and tensor of everything the optimiser remembers; loading copies into them."""
        kinds = {"first": self._first, "second": self._second, "step": self._steps}
        for kind, tensors in kinds.items():
            for name, tensor in zip(self._names, tensors, strict=True):
                yield f"{name}.{kind}", tensor
