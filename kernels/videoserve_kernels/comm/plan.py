"""How the ranks share the work of one generation: decided before the first step, the same on every rank."""

import hashlib
import re
from dataclasses import dataclass, fields

from videoserve_kernels.comm.codecs import NAMES, check_codec

AXES = ("cfg", "ring", "ulysses", "tensor")
ONE_RANK = "one"
AT_ONCE = "atonce"
# What a word of a plan's name sets, in the order of the name.
WORDS = {"cfg": "cfg", "u": "ulysses", "r": "ring", "t": "tensor", "g": "head_groups"}
ALLOWED = (
    f"{ONE_RANK}, or words between hyphens, each at most once: cfg2, uN (Ulysses), rN (ring), tN (tensor), "
    f"gN (head groups), {', '.join(NAMES[1:])}, {AT_ONCE} (not staged)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """The extent of each axis of the mesh and how attention travels on it. The default is one rank.

    `cfg` 2 gives each branch of classifier-free guidance ranks of its own. `ring` and `ulysses` split the sequence,
    `tensor` the weights. `head_groups` pieces of the heads are exchanged while others are attended; `codec` is what
    attention's tensors travel as; `staged` sends to one rank at a time instead of to all of them at once.
    """

    cfg: int = 1
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    head_groups: int = 1
    codec: str = "none"
    staged: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and value < 1:
                raise ValueError(f"{field.name} is {value}; 1 or more is allowed.")
        if self.cfg > 2:
            raise ValueError(f"cfg is {self.cfg}; guidance has two branches, so 1 or 2 is allowed.")
        check_codec(self.codec)

    @staticmethod
    def parse(name: str) -> "ParallelPlan":
        """The plan of a name, the inverse of `name`; the words may come in any order.

            plan  = "one" | word ("-" word)*, no word twice
            word  = "cfg" N | "u" N | "r" N | "t" N | "g" N      ulysses, ring, tensor, head_groups
                  | "int8" | "fp8"                               the codec
                  | "atonce"                                     not staged

        "cfg2-u4-g5" is two branches, each on four Ulysses ranks that exchange their heads in five pieces. ValueError
        says which word is wrong and what is allowed.
        """
        given: dict[str, int | str | bool] = {}
        for word in name.split("-") if name != ONE_RANK else ():
            field, value = meaning(word, name)
            if field in given:
                raise ValueError(f"The plan {name!r} says {field} twice. Allowed: {ALLOWED}.")
            given[field] = value
        return ParallelPlan(**given)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The plan as people write it; `parse` says how. What is as in the plan of one rank is left out."""
        words = [f"{letter}{getattr(self, field)}" for letter, field in WORDS.items() if getattr(self, field) > 1]
        words += [self.codec] if self.codec != "none" else []
        words += [] if self.staged else [AT_ONCE]
        return "-".join(words) or ONE_RANK

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that two plans share only when they are equal: the same in every process."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of AXES."""
        return self.cfg, self.ring, self.ulysses, self.tensor

    @property
    def ranks(self) -> int:
        return self.cfg * self.ring * self.ulysses * self.tensor

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank stands on AXES. The last axis is the innermost: neighbouring ranks differ by it first."""
        place = []
        for extent in reversed(self.extents):
            rank, coordinate = divmod(rank, extent)
            place.append(coordinate)
        return tuple(reversed(place))

    def members(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group along the axes: those that stand alike on all others, in ascending order."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.ranks):
            place = self.coordinates(rank)
            others = tuple(at for axis, at in zip(AXES, place, strict=True) if axis not in axes)
            groups.setdefault(others, []).append(rank)
        return tuple(tuple(ranks) for ranks in groups.values())


def meaning(word: str, name: str) -> tuple[str, int | str | bool]:
    """The field that a word of a plan's name sets, and to what."""
    if word in NAMES[1:]:
        return "codec", word
    if word == AT_ONCE:
        return "staged", False
    match = re.fullmatch(r"([a-z]+)([1-9][0-9]{0,3})", word)
    if match is None or match[1] not in WORDS:
        raise ValueError(f"The plan {name!r} has the word {word!r}, which means nothing. Allowed: {ALLOWED}.")
    return WORDS[match[1]], int(match[2])
