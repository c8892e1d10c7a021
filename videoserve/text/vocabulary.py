"""A model's tokens: text to ids, a conversation to ids, and the bytes of each token."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from videoserve.text.shape import UnknownModelError
from videoserve.text.tool_words import in_words, parsed


class BadConversation(ValueError):
    """A conversation that the model's template cannot render; the message says why."""


class Recipe(Protocol):
    """A model's own way from a conversation to token ids, where it has no template."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """Up to the assistant's turn. Raises BadConversation."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """`tokenizer_json` is tokenizers' own file as text; `pieces` the bytes of each of `size` tokens, b"" of none.

    `special` tokens are no text of the answer. `ends` are those that end it; `begin` and `end` are what the template
    calls bos_token and eos_token.
    """

    tokenizer: Tokenizer
    tokenizer_json: str
    size: int
    pieces: tuple[bytes, ...]
    names: tuple[str, ...]
    special: frozenset[int]
    ends: tuple[int, ...]
    begin: str
    end: str
    template: str | None
    recipe: Recipe | None = None

    @classmethod
    def of_json(
        cls,
        text: str,
        *,
        size: int,
        ends: Sequence[int],
        begin: str,
        end: str,
        template: str | None,
        recipe: Recipe | None = None,
    ) -> "Vocabulary":
        """Raises UnknownModelError for a tokenizer that is no byte-level one."""
        said = json.loads(text)
        tokenizer = Tokenizer.from_str(text)
        special = {token["id"] for token in said["added_tokens"] if token["special"]}
        added = {token["id"] for token in said["added_tokens"]}
        if "ByteLevel" not in json.dumps(said.get("decoder")):
            raise UnknownModelError("The chat model's tokenizer is no byte-level one, and no other is served.")
        byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
        known = {i: name for name, i in tokenizer.get_vocab(with_added_tokens=True).items()}
        names = tuple(known.get(i, "") for i in range(size))
        return cls(
            tokenizer=tokenizer,
            tokenizer_json=text,
            size=size,
            pieces=tuple(
                name.encode() if i in added else bytes(byte_of[letter] for letter in name)
                for i, name in enumerate(names)
            ),
            names=names,
            special=frozenset(special),
            ends=tuple(ends),
            begin=begin,
            end=end,
            template=template,
            recipe=recipe,
        )

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """Ids of a text; with `whole` it also gets what the tokenizer puts around every text."""
        return list(self.tokenizer.encode(text, add_special_tokens=whole).ids)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token: no text has fewer tokens than its bytes divided by it."""
        return max(map(len, self.pieces))

    def converse(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation up to the assistant's turn, by the template or else the recipe. Raises BadConversation.

        The template writes what stands around a text itself.
        """
        try:
            if self.template is None and self.recipe is not None:
                return self.recipe(messages, tools, variables or {})
            text = self.render(messages, tools=tools, variables=variables)
            # Fails where it must: tokenizers says of such a text that it is none.
            text.encode()
            return self.encode(text, whole=False)
        # The arguments of a call are JSON within a text of JSON, which nobody has read before.
        except RecursionError:
            raise BadConversation("The arguments of a call are nested too deeply.") from None
        except UnicodeEncodeError:
            raise BadConversation(
                "The arguments of a call hold half of a surrogate pair, which is no letter."
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """A conversation in the words of the model's template, up to the assistant's turn. Raises BadConversation.

        A template that does not know of tools gets them, and what was said to them, in words.
        """
        if self.template is None:
            raise BadConversation("This model has no chat template; it continues texts only.")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        given = {"add_generation_prompt": True, "bos_token": self.begin, "eos_token": self.end} | dict(variables or {})
        told = parsed(messages)
        if "tool" not in self.template:
            told, tools = in_words(told, tools), None
        try:
            rendered = environment.from_string(self.template).render(
                messages=told, tools=list(tools) if tools else None, **given
            )
        except (TemplateError, TypeError) as error:
            raise BadConversation(f"The model's chat template cannot render these messages: {error}.") from None
        return rendered


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: itself where it prints, else one from 256 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in prints]
    letters = {byte: chr(byte) for byte in prints} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> None:
    raise TemplateError(message)
