"""A file that is to become an adapter, or one of the two of a pair, and what its sender says of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from videoserve_lora.adapter import PartName
from videoserve_lora.key import Key
from videoserve_lora.refused import Refused, listed
from videoserve_lora.target import Target

Expert = Literal["high", "low", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`expert`: which of two it is for, where its keys do not say. `alpha`: of modules that have none in the file."""

    path: Path
    expert: Expert | None = None
    alpha: float | None = None

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Source":
        """What `json` gave."""
        return cls(path=Path(told["path"]), expert=told["expert"], alpha=told["alpha"])

    def json(self) -> dict[str, Any]:
        return {"path": str(self.path), "expert": self.expert, "alpha": self.alpha}

    def parts(self, keys: Sequence[Key], target: Target) -> list[PartName]:
        """Which part of the adapter each of the file's keys belongs to. Refused."""
        experts = self._told(keys)
        named = {expert for expert in experts if expert}
        if not target.two_experts:
            self._one_transformer(keys, experts)
            return ["any"] * len(keys)
        if not named:
            return [self._asked()] * len(keys)
        bare = [key.text for key, expert in zip(keys, experts, strict=True) if expert is None]
        if bare:
            raise Refused(f"Some keys name an expert and these do not: {listed(bare)}.", bare)
        if self.expert is not None and named != ({"high", "low"} if self.expert == "both" else {self.expert}):
            there = " and ".join(sorted(named))
            raise Refused(f"The file was said to be for {self.expert} noise, and its keys are for {there}.")
        return [expert for expert in experts if expert]

    def _told(self, keys: Sequence[Key]) -> list[Literal["high", "low"] | None]:
        """What the keys say. Without a transformer_2 beside it, diffusers' `transformer` may be either."""
        pair = any(key.family == "diffusers" and key.expert == "low" for key in keys)
        return ["high" if pair and key.family == "diffusers" and key.expert is None else key.expert for key in keys]

    def _asked(self) -> PartName:
        if self.expert is None:
            raise Refused(
                "This model has two experts, and the file does not say which it is for: say high, low or both."
            )
        return "any" if self.expert == "both" else self.expert

    def _one_transformer(self, keys: Sequence[Key], experts: Sequence[str | None]) -> None:
        if self.expert is not None:
            raise Refused(f"This model has one transformer, so no adapter is for its expert {self.expert!r}.")
        named = [key.text for key, expert in zip(keys, experts, strict=True) if expert]
        if named:
            raise Refused(
                f"{len(named)} keys are for one of two experts, and this model has one transformer: {listed(named)}.",
                named,
            )
