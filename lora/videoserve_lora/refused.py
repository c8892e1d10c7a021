"""What is said of a file that cannot be served as an adapter."""

from collections.abc import Sequence

# As many keys as a person reads; `keys` has them all.
NAMED = 8


class Refused(ValueError):
    """A file is no adapter for this model; the message is a sentence, `keys` are the keys at fault."""

    def __init__(self, sentence: str, keys: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.keys = tuple(keys)


def listed(words: Sequence[str]) -> str:
    """The first of many words, and how many more there are."""
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return ", ".join(words[:NAMED]) + more
