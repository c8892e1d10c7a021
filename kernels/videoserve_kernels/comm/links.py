"""A box as links with capacities, and how streams share them: max-min fairly, with the collapse of crossing streams."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

Link = tuple[str, int, int]
Stream = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Cards on links of their own, on islands (sockets, switches) that trunks connect.

    `card` bytes/s each way and card; `islands` cards each, 0 for one island; `trunk` bytes/s each way from island to
    island. `collapse` is the share of its rate that a card's link gives while several streams cross on it in one
    direction: what all-to-all at once costs on PCIe against one stream a card. `latency` seconds pass before a message
    starts to travel. `homes` names the island of each card where islands are not `island` neighbours.
    """

    ranks: int
    card: float
    island: int = 0
    trunk: float = float("inf")
    collapse: float = 1.0
    latency: float = 0.0
    homes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.card <= 0 or self.trunk <= 0 or self.latency < 0 or self.island < 0:
            raise ValueError(
                f"{self.ranks} cards at {self.card} bytes/s, trunks at {self.trunk}, latency {self.latency} s: one "
                f"card or more, rates above 0 and no negative latency are allowed."
            )
        if self.homes and (self.island or len(self.homes) != self.ranks):
            raise ValueError(
                f"homes are {self.homes} for {self.ranks} cards with island {self.island}: one island a card and "
                f"island 0 are allowed."
            )
        if not 0 < self.collapse <= 1:
            raise ValueError(f"collapse is {self.collapse}; more than 0 and at most 1 is allowed.")
        if self.island and self.ranks % self.island:
            raise ValueError(f"{self.ranks} cards do not fill islands of {self.island}; a divisor is allowed.")

    def home(self, card: int) -> int:
        """The island of a card."""
        return self.homes[card] if self.homes else card // self.island if self.island else 0

    def taking(self, cards: Sequence[int]) -> "Box":
        """The box as ranks see it of which each has its card: rank i has cards[i]."""
        return replace(self, ranks=len(cards), island=0, homes=tuple(self.home(card) for card in cards))

    def path(self, stream: Stream) -> tuple[Link, ...]:
        """The links that a stream from one card to another takes."""
        source, target = stream
        ends: tuple[Link, ...] = (("out", source, 0), ("in", target, 0))
        here, there = self.home(source), self.home(target)
        return ends if here == there else (*ends, ("trunk", here, there))

    def rates(self, streams: Sequence[Stream]) -> list[float]:
        """Bytes/s of each of the streams that run at the same time."""
        paths = [self.path(stream) for stream in streams]
        crossing = Counter(link for path in paths for link in path)
        capacities = {link: self._capacity(link, count) for link, count in crossing.items()}
        if all(count == 1 for count in crossing.values()):
            return [min(capacities[link] for link in path) for path in paths]
        return fair_shares(paths, capacities)

    def _capacity(self, link: Link, streams: int) -> float:
        if link[0] == "trunk":
            return self.trunk
        return self.card * self.collapse if streams > 1 else self.card


def fair_shares(paths: Sequence[Sequence[Link]], capacities: Mapping[Link, float]) -> list[float]:
    """The max-min fair rates: nobody can get more without taking from somebody who has no more than he."""
    left = dict(capacities)
    shares = [0.0] * len(paths)
    waiting = set(range(len(paths)))
    while waiting:
        load = Counter(link for stream in sorted(waiting) for link in paths[stream])
        tightest = min(load, key=lambda link: left[link] / load[link])
        share = left[tightest] / load[tightest]
        for stream in [stream for stream in sorted(waiting) if tightest in paths[stream]]:
            shares[stream] = share
            waiting.remove(stream)
            for link in paths[stream]:
                left[link] -= share
    return shares
