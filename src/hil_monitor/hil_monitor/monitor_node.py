"""Node `monitor`: the operator console, a web page. It observes; nothing waits for it."""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Joy
from std_msgs.msg import String

from hil_common import qos
from hil_common.conversions import to_ns, wrench_values
from hil_common.lifecycle import HilNode
from hil_common.params import ParameterError
from hil_common.polling import PolledSubscription
from hil_common.run import main as run
from hil_interfaces.msg import ActorState, EpisodeSummary, LearnerStatus, Prompt, RobotState
from hil_monitor.access import Access, AccessError, Certificate, addresses, certificate
from hil_monitor.board import Board, Question
from hil_monitor.cameras import CameraReader
from hil_monitor.device import ConsoleDevice, Sample
from hil_monitor.frames import Frame, FrameHub
from hil_monitor.graph_calls import GraphCalls
from hil_monitor.params import MonitorParams
from hil_monitor.recorder import EpisodeRing
from hil_monitor.run_files import Episode, MetricsTail
from hil_monitor.server import ConsoleServer, Parts, ServerError
from hil_monitor.session import ActorView, LearnerView, RobotView, Session

TOKEN_VARIABLE = "HIL_CONSOLE_TOKEN"
"""Environment variable with the token of `network: lan`; in no file, on no command line."""
_LOOK_EVERY = 0.1
_CAMERAS_EVERY = 0.5
_FILES_EVERY = 1.0
_MODES = {
    RobotState.MODE_DISCONNECTED: "disconnected",
    RobotState.MODE_HOLD: "hold",
    RobotState.MODE_MOVING: "moving",
    RobotState.MODE_RESETTING: "resetting",
    RobotState.MODE_REFLEX: "reflex",
    RobotState.MODE_USER_STOPPED: "user stopped",
    RobotState.MODE_GUIDING: "guiding",
    RobotState.MODE_IDLE: "idle",
}


