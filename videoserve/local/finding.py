"""What the doctor found about one thing: in sentences, and how bad it is."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["good", "advice", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`found` is what is there. What is not good also says why it `matters` and what to `do`.

    "wrong" will fail or cost much; "advice" may cost something, or could not be seen.
    """

    about: str
    level: Level
    found: str
    matters: str = ""
    do: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def good(about: str, found: str) -> Finding:
    return Finding(about=about, level="good", found=found)
