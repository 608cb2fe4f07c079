"""What a task puts into the simulated world, as MJCF fragments (MuJoCo's XML)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SceneObject:
    """A body whose pose the task sets at a world reset.

    Attributes:
        name: key in `Task.sample_world`; the body takes that pose (base frame).
        mjcf: child elements of the body: geoms, sites.
        free: moves under physics (a free joint) instead of standing still.
    """

    name: str
    mjcf: str
    free: bool = False


@dataclass(frozen=True)
class Camera:
    """A camera of the scene.

    Attributes:
        name: topic name is <name>/image.
        parent: "base" (fixed in the base frame) or "hand" (moves with the hand).
        position: (3,), m, in the parent's frame.
        xyaxes: (6,), the image's right and up axes in the parent's frame.
        fovy: vertical field of view, degrees.
    """

    name: str
    parent: Literal["base", "hand"]
    position: tuple[float, float, float]
    xyaxes: tuple[float, float, float, float, float, float]
    fovy: float = 50.0


@dataclass(frozen=True)
class Scene:
    """Objects, what the hand holds, and cameras.

    Attributes:
        objects: bodies in the world.
        tool: MJCF elements fixed to the tool centre point (what the hand holds); "" for nothing.
        tool_width: gap between the fingers that hold it, m; 0 for nothing.
        grasping: the fingers move under physics, so that they can grasp free objects; else they
            are only drawn and collide where the hand's width puts them.
        cameras: cameras of the scene (rendered on demand).
    """

    objects: tuple[SceneObject, ...] = ()
    tool: str = ""
    tool_width: float = 0.0
    grasping: bool = False
    cameras: tuple[Camera, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a hand that holds a tool and should grasp something else."""
        if self.grasping and self.tool:
            raise ValueError("a hand that holds a tool cannot grasp")
