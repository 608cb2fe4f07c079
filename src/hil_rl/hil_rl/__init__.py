"""The learning library: agents, networks, replay, checkpoints. No ROS.

Modules that need only NumPy (so that an actor never imports torch): ``spaces``, ``config``,
``store``, ``features``, ``policy``, ``checkpoint``, ``her``. Modules that need torch:
``networks``, ``vision``, ``sac``, ``trainer``, ``bc``.

>>> from hil_rl.spaces import Spaces
>>> from hil_rl.store import EpisodeStore
>>> from hil_rl.config import SACConfig, TrainerConfig
>>> from hil_rl.sac import SACAgent
>>> from hil_rl.trainer import Trainer
>>> spaces = Spaces({"position": ((2,), "float32")}, action_dim=2)
>>> store = EpisodeStore(spaces, capacity=10_000)
>>> agent = SACAgent(spaces, SACConfig.preset("hil_serl"), seed=0)
>>> trainer = Trainer(agent, store, TrainerConfig(), seed=0)
"""
