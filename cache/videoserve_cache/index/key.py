"""What an entry is found by, and what it can be dropped by."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

Class = Literal["E0", "E1", "A"]

Kind = Literal[
    "text_emb", "img_clip", "img_cond", "boundary", "final_latent", "result", "plan", "calibration", "kv_prefix"
]
KINDS: Final[tuple[str, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """`digest` is made of all that matters: kind, version and, unless the entry is shared, tenant included.

    model, loras   digests of what the entry was made with, to drop it by; not looked at when it is looked up.
    shared         any tenant may have it; otherwise an entry of another tenant is a miss, whatever its digest.
    """

    kind: str
    digest: str
    tenant: str
    model: str
    loras: tuple[str, ...] = ()
    shared: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"There are no cache entries of kind {self.kind!r}; kinds are {', '.join(KINDS)}.")

    @property
    def name(self) -> str:
        """How Redis calls it."""
        return f"{self.kind}:{self.digest}"
