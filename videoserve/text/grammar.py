"""Which tokens a grammar allows next: JSON, a JSON schema, a regular expression or a Lark grammar."""

import json
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from videoserve.text.vocabulary import Vocabulary

# As Python's json writes it. With any blanks between its parts, a small model may write nothing else and never end.
ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class BadGrammar(ValueError):
    """A grammar that cannot be used; the message says why."""


class Grammars:
    """Grammars over the tokens of one model. Raises BadGrammar where llguidance is not installed."""

    def __init__(self, vocabulary: Vocabulary):
        try:
            import llguidance  # noqa: PLC0415
        except ImportError:
            raise BadGrammar("Grammars need llguidance: pip install 'videoserve[text]'.") from None
        self._library = llguidance
        self._tokens = llguidance.LLTokenizer(
            vocabulary.tokenizer_json, n_vocab=vocabulary.size, eos_token=list(vocabulary.ends)
        )
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def start(self, grammar: dict[str, Any]) -> "Grammar":
        """The state before the first token. Raises BadGrammar."""
        return Grammar(self._compiled(json.dumps(grammar)).deep_copy())

    def _compile(self, text: str) -> Any:
        matcher = self._library.LLMatcher
        try:
            compiled = matcher(self._tokens, _source(matcher, json.loads(text)))
        except ValueError as error:
            raise BadGrammar(f"The grammar cannot be used: {error}.") from None
        if compiled.is_error():
            raise BadGrammar(f"The grammar cannot be used: {_reason(compiled.get_error())}.")
        return compiled


class Grammar:
    """Where one continuation is in its grammar."""

    def __init__(self, matcher: Any):
        self._matcher = matcher

    @property
    def complete(self) -> bool:
        """Nothing can follow but the end."""
        return bool(self._matcher.is_stopped())

    def forbid(self, logits: Tensor) -> None:
        """-inf for every token that cannot follow; logits [V], in place."""
        allowed = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        logits.masked_fill_(~torch.from_numpy(allowed[: len(logits)].astype(bool)).to(logits.device), -torch.inf)

    def take(self, token: int) -> None:
        """The token that follows. ValueError, which no token that `forbid` left in raises."""
        if not self._matcher.consume_token(token):
            raise ValueError(f"Token {token} does not follow in the grammar: {self._matcher.get_error()}")


def _reason(told: str) -> str:
    """What is wrong: the line that says so below the pattern, where there is one, else the first."""
    lines = told.splitlines()
    said = next((line for line in lines if line.startswith("error: ")), lines[0])
    return said.removeprefix("error: ").rstrip(".: ")


def _source(matcher: Any, grammar: dict[str, Any]) -> Any:
    match grammar.get("type"):
        case "json_object":
            return matcher.grammar_from_json_schema({"type": "object"}, overrides=ONE_LINE)
        case "json_schema":
            return matcher.grammar_from_json_schema(grammar["schema"], overrides=ONE_LINE)
        case "regex":
            return matcher.grammar_from_regex(grammar["pattern"])
        case "lark":
            return matcher.grammar_from_lark(grammar["grammar"])
        case kind:
            raise BadGrammar(f"A grammar's type is {kind!r}; it can be json_object, json_schema, regex or lark.")
