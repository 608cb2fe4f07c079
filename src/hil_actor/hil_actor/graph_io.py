"""The graph as RobotEnv sees it: newest messages, commands and their answers, the simulator.

Everything here belongs to one thread, which waits in `Poller.wait`; no executor takes part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from sensor_msgs.msg import Image

from hil_actor.control_step import Answer, ArmPlan, ArmView
from hil_actor.params import EnvParams
from hil_actor.poller import CallTimeout, Interrupted, Poller, never
from hil_actor.ports import ArmPort, Newest, OperatorPort, PoseReader
from hil_common import qos
from hil_common.conversions import from_ns, pose_to_msg, to_ns, twist_values, wrench_values
from hil_common.images import ImageError, from_image
from hil_interfaces.action import Recover, ResetEpisode
from hil_interfaces.msg import ActorState, ObjectPoses, RobotState
from hil_interfaces.srv import AcquireLease, Advance, ReleaseLease, ResetWorld, SetCompliance
from hil_tasks import Pose, Reading, Task

_POLICY_PRESET = "policy"
_MODES = {
    RobotState.MODE_DISCONNECTED: "the robot is disconnected",
    RobotState.MODE_RESETTING: "the arm is being moved by a reset",
    RobotState.MODE_REFLEX: "the robot stopped with an error and has to be recovered",
    RobotState.MODE_USER_STOPPED: "the robot's enabling device is released",
    RobotState.MODE_GUIDING: "the robot is being guided by hand",
    RobotState.MODE_IDLE: "the robot's controller is not active",
}
# Between two attempts to get the lease (s).
_LEASE_RETRY = 1.0
# How long one message may be on its way in lockstep before it is asked for again (s).
_RESEND_AFTER = 1.0
# How long the simulator may take before it is asked again (s): longer than it waits itself.
_ASK_AGAIN_AFTER = 3.0
# A wait shorter than this is not worth a message (s).
_SILENT_WAIT = 0.1
# Between two looks at whether something that is awaited is there (s).
_LOOK_EVERY = 0.5


class GraphError(Exception):
    """The graph does not do what a step needs; the text says what."""


class Stopped(Exception):
    """Asked to stop while waiting between two steps."""


@dataclass(frozen=True, eq=False)
class View:
    """What is seen at one moment.

    Attributes:
        stamp: of the robot's state, ns.
        readings: per arm.
        arms: per arm, for the control step.
        frames: (H, W, 3) uint8 per camera.
        stale: why the observation is too old to act on; "" if it is not.
        blocked: why an arm does not follow commands now; "" if all do.
        reflex: an arm stopped with an error.
        recoveries: of all arms since the bridge began.
        operator_hold: a takeover holds an arm, without our having seen it yet.
    """

    stamp: int
    readings: dict[str, Reading]
    arms: dict[str, ArmView]
    frames: dict[str, NDArray[np.uint8]]
    stale: str = ""
    blocked: str = ""
    reflex: bool = False
    recoveries: int = 0
    operator_hold: bool = False


@dataclass
class Announcement:
    """The part of ActorState that others fill in. See the message."""

    mode: str = ""
    phase: str = "waiting"
    text: str = ""
    episode: int = 0
    step: int = 0
    operator_allowed: bool = False
    intervened: bool = False
    policy_version: int = 0


class Graph:
    """Everything that RobotEnv exchanges with other nodes.

    Args:
        node: owns the entities.
        poller: waits for them; its thread is the only one that may use this object.
        task: observed and commanded.
        params: see EnvParams.
        actor_id, session: identity in commands and states.
        warn: told about messages that are ignored.
        tell: told what is awaited; "" when the wait is over.
    """

    def __init__(
        self,
        node: Node,
        poller: Poller,
        task: Task,
        params: EnvParams,
        actor_id: str,
        session: str,
        warn: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self.poller = poller
        self.session = session
        self.stopping: Callable[[], bool] = never
        """Whether waits between two steps are to be given up."""
        self.announcement = Announcement()
        self.stamp = 0
        """Of the observation that ActorState names, ns."""
        self._node = node
        self._task = task
        self._params = params
        self._tell = tell
        self._started = time.time_ns()
        self._leased = False
        self.lockstep = params.pace == "lockstep"
        frame = params.base_frame
        self._poses = PoseReader()
        self.ports = {
            arm: ArmPort(node, poller, self._poses, arm, session, frame) for arm in task.spec.arms
        }
        self.operator = OperatorPort(poller, frame, params.tool_frame, warn)
        self._objects: Newest | None = None
        if task.sample_world(np.random.default_rng(0)):
            self._objects = Newest()
            poller.subscribe(ObjectPoses, "object_poses", self._objects.put, qos.STATE)
        self._frames = {camera: Newest() for camera in task.spec.cameras}
        for camera, newest in self._frames.items():
            poller.subscribe(Image, f"{camera}/image", newest.put, qos.IMAGE)
        self._advance = poller.client(Advance, "/hil_sim/advance")
        self._reset_world = poller.client(ResetWorld, "/hil_sim/reset_world")
        self._actor_state = node.create_publisher(ActorState, "actor/state", qos.LATCHED)
        self._actor_message = ActorState(actor_id=actor_id, session=session)
        self._actor_message.header.frame_id = frame

    # ------------------------------------------------------------------------ who is there

    def announce(self, **changes: Any) -> None:
        """Publish ActorState, with changes to the announcement."""
        for name, value in changes.items():
            setattr(self.announcement, name, value)
        message = self._actor_message
        message.header.stamp = from_ns(self.stamp)
        for name, value in vars(self.announcement).items():
            setattr(message, name, value)
        self._actor_state.publish(message)

    def missing(self) -> list[str]:
        """Names of what is not there yet."""
        names = []
        for port in self.ports.values():
            if not port.acquire.service_is_ready():
                names.append(port.acquire.srv_name)
        if self.lockstep and not self._advance.service_is_ready():
            names.append(self._advance.service_name)
        if self._params.world_reset == "always" and not self._reset_world.service_is_ready():
            names.append(self._reset_world.service_name)
        if not self.lockstep:
            names.extend(self._silent())
        needs_operator = self._params.operator == "required"
        if needs_operator and self.announcement.operator_allowed and not self.operator.present:
            names.append("operator_command")
        return names

    def wait_ready(self) -> None:
        """Wait until everything is there and the arm's lease is ours, saying what is awaited.

        Raises:
            Stopped: see `stopping`.
        """
        while True:
            missing = self.missing()
            if missing:
                self.pause(
                    lambda: not self.missing(), "waiting", lambda: ", ".join(self.missing())
                )
                continue
            seen = [port.state.count for port in self.ports.values()]
            refusal = self._try_acquire()
            # A bridge shows the arm when its lease changes, if it has seen the arm itself.
            shown = partial(self._shown_as_owned, seen)
            self.pause(
                never if refusal else shown,
                "waiting",
                partial(str, refusal or "robot_state"),
                at_most=_LEASE_RETRY,
            )
            if not refusal and shown():
                return

    def _shown_as_owned(self, since: Sequence[int]) -> bool:
        """Every arm's state was published since, and says that its lease is ours.

        Args:
            since: per arm, count of the states that tell nothing.
        """
        ports = self.ports.values()
        return self.owned and all(p.state.count > n for p, n in zip(ports, since, strict=True))

    def pause(
        self,
        ready: Callable[[], Any],
        phase: str,
        text: Callable[[], str],
        at_most: float = np.inf,
        hold: bool = False,
    ) -> None:
        """Wait between two steps until `ready()`, or for `at_most` s, saying why.

        Args:
            ready: ends the wait.
            phase: of ActorState meanwhile. A short wait is not announced.
            text: what is awaited.
            at_most: longest wait, s.
            hold: have the arms keep their targets meanwhile (real time).

        Raises:
            Stopped: see `stopping`.
        """
        before = self.announcement.phase, self.announcement.text
        began = time.monotonic()
        said = ""
        while not ready() and (waited := time.monotonic() - began) < at_most:
            if self.stopping():
                raise Stopped
            if waited >= _SILENT_WAIT and (words := text()) != said:
                if hold and not said and not self.lockstep:
                    self.hold()
                self._tell(words)
                self.announce(phase=phase, text=words)
                said = words
            patience = _LOOK_EVERY if said else _SILENT_WAIT
            self.poller.wait(lambda: ready() or self.stopping(), min(at_most - waited, patience))
        if said:
            self._tell("")
            self.announce(phase=before[0], text=before[1])

    def _try_acquire(self) -> str:
        """Become the one whose commands the arms follow; return why not, or ""."""
        for port in self.ports.values():
            request = AcquireLease.Request(
                owner=self.session,
                name=self._actor_message.actor_id,
                started=from_ns(self._started),
            )
            try:
                response = self._call(port.acquire, request)
            except GraphError as error:
                return str(error)
            if not response.ok:
                return f"the arm's lease ({response.reason or response.holder})"
        self._leased = True
        return ""

    def release(self, timeout: float) -> None:
        """Hold the arms and give the lease back, if we have it. A bridge that is gone is no error.

        Args:
            timeout: s, per arm.
        """
        if not self._leased:
            return
        self._leased = False
        self.hold()
        for port in self.ports.values():
            if not port.release.service_is_ready():
                continue
            request = ReleaseLease.Request(owner=self.session)
            try:
                self.poller.call(port.release, request, timeout)
            except (CallTimeout, Interrupted) as error:
                reason = str(error) or "interrupted"
                self._node.get_logger().warning(f"lease not released: {reason}")

    def hold(self) -> None:
        """Tell the arms to keep their targets."""
        for port in self.ports.values():
            port.send(ArmPlan(None), port.state.stamp, "", self.operator.newest)

    # --------------------------------------------------------------------------- commands

    def command(self, plans: Mapping[str, ArmPlan], stamp: int, step_id: str) -> None:
        """Send one command to each arm."""
        for arm, port in self.ports.items():
            port.send(plans[arm], stamp, step_id, self.operator.newest)

    @property
    def answered(self) -> bool:
        """Every arm's bridge has answered the newest command."""
        return all(port.answered for port in self.ports.values())

    def answers(self) -> dict[str, Answer | None]:
        """Answer per arm to the newest command."""
        return {arm: port.answer() for arm, port in self.ports.items()}

    def advance(self, step_id: str, periods: int, target_stamp: int = 0, observed: int = 0) -> int:
        """Have the simulator carry out control periods; return the new stamp, ns.

        What may be asked for twice is asked for until there is an answer: a step with an identity
        is carried out once, and what was carried out must not get lost.

        Args:
            step_id: identity of the step; "" for none.
            periods: control periods; 0: only publish again.
            target_stamp: of the target_pose to apply first, ns; 0: none.
            observed: stamp of the observation that the step starts from, ns; 0: none.

        Raises:
            GraphError: it refuses, or does not answer.
        """
        request = Advance.Request(
            step_id=step_id,
            owner=self.session,
            periods=periods,
            target_stamp=from_ns(target_stamp),
            observed_stamp=from_ns(observed),
        )
        repeatable = step_id or not periods
        response = self._insist(request) if repeatable else self._call(self._advance, request)
        if not response.ok:
            raise GraphError(f"the simulator does not advance: {response.reason}")
        return to_ns(response.stamp)

    def _insist(self, request: Advance.Request) -> Any:
        """Ask the simulator until it answers, saying what is awaited."""
        said = False
        while True:
            try:
                self.poller.wait(self._advance.service_is_ready, _ASK_AGAIN_AFTER)
                response = self.poller.call(self._advance, request, _ASK_AGAIN_AFTER)
            except CallTimeout:
                self._tell(f"an answer of {self._advance.srv_name}")
                said = True
                continue
            if said:
                self._tell("")
            return response

    def recover(self) -> None:
        """Clear the errors of every arm that has some.

        Raises:
            GraphError: it does not work.
        """
        for port in self.ports.values():
            if port.state.message.mode != RobotState.MODE_REFLEX:
                continue
            try:
                result = self.poller.run(
                    port.recover,
                    Recover.Goal(),
                    self._params.reset_timeout_s,
                    give_up=self.stopping,
                )
            except CallTimeout as error:
                raise GraphError(str(error)) from error
            if not result.ok:
                raise GraphError(f"recover: {result.reason}")

    def reset(self, starts: Mapping[str, Pose], lift: float, world_seed: int) -> None:
        """Bring the arms to where an episode begins, then set the world anew.

        Raises:
            GraphError: it does not work; the text says why.
            Stopped: see `stopping`.
        """
        for arm, port in self.ports.items():
            self._reset_arm(port, starts[arm], lift)
        stamp = self._set_world(world_seed)
        self._settle(stamp)
        presets = {port.state.message.compliance for port in self.ports.values()}
        if presets != {_POLICY_PRESET}:
            self._apply_policy_preset()
            self._settle(stamp)

    def _settle(self, since: int) -> None:
        """Wait for a state of after now."""
        now = time.monotonic()
        if self.lockstep:
            self.wait_state(self.advance("", 1), now)
        elif not self.poller.wait(
            lambda: all(n.arrival > now and n.stamp >= since for n in self._sources()),
            self._params.answer_timeout_s,
        ):
            raise GraphError(f"no new {', '.join(self._silent()) or 'state'} after the reset")

    def _reset_arm(self, port: ArmPort, start: Pose, lift: float) -> None:
        before = port.state.count
        goal = ResetEpisode.Goal(owner=self.session, lift=lift)
        goal.start.header.frame_id = self._params.base_frame
        goal.start.pose = pose_to_msg(start)
        try:
            result = self.poller.run(
                port.reset_episode,
                goal,
                self._params.reset_timeout_s,
                give_up=lambda: self.stopping() or self._forgotten(port, before),
            )
        except CallTimeout as error:
            if self.stopping():
                raise Stopped from error
            raise GraphError(str(error)) from error
        if not result.ok:
            raise GraphError(f"reset_episode: {result.reason}")

    def _forgotten(self, port: ArmPort, since: int) -> bool:
        """The bridge does not know us any more: it was restarted, or another session came.

        Args:
            port: of the bridge.
            since: count of its states that tell nothing yet.
        """
        state = port.state
        return bool(state.count > since and state.message.owner != self.session)

    def _set_world(self, seed: int) -> int:
        """Reset the simulated world, where there is one; return the stamp from which it is new."""
        wanted = self._params.world_reset
        if wanted == "never":
            return 0
        if wanted == "auto" and not self.lockstep and not self._reset_world.service_is_ready():
            return 0
        response = self._call(self._reset_world, ResetWorld.Request(seed=seed))
        if not response.ok:
            raise GraphError(f"hil_sim/reset_world: {response.reason}")
        return to_ns(response.stamp)

    def _apply_policy_preset(self) -> None:
        for port in self.ports.values():
            request = SetCompliance.Request(preset=_POLICY_PRESET)
            response = self._call(port.set_compliance, request)
            if not response.ok:
                raise GraphError(f"compliance preset '{_POLICY_PRESET}': {response.reason}")

    def _call(self, client: Any, request: Any) -> Any:
        try:
            return self.poller.call(client, request, self._params.answer_timeout_s)
        except CallTimeout as error:
            raise GraphError(str(error)) from error

    # -------------------------------------------------------------------------------- views

    def wait_state(self, stamp: int, since: float) -> None:
        """Lockstep: wait for state, objects and frames of a stamp, saying what is awaited.

        Time stands still meanwhile, so whoever was restarted can still show them: what the step
        led to gets lost with the simulator only.

        Args:
            stamp: that `advance` returned, ns.
            since: s of the steady clock, before `advance` was called. What came earlier does not
                count: a simulator that was restarted gives stamps anew.

        Raises:
            GraphError: the simulator was restarted, or does not answer.
        """
        sources = self._sources()

        def complete() -> bool:
            return all(s.stamp >= stamp and s.arrival >= since for s in sources)

        said = ""
        while not self.poller.wait(complete, _RESEND_AFTER):
            late = ", ".join(
                name for name, n in self._named_sources() if n.stamp < stamp or n.arrival < since
            )
            if late != said:
                self._tell(f"{late} of the new step")
                said = late
            if self.advance("", 0) < stamp:
                raise GraphError("the simulator's time went back: it was restarted")
        if said:
            self._tell("")

    def refresh(self) -> None:
        """Lockstep: have the present state published again, for what changed without time."""
        if self.lockstep:
            self.advance("", 0)

    def view(self) -> View:
        """What is seen now.

        Raises:
            GraphError: a message makes no sense.
        """
        try:
            self._check_frames()
            objects = self._object_poses()
            frames = {name: self._frame(name, newest) for name, newest in self._frames.items()}
            readings, arms = {}, {}
            for arm, port in self.ports.items():
                readings[arm], arms[arm] = self._parse(port.state.message, objects)
        except (ValueError, ImageError) as error:
            raise GraphError(f"an observation makes no sense: {error}") from error
        states = [port.state.message for port in self.ports.values()]
        self.stamp = max(port.state.stamp for port in self.ports.values())
        return View(
            self.stamp,
            readings,
            arms,
            frames,
            stale="" if self.lockstep else self._stale(),
            blocked=self.blocked(),
            reflex=any(state.mode == RobotState.MODE_REFLEX for state in states),
            recoveries=sum(state.recoveries for state in states),
            operator_hold=any(state.operator_hold for state in states),
        )

    def blocked(self) -> str:
        """Why an arm does not follow commands now; "" if all do."""
        for port in self.ports.values():
            state = port.state.message
            where = f"{port.arm}: " if port.arm else ""
            if state.mode in _MODES:
                return where + (state.mode_text or _MODES[state.mode])
            if state.stop_latched:
                return where + "the software stop is latched"
        return ""

    @property
    def owned(self) -> bool:
        """Every arm's lease is ours."""
        states = [port.state.message for port in self.ports.values()]
        return all(state is not None and state.owner == self.session for state in states)

    def _named_sources(self) -> list[tuple[str, Newest]]:
        sources = [
            (f"{arm}/robot_state" if arm else "robot_state", port.state)
            for arm, port in self.ports.items()
        ]
        if self._objects is not None:
            sources.append(("object_poses", self._objects))
        sources.extend((f"{name}/image", newest) for name, newest in self._frames.items())
        return sources

    def _sources(self) -> list[Newest]:
        return [newest for _, newest in self._named_sources()]

    def _silent(self) -> list[str]:
        """Sources that never spoke."""
        return [name for name, newest in self._named_sources() if newest.message is None]

    def _stale(self) -> str:
        """Realtime: what is too old."""
        params, now = self._params, time.monotonic()
        states = self._named_sources()[: len(self.ports)]
        limits = [(name, newest, params.max_state_age_s) for name, newest in states]
        if self._objects is not None and params.max_object_age_s > 0.0:
            limits.append(("object_poses", self._objects, params.max_object_age_s))
        limits.extend((f"{n}/image", f, params.max_frame_age_s) for n, f in self._frames.items())
        old = [
            f"{name} is {newest.age(now) * 1e3:.0f} ms old"
            for name, newest, limit in limits
            if newest.age(now) > limit
        ]
        return ", ".join(old)

    def _check_frames(self) -> None:
        frame = self._params.base_frame
        for name, newest in self._named_sources()[: len(self.ports) + bool(self._objects)]:
            if newest.message is not None and newest.message.header.frame_id != frame:
                raise ValueError(f"{name} is in frame '{newest.message.header.frame_id}'")

    def _object_poses(self) -> dict[str, Pose]:
        if self._objects is None or self._objects.message is None:
            return {}
        message = self._objects.message
        return {
            name: self._poses.read(pose)
            for name, pose in zip(message.names, message.poses, strict=True)
        }

    def _frame(self, camera: str, newest: Newest) -> NDArray[np.uint8]:
        size = self._task.spec.image_size
        pixels = from_image(newest.message)
        if pixels.shape != (size, size, 3):
            raise ValueError(f"{camera}/image is {pixels.shape}, not ({size}, {size}, 3)")
        return pixels.copy()

    def _parse(self, state: RobotState, objects: dict[str, Pose]) -> tuple[Reading, ArmView]:
        """Reading and step view of one arm's state.

        Raises:
            ValueError: a value that is not finite.
        """
        measured, target = self._poses.read(state.pose), self._poses.read(state.target)
        reading = Reading(
            measured,
            twist_values(state.twist),
            wrench_values(state.wrench),
            np.array(state.q),
            np.array(state.dq),
            state.gripper_width,
            objects,
            target=target,
        )
        for name in ("twist", "wrench", "q", "dq"):
            if not np.isfinite(getattr(reading, name)).all():
                raise ValueError(f"robot_state.{name} is not finite")
        return reading, ArmView(measured, target, int(state.gripper_command))
