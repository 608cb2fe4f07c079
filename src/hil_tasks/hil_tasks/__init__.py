"""Task definitions: spaces, frames, limits, reset, reward, scene. No ROS.

Example::

    task = hil_tasks.load("peg_insert", {"max_episode_steps": 80})
    observation = task.observe(reading)
    outcome = task.reward(reading)
"""

from hil_tasks.geometry import Pose
from hil_tasks.overrides import OverrideError
from hil_tasks.registry import UnknownTask, available, load, load_file
from hil_tasks.spec import ComplianceSpec, TaskSpec, TensorSpec
from hil_tasks.task import MissingObject, Outcome, Reading, Task

__all__ = [
    "ComplianceSpec",
    "MissingObject",
    "Outcome",
    "OverrideError",
    "Pose",
    "Reading",
    "Task",
    "TaskSpec",
    "TensorSpec",
    "UnknownTask",
    "available",
    "load",
    "load_file",
]
