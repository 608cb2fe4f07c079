"""The learning methods by name: what differs is the agent and what it samples.

* ``rlpd``: SAC on half online steps, half demonstrations and interventions. With an operator who
  intervenes this is HIL-SERL, without one it is RLPD (SAC with demonstrations).
* ``sac``: SAC on online steps alone. Let no operator take part.
* ``bc``: behaviour cloning of the demonstrations, `BCConfig.steps` updates, then no more.
* ``hg_dagger``: the same at first; then it goes on at the trainer's update ratio, on
  demonstrations and interventions as they come (HG-DAgger needs an operator).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from .bc import BCAgent
from .config import METHODS, BCConfig, SACConfig, TrainerConfig
from .sac import SACAgent
from .spaces import Spaces
from .store import EpisodeStore
from .trainer import Agent, Trainer


def make_trainer(
    method: str,
    store: EpisodeStore,
    sac: SACConfig,
    cloning: BCConfig,
    config: TrainerConfig,
    seed: int,
) -> Trainer:
    """Agent and trainer of a method.

    Args:
        method: one of `METHODS`.
        store: to train from.
        sac: agent of ``rlpd`` and ``sac``.
        cloning: agent of ``bc`` and ``hg_dagger``.
        config: of the training loop; a method overrides what it is made of (see `trainer_config`).
        seed: of initial values and sampling.

    Raises:
        ValueError: unknown method (names the nearest).
    """
    settings = trainer_config(method, config, cloning)
    if method in ("rlpd", "sac"):
        return Trainer(SACAgent(store.spaces, sac, seed), store, settings, seed)
    return Trainer(BCAgent(store.spaces, cloning, seed), store, settings, seed)


def trainer_config(method: str, config: TrainerConfig, cloning: BCConfig) -> TrainerConfig:
    """Settings of the training loop under a method.

    Raises:
        ValueError: unknown method (names the nearest).
    """
    imitation: dict[str, Any] = {
        "batch_size": cloning.batch_size,
        "demo_ratio": 1.0,
        "cta_ratio": 1,
        "training_starts": 0,
        "initial_updates": cloning.steps,
    }
    overrides: dict[str, dict[str, Any]] = {
        "rlpd": {},
        "sac": {"demo_ratio": 0.0},
        "bc": {**imitation, "max_updates": cloning.steps},
        "hg_dagger": imitation,
    }
    if method not in overrides:
        near = difflib.get_close_matches(method, METHODS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no method {method!r}, there are {list(METHODS)}{hint}")
    return config.replace(**overrides[method])


def agent_of(meta: Mapping[str, Any]) -> Agent:
    """Untrained agent for a trainer's saved state (`Trainer.state`), whichever method it is of.

    Raises:
        ValueError, KeyError: it is not such a state.
    """
    spaces, settings = Spaces.from_json(meta["spaces"]), meta["agent_config"]
    if settings.keys() == BCConfig().to_dict().keys():
        return BCAgent(spaces, BCConfig.from_dict(settings), 0)
    return SACAgent(spaces, SACConfig.from_dict(settings), 0)
