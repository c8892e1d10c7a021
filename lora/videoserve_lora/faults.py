"""What is wrong with a file, key by key: collected to the end, so that its sender learns all of it at once."""

from collections.abc import Iterable

from videoserve_lora.refused import Refused, listed


class Faults:
    """Keys by what is wrong with them."""

    def __init__(self) -> None:
        self._keys: dict[str, list[str]] = {}

    def add(self, why: str, keys: Iterable[str]) -> None:
        """why  the predicate of a sentence whose subject is the keys: "match no module of this model"."""
        if found := list(keys):
            self._keys.setdefault(why, []).extend(found)

    def refuse(self) -> None:
        """Refused with every key, when there is one."""
        if not self._keys:
            return
        said = [f"{count(len(keys))} {why}: {listed(sorted(keys))}" for why, keys in self._keys.items()]
        raise Refused("; ".join(said) + ".", sorted({key for keys in self._keys.values() for key in keys}))


def count(keys: int) -> str:
    return "1 key" if keys == 1 else f"{keys} keys"
