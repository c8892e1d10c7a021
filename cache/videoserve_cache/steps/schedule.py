"""All steps of a generation, known before its first one: what static plans are made for."""

from dataclasses import dataclass

from videoserve_cache.steps.context import LEAD, Branch, StepCtx


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`sigmas` has one value a step and the one after the last; `experts` and `guided` one a step."""

    sigmas: tuple[float, ...]
    experts: tuple[int, ...]
    guided: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not len(self.sigmas) - 1 == len(self.experts) == len(self.guided) > 0:
            raise ValueError(
                f"A schedule of {len(self.sigmas)} sigmas, {len(self.experts)} experts and {len(self.guided)} guidance "
                "flags fits no number of steps: one sigma more than steps, and one of the others each."
            )

    @classmethod
    def plain(cls, sigmas: tuple[float, ...], *, guided: bool = True) -> "Schedule":
        """One expert, guidance in every step or in none."""
        steps = len(sigmas) - 1
        return cls(sigmas=sigmas, experts=(0,) * steps, guided=(guided,) * steps)

    @property
    def n_steps(self) -> int:
        return len(self.experts)

    def first_of_expert(self, step: int) -> int:
        """The step at which the expert of `step` took over."""
        while step > 0 and self.experts[step - 1] == self.experts[step]:
            step -= 1
        return step

    def at(
        self,
        step: int,
        branch: Branch = LEAD,
        *,
        request: str = "",
        epoch: str = "",
        group: tuple[int, ...] = (0,),
    ) -> StepCtx:
        """The context of a step."""
        return StepCtx(
            request=request,
            epoch=epoch,
            expert=self.experts[step],
            branch=branch,
            step=step,
            n_steps=self.n_steps,
            sigma=self.sigmas[step],
            sigma_next=self.sigmas[step + 1],
            guided=self.guided[step],
            group=group,
        )
