"""A name for adapters: what its versions are, or which name it stands for."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Taken(ValueError):
    """A name is already that of something else; the message says of what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What a name meant from `added` (unix seconds) on; `about` is what the caller wants told of it."""

    number: int
    digest: str
    added: float
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A name in a scope, with its versions oldest first; an alias has none and stands for another name."""

    scope: str
    name: str
    versions: tuple[Version, ...]
    alias_of: str | None = None

    @staticmethod
    def check(name: str) -> None:
        """ValueError, a sentence, for what cannot be a name."""
        if not NAME.fullmatch(name):
            raise ValueError(
                f"{name[:80]!r} cannot be an adapter's name: 1 to 64 of a-z, 0-9, '_' and '-' are allowed, "
                "the first a letter or a digit."
            )

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Label":
        versions = tuple(Version(**version) for version in told["versions"])
        return cls(scope=told["scope"], name=told["name"], versions=versions, alias_of=told["alias_of"])

    def json(self) -> dict[str, Any]:
        return asdict(self)
