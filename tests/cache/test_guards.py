"""Guards hold whatever a policy wants and whatever a probe says."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy_denoiser import even
from videoserve_cache.steps.context import Branch, Decision
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.history import History, Past
from videoserve_cache.steps.latent import Latent

Scalars = list[float]
scalars = st.lists(st.one_of(st.floats(), st.floats(0, 0.2), st.just(0.0)), min_size=24, max_size=24)


def letters(policy: Latent, told: Scalars, boundary: int) -> str:
    """What is decided when the probe says these numbers."""
    schedule, history, decided = even(len(told), boundary=boundary), History(), ""
    for step, scalar in enumerate(told):
        ctx = schedule.at(step)
        history = History() if step == boundary else history
        decision, _ = policy.guards.check(ctx, history, policy.decide(ctx, history, scalar), scalar)
        history = history.then(Past(step, decision, scalar))
        decided += decision
    return decided


@settings(max_examples=60, deadline=None)
@given(told=scalars, cap=st.integers(0, 5), warmup=st.integers(1, 4), boundary=st.integers(1, 20))
def test_cap_warm_up_last_first_of_expert_and_odd_numbers(told: Scalars, cap: int, warmup: int, boundary: int) -> None:
    decided = letters(Latent(threshold=1.0, guards=Guards(max_skips=cap, warmup=warmup)), told, boundary)
    assert "." * (cap + 1) not in decided
    assert decided[:warmup] == "R" * min(warmup, len(decided))
    assert decided[boundary] == "R"
    assert set(decided[boundary : boundary + warmup]) == {"R"}
    assert decided[-1] == "R"
    for scalar, letter in zip(told, decided, strict=True):
        assert letter == "R" or (scalar == scalar and abs(scalar) != float("inf"))


def test_a_cap_of_one_is_one() -> None:
    decided = letters(Latent(threshold=9.0, guards=Guards(max_skips=1, warmup=1)), [0.0] * 9, 100)
    assert decided == "R.R.R.R.R"


@settings(max_examples=60, deadline=None)
@given(
    told=st.lists(st.floats(0, 0.3), min_size=20, max_size=20),
    thresholds=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)),
)
def test_a_higher_threshold_never_runs_more(told: Scalars, thresholds: tuple[float, float]) -> None:
    low, high = (letters(Latent(threshold=t), told, 100).count("R") for t in sorted(thresholds))
    assert high <= low


def test_steps_in_which_a_branch_was_not_asked_make_what_it_holds_older() -> None:
    history = History((Past(0, Decision.RUN), Past(1, Decision.RUN)))
    guards, schedule = Guards(max_skips=2), even(12)
    for branch in get_args(Branch):
        assert guards.check(schedule.at(3, branch), history, Decision.SKIP, None)[0] is Decision.SKIP
        assert guards.check(schedule.at(4, branch), history, Decision.SKIP, None) == (Decision.RUN, "cap")


@pytest.mark.parametrize(
    ("fields", "sentence"), [({"warmup": 0}, "warmup is 0"), ({"max_skips": -1}, "max_skips is -1")]
)
def test_says_what_is_allowed(fields: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Guards(**fields)
