"""pick() takes the first backend that can, and says why when none can."""

import pytest

from videoserve_kernels.backend import Backend, BackendUnavailableError, chosen, pick

FAST = Backend(name="fast", fn=lambda x: x + 1, why_not=lambda x: None if x > 0 else f"{x} is not positive")
SLOW = Backend(name="slow", fn=lambda x: x + 100, why_not=lambda x: None if x > -10 else f"{x} is below -9")


def test_the_first_that_can_runs() -> None:
    assert pick("add", (FAST, SLOW), None, 1) == 2
    assert pick("add", (FAST, SLOW), None, -1) == 99


def test_the_chosen_one_has_a_name() -> None:
    assert [chosen((FAST, SLOW), number) for number in (1, -1)] == ["fast", "slow"]


def test_a_forced_one_runs_or_says_why() -> None:
    assert pick("add", (FAST, SLOW), "slow", 1) == 101
    with pytest.raises(BackendUnavailableError, match=r"add cannot run here\. fast: -1 is not positive"):
        pick("add", (FAST, SLOW), "fast", -1)


def test_every_reason_is_given_when_none_can() -> None:
    with pytest.raises(BackendUnavailableError, match="fast: -20 is not positive; slow: -20 is below -9"):
        pick("add", (FAST, SLOW), None, -20)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BackendUnavailableError, match="no backend called 'best'; it has fast, slow"):
        pick("add", (FAST, SLOW), "best", 1)
