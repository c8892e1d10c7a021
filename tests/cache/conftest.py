"""Calibrations for the step cache's tests."""

from collections.abc import Callable

import pytest
import torch

from tests.toy_denoiser import SUBJECT, Model, measured, smooth
from videoserve_cache.steps.calibration import Calibration, Sample
from videoserve_cache.steps.schedule import Schedule

Calibrate = Callable[..., Calibration]


@pytest.fixture
def calibrate() -> Calibrate:
    """calibrate(schedule, model=smooth(), seeds=2): what uncached videos of the toy measure."""

    def make(schedule: Schedule, model: Model | None = None, seeds: int = 2) -> Calibration:
        return measured(schedule, model or smooth(), seeds)

    return make


@pytest.fixture
def drawn() -> Callable[[Schedule, int], Calibration]:
    """drawn(schedule, seed) -> a calibration of random numbers, which no plan suits especially."""

    def make(schedule: Schedule, seed: int) -> Calibration:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(2, schedule.n_steps, 5, generator=generator, dtype=torch.float64)
        samples = tuple(Sample(output=(row @ row.T).numpy(), residual=(row @ row.T).numpy()) for row in rows)
        return Calibration(subject=SUBJECT, schedule=schedule, samples=samples, run_s=1.0, skip_s=0.0, fixed_s=0.0)

    return make
