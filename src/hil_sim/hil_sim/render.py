"""Off-screen rendering that is fast enough on a CPU: no shadows, no multisampling."""

from __future__ import annotations

import os

os.environ.setdefault("MUJOCO_GL", "osmesa")

import mujoco
import mujoco.gl_context
import numpy as np
from numpy.typing import NDArray


class Renderer:
    """Renders cameras of a model. The GL context belongs to the thread that made the object.

    Args:
        model: compiled model; its `offwidth` and `offheight` bound the size.
        size: height and width of the image, pixels.
    """

    def __init__(self, model: mujoco.MjModel, size: int) -> None:
        self._model, self._size = model, size
        self._gl = mujoco.gl_context.GLContext(size, size)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=400)
        for flag in (
            mujoco.mjtRndFlag.mjRND_SHADOW,
            mujoco.mjtRndFlag.mjRND_REFLECTION,
            mujoco.mjtRndFlag.mjRND_HAZE,
            mujoco.mjtRndFlag.mjRND_SKYBOX,
        ):
            self._scene.flags[flag] = 0
        self._option = mujoco.MjvOption()
        self._perturb = mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._rectangle = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), dtype=np.uint8)
        self._ids = {model.camera(index).name: index for index in range(model.ncam)}

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Image (size, size, 3) RGB, top row first. Needs the kinematics of `data` to be of now.

        Raises:
            KeyError: no camera of that name.
        """
        if camera not in self._ids:
            raise KeyError(f"no camera {camera!r}; there are: {', '.join(self._ids) or 'none'}")
        self._camera.fixedcamid = self._ids[camera]
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._option,
            self._perturb,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        mujoco.mjr_render(self._rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._context)
        return np.ascontiguousarray(self._pixels[::-1])

    def close(self) -> None:
        """Release the context (in the thread that made it)."""
        self._context.free()
        self._gl.free()
