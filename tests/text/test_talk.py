"""A conversation without a server, on the tiny Llama."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.local.talk import Talk

GREEDY = {"temperature": 0.0, "max_tokens": 12}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def talk(chat_dir: Callable[[str], Path]) -> Iterator[Talk]:
    settings = Settings(chat_model=str(chat_dir("llama")), chat_cache_gb=0.02, device="cpu", threads=1)
    with closing(Talk(settings)) as talk:
        yield talk


def test_the_same_conversation_has_the_same_answer(talk: Talk) -> None:
    first = "".join(talk.answer(HELLO, GREEDY))
    assert first
    assert "".join(talk.answer(HELLO, GREEDY)) == first
    longer = [*HELLO, {"role": "assistant", "content": first}, {"role": "user", "content": "and?"}]
    assert "".join(talk.answer(longer, GREEDY))


def test_an_answer_that_is_given_up_holds_nothing(talk: Talk) -> None:
    pieces = talk.answer(HELLO, GREEDY | {"max_tokens": 400})
    assert next(pieces) is not None
    pieces.close()  # type: ignore[attr-defined]
    assert talk._engine.blocks.counts()["held"] == 0
    assert "".join(talk.answer(HELLO, GREEDY))


def test_a_conversation_that_is_too_long_is_refused(talk: Talk) -> None:
    with pytest.raises(JobFailed, match="at most 512 fit here"):
        list(talk.answer([{"role": "user", "content": "x" * 600}], GREEDY))


def test_no_chat_model() -> None:
    with pytest.raises(ValueError, match="Chat is off: chat_model is none"):
        Talk(Settings(chat_model="none"))
