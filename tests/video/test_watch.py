"""What is measured of a video while it is made."""

import numpy as np
import torch

from videoserve.video.watch import Watch
from videoserve_cache.steps.calibration import Sample


def watched(given: int, first_frame: float) -> Sample:
    watch = Watch(given=given)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        latents, velocity = torch.randn(2, 1, 3, 4, 2, 2, generator=generator)
        latents[:, :, :1] += first_frame
        velocity[:, :, :1] -= first_frame
        watch.step(latents, velocity)
    watch.finish(torch.ones(1, 3, 4, 2, 2))
    assert watch.sample is not None
    return watch.sample


def test_frames_that_are_given_do_not_count() -> None:
    np.testing.assert_array_equal(watched(1, 0.0).output, watched(1, 9.0).output)
    np.testing.assert_array_equal(watched(1, 0.0).residual, watched(1, 9.0).residual)
    assert not np.allclose(watched(0, 0.0).output, watched(0, 9.0).output)
