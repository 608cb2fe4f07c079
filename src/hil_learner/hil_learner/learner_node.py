"""Node `learner`: takes steps in, trains, publishes policies and says how it goes."""

from __future__ import annotations

import re
import time
from concurrent.futures import Future as WorkFuture
from dataclasses import replace
from pathlib import Path
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.serialization import serialize_message
from rclpy.task import Future
from rich.console import Console
from std_srvs.srv import Trigger

from hil_common import qos
from hil_common.lifecycle import HilNode
from hil_common.run import main as run
from hil_interfaces.msg import LearnerStatus
from hil_interfaces.srv import Annotate, InsertSteps
from hil_learner.ingest import Answer, Request, Status
from hil_learner.learner import Learner
from hil_learner.learner import Status as LearnerState
from hil_learner.links import ActionLink, find_actors
from hil_learner.params import LearnerParams
from hil_learner.progress import ActorView, Progress, ProgressView
from hil_learner.publisher import Policy, Publisher, PublisherEvents
from hil_learner.records import MAX_VERSION
from hil_learner.training import TrainingEvents

_STATUS_PERIOD = 1.0
_STATUS_CHECK = 0.05
_PROGRESS_PERIOD = 0.5
_MAX_REFUSALS = 8
_DIGITS = re.compile(r"\d+")


