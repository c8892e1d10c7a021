"""Prompts are cleaned as diffusers cleans them."""

import pytest
from diffusers.pipelines.wan.pipeline_wan_i2v import prompt_clean
from hypothesis import given, settings
from hypothesis import strategies as st

from videoserve.planning.prompt import clean

SAMPLES = [
    "",
    "  pan\n left ",
    "&amp;lt;b&amp;gt;",
    "schÃ¶n",
    "镜头 向左",
    "e\u0301\u200b\u200d🏃‍♀️",
    "a\x00\x07b",
    "“x”",
]


@pytest.mark.parametrize("text", SAMPLES)
def test_samples(text: str) -> None:
    assert clean(text) == prompt_clean(text)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text(text: str) -> None:
    assert clean(text) == prompt_clean(text)
