"""Episode statistics, metrics files, curves and the progress view."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
from rich.console import Console

from hil_learner import curves, metrics
from hil_learner.episodes import Episode, EpisodeStatistics, rates
from hil_learner.metrics import Metrics
from hil_learner.progress import ActorView, Progress, ProgressView, line
from hil_learner.records import FLAG_DEMO, FLAG_EVALUATION, FLAG_INTERRUPTED, FLAG_LATE
from hil_rl.store import Step


def step(episode: int, number: int, *, stream: str = "a/s", **fields: object) -> Step:
    observation = {"x": np.zeros(1, np.float32)}
    action = np.zeros(1, np.float32)
    return Step(stream, 0, episode, number, 3, observation, action, **fields)  # type: ignore[arg-type]


def collected() -> tuple[EpisodeStatistics, list[Episode]]:
    done: list[Episode] = []
    return EpisodeStatistics(on_episode=done.append), done


def test_an_episode_is_what_its_steps_say() -> None:
    statistics, done = collected()
    intervened = [False, True, True, False, True]
    for i, touched in enumerate(intervened):
        last = i == 4
        statistics.on_step(
            "a",
            step(
                0,
                i,
                intervened=touched,
                reward=float(last),
                terminated=last,
                success=last,
                flags=FLAG_LATE if i == 2 else 0,
            ),
        )
    (episode,) = done
    assert (episode.mode, episode.steps, episode.episode_return) == ("train", 5, 1.0)
    assert episode.success and not episode.interrupted
    assert (episode.intervened_steps, episode.interventions) == (3, 2)
    assert (episode.late_steps, episode.policy_version, episode.env_steps) == (1, 3, 5)


def test_streams_are_followed_separately_and_modes_counted_separately() -> None:
    statistics, done = collected()
    for i in range(4):
        statistics.on_step("a", step(0, i, stream="a/s", truncated=i == 3))
        statistics.on_step("b", step(0, i, stream="b/s", flags=FLAG_DEMO, terminated=i == 3))
        statistics.on_step("c", step(0, i, stream="c/s", flags=FLAG_EVALUATION, truncated=i == 3))
    assert sorted(e.mode for e in done) == ["demo", "evaluate", "train"]
    assert (statistics.episodes, statistics.demo_episodes, statistics.env_steps) == (1, 1, 4)
    assert len(statistics.evaluated) == 1


def test_interrupted_episodes_say_nothing_about_success() -> None:
    statistics, done = collected()
    statistics.on_step("a", step(0, 0, intervened=True))
    statistics.on_interrupted("a/s")
    statistics.on_interrupted("a/s")
    statistics.on_step("a", step(1, 0))
    statistics.on_step("a", step(2, 0, truncated=True, flags=FLAG_INTERRUPTED))
    assert [e.interrupted for e in done] == [True, True, True]
    assert math.isnan(statistics.rates().success)
    assert statistics.rates().intervention == 1 / 3


def test_rates_tell_success_with_and_without_interventions() -> None:
    def episode(success: bool, touched: int) -> Episode:
        return Episode("a", "a/s", 0, "train", 10, success=success, intervened_steps=touched)

    found = rates([episode(True, 0), episode(False, 0), episode(True, 5), episode(True, 1)])
    assert (found.success, found.success_autonomous, found.success_assisted) == (0.75, 0.5, 1.0)
    assert found.intervention == 6 / 40
    assert all(map(math.isnan, (rates([]).success, rates([]).intervention)))


def write_run(folder: Path) -> Path:
    path = folder / "metrics.jsonl"
    writer = Metrics(path, folder / "tensorboard")
    writer.start(0, 0)
    for i in range(60):
        touched = max(0, 10 - i // 4)
        episode = Episode(
            "a", "a/s", i, "train", 20, float(i > 20), i > 20, intervened_steps=touched,
            env_steps=20 * (i + 1),
        )  # fmt: skip
        writer.episode(episode)
        writer.training(20 * i, 20 * i, {"critic_loss": 1.0 / (i + 1), "odd": math.nan})
    for i in range(10):
        writer.episode(Episode("a", "a/s", 60 + i, "evaluate", 20, 1.0, True, env_steps=1200))
    writer.close()
    assert writer.problem == ""
    return path


def test_metrics_come_back_from_the_file(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    history = metrics.read(path)
    assert len(history.episodes) == 70 and history.episodes[30].success
    assert history.training[1]["critic_loss"] == 0.5 and math.isnan(history.training[1]["odd"])
    assert all(json.loads(row)["time"] > 0 for row in path.read_text().splitlines())
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_a_torn_line_is_left_out_and_the_next_process_begins_a_new_one(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    writer = Metrics(path, None)
    writer.start(1200, 1180)
    writer.episode(Episode("a", "a/s", 99, "train", 5, env_steps=1205))
    history = metrics.read(path)
    assert len(history.episodes) == 70 and history.episodes[-1].episode == 99


def test_what_was_done_again_after_a_restart_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    writer = Metrics(path, None)
    writer.start(env_steps=1200, updates=400)
    history = metrics.read(path)
    assert max(row["updates"] for row in history.training) == 400
    assert len(history.episodes) == 70


def test_a_disk_that_takes_nothing_is_told_and_stops_nothing(tmp_path: Path) -> None:
    writer = Metrics(tmp_path / "missing" / "metrics.jsonl", None)
    writer.episode(Episode("a", "a/s", 0, "train"))
    assert "metrics are not written" in writer.problem
    (tmp_path / "missing").mkdir()
    writer.episode(Episode("a", "a/s", 0, "train"))
    assert writer.problem == ""


def test_the_curves_are_a_png(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    for history in (metrics.read(path), metrics.History()):
        target = tmp_path / "learning_curve.png"
        curves.draw(history, "peg_insert, run 1", target)
        assert target.read_bytes().startswith(b"\x89PNG") and target.stat().st_size > 10_000
        assert not list(tmp_path.glob("*.tmp"))


def progress() -> Progress:
    return Progress(
        run_id="peg_insert-1",
        phase="waiting",
        waiting_for="demonstrations: 3 of 200 steps missing",
        env_steps=1200,
        env_steps_allowed=1220,
        demo_steps=197,
        demo_episodes=9,
        episodes=60,
        intervened_steps=220,
        updates=1100,
        updates_per_s=41.0,
        env_steps_per_s=40.0,
        policy_version=22,
        policy_age_s=1.5,
        rates=rates([Episode("a", "a/s", 0, "train", 20, 1.0, True)]),
        evaluation=rates([Episode("a", "a/s", 1, "evaluate", 20, 1.0, True)]),
        actors=(ActorView("/actor/update_policy", 21, "no answer within 10 s"),),
    )


def test_the_line_says_everything_that_matters() -> None:
    text = line(progress())
    for part in (
        "waiting for demonstrations",
        "1200 steps (40/s)",
        "1100 updates (41/s, 0.92 per step)",
        "success 100 % (alone 100 %)",
        "interventions 0 %",
        "policy v22",
        "late 0 %",
        "no answer within 10 s",
    ):
        assert part in text


def test_lines_on_a_pipe_and_a_panel_on_a_terminal() -> None:
    pipe = io.StringIO()
    view = ProgressView(Console(file=pipe, width=40), period=3600.0)
    view.show(progress())
    assert pipe.getvalue() == ""
    view.show(progress(), final=True)
    assert pipe.getvalue().count("\n") == 1
    terminal = io.StringIO()
    view = ProgressView(Console(file=terminal, force_terminal=True, width=120))
    view.show(progress())
    view.close()
    shown = terminal.getvalue()
    assert "demonstrations" in shown and "without intervention" in shown
    assert "evaluation" in shown and "1220 allowed" in shown
