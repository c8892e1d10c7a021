"""A chat model as it was read, before it is laid out for computing."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.shape import Shape
from videoserve.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`weights` have the names that they have in files that transformers writes.

    `pairs_in_halves` says that the rotary embedding turns (i, i + D/2) of a head, as transformers has it, and not
    (2i, 2i + 1), as GGUF files have it. `files` are those whose contents are the model.
    """

    name: str
    shape: Shape | V4Shape
    weights: dict[str, Tensor]
    pairs_in_halves: bool
    vocabulary: Vocabulary
    files: tuple[Path, ...]
