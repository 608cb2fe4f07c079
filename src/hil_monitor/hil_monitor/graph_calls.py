"""Commands of the page as service calls and action goals."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from action_msgs.msg import GoalInfo
from action_msgs.srv import CancelGoal
from rclpy.action import ActionClient
from rclpy.client import Client
from std_srvs.srv import SetBool, Trigger

from hil_common.lifecycle import HilNode
from hil_interfaces.action import Recover, RunEpisodes
from hil_interfaces.msg import Annotation
from hil_interfaces.srv import Annotate, AnswerPrompt
from hil_monitor.board import Board
from hil_monitor.commands import Outcome, Promise, done
from hil_monitor.session import Session

_KEPT_ASKERS = 32


class GraphCalls:
    """See `commands.Graph`. Any thread may call; answers come from the executor's.

    Args:
        node: owns the clients.
        arms: prefixes of the bridges; a stop goes to all of them.
        board: open questions.
        session: what is known of the episodes; told about labels.
        on_refused: told about refusals that nobody waits for any more.
    """

    def __init__(
        self,
        node: HilNode,
        arms: tuple[str, ...],
        board: Board,
        session: Session,
        on_refused: Callable[[str], None],
    ) -> None:
        self._node = node
        self._board = board
        self._session = session
        self._on_refused = on_refused
        prefixes = [f"{arm}/" if arm else "" for arm in arms]
        self._stops = [node.create_client(SetBool, f"{p}robot_bridge/set_stop") for p in prefixes]
        self._recoveries = [
            ActionClient(node, Recover, f"{p}robot_bridge/recover") for p in prefixes
        ]
        self._pause = node.create_client(SetBool, "actor/set_pause")
        self._skip = node.create_client(Trigger, "actor/skip_episode")
        self._run = ActionClient(node, RunEpisodes, "actor/run_episodes")
        self._cancel = node.create_client(CancelGoal, "actor/run_episodes/_action/cancel_goal")
        self._retry = node.create_client(Trigger, "hil_manager/retry")
        self._annotations = node.create_client(Annotate, "learner/annotate")
        self._labels: list[tuple[Annotation, bool | None]] = []
        """Those that can be taken back, and what was there before."""
        self._askers: dict[str, Client] = {}

    def close(self) -> None:
        """Remove the clients."""
        clients = [*self._stops, self._pause, self._skip, self._cancel, self._retry]
        clients.append(self._annotations)
        for client in [*clients, *self._askers.values()]:
            self._node.destroy_client(client)
        for action in [*self._recoveries, self._run]:
            action.destroy()

    # ------------------------------------------------------------------------- commands

    def set_stop(self, stopped: bool) -> Promise:
        """Latch or release the software stop."""
        return _all([self._call(c, SetBool.Request(data=stopped)) for c in self._stops])

    def set_pause(self, paused: bool) -> Promise:
        """Hold between two steps, or go on."""
        return self._call(self._pause, SetBool.Request(data=paused))

    def skip_episode(self) -> Promise:
        """End the present episode and reset for the next."""
        return self._call(self._skip, Trigger.Request())

    def retry(self) -> Promise:
        """Have hil_manager try again with nodes that it holds."""
        return self._call(self._retry, Trigger.Request())

    def abort(self) -> Promise:
        """Cancel all episodes that were asked for, by whomever."""
        return self._call(self._cancel, CancelGoal.Request(goal_info=GoalInfo()), _cancelled)

    def recover(self) -> Promise:
        """Clear the robot's error."""
        return _all([self._send(c, Recover.Goal(), wait=True) for c in self._recoveries])

    def run(self, mode: str, episodes: int) -> Promise:
        """Ask for episodes. Kept as soon as they are accepted."""
        return self._send(self._run, RunEpisodes.Goal(mode=mode, episodes=episodes), wait=False)

    def answer(self, question: str, choice: str) -> Promise:
        """Answer a question."""
        known = self._board.get(question)
        asker = self._askers.get(known.node) if known else None
        if asker is None:
            return done(Outcome(False, "this question is not open any more"))
        return self._call(asker, AnswerPrompt.Request(id=question, choice=choice, by="console"))

    def meet(self, asker: str) -> None:
        """A node has asked something: its service will be needed. On the executor's thread."""
        if asker in self._askers:
            return
        if len(self._askers) >= _KEPT_ASKERS:
            self._node.destroy_client(self._askers.pop(next(iter(self._askers))))
        self._askers[asker] = self._node.create_client(AnswerPrompt, f"{asker}/answer")

    def label(self, session: str, episode: int, success: bool) -> Promise:
        """Say whether an episode was a success."""
        known = self._session.episode(session, episode)
        if known is None:
            return done(Outcome(False, "this episode is not known"))
        veto = known.success and not success
        note = Annotation(
            kind=Annotation.VETO if veto else Annotation.LABEL,
            actor_id=known.actor_id,
            session=session,
            episode=episode,
            last_step=Annotation.LAST,
            success=success,
        )
        before = known.label
        promise = self._annotate(note)

        def kept(result: Promise) -> None:
            if result.result().ok:
                self._session.label(session, episode, success)
                self._labels.append((note, before))

        promise.add_done_callback(kept)
        return promise

    def undo(self) -> Promise:
        """Take the newest label of this console back."""
        if not self._labels:
            return done(Outcome(False, "there is no label to take back"))
        label, before = self._labels[-1]
        note = Annotation(
            kind=Annotation.UNDO,
            actor_id=label.actor_id,
            session=label.session,
            episode=label.episode,
            refers_to=label.id,
        )
        promise = self._annotate(note)

        def kept(result: Promise) -> None:
            if result.result().ok and self._labels and self._labels[-1][0] is label:
                self._labels.pop()
                self._session.label(label.session, label.episode, before)

        promise.add_done_callback(kept)
        return promise

    @property
    def takes_labels(self) -> bool:
        """Whether a learner is there that takes labels."""
        return bool(self._annotations.service_is_ready())

    # -------------------------------------------------------------------------- helpers

    def _annotate(self, note: Annotation) -> Promise:
        note.id = str(uuid.uuid4())
        note.author = "console"
        note.run_id = self._session.run_id
        note.stamp = self._node.get_clock().now().to_msg()
        return self._call(self._annotations, Annotate.Request(annotation=note))

    def _call(
        self,
        client: Client,
        request: Any,
        judge: Callable[[Any], Outcome] | None = None,
    ) -> Promise:
        if not client.service_is_ready():
            return done(Outcome(False, f"{client.srv_name} is not there"))
        promise, judged = Promise(), judge or _judged
        future = client.call_async(request)
        future.add_done_callback(lambda f: _keep(promise, lambda: judged(f.result())))
        return promise

    def _send(self, client: ActionClient, goal: Any, wait: bool) -> Promise:
        name = client._action_name
        if not client.server_is_ready():
            return done(Outcome(False, f"{name} is not there"))
        promise = Promise()

        def ended(future: Any) -> None:
            result = future.result().result
            outcome = Outcome(result.ok, result.reason)
            if wait:
                _keep(promise, lambda: outcome)
            elif not result.ok:
                self._on_refused(f"{name}: {result.reason}")

        def accepted(future: Any) -> None:
            handle = future.result()
            if not handle.accepted:
                _keep(promise, lambda: Outcome(False, f"{name} was refused"))
                return
            handle.get_result_async().add_done_callback(ended)
            if not wait:
                _keep(promise, lambda: Outcome(True))

        client.send_goal_async(goal).add_done_callback(accepted)
        return promise


def _judged(response: Any) -> Outcome:
    """What a service's answer says, whatever its fields are called."""
    ok = any(getattr(response, name, False) for name in ("success", "ok", "accepted"))
    return Outcome(ok, str(getattr(response, "message", "") or getattr(response, "reason", "")))


def _cancelled(response: Any) -> Outcome:
    if response.goals_canceling:
        return Outcome(True)
    return Outcome(False, "no episodes that were asked for are running")


def _keep(promise: Promise, outcome: Callable[[], Outcome]) -> None:
    if promise.done():
        return
    try:
        promise.set_result(outcome())
    except Exception as error:
        promise.set_result(Outcome(False, str(error)))


def _all(promises: list[Promise]) -> Promise:
    """Kept when all are; ok when all are."""
    if len(promises) == 1:
        return promises[0]
    together = Promise()

    def look(_: Promise) -> None:
        if not together.done() and all(p.done() for p in promises):
            outcomes = [p.result() for p in promises]
            texts = "; ".join(o.text for o in outcomes if o.text)
            _keep(together, lambda: Outcome(all(o.ok for o in outcomes), texts))

    for promise in promises:
        promise.add_done_callback(look)
    return together
