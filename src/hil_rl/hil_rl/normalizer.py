"""Standardisation of state vectors with statistics that become fixed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .spaces import Array


class Normalizer:
    """(x - mean) / std, clipped, with the mean and variance of all batches seen so far.

    Args:
        size: length of a state vector.
        enabled: if false, states pass unchanged and statistics are not collected.
        updates: number of batches after which the statistics are fixed.
        min_std: floor of the standard deviation, so that constants are not blown up.
        clip: bound of the result.
    """

    def __init__(
        self, size: int, enabled: bool, updates: int, min_std: float, clip: float
    ) -> None:
        self.enabled = enabled
        self.clip = clip
        self._limit = updates
        self._min_std = min_std
        self._batches = 0
        self._count = 0.0
        self._mean = np.zeros(size)
        self._square = np.zeros(size)  # sum of squared deviations from the mean
        self._refresh()

    def update(self, states: Array) -> None:
        """Add a batch (n, size) to the statistics, unless they are fixed by now."""
        if not self.enabled or self._batches >= self._limit:
            return
        n = len(states)
        mean = states.mean(0, dtype=np.float64)
        deviation = mean - self._mean
        total = self._count + n
        self._square += np.square(states - mean).sum(0)
        self._square += np.square(deviation) * (self._count * n / total)
        self._mean += deviation * (n / total)
        self._count = total
        self._batches += 1
        self._refresh()

    def _refresh(self) -> None:
        self.mean: Array = self._mean.astype(np.float32)
        variance = self._square / self._count if self._count else np.ones_like(self._square)
        std = np.maximum(np.sqrt(variance), self._min_std)
        self.scale: Array = (1.0 / std).astype(np.float32)

    def __call__(self, states: Array) -> Array:
        """Normalised copy of (..., size) float32 states (the states themselves if disabled)."""
        if not self.enabled:
            return states
        return standardize(states, self.mean, self.scale, self.clip)

    def state(self) -> dict[str, Array]:
        """Arrays for a checkpoint; `load_state` is the inverse."""
        return {
            "mean": self._mean.copy(),
            "square": self._square.copy(),
            "count": np.array([self._count, self._batches]),
        }

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `state`."""
        self._mean = np.array(arrays["mean"], np.float64)
        self._square = np.array(arrays["square"], np.float64)
        self._count = float(arrays["count"][0])
        self._batches = int(arrays["count"][1])
        self._refresh()


def standardize(states: Array, mean: Array, scale: Array, clip: float) -> Array:
    """clip((states - mean) * scale, -clip, clip) as float32."""
    result = (states - mean) * scale
    return np.clip(result, -clip, clip, out=result)