class MonitorNode(HilNode):
    """Lifecycle: configure opens the topics and the web server, cleanup closes them.

    The page is there from configuration on, so that it can show why the graph does not come up.
    """

    Params = MonitorParams
    params: MonitorParams

    def __init__(self, **options: Any) -> None:
        super().__init__("monitor", **options)
        self._access = self._make_access()
        self.server: ConsoleServer | None = None

    # -------------------------------------------------------------------------- lifecycle

    def on_setup(self) -> None:
        """Open everything."""
        p = self.params
        self.session = Session(time.monotonic)
        self._board = Board(time.monotonic)
        self._frames = FrameHub()
        self._files = MetricsTail(self._run_folder() / "metrics.jsonl") if p.run_folder else None
        self._ring = None
        if p.keep_episodes and p.run_folder:
            self._ring = EpisodeRing(self._run_folder() / "episodes", p.keep_episodes)
        self._recording = ""
        self._device = ConsoleDevice(self._publish_joy) if p.input else None
        self._joy = self.create_publisher(Joy, "joy", qos.STATE) if p.input else None
        self._calls = GraphCalls(
            self, p.arms, self._board, self.session, self.get_logger().warning
        )
        self._open_topics()
        self._cameras = CameraReader(
            self,
            p.cameras,
            self._frames,
            lambda: self._frames.watched or self._ring is not None,
            self._on_frame,
            p.tile_rate_hz,
            p.jpeg_quality,
            p.tile_size,
        )
        self._own_timers = [
            self.every(_LOOK_EVERY, self._look),
            self.every(_CAMERAS_EVERY, self._cameras.look),
            self.every(_FILES_EVERY, self._read_files),
        ]
        if self._device is not None:
            self._own_timers.append(self.every(1.0 / p.rest_rate_hz, self._device.rest))
        self.server = self._serve()

    def on_close(self) -> None:
        """Close everything."""
        server, self.server = self.server, None
        if server is not None:
            server.close()
        for timer in self._own_timers:
            self.destroy_timer(timer)
        self._cameras.close()
        if self._ring is not None:
            self._ring.end({})
        for subscription in self._subscriptions_open:
            self.destroy_subscription(subscription)
        for robot in self._robots.values():
            robot.close()
        if self._joy is not None:
            self.destroy_publisher(self._joy)
        self._calls.close()

    # ------------------------------------------------------------------------ the server

    def _make_access(self) -> Access:
        if self.params.network == "localhost":
            return Access()
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token or not self.params.run_folder:
            raise ParameterError(
                f"network: lan needs a token in the environment variable {TOKEN_VARIABLE} "
                "(hil up makes one and shows it) and the parameter run_folder"
            )
        try:
            return Access(token)
        except AccessError as error:
            raise ParameterError(str(error)) from error

    def _serve(self) -> ConsoleServer:
        lan = self.params.network == "lan"
        tls = certificate(self._run_folder()) if lan else None
        parts = Parts(
            session=self.session,
            board=self._board,
            device=self._device,
            frames=self._frames,
            cameras=lambda: self._cameras.names,
            ring=self._ring,
            graph=self._calls,
            features=self._features,
        )
        make = partial(ConsoleServer, parts, self._access, "0.0.0.0" if lan else "127.0.0.1")
        try:
            server = make(self.params.port, tls)
        except ServerError as error:
            # The graph of somebody else on this machine; ours must not fail for it.
            self.get_logger().warning(f"{error}; using another port")
            server = make(0, tls)
        server.start()
        self._say_where(server, tls)
        return server

    def _say_where(self, server: ConsoleServer, tls: Certificate | None) -> None:
        log = self.get_logger()
        if tls is None:
            self.diagnostics.set(url=f"http://127.0.0.1:{server.port}")
            log.info(f"console: http://127.0.0.1:{server.port}")
            return
        names = [socket.gethostname(), *addresses()]
        urls = ", ".join(f"https://{name}:{server.port}" for name in names)
        self.diagnostics.set(url=urls, certificate=tls.fingerprint)
        log.info(f"console, with the token: {urls}")
        log.info(f"its certificate (SHA-256): {tls.fingerprint}")

    def _features(self) -> dict[str, Any]:
        return {
            "input": self._device is not None,
            "labels": self._calls.takes_labels,
            "recorded": self._ring is not None,
        }

    def _run_folder(self) -> Path:
        return Path(self.params.run_folder).expanduser().absolute()

    def _read_files(self) -> None:
        """What the learner has written since the last look."""
        if self._files is not None:
            news = self._files.read()
            self.session.saw_history(news.episodes, news.training)

    # ------------------------------------------------------------------------ what arrives

    def _open_topics(self) -> None:
        self._robots = {
            arm: PolledSubscription(
                self, RobotState, f"{arm}/robot_state" if arm else "robot_state", qos.STATE
            )
            for arm in self.params.arms
        }
        subscribe = self.subscribe
        self._subscriptions_open = [
            subscribe(ActorState, "actor/state", self._on_actor, qos.LATCHED),
            subscribe(EpisodeSummary, "episode", self._on_episode, qos.EVENT),
            subscribe(LearnerStatus, "learner/status", self._on_learner, qos.LATCHED),
            subscribe(Prompt, "prompt", self._on_prompt, qos.PROMPTS),
            subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.DIAGNOSTICS),
            subscribe(String, "hil_manager/status", self._on_manager, qos.LATCHED),
        ]

    def _look(self) -> None:
        for arm, subscription in self._robots.items():
            message = subscription.take()
            if message is not None:
                self.session.saw_robot(robot_view(arm, message))
        self.diagnostics.warn(self._cameras.problem)

    def _on_actor(self, message: ActorState) -> None:
        view = ActorView(
            **{name: getattr(message, name) for name in ActorView.__dataclass_fields__}
        )
        self.session.saw_actor(view)

    def _on_episode(self, message: EpisodeSummary) -> None:
        known = ("actor_id", "session", "episode", "mode", "steps", "episode_return", "success",
                 "interrupted", "intervened_steps", "interventions", "policy_version")  # fmt: skip
        self.session.saw_episode(Episode(**{name: getattr(message, name) for name in known}))

    def _on_learner(self, message: LearnerStatus) -> None:
        names = LearnerView.__dataclass_fields__
        self.session.saw_learner(LearnerView(**{name: getattr(message, name) for name in names}))

    def _on_prompt(self, message: Prompt) -> None:
        if message.state != Prompt.OPEN:
            self._board.close(message.id)
            return
        self._calls.meet(message.node)
        age = (self.get_clock().now().nanoseconds - to_ns(message.header.stamp)) * 1e-9
        left = message.timeout - max(0.0, age)
        self._board.put(
            Question(
                message.id,
                message.node,
                message.text,
                tuple(message.choices),
                message.default_choice,
                time.monotonic() + left,
            )
        )

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            values = {pair.key: pair.value for pair in status.values}
            level = int.from_bytes(status.level, "little")
            self.session.saw_health(status.name, level, status.message, values)

    def _on_manager(self, message: String) -> None:
        self.session.saw_manager(message.data)

    # ------------------------------------------------------------------------ input, frames

    def _publish_joy(self, sample: Sample) -> None:
        """From the server's thread, at once; from the timer's while the device is at rest."""
        joy = self._joy
        if joy is None or not self.active:
            return
        message = Joy(axes=sample[0], buttons=sample[1])
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = "console"
        joy.publish(message)
        self.diagnostics.tick("joy")

    def _on_frame(self, frame: Frame) -> None:
        """On the cameras' thread: keep what belongs to an episode."""
        self.diagnostics.tick(f"{frame.camera}/image")
        ring, actor = self._ring, self.session.actor
        if ring is None or actor is None:
            return
        driving = actor.phase in ("running", "holding", "paused")
        key = f"{actor.session[:8]}-{actor.episode:05d}" if driving else ""
        try:
            if key != self._recording:
                self._recording = key
                if key:
                    ring.begin(key, frame.arrived)
                else:
                    ring.end({})
            if key:
                ring.add(frame.camera, frame.jpeg, frame.arrived, actor.step)
        except OSError as error:
            self._cameras.problem = f"pictures are not kept: {error}"


def robot_view(arm: str, message: RobotState) -> RobotView:
    """What the console shows of a robot state."""
    return RobotView(
        arm=arm,
        mode=_MODES.get(message.mode, str(message.mode)),
        text=message.mode_text,
        errors=tuple(message.errors),
        stop_latched=message.stop_latched,
        operator_hold=message.operator_hold,
        compliance=message.compliance,
        recoveries=message.recoveries,
        force=round(float(np.linalg.norm(wrench_values(message.wrench)[:3])), 2),
    )


def main() -> None:
    """Run the node."""
    run(MonitorNode)