class LearnerNode(HilNode):
    """Lifecycle: configure opens the run, activate trains, deactivate pauses training.

    Steps are taken in from configuration on, also while training is paused or has failed.
    """

    Params = LearnerParams
    params: LearnerParams

    def __init__(self, **options: Any) -> None:
        super().__init__("learner", **options)
        self.params.agent_config()  # wrong settings stop the node before anything is opened
        self.params.trainer_config()
        self.params.cloning_config()
        self.learner: Learner | None = None
        self._published: LearnerState | None = None
        self._published_at = 0.0
        self._waiting_kind = ""
        self._refusals: dict[str, str] = {}
        self._status_wake = self.create_guard_condition(self.guard(self._publish_status))
        self._policy_wake = self.create_guard_condition(self.guard(self._poll_publisher))
        # A service that awaits must not block the callbacks of the other entities.
        self._alone = MutuallyExclusiveCallbackGroup()
        self._status = self.create_publisher(LearnerStatus, "learner/status", qos.LATCHED)

    # -------------------------------------------------------------------------- lifecycle

    def on_setup(self) -> None:
        """Open the run, and take steps in from now on."""
        self._publisher = Publisher(
            lambda name: ActionLink(self, name, self.guard),
            time.monotonic,
            timeout=self.params.policy_timeout_s,
            events=PublisherEvents(
                on_accepted=self._on_accepted,
                on_failed=self._on_failed,
                on_newer=self._on_newer,
            ),
        )
        events = TrainingEvents(
            on_policy=self._on_policy, on_progress=self._on_progress, on_fault=self.fault
        )
        self.learner = Learner(self.params, events)
        self._say_opened(self.learner)
        self._view = None
        if self.params.progress != "none":
            self._view = ProgressView(Console(), self.params.progress_period_s)
        self._own_services = [
            self.create_service(InsertSteps, "learner/insert_steps", self._insert_steps),
            self.create_service(Annotate, "learner/annotate", self._annotate),
            self.create_service(Trigger, "learner/save", self._save, callback_group=self._alone),
        ]
        self._own_timers = [
            self.every(_STATUS_CHECK, self._publish_status_if_changed),
            self.every(self.params.discovery_period_s, self._look_for_actors),
            self.every(_PROGRESS_PERIOD, self._show_progress),
        ]
        self._publish_status()

    def on_start(self) -> None:
        """Train."""
        self._opened().training.run()
        self._publish_status()

    def on_hold(self) -> None:
        """Pause training after the update under way."""
        self._opened().training.pause()
        self._publish_status()

    def on_close(self) -> None:
        """Write checkpoint and curves, and close the run."""
        for timer in self._own_timers:
            self.destroy_timer(timer)
        for service in self._own_services:
            self.destroy_service(service)
        self._publisher.close()
        learner = self._opened()
        try:
            learner.close()
            self.get_logger().info(f"run folder: {learner.folder.path}")
        finally:
            self._publish_status()
            if self._view is not None:
                self._view.show(self._progress(), final=True)
                self._view.close()
            self.learner = None

    # ------------------------------------------------------------------------------ steps

    def _insert_steps(
        self, request: InsertSteps.Request, response: InsertSteps.Response
    ) -> InsertSteps.Response:
        learner = self._opened()
        try:
            answer = learner.insert(
                Request(
                    request.run_id,
                    request.fingerprint,
                    request.actor_id,
                    request.session,
                    [(step.seq, step.data) for step in request.steps],
                )
            )
        except Exception as error:
            # The log has steps that the store may lack: take no more until it is read anew.
            learner.ingest.busy_reason = f"ingestion failed: {error}"
            self.fault(error)
            answer = Answer(Status.BUSY, learner.ingest.busy_reason, 0, 1)
        self._note_refusal(request.actor_id, answer)
        self._on_progress()
        response.status = int(answer.status)
        response.reason = answer.reason
        response.run_id = learner.spec.run_id
        response.last_seq = answer.last_seq
        response.wanted_seq = answer.wanted_seq
        return response

    def _annotate(
        self, request: Annotate.Request, response: Annotate.Response
    ) -> Annotate.Response:
        annotation = request.annotation
        response.reason = self._opened().annotate(annotation, serialize_message(annotation))
        response.accepted = not response.reason
        kind, author = annotation.kind, annotation.author[:64]
        if response.accepted:
            self.get_logger().info(f"annotation of kind {kind} by {author}")
        else:
            self.get_logger().warning(f"annotation by {author} refused: {response.reason}")
        return response

    def _note_refusal(self, actor_id: str, answer: Answer) -> None:
        if answer.status in (Status.OK, Status.GAP):
            self._refusals.pop(actor_id, None)
        elif len(self._refusals) < _MAX_REFUSALS:
            self._refusals[actor_id] = f"steps of {actor_id[:64]} refused: {answer.reason}"

    async def _save(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        try:
            path = await self._in_executor(self._opened().save())
        except Exception as error:
            self.get_logger().error(f"not saved: {error}")
            response.success, response.message = False, str(error)
        else:
            response.success, response.message = True, str(path)
        return response

    def _in_executor(self, work: WorkFuture[Path]) -> Future:
        """Return a future to await in a callback for what the training thread works on."""
        future = Future()

        def done(finished: WorkFuture[Path]) -> None:
            error = finished.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(finished.result())
            self._policy_wake.trigger()  # the executor looks at what awaits when it is woken

        work.add_done_callback(done)
        return future

    # ---------------------------------------------------------------------------- policies

    def _on_policy(self, policy: Policy) -> None:
        """Training thread: a new version."""
        self._publisher.offer(policy)
        self._policy_wake.trigger()

    def _poll_publisher(self) -> None:
        self._publisher.poll()

    def _look_for_actors(self) -> None:
        self._publisher.set_actors(find_actors(self))
        self._publisher.poll()

    def _on_accepted(self, actor: str, policy: Policy, seconds: float) -> None:
        self.diagnostics.set(
            **{f"{actor}.version": policy.version, f"{actor}.transfer_ms": f"{seconds * 1e3:.0f}"}
        )

    def _on_failed(self, actor: str, policy: Policy, reason: str) -> None:
        self.get_logger().warning(f"policy v{policy.version} for {actor}: {reason}")
        self.diagnostics.count(f"{actor}.failures")

    def _on_newer(self, actor: str, version: int) -> None:
        self.get_logger().warning(f"{actor} holds policy v{version} of an earlier learner")
        if version <= MAX_VERSION:
            self._opened().training.renumber(version)

    # ------------------------------------------------------------------------------ status

    def _on_progress(self) -> None:
        """Wake the status where an actor may be waiting for the throttle. Any thread."""
        learner, published = self.learner, self._published
        if learner is None or published is None:
            return
        allowed = learner.training.env_steps_allowed()
        if allowed == published.env_steps_allowed:
            return
        ahead = published.env_steps_allowed - learner.ingest.counters.env_steps
        if ahead <= self.params.throttle_steps // 2:
            self._status_wake.trigger()

    def _publish_status_if_changed(self) -> None:
        """At most 20 times a second on change, and once a second anyhow."""
        state = self._opened().status()
        old = self._published
        changed = old is None or replace(state, updates_per_s=old.updates_per_s) != old
        if changed or time.monotonic() - self._published_at >= _STATUS_PERIOD:
            self._publish(state)

    def _publish_status(self) -> None:
        if self.learner is not None:
            self._publish(self.learner.status())

    def _publish(self, state: LearnerState) -> None:
        self._published, self._published_at = state, time.monotonic()
        stamp = self.get_clock().now().to_msg()
        self._status.publish(LearnerStatus(stamp=stamp, **vars(state)))

    def _show_progress(self) -> None:
        progress = self._progress()
        self.diagnostics.set(
            phase=progress.phase,
            env_steps=progress.env_steps,
            updates=progress.updates,
            policy_version=progress.policy_version,
            policy_age_s=f"{progress.policy_age_s:.1f}",
            refused=self._opened().ingest.counters.refused,
            **{k: f"{v:.3g}" for k, v in self._opened().store.first_batch_figures().items()},
        )
        self._say_waiting(progress)
        self.diagnostics.warn("; ".join(self._problems(progress)))
        if self._view is not None:
            self._view.show(progress)

    def _problems(self, progress: Progress) -> list[str]:
        problems = [f"policy for {a.name}: {a.problem}" for a in progress.actors if a.problem]
        problems += self._refusals.values()
        metrics = self._opened().metrics.problem
        return [*problems, metrics] if metrics else problems

    def _say_waiting(self, progress: Progress) -> None:
        """Tell what is awaited when that changes, not whenever a number in it does."""
        waiting = progress.waiting_for if progress.phase == "waiting" else ""
        self.diagnostics.set(waiting_for=waiting)
        kind = _DIGITS.sub("", waiting)
        if kind != self._waiting_kind:
            self._waiting_kind = kind
            self.waiting_for(waiting)

    def _progress(self) -> Progress:
        actors = tuple(
            ActorView(name, record.version, record.reason)
            for name, record in sorted(self._publisher.actors.items())
        )
        return self._opened().progress(actors, self._publisher.age)

    # ----------------------------------------------------------------------------- helpers

    def _opened(self) -> Learner:
        if self.learner is None:
            raise RuntimeError("the learner is not configured")
        return self.learner

    def _say_opened(self, learner: Learner) -> None:
        log = self.get_logger()
        log.info(f"run {learner.spec.run_id} in {learner.folder.path}")
        for note in learner.log_notes:
            log.warning(f"log: {note}")
        if learner.replayed:
            log.info(f"read {learner.replayed} steps of the run from its log")
        if learner.resumed_updates is not None:
            log.info(f"continuing after update {learner.resumed_updates}")


def main() -> None:
    """Run the learner."""
    run(LearnerNode)
