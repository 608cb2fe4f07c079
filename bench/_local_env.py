"""A task in this process, for benchmarks; see `hil_sim.local_env`."""

from hil_sim.local_env import LocalEnv

__all__ = ["LocalEnv"]
