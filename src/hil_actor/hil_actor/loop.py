"""The control loop: episodes on a thread of their own, asked for from others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from hil_actor.env import RobotEnv, Transition
from hil_actor.graph_io import GraphError, Stopped
from hil_actor.interference import PAUSED, Interference
from hil_actor.poller import Interrupted, never
from hil_actor.recorder import Place, StepRecorder
from hil_rl.policy import Policy

_IDLE = "to be asked for episodes"
MODES = ("demo", "train", "evaluate")

# After an episode that the graph broke off, before the next attempt (s).
_RETRY_AFTER = 1.0
# Longest wait for the last step to be written, before the wait is announced (s).
_SETTLING = 1.0
# How long giving the lease back may take (s).
_RELEASE_LIMIT = 0.5


@dataclass(frozen=True)
class RunRequest:
    """Episodes that are asked for; see action RunEpisodes.

    Attributes:
        mode: demo, train or evaluate.
        episodes: how many; 0: until cancelled.
        count_successes: only successful episodes count.
        seed: of the episodes' randomisation.
        max_steps: stop after so many steps; 0: no limit.
    """

    mode: str
    episodes: int = 0
    count_successes: bool = False
    seed: int = 0
    max_steps: int = 0


@dataclass(frozen=True)
class Summary:
    """One episode; see EpisodeSummary."""

    episode: int
    mode: str
    stamp: int = 0
    steps: int = 0
    episode_return: float = 0.0
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    interrupted: bool = False
    intervened_steps: int = 0
    interventions: int = 0
    late_steps: int = 0
    policy_version: int = 0
    duration: float = 0.0


@dataclass(frozen=True)
class Totals:
    """Sum over the episodes of a run."""

    episodes: int = 0
    successes: int = 0
    steps: int = 0
    intervened_steps: int = 0

    def plus(self, summary: Summary) -> Totals:
        """With one more episode; an interrupted one adds its steps only."""
        counts = not summary.interrupted
        return Totals(
            self.episodes + counts,
            self.successes + (counts and summary.success),
            self.steps + summary.steps,
            self.intervened_steps + summary.intervened_steps,
        )


@dataclass(frozen=True)
class RunResult:
    """How a run ended. reason: why it is not ok, or why it ended early."""

    ok: bool
    reason: str
    totals: Totals


class Policies(Protocol):
    """Where the policy in force is found; see PolicySlot."""

    @property
    def current(self) -> Policy:
        """Policy to act with."""


class Gate(Protocol):
    """What the next step may have to wait for; see StepGate."""

    def reason(self, mode: str) -> str:
        """Why it has to wait; "" if it does not."""

    def settled(self) -> bool:
        """The last step is where it outlives this process, or cannot get there now."""

    def taken(self, mode: str) -> None:
        """A step was taken and recorded."""


OnEpisode = Callable[[Summary, Totals], None]


class EpisodeRunner:
    """Runs episodes: policy, step, record. One thread.

    Args:
        env: acts.
        recorder: keeps.
        policies: where the policy comes from, at the start of every step.
        gate: what steps wait for.
        seed: of exploration.
        interference: what a person asks for meanwhile.
    """

    def __init__(
        self,
        env: RobotEnv,
        recorder: StepRecorder,
        policies: Policies,
        gate: Gate,
        seed: int = 0,
        interference: Interference | None = None,
    ) -> None:
        self.env = env
        self.interference = interference or Interference(env.poller.wake)
        self._recorder = recorder
        self._policies = policies
        self._gate = gate
        self._seed = seed

    def run(
        self, request: RunRequest, stopping: Callable[[], bool], on_episode: OnEpisode
    ) -> RunResult:
        """Run episodes until there are enough or `stopping()`.

        An episode that the graph breaks off is reported as interrupted and tried again.
        """
        objection = self._objection(request)
        if objection:
            return RunResult(False, objection, Totals())
        env = self.env
        graph = env.graph
        graph.stopping = stopping
        evaluating = request.mode == "evaluate"
        env.demonstrating = request.mode == "demo"
        env.allow_operator(not evaluating)
        graph.announce(mode=request.mode, phase="waiting", text="", intervened=False)
        totals, index = Totals(), 0
        try:
            while not _enough(request, totals):
                if stopping():
                    raise Stopped
                self._await_person()
                summary, problem = self._episode(request, index, totals, stopping)
                if summary.steps:
                    totals = totals.plus(summary)
                    on_episode(summary, totals)
                if problem:
                    graph.announce(phase="waiting", text=problem)
                    graph.pause(never, "waiting", partial(str, problem), _RETRY_AFTER)
                else:
                    index += 1
            return RunResult(True, "", totals)
        except (Stopped, Interrupted):
            return RunResult(False, "cancelled", totals)
        finally:
            graph.stopping = never
            env.demonstrating = False
            graph.announce(mode="", phase="waiting", text=_IDLE, intervened=False)

    def _objection(self, request: RunRequest) -> str:
        if request.mode not in MODES:
            return f"mode '{request.mode[:40]}' is none of {', '.join(MODES)}"
        if request.mode == "demo" and self.env.params.operator == "none":
            return "demonstrations need an operator, but the parameter 'operator' is none"
        return ""

    def _episode(
        self, request: RunRequest, index: int, totals: Totals, stopping: Callable[[], bool]
    ) -> tuple[Summary, str]:
        """One episode. Returns its summary, and why the graph broke it off or ""."""
        env = self.env
        self.interference.begin_episode()
        rng = np.random.default_rng([self._seed, request.seed, index])
        try:
            env.reset(seed=episode_seed(request.seed, index))
        except GraphError as error:
            return Summary(env.episode, request.mode), str(error)
        tally = Summary(env.episode, request.mode)
        late_before = env.late_steps
        first_stamp = env.graph.stamp
        problem = ""
        try:
            while not (tally.terminated or tally.truncated or tally.interrupted):
                self._await_gate(request.mode)
                if self.interference.skipping:
                    # As after a crash: the step whose outcome was not seen stays open.
                    tally = replace(tally, interrupted=True)
                    break
                done, version = self._step(request.mode, rng)
                last_allowed = 0 < request.max_steps <= totals.steps + tally.steps + 1
                ended = done.terminated or done.truncated
                interrupted = not ended and (last_allowed or stopping())
                place = Place(request.mode, env.episode, tally.steps, version)
                self._recorder.record(done, place, interrupted)
                self._gate.taken(request.mode)
                tally = _add(tally, done, version, interrupted)
        except GraphError as error:
            problem = str(error)
            tally = replace(tally, interrupted=True)
        except (Stopped, Interrupted):
            # Nothing in flight that could be closed: the record stays open, as after a crash.
            tally = replace(tally, interrupted=True)
        summary = replace(
            tally,
            stamp=env.graph.stamp,
            late_steps=env.late_steps - late_before,
            duration=(env.graph.stamp - first_stamp) * 1e-9,
        )
        return summary, problem

    def _step(self, mode: str, rng: np.random.Generator) -> tuple[Transition, int]:
        """Act once; returns the transition and the version of the policy that was asked."""
        env = self.env
        if mode == "demo":
            return env.control(None), 0
        policy = self._policies.current
        env.graph.announcement.policy_version = policy.version
        proposal = policy.act(env.observation, mode == "evaluate", rng)
        return env.control(proposal), policy.version

    def _await_gate(self, mode: str) -> None:
        person, gate, graph = self.interference, self._gate, self.env.graph

        def reason() -> str:
            if person.skipping:
                return ""
            return PAUSED if person.paused else gate.reason(mode)

        # Not to be broken off: who asks to stop now gets one more step, which closes the episode.
        self.env.poller.wait(gate.settled, _SETTLING)
        if not reason():
            return
        graph.pause(lambda: not reason(), "paused", reason, hold=True)
        self.env.resume()

    def _await_person(self) -> None:
        """Between two episodes: nothing is reset while a person has paused."""
        person = self.interference
        if person.paused:
            self.env.graph.pause(lambda: not person.paused, "paused", lambda: PAUSED)


def episode_seed(seed: int, index: int) -> int:
    """Seed of one episode of a run."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])


