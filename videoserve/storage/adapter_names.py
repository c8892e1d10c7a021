"""How adapters are referred to: by name, alias, id or digest; a name or an id may end in @number, a version of it."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from videoserve.errors import InvalidField, NotFound
from videoserve_lora.label import Label, Version
from videoserve_lora.store import AdapterStore

SHARED: Final = "shared"
PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,63}$"
ID = re.compile(r"lora_[0-9a-f]{32}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An adapter under a name: the version that was asked for, and the aliases that stand for the name."""

    label: Label
    version: Version
    aliases: tuple[str, ...]

    @property
    def id(self) -> str:
        return id_of(self.label)

    @property
    def shared(self) -> bool:
        """Whether it is everybody's."""
        return self.label.scope == SHARED


def scope_of(tenant: str) -> str:
    return f"tenant:{tenant}"


def id_of(label: Label) -> str:
    """Tells nothing of the name or whose it is."""
    hashed = hashlib.sha256(f"{len(label.scope)}:{label.scope}{label.name}".encode()).hexdigest()
    return f"lora_{hashed[:32]}"


def check_name(name: str, param: str = "name") -> None:
    """Raises InvalidField, with the pattern, for what cannot be a name."""
    try:
        Label.check(name)
    except ValueError as error:
        raise InvalidField(param, f"{str(error).rstrip('.')} ({PATTERN}).") from None
    if ID.fullmatch(name) or DIGEST.fullmatch(name):
        raise InvalidField(param, f"{name!r} reads like an adapter's id or digest; another name is needed.")


def missing(reference: str) -> NotFound:
    return NotFound(f"There is no adapter {reference[:80]!r}.", param="lora")


def look_up(store: AdapterStore, scope: str, reference: str) -> Named | None:
    """What a scope has under a reference."""
    plain, _, number = reference.partition("@")
    labels = store.labels(scope)
    if DIGEST.fullmatch(reference):
        versions = [(label, each) for label in labels for each in label.versions if each.digest == reference]
        return named(*versions[-1], labels) if versions else None
    if ID.fullmatch(plain):
        plain = next((label.name for label in labels if id_of(label) == plain), "")
        reference = f"{plain}@{number}" if number else plain
    try:
        label = store.get(scope, plain)
        version = store.resolve(scope, reference)
        owner = label if label.alias_of is None else store.get(scope, label.alias_of.partition("@")[0])
    except KeyError:
        return None
    return named(owner, version, labels)


def named(label: Label, version: Version, labels: Sequence[Label]) -> Named:
    """`labels` are all those of its scope."""
    stand_for = {each.name: each.alias_of.partition("@")[0] for each in labels if each.alias_of is not None}
    aliases = sorted(alias for alias, name in stand_for.items() if name == label.name)
    return Named(label=label, version=version, aliases=tuple(aliases))
