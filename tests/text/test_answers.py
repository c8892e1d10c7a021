"""What an answer says of itself: reasons to end, logprobs, grammars, stop texts, streams."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch


def test_an_end_token_ends_it_unless_it_is_ignored(talk: Callable[..., Any]) -> None:
    bias = {"256": 100.0}
    ended = talk().ask(tokens=(1, 2), logit_bias=bias, max_tokens=5)
    assert ended["choices"][0] == {
        "index": 0, "text": "", "tokens": [], "logprobs": None, "finish_reason": "stop", "stop": None,
    }  # fmt: skip
    assert ended["usage"]["completion_tokens"] == 1
    ignored = talk().ask(tokens=(1, 2), logit_bias=bias, max_tokens=5, ignore_eos=True)["choices"][0]
    assert (ignored["tokens"], ignored["text"], ignored["finish_reason"]) == ([256] * 5, "", "length")


def test_a_stop_token_is_named(talk: Callable[..., Any]) -> None:
    choice = talk().ask(tokens=(1, 2), logit_bias={"77": 100.0}, stop_tokens=(77,))["choices"][0]
    assert (choice["finish_reason"], choice["stop"], choice["tokens"]) == ("stop", 77, [])


def test_a_stop_text_is_named_and_cut_off(talk: Callable[..., Any]) -> None:
    asked = talk()
    fields: dict[str, Any] = {"tokens": (65, 66), "grammar": {"type": "regex", "pattern": "abcdef+"}, "max_tokens": 9}
    whole = asked.ask(**fields)["choices"][0]
    assert whole["text"].startswith("abcdef")
    cut = asked.ask(**fields, stop=("de",))["choices"][0]
    assert (cut["text"], cut["stop"], cut["finish_reason"]) == ("abc", "de", "stop")
    assert len(cut["tokens"]) == 3


def test_logprobs_are_the_models_own(talk: Callable[..., Any], truth: Callable[[str], Any]) -> None:
    prompt = (5, 6, 7)
    choice = talk().ask(
        tokens=prompt, max_tokens=4, logprobs=3, temperature=2.0, seed=1, presence_penalty=1.0, ignore_eos=True
    )["choices"][0]
    with torch.inference_mode():
        logits = truth("llama")(torch.tensor([[*prompt, *choice["tokens"]]])).logits[0]
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    assert len(choice["logprobs"]) == 4
    for told, row, token in zip(choice["logprobs"], expected, choice["tokens"], strict=True):
        assert told["id"] == token
        assert told["logprob"] == pytest.approx(float(row[token]), abs=1e-3)
        assert [t["id"] for t in told["top"]] == row.topk(3).indices.tolist()
        assert bytes(told["bytes"]).decode("utf-8", errors="replace") == told["token"]


def test_no_top_logprobs_still_gives_the_tokens_own(talk: Callable[..., Any]) -> None:
    choice = talk().ask(tokens=(1,), max_tokens=2, logprobs=0, ignore_eos=True)["choices"][0]
    assert [told["top"] for told in choice["logprobs"]] == [[], []]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_json_schema_holds_whatever_the_model_wants(talk: Callable[..., Any], temperature: float) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"type": "integer"}, "ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["size", "ok", "kind"],
        "additionalProperties": False,
    }
    asked = talk()
    for seed in range(4):
        choice = asked.ask(
            tokens=(9, seed), grammar={"type": "json_schema", "schema": schema}, temperature=temperature, seed=seed,
            logit_bias={str(token): -100.0 for token in b" \n\t"},
        )["choices"][0]  # fmt: skip
        assert choice["finish_reason"] == "stop"
        told = json.loads(choice["text"])
        assert set(told) == {"size", "ok", "kind"}
        assert isinstance(told["ok"], bool)


def test_messages_are_rendered_by_the_models_template(talk: Callable[..., Any]) -> None:
    asked = talk()
    said = asked.ask(messages=({"role": "user", "content": "hé"},), max_tokens=6, ignore_eos=True)
    written = asked.ask(prompt="<user>hé<assistant>", max_tokens=6, ignore_eos=True)
    assert said["usage"]["prompt_tokens"] == len("<user>hé<assistant>".encode())
    assert said["choices"] == written["choices"]


def test_a_grammar_survives_giving_way(talk: Callable[..., Any]) -> None:
    fields: dict[str, Any] = {"grammar": {"type": "regex", "pattern": "[a-z]{150}"}, "temperature": 1.0, "seed": 2}
    alone = [talk().ask(tokens=(i,), **fields)["choices"] for i in (1, 2, 3)]
    crowded = talk(chat_cache_gb=18.5 * 16 * 3 * 2 * 2 * 8 * 4 / 2**30)
    ids = [crowded.admit(tokens=(i,), max_tokens=200, **fields) for i in (1, 2, 3)]
    crowded.finish()
    assert sum(crowded.receipt(i)["preemptions"] for i in ids) > 0
    assert [crowded.receipt(i)["choices"] for i in ids] == alone
    assert all(len(choices[0]["text"]) == 150 for choices in alone)
