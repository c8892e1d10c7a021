"""Numbers of bytes, as people write and read them."""

import re
from typing import Final

UNITS: Final = {"": 1, "B": 1} | {
    f"{letter}{middle}B": base**power
    for power, letter in enumerate("KMGT", start=1)
    for middle, base in (("", 1000), ("i", 1024))
}


def parse_bytes(option: str, text: str) -> int:
    """16GB, 1.5GiB, 4096: at least one. Raises ValueError, a sentence that names `option`."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([A-Za-z]{0,3})", text.strip())
    units = {name.lower(): factor for name, factor in UNITS.items()}
    size = int(float(match[1]) * units[match[2].lower()]) if match and match[2].lower() in units else 0
    if size < 1:
        raise ValueError(f"{option} is {text!r}; it must be a number of bytes, such as 16GB, 500MiB or 4096.")
    return size


def shown_bytes(size: float) -> str:
    """In the largest decimal unit of which there is at least one."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.1f} {unit}"
    return f"{size:.0f} B"
