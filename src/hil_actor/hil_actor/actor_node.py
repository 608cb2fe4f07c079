"""Node `actor`: runs episodes, streams their steps, and takes policies in."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rclpy.action import ActionServer, CancelResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.service import Service
from std_srvs.srv import SetBool, Trigger

from hil_actor.env import RobotEnv
from hil_actor.insert_client import InsertClient
from hil_actor.learner_link import LearnerLink
from hil_actor.loop import ControlLoop, EpisodeRunner, Job, RunRequest, RunResult, Summary, Totals
from hil_actor.params import ActorParams, load_task
from hil_actor.policy_slot import Offer, PolicySlot, Verdict
from hil_actor.recorder import StepRecorder
from hil_actor.sender import Sender, SenderOptions
from hil_actor.spool import Spool, SpoolOptions
from hil_actor.step_store import Stream
from hil_actor.throttle import Progress, Throttle
from hil_common import qos
from hil_common.conversions import from_ns
from hil_common.lifecycle import HilNode
from hil_common.run import main as run
from hil_interfaces.action import RunEpisodes, UpdatePolicy
from hil_interfaces.msg import EpisodeSummary, LearnerStatus, Step
from hil_rl.config import SACConfig
from hil_rl.policy import Policy
from hil_rl.spaces import Spaces
from hil_tasks import Task

# Stopping: what the present step may take, and what breaking it off may take (s).
_GRACE = 1.0
_STOP_LIMIT = 10.0
_REPORT_PERIOD = 1.0
# Writing what waits for the disk (s).
_WRITE_LIMIT = 5.0


@dataclass(eq=False)
class _Parts:
    """What configure makes and cleanup closes."""

    env: RobotEnv
    slot: PolicySlot
    link: LearnerLink
    client: InsertClient
    spool: Spool
    runner: EpisodeRunner
    servers: list[ActionServer]
    services: list[Service]


class ActorNode(HilNode):
    """Lifecycle: configure opens, activate runs episodes, deactivate holds the arm.

    Steps are sent to the learner from configure to cleanup, also while inactive.
    """

    Params = ActorParams
    params: ActorParams

    def __init__(self, **options: Any) -> None:
        super().__init__("actor", **options)
        self.session = ""
        self._parts: _Parts | None = None
        self._loop: ControlLoop | None = None
        self._jobs: dict[bytes, Job] = {}
        self._waits = ("", "")
        """What the loop waited for at the last look, and what it waits for now."""
        self._episode_publisher = self.create_publisher(EpisodeSummary, "episode", qos.EVENT)
        self._step_publisher = self.create_publisher(Step, "step", qos.STEP)
        self.every(_REPORT_PERIOD, self._report)

    # ------------------------------------------------------------------------------ lifecycle

    def on_setup(self) -> None:
        """Make everything; nothing moves yet."""
        params = self.params
        spool = Spool(
            Path(params.spool_dir),
            params.actor_id,
            self._spool_options(),
            on_commit=self._on_commit,
            warn=self.get_logger().warning,
        )
        try:
            self._parts = self._make_parts(load_task(params), spool)
        except BaseException:
            spool.close(_WRITE_LIMIT)
            raise

    def _make_parts(self, task: Task, spool: Spool) -> _Parts:
        params = self.params
        fingerprint = task.spec.fingerprint()
        self.session = str(uuid.uuid4())
        first = self._first_policy(task, fingerprint)
        env = RobotEnv(
            params,
            task=task,
            node=self,
            actor_id=params.actor_id,
            session=self.session,
            tell=self._note_wait,
        )
        recorder = StepRecorder(
            spool,
            self._step_publisher.publish,
            fingerprint=fingerprint,
            actor_id=params.actor_id,
            session=self.session,
            task=task.spec.name,
            frame=params.base_frame,
        )
        client = InsertClient(self)

        def make_sender(stream: Stream) -> Sender:
            left = spool.begin(stream)
            options, told = self._sender_options(), self._on_exchange
            return Sender(spool, client, stream, left, options, on_exchange=told)

        link = LearnerLink(
            spool,
            Stream(params.run_id, fingerprint, params.actor_id, self.session),
            make_sender,
            Throttle(time.monotonic, params.learner_silence_s),
            lockstep=params.pace == "lockstep",
            on_run=lambda run_id: setattr(recorder, "run_id", run_id),
            wake=env.poller.wake,
        )
        env.poller.subscribe(LearnerStatus, "learner/status", self._on_status, qos.LATCHED)
        slot = PolicySlot(first, first.spaces, fingerprint, params.max_policy_bytes)
        runner = EpisodeRunner(env, recorder, slot, link, params.seed)
        return _Parts(
            env, slot, link, client, spool, runner, self._action_servers(), self._own_services()
        )

    def on_start(self) -> None:
        """Let the control loop run."""
        idle = None
        if self.params.autostart_mode:
            request = RunRequest(
                self.params.autostart_mode,
                self.params.autostart_episodes,
                seed=self.params.autostart_seed,
            )
            idle = Job(request, self._publish_episode, self._on_idle_done)
        self._loop = ControlLoop(self._opened().runner, idle, self.fault)
        self._loop.start()

    def on_hold(self) -> None:
        """Stop the loop; it leaves the arm holding and gives the lease back."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.stop(_GRACE, _STOP_LIMIT):
            raise RuntimeError("the control loop did not stop")

    def on_close(self) -> None:
        """Let the learner take what is left, bounded, and close."""
        parts, self._parts = self._opened(), None
        parts.spool.settle(_WRITE_LIMIT)
        left = parts.link.close(self.params.flush_timeout_s)
        lost = parts.spool.close(_WRITE_LIMIT)
        if left > lost:
            where = f"{parts.spool.path} for the next actor of this name and run"
            self.get_logger().warning(f"{left - lost} steps wait in {where}")
        if lost:
            problem = parts.spool.problem
            self.get_logger().error(f"{lost} steps could not be written: {problem}")
        parts.slot.close()
        for server in parts.servers:
            server.destroy()
        for service in parts.services:
            self.destroy_service(service)
        parts.env.close()
        parts.client.close()

    # ------------------------------------------------------------------------------- episodes

    def _accept_run(self, handle: ServerGoalHandle) -> None:
        """Hand the goal to the control thread; the goal handle is finished from there."""
        goal = handle.request
        request = RunRequest(
            goal.mode, goal.episodes, goal.count_successes, goal.seed, goal.max_steps
        )
        job = Job(
            request,
            lambda summary, totals: self._on_episode(handle, summary, totals),
            lambda result: self._finish_run(handle, result),
        )
        refusal = self._loop.submit(job) if self._loop is not None else "the actor is not active"
        if refusal:
            self._finish_run(handle, RunResult(False, refusal, Totals()))
        else:
            self._jobs[bytes(handle.goal_id.uuid)] = job

    def _cancel_run(self, handle: ServerGoalHandle) -> CancelResponse:
        job = self._jobs.get(bytes(handle.goal_id.uuid))
        if job is None or self._loop is None:
            return CancelResponse.REJECT
        self._loop.cancel(job)
        return CancelResponse.ACCEPT

    def _on_episode(self, handle: ServerGoalHandle, summary: Summary, totals: Totals) -> None:
        message = self._publish_episode(summary, totals)
        handle.publish_feedback(
            RunEpisodes.Feedback(
                last=message,
                episodes=totals.episodes,
                successes=totals.successes,
                steps=totals.steps,
            )
        )

    def _publish_episode(self, summary: Summary, _: Totals) -> EpisodeSummary:
        values = dict(vars(summary))
        message = EpisodeSummary(actor_id=self.params.actor_id, session=self.session)
        message.header.stamp = from_ns(values.pop("stamp"))
        for name, value in values.items():
            setattr(message, name, value)
        self._episode_publisher.publish(message)
        return message

    def _finish_run(self, handle: ServerGoalHandle, result: RunResult) -> None:
        """Finish a goal. From any thread: goals change on the executor's only."""
        totals = result.totals
        message = RunEpisodes.Result(
            ok=result.ok,
            reason=result.reason,
            episodes=totals.episodes,
            successes=totals.successes,
            steps=totals.steps,
            intervened_steps=totals.intervened_steps,
        )

        def finish(handle: ServerGoalHandle) -> RunEpisodes.Result:
            self._jobs.pop(bytes(handle.goal_id.uuid), None)
            if result.ok:
                handle.succeed()
            elif handle.is_cancel_requested:
                handle.canceled()
            else:
                handle.abort()
            return message

        self._in_executor(lambda: handle.execute(finish))

    def _on_idle_done(self, result: RunResult) -> None:
        if result.reason:
            self.get_logger().info(f"autostart episodes ended: {result.reason}")

    def _set_pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self._opened().runner.interference.pause(request.data)
        response.success = True
        return response

    def _skip_episode(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        phase = self._opened().env.graph.announcement.phase
        response.success = phase in ("running", "holding", "paused")
        if response.success:
            self._opened().runner.interference.skip()
        else:
            response.message = f"no episode is under way: {phase}"
        return response

    # ------------------------------------------------------------------------------- policies

    def _accept_policy(self, handle: ServerGoalHandle) -> None:
        """Have a policy checked and decoded off this thread and off the control thread."""
        goal = handle.request

        def done(verdict: Verdict) -> None:
            result = UpdatePolicy.Result(
                accepted=verdict.accepted, reason=verdict.reason, version=verdict.version
            )
            self._in_executor(lambda: handle.execute(lambda handle: _succeed(handle, result)))

        self._opened().slot.offer(
            Offer(goal.version, goal.fingerprint, goal.sha256, bytes(goal.data), done)
        )

    def _first_policy(self, task: Task, fingerprint: str) -> Policy:
        params = self.params
        spaces = policy_spaces(task)
        if params.policy_file:
            return Policy.decode(Path(params.policy_file).read_bytes(), spaces, fingerprint)
        config = SACConfig.preset(params.preset)
        return Policy.random(spaces, config, params.seed, fingerprint)

    # -------------------------------------------------------------------------------- learner

    def _on_commit(self) -> None:
        if self._parts is not None:
            self._parts.link.notify()
            self._parts.link.progressed()

    def _on_exchange(self) -> None:
        if self._parts is not None:
            self._parts.link.progressed()

    def _on_status(self, message: LearnerStatus) -> None:
        self._opened().link.on_progress(
            Progress(
                message.run_id,
                message.env_steps,
                message.env_steps_allowed,
                message.phase,
                message.waiting_for,
            )
        )

    def _spool_options(self) -> SpoolOptions:
        params = self.params
        return SpoolOptions(
            max_steps=params.spool_steps,
            max_bytes=params.spool_bytes,
            keep_steps=params.spool_keep_steps,
            keep_bytes=params.spool_keep_bytes,
            fsync=params.durability == "fsync",
        )

    def _sender_options(self) -> SenderOptions:
        params = self.params
        return SenderOptions(
            params.send_steps, params.send_bytes, params.send_interval_s, params.insert_timeout_s
        )

    # -------------------------------------------------------------------------------- helpers

    def _action_servers(self) -> list[ActionServer]:
        return [
            ActionServer(
                self,
                RunEpisodes,
                "actor/run_episodes",
                _unused,
                handle_accepted_callback=self.guard(self._accept_run),
                cancel_callback=self._cancel_run,
            ),
            ActionServer(
                self,
                UpdatePolicy,
                "actor/update_policy",
                _unused,
                handle_accepted_callback=self.guard(self._accept_policy),
            ),
        ]

    def _own_services(self) -> list[Service]:
        return [
            self.serve(SetBool, "actor/set_pause", self._set_pause),
            self.serve(Trigger, "actor/skip_episode", self._skip_episode),
        ]

    def _in_executor(self, callback: Callable[[], None]) -> None:
        """Have the executor's thread call something."""
        executor = self.executor
        if executor is not None:
            executor.create_task(self.guard(callback))

    def _note_wait(self, text: str) -> None:
        self._waits = self._waits[0], text

    def _report(self) -> None:
        """Once a second: what the diagnostics show. Short waits are not worth a line."""
        before, now = self._waits
        if before == now:
            self.waiting_for(now)
        self._waits = now, now
        parts = self._parts
        if parts is None:
            return
        sender, spool = parts.link.sender, parts.spool
        policy = parts.slot.current
        self.diagnostics.set(
            run_id=parts.link.run_id,
            session=self.session,
            policy_version=policy.version,
            policy_sha256=policy.sha256[:12],
            steps=spool.last_seq,
            steps_pending=spool.pending,
            spool_mb=f"{spool.pending_bytes / 2**20:.1f}",
            set_aside="; ".join(spool.notices),
            late_steps=parts.env.late_steps,
            learner=(sender.stalled or "ok") if sender is not None else "not heard yet",
        )
        problems = [parts.link.trouble, spool.problem]
        if sender is not None:
            refused = sender.refused
            problems += [f"the learner refuses the steps: {refused}" if refused else ""]
            problems += sender.abandoned
        self.diagnostics.warn("; ".join(filter(None, problems)))

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the actor is not configured")
        return self._parts


def policy_spaces(task: Task) -> Spaces:
    """What a policy of this task sees and does: its vectors (images are recorded only)."""
    spec = task.spec
    indices, at = [], 0
    for gripper in spec.grippers:
        at += 6
        if gripper:
            indices.append(at)
            at += 1
    return Spaces(
        {name: (tensor.shape, tensor.dtype) for name, tensor in spec.observation.items()},
        action_dim=spec.action_dim - len(indices),
        grippers=len(indices),
        gripper_indices=tuple(indices),
    )


def _succeed(handle: ServerGoalHandle, result: UpdatePolicy.Result) -> UpdatePolicy.Result:
    handle.succeed()
    return result


def _unused(handle: ServerGoalHandle) -> Any:
    raise RuntimeError("goals are finished with a callback of their own")


def main() -> None:
    """Run the actor."""
    run(ActorNode)
