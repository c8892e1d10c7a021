"""Watches an uncached video and makes a sample of it for a calibration."""

import torch
from torch import Tensor

from videoserve_cache.steps.calibration import Sample

# Numbers of a vector that are there twice, the second time in float64.
PART = 1 << 20


class Recorder:
    """Takes every step of one video; holds two latents a step in the host's memory until `finish`."""

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []
        self._residuals: list[Tensor] = []

    def step(self, latents: Tensor, velocity: Tensor) -> None:
        """The latents before a step and the guided velocity that was computed for them, same shape."""
        output, before = (x.detach().to("cpu", torch.float32, copy=True).flatten() for x in (velocity, latents))
        self._outputs.append(output)
        self._residuals.append(output - before)

    def finish(self, latents: Tensor) -> Sample:
        """The sample, with the latents after the last step; the recorder is empty after it."""
        energy = float(latents.detach().double().square().sum())
        sample = Sample(
            output=products(self._outputs).numpy() / energy, residual=products(self._residuals).numpy() / energy
        )
        self._outputs, self._residuals = [], []
        return sample


def products(rows: list[Tensor]) -> Tensor:
    """The inner products of vectors with each other, float64 [n, n]."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for begin in range(0, len(rows[0]), PART):
        # Differences of large products are what is of interest: float32 sums would drown the small ones.
        part = torch.stack([row[begin : begin + PART] for row in rows]).double()
        total += part @ part.T
    return total
