"""MagCache's rule against its closed form."""

import random

import pytest

from tests.toy_denoiser import even
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.magnitude import Magnitude
from videoserve_cache.steps.policy import executed


def closed_form(ratios: list[float], threshold: float, retain: float, cap: int) -> str:
    """As the paper's loop does it: running product and error, both reset at a computed step."""
    letters, product, error, skipped = "", 1.0, 0.0, 0
    for step, ratio in enumerate(ratios):
        if step < retain * len(ratios) or step == 0 or step == len(ratios) - 1:
            letters += "R"
            continue
        product, skipped = product * ratio, skipped + 1
        error += abs(1 - product)
        if error < threshold and skipped <= cap:
            letters += "."
        else:
            letters, product, error, skipped = letters + "R", 1.0, 0.0, 0
    return letters


def test_is_its_closed_form() -> None:
    for seed in range(60):
        draw = random.Random(seed)
        ratios = [1.0, *(draw.uniform(0.9, 1.05) for _ in range(24))]
        threshold, retain, cap = draw.uniform(0.01, 0.4), draw.choice([0.0, 0.2, 0.4]), draw.randint(1, 5)
        policy = Magnitude(
            threshold=threshold, ratios=tuple(ratios), retain=retain, guards=Guards(warmup=1, max_skips=cap)
        )
        assert executed(policy, even(25)) == closed_form(ratios, threshold, retain, cap)


def test_a_higher_threshold_never_runs_more_where_norms_only_shrink() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        ratios = tuple(draw.uniform(0.9, 1.0) for _ in range(25))
        runs = [(executed(Magnitude(threshold=t / 50, ratios=ratios), even(25)) or "").count("R") for t in range(20)]
        assert runs == sorted(runs, reverse=True)


def test_the_error_starts_anew_with_the_expert() -> None:
    policy = Magnitude(threshold=0.05, ratios=(0.99,) * 20, retain=0.0)
    letters = executed(policy, even(20, boundary=10)) or ""
    assert letters[:9] == letters[10:19]


def test_refuses_another_number_of_steps() -> None:
    with pytest.raises(ValueError, match="The calibration is of 3 steps; this video takes 20"):
        Magnitude(threshold=0.1, ratios=(1.0, 1.0, 1.0)).plan(even(20))
