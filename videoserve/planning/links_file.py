"""A box described in a file, so that one can plan for cards that one does not have. No torch."""

import difflib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.transformer import Rates

NEEDED = ("cards", "card", "attention", "linear")
OPTIONAL = ("name", "islands", "trunk", "collapse", "latency_s", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedBox:
    """Links, what a card computes, and the bytes of its memory; infinite where nothing is said of it."""

    name: str
    box: Box
    rates: Rates
    card_bytes: float


def read_box(path: Path) -> DescribedBox:
    """The box of a TOML file, or of a JSON file by its ending.

        cards = 8              how many
        card = 50e9            bytes/s of a card's link each way
        attention = 150e12     floating-point operations a second in attention
        linear = 200e12        and in matrix products
        islands = [[0, 1, 2, 3], [4, 5, 6, 7]]    or the number of cards of each; one island without it
        trunk = 60e9           bytes/s from island to island each way; no limit without it
        collapse = 0.44        share of a card's rate while it exchanges with several at once; 1 without it
        latency_s = 20e-6      seconds before a message starts to travel; 0 without it
        memory = 96e9          bytes of a card; no limit without it
        name = "…"             what to call it; the file's name without it

    ValueError, a sentence, for a file that cannot be read, says something else or leaves out what is needed.
    """
    told = read(path)
    for key in told:
        if key not in NEEDED + OPTIONAL:
            nearest = difflib.get_close_matches(key, NEEDED + OPTIONAL, n=1, cutoff=0.0)[0]
            raise ValueError(f"{path.name} says {key}, which describes no box; the nearest word is {nearest}.")
    missing = [key for key in NEEDED if key not in told]
    if missing:
        raise ValueError(f"{path.name} does not say {', '.join(missing)}; a box needs {', '.join(NEEDED)}.")
    for key in told:
        if key not in ("name", "islands") and (isinstance(told[key], bool) or not isinstance(told[key], int | float)):
            raise ValueError(f"{key} is {told[key]!r} in {path.name}; a number is allowed.")
    cards = int(told["cards"])
    box = Box(
        ranks=cards,
        card=float(told["card"]),
        trunk=float(told.get("trunk", "inf")),
        collapse=float(told.get("collapse", 1.0)),
        latency=float(told.get("latency_s", 0.0)),
        homes=homes(told.get("islands", cards), cards, path),
    )
    rates = Rates(attention=float(told["attention"]), linear=float(told["linear"]))
    return DescribedBox(
        name=str(told.get("name", path.stem)), box=box, rates=rates, card_bytes=float(told.get("memory", "inf"))
    )


def homes(islands: Any, cards: int, path: Path) -> tuple[int, ...]:
    """The island of each card, from lists of cards or from how many neighbours make one."""
    if isinstance(islands, int) and islands > 0 and cards % islands == 0:
        return tuple(card // islands for card in range(cards))
    if isinstance(islands, list) and all(isinstance(part, list) for part in islands):
        of = {card: number for number, part in enumerate(islands) for card in part}
        if sorted(of) == list(range(cards)) and sum(map(len, islands)) == cards:
            return tuple(of[card] for card in range(cards))
    raise ValueError(
        f"islands is {islands!r} in {path.name}; lists that have each of the cards 0 to {cards - 1} once, or a divisor "
        f"of {cards}, are allowed."
    )


def read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"The box {path} cannot be read: {error.strerror}.") from None
    try:
        told = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ValueError(f"The box {path} is not {kind}: {error}.") from None
    if not isinstance(told, dict):
        raise ValueError(f"The box {path} holds {told!r}; a table of words and numbers is allowed.")
    return told
