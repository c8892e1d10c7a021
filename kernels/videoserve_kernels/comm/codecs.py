"""What the wire's codecs are called and what a row takes with each: figures for plans, which need no torch."""

SCALE_BYTES = 4
NAMES = ("none", "int8", "fp8")


def check_codec(name: str) -> None:
    """ValueError names the codecs there are when this is none of them."""
    if name not in NAMES:
        raise ValueError(f"There is no wire codec called {name!r}; there are {', '.join(NAMES)}.")


def row_bytes(name: str, channels: int, itemsize: int) -> int:
    """Bytes of one token and head of `channels` values, `itemsize` bytes each before they are encoded."""
    check_codec(name)
    return channels * itemsize if name == "none" else channels + SCALE_BYTES
