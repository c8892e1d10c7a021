"""What a rank has put on the wire and taken from it, counted where the messages are posted."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Payload of one direction: bytes without any transport's headers, and messages. An empty message is not sent."""

    bytes: int = 0
    messages: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(bytes=self.bytes + other.bytes, messages=self.messages + other.messages)


class Counters:
    """Sent and received bytes and messages of one rank, by collective and group."""

    def __init__(self) -> None:
        self._bytes: Counter[tuple[str, str, str]] = Counter()
        self._messages: Counter[tuple[str, str, str]] = Counter()

    def count(self, op: str, group: str, *, sent: Iterable[int], received: Iterable[int]) -> None:
        """Counts the messages of one collective; `sent` and `received` are their sizes in bytes."""
        for direction, sizes in (("sent", list(sent)), ("received", list(received))):
            self._bytes[direction, op, group] += sum(sizes)
            self._messages[direction, op, group] += len(sizes)

    def sent(self, op: str | None = None, group: str | None = None) -> Traffic:
        """What this rank sent, of one collective or group where they are named."""
        return self._total("sent", op, group)

    def received(self, op: str | None = None, group: str | None = None) -> Traffic:
        """What this rank received, of one collective or group where they are named."""
        return self._total("received", op, group)

    def clear(self) -> None:
        """Counts from zero again."""
        self._bytes.clear()
        self._messages.clear()

    def _total(self, direction: str, op: str | None, group: str | None) -> Traffic:
        wanted = [
            key for key in self._bytes if key[0] == direction and op in (None, key[1]) and group in (None, key[2])
        ]
        return Traffic(
            bytes=sum(self._bytes[key] for key in wanted), messages=sum(self._messages[key] for key in wanted)
        )
