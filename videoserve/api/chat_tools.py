"""Calls of functions in the text of an answer, found while it grows."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
# A call whose arguments can be passed on while they come.
HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class Calling(Enum):
    """How an answer may call: not at all, between tags among other words, as a list of calls, by arguments alone."""

    NEVER = "never"
    TAGGED = "tagged"
    LISTED = "listed"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is none of a call's."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call begins; its arguments, JSON as text, follow."""

    number: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of a call."""

    number: int
    text: str


Piece = Words | Call | Arguments


class CallFinder:
    """`feed` the text of one answer as it grows; what it is made of comes back as soon as it is certain.

    `name` is the function that NAMED answers call. `most`: further calls than that are left out.
    """

    def __init__(self, calling: Calling, *, name: str = "", most: int | None = None):
        self._calling, self._name, self._most = calling, name, most
        self.calls = 0
        # Text of which it is not certain yet what it is.
        self._held = ""
        self._inside = calling is Calling.LISTED
        # Of what is between tags, in case that it holds no call.
        self._raw = ""
        self._found_before = 0
        self._object: _Object | None = None

    def feed(self, text: str) -> list[Piece]:
        return [piece for piece in self._feed(text) if piece != Words("")]

    def finish(self) -> list[Piece]:
        """No text follows: what never became a call is text."""
        begun = self._object is not None and self._object.told
        lost = "" if begun or self.calls > self._found_before else self._raw
        held = "" if self._inside else self._held
        self._held = self._raw = ""
        return [Words(lost + held)] if lost + held else []

    def _feed(self, text: str) -> Iterator[Piece]:
        if self._calling is Calling.NEVER:
            yield Words(text)
        elif self._calling is Calling.NAMED:
            if not self.calls and text:
                yield self.begin(self._name)
            yield Arguments(0, text) if text else Words("")
        else:
            self._held += text
            while self._held:
                before = self._held
                yield from self._within() if self._inside else self._outside()
                if self._held == before:
                    return

    def _outside(self) -> Iterator[Piece]:
        before, tag, rest = self._held.partition(OPEN)
        keep = 0 if tag else _beginning(before, OPEN)
        # Models begin a line before they call, which is part of neither.
        words = before[: len(before) - keep].rstrip()
        if tag:
            self._inside, self._held, self._found_before = True, rest, self.calls
            self._raw = before[len(words) :] + tag
        else:
            self._held = before[len(words) :]
        yield Words(words)

    def _within(self) -> Iterator[Piece]:
        if self._object is None:
            start = self._held.find("{")
            closing = self._held.find(CLOSE) if self._calling is Calling.TAGGED else -1
            if closing >= 0 and (start < 0 or closing < start):
                raw = self._raw + self._held[: closing + len(CLOSE)]
                self._held, self._raw, self._inside = self._held[closing + len(CLOSE) :], "", False
                yield Words("" if self.calls > self._found_before else raw)
                return
            if start < 0:
                keep = _beginning(self._held, CLOSE)
                self._raw += self._held[: len(self._held) - keep]
                self._held = self._held[len(self._held) - keep :]
                return
            self._raw += self._held[:start]
            self._held = self._held[start:]
            self._object = _Object()
        yield from self._take_object(self._object)

    def _take_object(self, found: "_Object") -> Iterator[Piece]:
        begun = found.told
        taken, arguments = found.feed(self._held)
        self._raw += self._held[:taken]
        self._held = self._held[taken:]
        kept = self._most is None or self.calls - begun < self._most
        if found.told and not begun and kept:
            yield self.begin(found.name)
        if arguments and kept:
            yield Arguments(self.calls - 1, arguments)
        if found.ended:
            self._object = None

    def begin(self, name: str) -> Call:
        """One more call."""
        self.calls += 1
        return Call(self.calls - 1, f"call_{uuid.uuid4().hex[:24]}", name)


class _Object:
    """One call as a JSON object. `told` once its name is known, `ended` behind its last brace."""

    def __init__(self) -> None:
        self._text = ""
        self._depth = 0
        self._in_string = self._escaped = False
        # Where the arguments begin that are passed on as they come, and whether they have ended.
        self._from: int | None = None
        self._passed = False
        self.name = ""
        self.told = self.ended = False

    def feed(self, text: str) -> tuple[int, str]:
        """How many letters of `text` belong to it, and the arguments among them."""
        out = []
        for place, letter in enumerate(text):
            self._text += letter
            self._step(letter)
            if self._from is None and letter == "{" and self._depth == 2 and not self.told:
                self._look()
            if self._from is not None and not self._passed:
                out.append(letter)
                self._passed = self._depth == 1 and not self._in_string
            if self._depth == 0:
                self.ended = True
                out.append(self._whole() if not self.told else "")
                return place + 1, "".join(out)
        return len(text), "".join(out)

    def _step(self, letter: str) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif letter == "\\":
                self._escaped = True
            elif letter == '"':
                self._in_string = False
        elif letter == '"':
            self._in_string = True
        elif letter in "{[":
            self._depth += 1
        elif letter in "}]":
            self._depth -= 1

    def _look(self) -> None:
        head = HEAD.match(self._text)
        if head is not None and head.end() == len(self._text) - 1:
            self.name, self.told, self._from = json.loads(head[1]), True, head.end()

    def _whole(self) -> str:
        """The arguments of a call that is written in another order, now that all of it is there; "" for no call."""
        try:
            said = json.loads(self._text)
        except ValueError:
            return ""
        arguments = said.get("arguments", said.get("parameters", {}))
        if not isinstance(said.get("name"), str):
            return ""
        self.name, self.told = said["name"], True
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _beginning(text: str, tag: str) -> int:
    """How many letters at the end of `text` may be the beginning of `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)
