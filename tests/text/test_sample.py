"""How a continuation chooses its next token."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve.chat_types import ChatPlan
from videoserve.text.sample import Sampler, uniform

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def sampler(prompt: tuple[int, ...] = (), index: int = 0, **fields: Any) -> Sampler:
    return Sampler(ChatPlan(model="m", tokens=prompt, **fields), index, prompt, None)


def drawn(count: int = 4000, logits: Tensor = LOGITS, **fields: Any) -> Counter[int]:
    found = Counter[int]()
    for seed in range(count):
        found[sampler(seed=seed, **fields).choose(logits)] += 1
    return found


def test_temperature_zero_takes_the_likeliest() -> None:
    assert drawn(5, temperature=0.0) == {0: 5}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    found = drawn(temperature=temperature)
    expected = (LOGITS / temperature).softmax(0)
    for token, chance in enumerate(expected.tolist()):
        # Five standard deviations; the seeds are fixed.
        assert abs(found[token] / 4000 - chance) < 5 * (chance * (1 - chance) / 4000) ** 0.5


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        # Chances 0.565, 0.208, 0.126, 0.076, 0.028, 0.004 …
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.8}, {0, 1, 2}),
        # e^-1 = 0.37, e^-1.5 = 0.22 of the likeliest.
        ({"min_p": 0.3}, {0, 1}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.5}, {0}),
    ],
)
def test_cuts_leave_these(fields: dict[str, Any], left: set[int]) -> None:
    # At this temperature all have a good chance before the cut; the cut is made after it.
    assert set(drawn(800, **fields)) - {5} == left - {5}


def test_a_seed_gives_the_same_at_the_same_place_and_streams_differ() -> None:
    assert uniform(1, 0, 0) == uniform(1, 0, 0)
    numbers = [uniform(seed, index, position) for seed in range(10) for index in range(10) for position in range(10)]
    assert len(set(numbers)) == 1000
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / 1000 - 0.5) < 0.05


def test_logit_bias_moves_and_bans() -> None:
    assert sampler(temperature=0.0, logit_bias={"5": 100.0}).choose(LOGITS) == 5
    assert 0 not in drawn(500, logit_bias={"0": -100.0})


def test_presence_counts_once_and_frequency_each_time() -> None:
    for fields, after, expected in (
        ({"presence_penalty": 0.9}, 3, 0),
        ({"presence_penalty": 1.1}, 1, 1),
        ({"frequency_penalty": 0.4}, 2, 0),
        ({"frequency_penalty": 0.4}, 3, 1),
    ):
        chooser = sampler(temperature=0.0, **fields)
        for _ in range(after):
            chooser.take(0)
        assert chooser.choose(LOGITS) == expected


def test_repetition_penalty_counts_the_prompt_and_shrinks_towards_zero_from_both_sides() -> None:
    assert sampler((0,), temperature=0.0, repetition_penalty=2.5).choose(LOGITS) == 1
    negative = torch.tensor([-1.0, -1.5])
    assert sampler((0,), temperature=0.0, repetition_penalty=2.0).choose(negative) == 1
    # The other two penalties do not look at the prompt.
    assert sampler((0,), temperature=0.0, presence_penalty=5.0).choose(LOGITS) == 0


def test_logits_stay_as_they_are() -> None:
    before = LOGITS.clone()
    sampler((0, 1), logit_bias={"3": 4.0}, top_p=0.4, top_k=3, min_p=0.1, repetition_penalty=1.3).choose(LOGITS)
    assert torch.equal(LOGITS, before)
