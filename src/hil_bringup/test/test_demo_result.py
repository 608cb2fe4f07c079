"""Figures of the demo."""

import pytest

from hil_bringup import demo
from hil_bringup.demo_result import Episode, Evaluation, intervention_rate, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Textbook values (Newcombe 1998, method 3; and the closed form at the ends).
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-4)


def test_wilson_without_trials_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_intervention_rate_counts_steps_not_episodes() -> None:
    episodes = [Episode(10, 10), Episode(90, 0)]
    assert intervention_rate(episodes, 0.0, 1.0) == pytest.approx(0.1)
    assert intervention_rate(episodes, 0.0, 0.2) == pytest.approx(0.5)
    assert intervention_rate(episodes, 0.8, 1.0) == 0.0


def test_an_episode_on_the_border_counts_in_part() -> None:
    episodes = [Episode(100, 50)]
    assert intervention_rate(episodes, 0.0, 0.2) == pytest.approx(0.5)
    assert intervention_rate([], 0.0, 1.0) == 0.0


def test_line_has_the_keys_in_order() -> None:
    evaluation = Evaluation(
        task="peg_insert", seed=1, successes=48, eval_episodes=50, env_steps=9000, demos=20,
        episodes=[Episode(50, 25), Episode(50, 0)], train_s=300.0, wall_s=400.04,
    )  # fmt: skip
    line = evaluation.line()
    assert list(line)[:9] == [
        "task", "success_rate", "ci95", "eval_episodes", "env_steps", "demos",
        "intervention_rate_first", "intervention_rate_last", "wall_s",
    ]  # fmt: skip
    assert line["success_rate"] == 0.96
    assert line["intervention_rate_first"] == 0.5
    assert line["intervention_rate_last"] == 0.0
    assert line["wall_s"] == 400.0


def test_options_have_defaults_and_refuse_abbreviations() -> None:
    options = demo.parse(["--json", "--seed", "3"])
    assert (options.json, options.seed, options.eval_episodes) == (True, 3, 50)
    with pytest.raises(SystemExit):
        demo.parse(["--eval", "3"])
