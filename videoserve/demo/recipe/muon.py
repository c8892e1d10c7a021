"""Muon for matrices and convolution kernels, Adam for the rest: the recipe's optimiser.

Muon orthogonalises the momentum of a matrix with a few Newton-Schulz steps (Jordan et al., 2024).
"""

from collections.abc import Iterable

import torch
from torch import distributed

# Coefficients of the quintic Newton-Schulz iteration that Muon uses.
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: torch.Tensor, steps: int = 4) -> torch.Tensor:
    """Push the singular values of every matrix in [n, r, c] towards one."""
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    out = []
    # One after the other: plain matrix products are faster than batched ones on a CPU.
    for matrix in matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7):
        x = matrix.mT if tall else matrix
        for _ in range(steps):
            square = x @ x.mT
            x = a * x + (b * square + c * (square @ square)) @ x
        out.append(x.mT if tall else x)
    return torch.stack(out)


class Muon:
    """Update `matrices` by Muon and `others` by Adam. `rates` are the two learning rates before the schedule."""

    def __init__(
        self,
        matrices: Iterable[torch.nn.Parameter],
        others: Iterable[torch.nn.Parameter],
        *,
        rates: tuple[float, float],
        decay: float = 0.0,
    ) -> None:
        self.matrices, self.others = list(matrices), list(others)
        self.rates, self.decay = rates, decay
        self.steps = 0
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.first = [torch.zeros_like(p) for p in self.others]
        self.second = [torch.zeros_like(p) for p in self.others]

    @torch.no_grad()
    def step(self, schedule: float) -> None:
        """One update with both rates times `schedule`. The gradients must be the same in every process."""
        self.steps += 1
        self._step_matrices(self.rates[0] * schedule)
        self._step_others(self.rates[1] * schedule)

    def _step_matrices(self, rate: float) -> None:
        shapes: dict[tuple[int, int], list[tuple[torch.nn.Parameter, torch.Tensor]]] = {}
        for parameter, momentum in zip(self.matrices, self.momentum, strict=True):
            gradient = parameter.grad
            assert gradient is not None
            momentum.lerp_(gradient, 0.05)
            update = gradient.lerp(momentum, 0.95).reshape(parameter.shape[0], -1)
            shapes.setdefault((update.shape[0], update.shape[1]), []).append((parameter, update))
        for (rows, columns), pairs in shapes.items():
            updates = self._shared([update for _, update in pairs])
            scale = rate * max(1.0, rows / columns) ** 0.5
            for (parameter, _), update in zip(pairs, updates, strict=True):
                parameter.mul_(1 - rate * self.decay)
                parameter.add_(update.reshape(parameter.shape), alpha=-scale)

    def _shared(self, updates: list[torch.Tensor]) -> torch.Tensor:
        """Orthogonalise a list of equal shape; every process does its share when they can be dealt out evenly."""
        world = distributed.get_world_size() if distributed.is_initialized() else 1
        if world == 1 or len(updates) % world:
            return orthogonalise(torch.stack(updates))
        share = len(updates) // world
        first = distributed.get_rank() * share
        mine = orthogonalise(torch.stack(updates[first : first + share])).contiguous()
        parts = [torch.empty_like(mine) for _ in range(world)]
        distributed.all_gather(parts, mine)
        return torch.cat(parts)

    def _step_others(self, rate: float) -> None:
        for parameter, first, second in zip(self.others, self.first, self.second, strict=True):
            gradient = parameter.grad
            assert gradient is not None
            first.lerp_(gradient, 0.1)
            second.mul_(0.98).addcmul_(gradient, gradient, value=0.02)
            scale = (second / (1 - 0.98**self.steps)).sqrt_().add_(1e-8)
            parameter.addcdiv_(first / (1 - 0.9**self.steps), scale, value=-rate)

    def state(self) -> dict[str, object]:
        """What `load` needs to go on."""
        return {"steps": self.steps, "momentum": self.momentum, "first": self.first, "second": self.second}

    def load(self, state: dict[str, object]) -> None:
        """Go on from `state`, of the same parameters in the same order."""
        self.steps = state["steps"]  # type: ignore[assignment]
        for name in ("momentum", "first", "second"):
            for mine, saved in zip(getattr(self, name), state[name], strict=True):  # type: ignore[call-overload]
                mine.copy_(saved)
