"""Calls of functions as DeepSeek-V4 writes them, beside those that CallFinder finds."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from videoserve.api.chat_tools import Arguments, CallFinder, Piece

OPEN: Final = "<｜DSML｜tool_calls>"
CLOSE: Final = "</｜DSML｜tool_calls>"
INVOKE: Final = re.compile(r'\s*<｜DSML｜invoke name="([^"]*)">(.*?)</｜DSML｜invoke>', re.DOTALL)
PARAMETER: Final = re.compile(
    r'<｜DSML｜parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜parameter>', re.DOTALL
)


class DsmlFinder:
    """`feed` and `finish` as of the CallFinder `others`, which gets all text that is in no DSML block.

    A call is told when it is whole. `most`: further calls than that are left out.
    """

    def __init__(self, others: CallFinder, *, most: int | None = None):
        self._others, self._most = others, most
        # Text of which it is not certain yet what it is; within a block all of it since the last call.
        self._held = ""
        self._inside = False
        # Of a block that holds no call so far.
        self._raw = ""

    @property
    def calls(self) -> int:
        return self._others.calls

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._held:
            before = self._inside, self._held
            found += self._within() if self._inside else self._outside()
            if (self._inside, self._held) == before:
                break
        return found

    def finish(self) -> list[Piece]:
        """No text follows: what never became a call is text."""
        lost = self._raw + self._held if self._raw or not self._inside else ""
        self._held = self._raw = ""
        return [*self._others.feed(lost), *self._others.finish()]

    def _outside(self) -> list[Piece]:
        before, tag, rest = self._held.partition(OPEN)
        if tag:
            words = before.rstrip()
            self._inside, self._held, self._raw = True, rest, before[len(words) :] + tag
        else:
            keep = next((n for n in range(min(len(before), len(OPEN) - 1), 0, -1) if before.endswith(OPEN[:n])), 0)
            # Lines that the model leaves empty before it calls belong to neither.
            words = before[: len(before) - keep].rstrip()
            self._held = before[len(words) :]
        return self._others.feed(words)

    def _within(self) -> list[Piece]:
        invoked = INVOKE.match(self._held)
        if invoked is not None:
            self._held, self._raw = self._held[invoked.end() :], ""
            return list(self._call(invoked[1], invoked[2]))
        before, tag, rest = self._held.partition(CLOSE)
        if not tag:
            return []
        lost = self._raw + before + tag if self._raw else ""
        self._inside, self._held, self._raw = False, rest, ""
        return self._others.feed(lost)

    def _call(self, name: str, body: str) -> Iterator[Piece]:
        if self._most is not None and self.calls >= self._most:
            return
        call = self._others.begin(name)
        yield call
        arguments = {key: _value(said, plain == "true") for key, plain, said in PARAMETER.findall(body)}
        yield Arguments(call.number, json.dumps(arguments, ensure_ascii=False))


def _value(said: str, plain: bool) -> Any:
    if plain:
        return said
    try:
        # NaN is no JSON, and stays a word.
        return json.loads(said, parse_constant=str)
    except ValueError:
        # Not what the model was told to write; its client may make something of it.
        return said
