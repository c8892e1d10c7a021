"""Which collectives this rank has issued in a step, so that ranks that disagree find out instead of waiting."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

Counts = Sequence[int]


class SequenceMismatchError(RuntimeError):
    """The ranks of a group issued different collectives in one step; the message names the first that differs."""


@dataclass(slots=True)
class CollectiveSequence:
    """The collectives of the running step, by group. `step` numbers the steps from 0.

    `numel` of a collective is how many elements every rank of the group contributes, or every rank to every rank: the
    same numbers on all of them although their own shares differ.
    """

    step: int = 0
    issued: dict[str, list[str]] = field(default_factory=dict)
    digests: dict[str, list[bytes]] = field(default_factory=dict)

    def record(self, op: str, group: str, numel: Counts, dtype: torch.dtype) -> None:
        """Adds one collective to the running hash of its group."""
        digests = self.digests.setdefault(group, [])
        before = digests[-1] if digests else b""
        told = f"{op} of {'+'.join(map(str, numel))} {str(dtype).removeprefix('torch.')}"
        digests.append(hashlib.blake2b(before + told.encode(), digest_size=8).digest())
        self.issued.setdefault(group, []).append(told)

    def summary(self, groups: Sequence[str]) -> bytes:
        """How many collectives each group saw and their hash: 16 bytes a group, the same length on every rank."""
        return b"".join(
            struct.pack("<q8s", len(digests), digests[-1] if digests else b"")
            for digests in (self.digests.get(group, []) for group in groups)
        )

    def ended(self) -> "CollectiveSequence":
        """The step as it stands, to be compared while the next one runs."""
        return CollectiveSequence(self.step, dict(self.issued), dict(self.digests))

    def next_step(self) -> None:
        """Forgets the step's collectives; they have been compared, or `ended` has them."""
        self.step += 1
        self.issued.clear()
        self.digests.clear()

    def length(self, group: str) -> int:
        return len(self.digests.get(group, []))

    def history(self, group: str, length: int) -> bytes:
        """The running hash after each of the first `length` collectives, 8 bytes each."""
        return b"".join(self.digests.get(group, [])[:length])

    def describe(self, group: str, position: int) -> str:
        issued = self.issued.get(group, [])
        return f"issued {issued[position]}" if position < len(issued) else "had issued all of its collectives"


def lengths(summary: bytes) -> tuple[int, ...]:
    """The number of collectives of each group in a summary."""
    return tuple(length for length, _ in struct.iter_unpack("<q8s", summary))


def first_difference(histories: Sequence[bytes]) -> int:
    """The position of the first collective that not all histories of equal length share; their length if none."""
    count = len(histories[0]) // 8
    for position in range(count):
        if len({history[position * 8 : position * 8 + 8] for history in histories}) > 1:
            return position
    return count
