"""Do the sentences of the recipe say what their label means, to a reader that was written separately?"""

import random

import pytest

from videoserve.demo.recipe.motions import Label, sample_label
from videoserve.demo.recipe.paraphrases import PARAPHRASES
from videoserve.demo.recipe.prompts import prompt_for
from videoserve.demo.words import label_of


def directions(label: Label | None) -> tuple[int, int, int, int] | None:
    return None if label is None else (label.right, label.down, label.zoom, label.turn)


def test_nearly_every_template_prompt_is_read_back_as_its_label() -> None:
    rng = random.Random(4)
    labels = [label for label in (sample_label(rng) for _ in range(600)) if not label.generic]
    wrong = [
        (label, prompt)
        for label, prompt in ((label, prompt_for(label, rng)) for label in labels)
        if directions(label_of(prompt)) != directions(label)
    ]
    # "a still lake, zoom in" and the like are read differently by rules; the templates themselves must be right.
    assert len(wrong) < 0.08 * len(labels), wrong[:10]


@pytest.mark.parametrize(("prompt", "label"), PARAPHRASES)
def test_the_hand_written_prompts_are_read_as_their_labels(prompt: str, label: Label) -> None:
    read = label_of(prompt)
    assert directions(read) == directions(label)
    assert read is not None
    assert read.speed == label.speed or label.static


def test_a_generic_prompt_names_no_direction() -> None:
    rng = random.Random(2)
    prompts = [prompt_for(Label(zoom=1, speed="slow", generic=True), rng) for _ in range(50)]
    assert sum(label_of(prompt) is None for prompt in prompts) > 40


def test_the_speed_is_always_said() -> None:
    rng = random.Random(6)
    slow = [prompt_for(Label(right=1, speed="slow"), rng).lower() for _ in range(100)]
    assert all(label is not None and label.speed == "slow" for label in map(label_of, slow))
