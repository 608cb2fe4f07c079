"""The training loop: mixed batches, bounded update ratio, resumable state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from .config import TrainerConfig
from .policy import ActorArchitecture
from .sac import StateError
from .spaces import Array, Spaces
from .store import Batch, EpisodeStore, View

UNLIMITED = 2**62
"""Value of `updates_due` and `env_steps_allowed` where there is no bound."""


class AgentConfig(Protocol):
    """Settings of an agent."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""


class Agent(Protocol):
    """What is trained: `hil_rl.sac.SACAgent` or `hil_rl.bc.BCAgent`."""

    spaces: Spaces
    architecture: ActorArchitecture

    @property
    def config(self) -> AgentConfig:
        """Its settings."""

    def update(self, batch: Batch, actor: bool = True) -> dict[str, float]:
        """One gradient step; returns metrics."""

    def acting_parameters(self) -> dict[str, Array]:
        """What acting needs, see `hil_rl.policy`."""

    def state(self) -> dict[str, Array]:
        """Everything an update depends on."""

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `state`; raises StateError."""


class Trainer:
    """Feeds an agent from a store.

    An update is one learner step: `cta_ratio` critic updates on fresh batches, the last of them
    with actor and temperature. A batch is `demo_ratio` demonstrations and interventions, the
    rest online steps; while one of the two views is empty, the other one fills the batch (except
    for imitation, with a ratio of 1).

    Args:
        agent: to train.
        store: to sample from; another thread may add to it.
        config: see `TrainerConfig`.
        seed: of the sampling.
    """

    def __init__(
        self, agent: Agent, store: EpisodeStore, config: TrainerConfig, seed: int
    ) -> None:
        self.agent = agent
        self.store = store
        self.config = config
        self.updates = 0
        self._rng = np.random.default_rng([seed, 2])
        self._batches = [store.batch(config.batch_size) for _ in range(config.cta_ratio)]
        self.seen = 0
        """Revision of the store that the last update was sampled from."""

    def updates_due(self) -> int:
        """Updates that may be done now; `UNLIMITED` without an upper bound, 0 before training."""
        c = self.config
        online = self.store.counts.online
        if online < c.training_starts or not self.store.size(self._needed):
            return 0
        end = c.max_updates or UNLIMITED
        if c.max_updates_per_env_step:
            credit = _floor(c.max_updates_per_env_step * (online - c.training_starts + 1))
            end = min(end, c.initial_updates + credit)
        return UNLIMITED if end == UNLIMITED else max(0, end - self.updates)

    @property
    def _needed(self) -> View:
        """View without which there is nothing to train on."""
        return "demo" if self.config.demo_ratio == 1.0 else "all"

    def env_steps_allowed(self) -> int:
        """Total of online steps (`Counts.online`) at which actors have to wait for the learner.

        `UNLIMITED` without a lower bound. Never below what is needed for the next update, so
        actors and learner cannot wait for each other.
        """
        c = self.config
        if not c.min_updates_per_env_step or 0 < c.max_updates <= self.updates:
            return UNLIMITED
        slack = c.env_step_slack
        if c.max_updates_per_env_step:
            slack = max(slack, math.ceil(1.0 / c.max_updates_per_env_step) + 1)
        beyond = max(0, self.updates - c.initial_updates)
        return c.training_starts + slack + _floor(beyond / c.min_updates_per_env_step)

    def waiting_for(self) -> str:
        """Why `updates_due` is 0, in words; empty if it is not."""
        if self.updates_due():
            return ""
        online, starts = self.store.counts.online, self.config.training_starts
        if online < starts:
            return f"{starts - online} more steps before training starts"
        if not self.store.size(self._needed):
            imitation = self._needed == "demo"
            return "demonstrations" if imitation else "steps that can be trained on"
        if 0 < self.config.max_updates <= self.updates:
            return f"nothing: all {self.config.max_updates} updates are done"
        return "new steps (the update ratio is at its upper bound)"

    def step(self) -> dict[str, float]:
        """One update, whether it is due or not.

        Returns:
            Metrics of its last critic update and of the actor update.

        Raises:
            StoreError: there is nothing to sample.
            TrainingError: a loss is not finite.
        """
        with self.store.frozen():  # the batches of an update are of one state of the store
            for batch in self._batches:
                self._sample(batch)
            self.seen = self.store.revision
        *first, last = self._batches
        for batch in first:
            self.agent.update(batch, actor=False)
        metrics = self.agent.update(last, actor=True)
        self.updates += 1
        return metrics

    def _sample(self, batch: Batch) -> None:
        size = self.config.batch_size
        demos = round(self.config.demo_ratio * size)
        if demos == size:
            pass
        elif not self.store.size("demo"):
            demos = 0
        elif demos and not self.store.size("all"):
            demos = size
        self._fill(batch, 0, demos, "demo")
        self._fill(batch, demos, size, "all")

    def _fill(self, batch: Batch, start: int, stop: int, view: View) -> None:
        if stop > start:
            rows = batch.rows(start, stop)
            self.store.sample(stop - start, view, self._rng, out=rows)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything but the store's data: arrays (safetensors) and plain data (JSON).

        With a store that holds the same steps, a restored trainer continues bit for bit.
        """
        meta = {
            "updates": self.updates,
            "rng": self._rng.bit_generator.state,
            "spaces": self.agent.spaces.to_json(),
            "agent_config": self.agent.config.to_dict(),
            "trainer_config": self.config.to_dict(),
        }
        return self.agent.state(), meta

    def load_state(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Restore the output of `state`. The configurations stay those of this trainer.

        Raises:
            StateError: other spaces or network shapes; nothing is changed.
        """
        try:
            spaces, updates, rng = meta["spaces"], int(meta["updates"]), meta["rng"]
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not a trainer's state: {error!r}") from error
        if spaces != self.agent.spaces.to_json():
            raise StateError(f"state is for the spaces {spaces}")
        generator = np.random.default_rng()
        try:
            generator.bit_generator.state = rng
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"state of the sampling generator: {error!r}") from error
        self.agent.load_state(arrays)
        self._rng = generator
        self.updates = updates


def _floor(value: float) -> int:
    """Floor that forgives rounding errors of products such as 0.1 * 30."""
    return math.floor(value + 1e-9)
