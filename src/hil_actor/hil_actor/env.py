"""RobotEnv: the graph as a gymnasium environment.

Example::

    with RobotEnv(EnvParams(task="reach", pace="lockstep", operator="none")) as env:
        observation, info = env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())

It needs the graph (bridge, and simulator or robot) to run, and no executor: messages are handled
on the calling thread while it waits for them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import rclpy
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from rclpy.context import Context
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from hil_actor.control_step import (
    Action,
    ActionLayout,
    Answer,
    ArmPlan,
    Flag,
    Status,
    flags_of,
    twist_in_action_frame,
)
from hil_actor.graph_io import Graph, GraphError, Stopped, View
from hil_actor.intervention import ArmDecision, ArmInput, Intervention, InterventionConfig
from hil_actor.params import EnvParams, load_task
from hil_actor.poller import Poller, never
from hil_tasks import MissingObject, Outcome, Pose, Task

Observation = dict[str, NDArray[Any]]

ENV_ID = "hil_actor/RobotEnv-v0"
# While an arm does not follow: between two looks, and how long a look may take (s).
_LOOK_AGAIN = 1.0
_LOOK_AFTER = 0.2


@dataclass(frozen=True, eq=False)
class Transition:
    """One control step, complete.

    Attributes:
        stamp: of the observation that it started from, ns.
        observation: that it started from.
        action: (action size,) executed.
        proposal: (action size,) what the policy proposed; None if it was not asked.
        intervened: per arm, the person drove.
        takeover: the person took over at this step.
        reward, terminated, success: judgement of the state that the action led to.
        truncated: the time limit was reached.
        grasp_penalty: per gripper.
        flags: see Flag.
        next_observation: after the step.
        reasons: of whatever was not done as asked.
    """

    stamp: int
    observation: Observation
    action: Action
    proposal: Action | None
    intervened: tuple[bool, ...]
    takeover: bool
    reward: float
    terminated: bool
    truncated: bool
    success: bool
    grasp_penalty: NDArray[np.float32]
    flags: Flag
    next_observation: Observation
    reasons: tuple[str, ...] = ()


class RobotEnv(gymnasium.Env[Observation, Action]):
    """A robot task, step by step, with a person who may take over.

    `step` is gymnasium's; `control` is the same with everything a record needs, and without an
    action where only the person acts.

    info of `step`: "action" (executed), "intervened" (per arm), "flags" (int, see Flag) and
    "success".

    Args:
        params: see EnvParams; or keyword arguments with its fields.
        task: instead of the one that the parameters name; or its name.
        node: to use; it may be spun elsewhere. None: one of this environment's own.
        actor_id: name in commands and states.
        session: unique identity of this environment's life; None: a new one.
        tell: told what is awaited, and "" when the wait is over; None: the log.

    Raises:
        hil_tasks.UnknownTask, hil_tasks.OverrideError, ValueError: wrong parameters.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        params: EnvParams | None = None,
        *,
        task: Task | str | None = None,
        node: Node | None = None,
        actor_id: str = "robot_env",
        session: str | None = None,
        tell: Callable[[str], None] | None = None,
        **fields: Any,
    ) -> None:
        if isinstance(task, str):
            fields["task"], task = task, None
        if params is not None and fields:
            raise ValueError("give params or single fields, not both")
        self.params = params or EnvParams(**fields)
        self.task = task or load_task(self.params)
        self.observation_space = self.task.spec.observation_space
        self.action_space = self.task.spec.action_space
        self.spec = _registration(self.params)
        self.session = session or str(uuid.uuid4())
        self.actor_id = actor_id
        self.layout = ActionLayout(self.task.spec)
        self.late_steps = 0
        self.demonstrating = False
        """The person drives from the first step on: a takeover is nothing special."""
        self._config = InterventionConfig(
            self.params.engage_threshold,
            self.params.release_threshold,
            self.params.intervention_hold_s,
        )
        self._intervention = Intervention(self.task.spec.arms, self._config)
        self._context: Context | None = None
        self._node = node or self._own_node()
        self.poller = Poller(self._node)
        self.graph = Graph(
            self._node,
            self.poller,
            self.task,
            self.params,
            actor_id,
            self.session,
            warn=self._warn,
            tell=tell or self._log_wait,
        )
        self.graph.announcement.operator_allowed = self.params.operator != "none"
        self._view: View | None = None
        self._observation: Observation = {}
        self._episode = -1
        self._begun = True
        """The episode of that number was begun."""
        self._step = 0
        self._tick = 0.0
        self._barrier = False
        self._owed = Flag(0)
        self._closed = False

    # -------------------------------------------------------------------- gymnasium's methods

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode: the arm goes to a random start, the world is set anew.

        Args:
            seed: of this and the following episodes' randomisation.
            options: "start": Pose (or Pose per arm) to begin from; "world_seed": int.

        Raises:
            GraphError: it does not work; the text says why.
        """
        super().reset(seed=seed)
        options = options or {}
        rng = self.np_random
        start = self.task.sample_start(rng)
        world_seed = int(rng.integers(2**63))
        start = options.get("start", start)
        world_seed = int(options.get("world_seed", world_seed))
        if self._begun:
            self._episode += 1  # a reset that came to nothing is tried again under its number
        self._begun = False
        self._step = 0
        self._view = None
        self._intervention.reset()
        self._owed = Flag(0)
        graph = self.graph
        graph.announce(phase="resetting", text="", episode=self._episode, step=0, intervened=False)
        graph.wait_ready()
        graph.reset(_per_arm(start, self.task.spec.arms), self.task.spec.reset.lift, world_seed)
        self._barrier = self.params.operator == "required" or graph.operator.present
        self._observe_when_able()
        self._begun = True
        self._begin_step()
        return self._observation, {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One control step.

        Raises:
            ValueError: the action has a wrong shape or is not finite.
            GraphError: the graph does not do what the step needs; the text says what.
        """
        done = self.control(action)
        info = {
            "action": done.action,
            "intervened": done.intervened,
            "flags": int(done.flags),
            "success": done.success,
        }
        return done.next_observation, done.reward, done.terminated, done.truncated, info

    def close(self) -> None:
        """Hold the arm, give the lease back, and close what was opened here."""
        if self._closed:
            return
        self._closed = True
        self.graph.release(1.0)
        self.poller.close()
        if self._context is not None:
            self._node.destroy_node()
            self._context.try_shutdown()

    # --------------------------------------------------------------------------- a full step

    @property
    def episode(self) -> int:
        """Number of the episode, from 0."""
        return self._episode

    @property
    def observation(self) -> Observation:
        """Newest observation."""
        return self._observation

    def control(self, proposal: Action | None) -> Transition:
        """One control step, from the newest observation.

        Args:
            proposal: (action size,) what the policy proposes; None: only the person acts.

        Raises:
            ValueError, GraphError: see `step`.
        """
        if self._view is None:
            raise RuntimeError("reset() comes first")
        if proposal is not None:
            proposal = self.layout.check(proposal)
        view, observation = self._view, self._observation
        flags, self._owed = self._owed, Flag(0)
        reasons: list[str] = []
        lost = self._await_operator(view.stamp)
        decisions = self._decide(view, lost)
        if lost:
            flags |= Flag.TELEOP_LOST
            reasons.append(lost)
        if view.stale:
            flags |= Flag.STALE_OBSERVATION
            reasons.append(view.stale)
        hold = bool(lost or view.stale)
        if hold:
            flags |= Flag.HELD
        plans = self.layout.plan(
            proposal, decisions, view.arms, hold=hold, takeover_holds=not self.demonstrating
        )
        self._say(plans, reasons)
        answers, ended_late = self._execute(plans, view)
        if ended_late:
            flags |= Flag.LATE
            self.late_steps += 1
        flags |= flags_of(plans, answers)
        reasons.extend(a.reason for a in answers.values() if a is not None and a.reason)
        action = self.layout.executed(answers, view.arms)
        self._step += 1
        flags |= self._observe_when_able()
        if self._view.operator_hold:
            # The person took over in the course of this step: it was cut short.
            flags |= Flag.TAKEOVER if self.operator_allowed else Flag.HELD
        outcome = self._judge()
        truncated = not outcome.terminated and self._step >= self.task.spec.max_episode_steps
        if outcome.terminated or truncated:
            self._view = None
        else:
            self._begin_step()
        return Transition(
            stamp=view.stamp,
            observation=observation,
            action=action,
            proposal=proposal,
            intervened=tuple(plan.intervened for plan in plans.values()),
            takeover=any(plan.takeover for plan in plans.values()),
            reward=float(outcome.reward),
            terminated=bool(outcome.terminated),
            truncated=truncated,
            success=bool(outcome.success),
            grasp_penalty=self.layout.grasp_penalty(action, view.arms, self.params.grasp_penalty),
            flags=flags,
            next_observation=self._observation,
            reasons=tuple(reasons),
        )

    def resume(self) -> None:
        """Carry on after a pause between two steps: in real time, look again."""
        if self.graph.lockstep or self._view is None:
            return
        self._owed |= self._observe_when_able()
        self._begin_step()

    # -------------------------------------------------------------------------------- operator

    @property
    def operator_allowed(self) -> bool:
        """The person may take over now."""
        return self.graph.announcement.operator_allowed

    def allow_operator(self, allowed: bool) -> None:
        """Let the person take part from now on, or lock him out (evaluation)."""
        self.graph.announcement.operator_allowed = allowed and self.params.operator != "none"
        self.graph.operator.forget()

    def _await_operator(self, stamp: int) -> str:
        """Hear the operator on the observation; return why he is lost, or ""."""
        operator = self.graph.operator
        if not self.operator_allowed:
            return ""
        if operator.heard and operator.lost:
            return "the operator's device is lost"
        if not self.graph.lockstep:
            silent = operator.silent_for()
            if operator.heard and silent > self.params.operator_silence_s:
                return f"the operator is silent for {silent:.1f} s"
            if not operator.heard and self.params.operator == "required":
                return "no operator has been heard yet"
            return ""
        if not (self._barrier or operator.heard):
            return ""
        limit = self.params.operator_barrier_s
        if self.poller.wait(lambda: operator.newest.observation_stamp == stamp, limit):
            return ""
        return f"the operator did not answer the observation within {limit:g} s"

    def _decide(self, view: View, lost: str) -> dict[str, ArmDecision]:
        if lost or not self.operator_allowed:
            self._intervention.reset()
            return {arm: ArmDecision() for arm in view.arms}
        newest = self.graph.operator.newest
        inputs = {}
        for arm, given in newest.inputs.items() if self.graph.operator.heard else ():
            if arm in view.arms and given.engaged:
                twist = twist_in_action_frame(
                    given.twist, newest.in_tool_frame, self.task.spec, view.arms[arm].measured
                )
                inputs[arm] = ArmInput(True, twist, given.gripper)
        now = view.stamp * 1e-9 if self.graph.lockstep else time.monotonic()
        return self._intervention.update(inputs, now)

    def _say(self, plans: Mapping[str, ArmPlan], reasons: list[str]) -> None:
        """Publish what changed since the step began: who drives, why the arm holds."""
        said = self.graph.announcement
        intervened = any(plan.intervened for plan in plans.values())
        text = "; ".join(reasons)
        phase = "holding" if reasons else "running"
        if (intervened, text, phase) != (said.intervened, said.text, said.phase):
            self.graph.announce(intervened=intervened, text=text, phase=phase)

    # --------------------------------------------------------------------------------- motion

    def _execute(
        self, plans: Mapping[str, ArmPlan], view: View
    ) -> tuple[dict[str, Answer | None], bool]:
        """Command the arms and let one control period pass. Returns the answers, and lateness."""
        graph = self.graph
        step_id = f"{self.actor_id}/{self.session}/{self._episode}/{self._step}"
        graph.command(plans, view.stamp, step_id)
        if not graph.lockstep:
            late = self._await_tick()
            return graph.answers(), late
        if not self.poller.wait(lambda: graph.answered, self.params.answer_timeout_s):
            raise GraphError("the bridge did not answer a command")
        answers = graph.answers()
        moved = any(
            plan.target is not None and answer is not None and answer.status <= Status.CLIPPED
            for plan, answer in zip(plans.values(), answers.values(), strict=True)
        )
        now = time.monotonic()
        stamp = graph.advance(step_id, 1, view.stamp if moved else 0, view.stamp)
        if stamp <= view.stamp:
            raise GraphError("the simulator's time went back: it was restarted")
        graph.wait_state(stamp, now)
        return answers, False

    def _await_tick(self) -> bool:
        """Handle messages until the period is over; return whether that is late."""
        period = self.task.spec.period
        self._tick += period
        self.poller.wait(never, self._tick - time.monotonic())
        self.poller.poll()
        behind = time.monotonic() - self._tick
        if behind > period:
            self._tick += behind
        return behind > self.params.late_tolerance_s

    # ---------------------------------------------------------------------------- observation

    def _begin_step(self) -> None:
        """Announce the observation that the next step starts from."""
        self.graph.announce(phase="running", text="", step=self._step)

    def _observe_when_able(self) -> Flag:
        """Look; while an arm cannot follow commands, wait (or recover) and look again.

        Returns the flags of what happened meanwhile.
        """
        graph = self.graph
        flags = Flag(0)
        view = graph.view()
        known = self._view.recoveries if self._view is not None else view.recoveries
        paused = False
        while view.blocked or not graph.owned:
            if graph.stopping():
                raise Stopped
            paused = True
            if view.reflex:
                flags |= Flag.REFLEX
            self._unblock(view)
            view = graph.view()
        if view.recoveries > known or flags:
            flags |= Flag.REFLEX | Flag.RECOVERED
        if paused or self._step == 0:
            self._tick = time.monotonic()
        self._view = view
        self._observation = self._observe(view)
        return flags

    def _unblock(self, view: View) -> None:
        """Do what may be done about an arm that does not follow commands, and wait a little."""
        graph = self.graph
        if view.blocked:
            if view.reflex and self.params.auto_recover:
                graph.announce(phase="paused", text=f"recovering: {view.blocked}")
                graph.recover()
            else:
                graph.pause(
                    lambda: not graph.blocked(), "paused", lambda: view.blocked, _LOOK_AGAIN
                )
        else:
            graph.wait_ready()
        graph.refresh()
        self.poller.wait(lambda: not graph.blocked() and graph.owned, _LOOK_AFTER)

    def _observe(self, view: View) -> Observation:
        try:
            seen = self.task.observe(self._reading(view))
        except MissingObject as error:
            raise GraphError(str(error)) from error
        observation: Observation = dict(seen)
        for camera in self.task.spec.cameras:
            observation[camera] = view.frames[camera]
        return observation

    def _judge(self) -> Outcome:
        assert self._view is not None
        return self.task.reward(self._reading(self._view))

    @staticmethod
    def _reading(view: View) -> Any:
        """What tasks get: the reading of a single arm, or the readings per arm."""
        if len(view.readings) == 1:
            return next(iter(view.readings.values()))
        return view.readings

    # ---------------------------------------------------------------------------------- node

    def _own_node(self) -> Node:
        self._context = Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        return Node(self.actor_id, context=self._context)

    def _log_wait(self, text: str) -> None:
        if text:
            self._node.get_logger().info(f"waiting for {text}")

    def _warn(self, text: str) -> None:
        self._node.get_logger().warning(text, throttle_duration_sec=1.0)


def _registration(params: EnvParams) -> EnvSpec:
    """How gymnasium makes an environment like this one."""
    defaults = EnvParams()
    kwargs = {
        name: getattr(params, name)
        for name, default in vars(defaults).items()
        if getattr(params, name) != default
    }
    # A robot, or a simulation of one, does not return to the very state it was in.
    return EnvSpec(
        ENV_ID, entry_point="hil_actor.env:RobotEnv", nondeterministic=True, kwargs=kwargs
    )


def _per_arm(start: Any, arms: tuple[str, ...]) -> dict[str, Pose]:
    return dict(start) if isinstance(start, Mapping) else {arms[0]: start}