def _enough(request: RunRequest, totals: Totals) -> bool:
    if 0 < request.max_steps <= totals.steps:
        return True
    counted = totals.successes if request.count_successes else totals.episodes
    return 0 < request.episodes <= counted


def _add(tally: Summary, done: Transition, version: int, interrupted: bool) -> Summary:
    return replace(
        tally,
        steps=tally.steps + 1,
        episode_return=tally.episode_return + done.reward,
        success=done.success,
        terminated=done.terminated,
        truncated=done.truncated,
        interrupted=interrupted,
        intervened_steps=tally.intervened_steps + any(done.intervened),
        interventions=tally.interventions + done.takeover,
        policy_version=version,
    )


@dataclass(eq=False)
class Job:
    """A run that was asked for."""

    request: RunRequest
    on_episode: OnEpisode
    on_done: Callable[[RunResult], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


class ControlLoop:
    """Runs jobs one after the other on its own thread, and an idle job whenever there is none.

    Args:
        runner: runs them.
        idle: job for when nothing is asked for; None: wait.
        on_fault: called with an exception that ended the thread.
    """

    def __init__(
        self, runner: EpisodeRunner, idle: Job | None, on_fault: Callable[[Exception], None]
    ) -> None:
        self._runner = runner
        self._idle = idle
        self._on_fault = on_fault
        self._changed = threading.Condition()
        self._asked: Job | None = None
        self._running: Job | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ from other threads

    def start(self) -> None:
        """Begin (again)."""
        self._closing = False
        self._runner.env.poller.resume()
        self._thread = threading.Thread(target=self._main, name="control", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> str:
        """Have a job run; return why not, or ""."""
        with self._changed:
            if self._closing or self._thread is None:
                return "the actor is not active"
            busy = self._asked or (self._running if self._running is not self._idle else None)
            if busy is not None:
                return f"episodes in mode {busy.request.mode} are running"
            self._asked = job
            self._changed.notify_all()
        self._runner.env.poller.wake()
        return ""

    def cancel(self, job: Job) -> None:
        """End a job after its present step."""
        job.cancelled.set()
        self._runner.env.poller.wake()

    def stop(self, grace: float, limit: float) -> bool:
        """Stop after the present step, hold the arm, give the lease back.

        Args:
            grace: s that the present step may take before its waits are broken off.
            limit: s until this gives up waiting.

        Returns:
            Whether the thread has ended.
        """
        thread = self._thread
        if thread is None:
            return True
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        poller = self._runner.env.poller
        poller.wake()
        thread.join(grace)
        if thread.is_alive():
            poller.interrupt()
            thread.join(limit)
        self._thread = None if not thread.is_alive() else thread
        return self._thread is None

    # ---------------------------------------------------------------------- control thread

    def _main(self) -> None:
        graph = self._runner.env.graph
        graph.announce(mode="", phase="waiting", text=_IDLE, intervened=False)
        try:
            while (job := self._next()) is not None:
                self._run(job)
        except Exception as error:
            self._on_fault(error)
        finally:
            with self._changed:
                self._closing = True
                orphan, self._asked = self._asked, None
            if orphan is not None:
                orphan.on_done(RunResult(False, "the actor stopped", Totals()))
            self._runner.env.poller.resume()
            graph.release(_RELEASE_LIMIT)
            graph.announce(mode="", phase="waiting", text="activation", intervened=False)

    def _next(self) -> Job | None:
        with self._changed:
            if self._idle is None or self._idle.cancelled.is_set():
                self._changed.wait_for(lambda: self._asked is not None or self._closing)
            if self._closing:
                return None
            job, self._asked = self._asked or self._idle, None
            self._running = job
            return job

    def _run(self, job: Job) -> None:
        with self._reported(job) as report:
            result = self._runner.run(job.request, lambda: self._leaving(job), job.on_episode)
            report(replace(result, reason=result.reason and self._why(job, result.reason)))

    def _leaving(self, job: Job) -> bool:
        preempted = job is self._idle and self._asked is not None
        return self._closing or preempted or job.cancelled.is_set()

    def _why(self, job: Job, reason: str) -> str:
        return "the actor stopped" if self._closing and not job.cancelled.is_set() else reason

    @contextmanager
    def _reported(self, job: Job) -> Iterator[Callable[[RunResult], Any]]:
        """Tell the job's owner the result, also if the run ends with an exception."""
        results: list[RunResult] = []
        try:
            yield results.append
        except Exception as error:
            results.append(RunResult(False, f"{type(error).__name__}: {error}", Totals()))
            raise
        finally:
            with self._changed:
                self._running = None
            if job is self._idle and not self._leaving(job):
                job.cancelled.set()  # done, or not possible: wait for what is asked for
            job.on_done(results[-1])
