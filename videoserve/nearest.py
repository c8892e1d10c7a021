"""Which known name somebody may have meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name[:100], sorted(known), n=1, cutoff=0.0)[0]
