"""The strategic loop's pure parts: knobs, reward, optimiser, and `lab tune`."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.policies.partition import Interval, place
from scheduling.core.policies.registry import PolicyError, make_ordering
from scheduling.simulator.compare import Case
from scheduling.simulator.trace import read_trace
from scheduling.simulator.workload import write_mix
from scheduling.tuning.offline import evaluate, random_search, tune
from scheduling.tuning.optimizer import Optimizer
from scheduling.tuning.reward import Felt, Parts, RewardWeights, penalty, shape
from scheduling.tuning.space import SPACES, Knob, defaults, draw, params_of, queues_of, space_of

share = st.floats(0.0, 1.0)
lengths = st.lists(st.integers(1, 8000), min_size=1, max_size=80)


def test_a_knob_goes_from_its_lowest_to_its_highest_value_and_back():
    for knobs in SPACES.values():
        for knob in knobs:
            assert knob.at(0.0) == pytest.approx(knob.low)
            assert knob.at(1.0) == pytest.approx(knob.high)
            assert knob.at(knob.share(knob.default)) == pytest.approx(knob.default)


@pytest.mark.parametrize("bounds", [(1.0, 1.0, 1.0), (2.0, 1.0, 1.5), (1.0, 2.0, 3.0)])
def test_a_knob_whose_bounds_or_default_do_not_fit_is_refused(bounds: tuple[float, float, float]):
    with pytest.raises(ValueError, match="does not hold"):
        Knob("x", *bounds)


@given(st.sampled_from(sorted(SPACES)), st.integers(0, 2**32), lengths)
def test_whatever_is_drawn_is_a_policy_that_can_be_made(policy: str, seed: int, seen: list[int]):
    values = draw(space_of(policy), Random(seed))
    queues = queues_of(values, seen)
    make_ordering(policy, params_of(values, queues))
    assert not queues or all(place(length, queues) is not None for length in seen)


def test_a_policy_without_knobs_is_told_which_have_some():
    with pytest.raises(PolicyError, match="ewsjf"):
        space_of("fifo")
    with pytest.raises(PolicyError, match="unknown"):
        space_of("fofi")


@given(share, share, share, share, st.tuples(share, share, share, st.floats(0.01, 1.0)))
def test_a_reward_lies_between_0_and_1_and_falls_with_the_penalty(
    c: float, b: float, q: float, u: float, weights: tuple[float, float, float, float]
):
    weighed = RewardWeights(*weights)
    reward = Parts(c, b, q, u).reward(weighed)
    assert -1e-9 <= reward <= 1.0 + 1e-9
    assert Parts(c, b, q, min(1.0, u + 0.1)).reward(weighed) <= reward + 1e-12
    assert Parts(c, b, min(1.0, q + 0.1), u).reward(weighed) <= reward + 1e-12
    assert Parts(min(1.0, c + 0.1), min(1.0, b + 0.1), q, u).reward(weighed) >= reward - 1e-12


def test_weights_of_a_reward_have_to_be_numbers_of_which_one_counts():
    for wrong in ((0, 0, 0, 0), (-1, 0, 0, 1), (math.nan, 0, 0, 1)):
        with pytest.raises(ValueError, match="reward weights"):
            RewardWeights(*wrong)


def test_a_penalty_is_a_half_on_target_and_tiers_count_by_weight():
    assert penalty([]) == 0.0
    assert penalty([Felt("a", 1.0, 2.0, 2.0)]) == pytest.approx(0.5)
    assert penalty([Felt("a", 1.0, math.inf, 2.0)]) == 1.0
    heavy, light = [Felt("a", 3.0, 0.0, 1.0)], [Felt("b", 1.0, math.inf, 1.0)] * 50
    assert penalty(heavy + light) == pytest.approx(0.25)


@given(lengths, st.floats(1.5, 30.0), st.integers(1, 32))
def test_the_shape_of_queues_lies_between_0_and_1(seen: list[int], alpha: float, most: int):
    queues = queues_of({"split_alpha": alpha, "max_queues": most}, seen)
    assert all(-1e-9 <= part <= 1.0 + 1e-9 for part in shape(seen, queues, most))


def test_queues_of_one_length_each_are_compact_and_even_work_is_balanced():
    queues = (Interval(10, 10, 10, 10.0), Interval(100, 100, 1, 100.0))
    assert shape([10] * 10 + [100], queues, 4) == pytest.approx((1.0, 1.0, 0.5))
    assert shape([], (), 4) == (0.0, 0.0, 0.0)


def _hill(values: dict[str, float], space: tuple[Knob, ...]) -> float:
    return 1.0 - sum((knob.share(values[knob.name]) - 0.7) ** 2 for knob in space) / len(space)


def _proposals(seed: int, count: int) -> list[dict[str, float]]:
    """The first ``count`` proposals of an optimiser that is told the height of the hill at each."""
    space = space_of("hybrid")
    optimizer, trials = Optimizer(space, seed, defaults(space)), []
    for _ in range(count):
        trials.append(optimizer.ask())
        optimizer.tell(trials[-1], _hill(trials[-1], space))
    return trials


def test_the_first_trial_is_what_serves_now_and_the_seed_decides_the_others():
    first = _proposals(1, 6)
    assert first[0] == defaults(space_of("hybrid"))
    assert first == _proposals(1, 6)
    assert first != _proposals(2, 6)


def test_it_finds_the_top_of_a_hill_sooner_than_chance():
    space = space_of("hybrid")
    found = [max(_hill(values, space) for values in _proposals(seed, 10)) for seed in range(3)]
    chance = [max(_hill(draw(space, Random(f"{seed} {n}")), space) for n in range(9)) for seed in range(3)]
    assert sum(found) > sum(chance)


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    path = tmp_path / "mix.csv"
    write_mix(path, 300, 10.0, 1)
    return path


def test_the_mix_of_the_paper_has_four_short_prompts_to_a_long_one(mix: Path):
    rows = read_trace(mix)
    assert len(rows) == 300
    assert sum(row.input_tokens <= 256 for row in rows) / 300 == pytest.approx(0.8, abs=0.08)
    assert not [row for row in rows if 256 < row.input_tokens < 1024]
    assert rows[-1].arrival_s == pytest.approx(30.0, rel=0.2)


def test_a_tuning_is_the_same_each_time_and_begins_with_the_default(mix: Path):
    case = Case(str(mix), "ewsjf")
    first = tune(case, 2, seed=1)
    assert first == tune(case, 2, seed=1)
    assert first.default == evaluate(case, defaults(space_of("ewsjf")))
    assert first.best.reward == max(first.default.reward, *(trial.reward for trial in first.trials))
    assert [t.values for t in random_search(case, 2, "a")] != [t.values for t in random_search(case, 2, "b")]


def test_the_command_writes_rewards_and_a_drawing_and_keeps_what_it_ran(
    mix: Path, tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    file, plot = tmp_path / "t.json", tmp_path / "t.svg"
    ask = ("lab", "--processes", "1", "tune", "--trace", str(mix), "--policy", "ewsjf", "--trials", "2", "--seeds", "2")
    ask = (*ask, "--random", "3")
    call_command(*ask, "--json", str(file), "--plot", str(plot), stdout=StringIO())
    told = json.loads(file.read_text())
    assert [row["seed"] for row in told["seeds"]] == [1, 2]
    for row in told["seeds"]:
        assert len(row["rewards"]) == 2
        assert all(0.0 <= value <= 1.0 for value in (*row["rewards"], row["default_reward"], row["random_best"]))
        assert set(row["best_parameters"]) == {knob.name for knob in space_of("ewsjf")}
    ElementTree.parse(plot)
    monkeypatch.setattr("controlplane.lab.tune.run_search", lambda search: pytest.fail("it was kept"))
    again = StringIO()
    call_command(*ask, "--json", stdout=again)
    assert json.loads(again.getvalue()) == told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--policy", "fifo"], "nothing to tune"),
        (["--trials", "0"], "--trials"),
        (["--random", "-1"], "--random"),
        (["--plot", "/nowhere/x.svg"], "no folder"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json"),
    ],
)
def test_a_wrong_argument_of_tune_is_told(mix: Path, tmp_path: Path, settings: object, arguments: list[str], told: str):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    with pytest.raises(CommandError, match=told):
        call_command(
            "lab", "--processes", "1", "tune", "--trace", str(mix), "--trials", "1", "--seeds", "1", "--random", "0",
            *arguments, stdout=StringIO(),
        )  # fmt: skip
