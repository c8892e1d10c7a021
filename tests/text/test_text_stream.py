"""Text that streams: whole letters only, and no beginning of a stop text before it is known to be none."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve.text.text_stream import TextStream


def streamed(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], list[tuple[int, int]], TextStream]:
    """What was told after each piece and in the end, and with which tokens."""
    stream = TextStream(stops)
    texts, tokens = [], []
    for piece in pieces:
        stream.push(piece)
        if stream.stopped is not None:
            break
        text, first, end = stream.take()
        texts.append(text)
        tokens.append((first, end))
    stream.finish()
    text, first, end = stream.take(last=True)
    return [*texts, text], [*tokens, (first, end)], stream


def test_a_split_letter_waits_for_its_rest() -> None:
    fox = "🦊".encode()
    assert streamed([b"a", fox[:1], fox[1:3], fox[3:] + b"b"], [])[0] == ["a", "", "", "🦊b", ""]


def test_a_letter_that_stays_split_becomes_a_replacement() -> None:
    assert streamed([b"a", "é".encode()[:1]], [])[0] == ["a", "", "\ufffd"]


@pytest.mark.parametrize(
    ("pieces", "stops", "told", "stopped"),
    [
        ([b"one", b" EN", b"D two"], [" END"], ["one", "", ""], " END"),
        ([b"one", b" EN", b"ough"], [" END"], ["one", "", " ENough", ""], None),
        ([b"ab", b"ab", b"c"], ["abc"], ["", "ab", ""], "abc"),
        ([b"x\n", b"\ny"], ["\n\n"], ["x", ""], "\n\n"),
        ([b"aXbY"], ["Y", "X"], ["a"], "X"),
        ([b"stop"], ["sto", "stop"], [""], "stop"),
        ([b"tail EN"], [" END"], ["tail", " EN"], None),
    ],
)
def test_stop_texts_across_borders(pieces: list[bytes], stops: list[str], told: list[str], stopped: str | None) -> None:
    texts, _, stream = streamed(pieces, stops)
    assert (texts, stream.stopped) == (told, stopped)


def test_tokens_are_told_with_the_text_they_end_in() -> None:
    assert streamed([b"one", b" EN", b"ough"], [" END"])[1] == [(0, 1), (1, 1), (1, 3), (3, 3)]
    # " EN" holds no text before the stop text, "D two" follows it.
    _, tokens, stream = streamed([b"one", b" EN", b"D two"], [" END"])
    assert (tokens, stream.tokens) == ([(0, 1), (1, 1), (1, 1)], 1)
    _, tokens, stream = streamed([b"one E", b"ND"], [" END"])
    assert (tokens, stream.tokens) == ([(0, 0), (0, 1)], 1)


@given(
    text=st.text(alphabet="ab é🦊", max_size=30),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    stops=st.lists(st.text(alphabet="ab é", min_size=1, max_size=4), max_size=3),
)
def test_any_pieces_give_the_text_up_to_the_first_stop_text(text: str, cuts: list[int], stops: list[str]) -> None:
    content = text.encode()
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    pieces = [content[a:b] for a, b in pairwise(borders)]
    texts, tokens, stream = streamed(pieces, stops)
    whole = "".join(texts)
    assert whole == stream.text
    # The stop text that is complete first ends it: every beginning of the text up to there is free of all.
    if stream.stopped is None:
        assert whole == text
        assert not any(stop in text for stop in stops)
        assert tokens[-1][1] == len(pieces)
    else:
        assert text.startswith(whole + stream.stopped)
    assert [first for first, _ in tokens[1:]] == [end for _, end in tokens[:-1]]
    assert tokens[-1][1] == stream.tokens
