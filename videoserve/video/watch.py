"""What is measured of an uncached video while it is made, for a calibration."""

from math import inf

from torch import Tensor

from videoserve_cache.steps.calibration import Sample
from videoserve_cache.steps.recorder import Recorder


class Watch:
    """Looks on at every step of one run; `sample` is there after the last one.

    Lost with its process: a run that is resumed is no longer watched. The first `given` latent frames are not made but
    given: what the model says of them tells nothing.
    """

    def __init__(self, given: int) -> None:
        self._recorder = Recorder()
        self._given = given
        # Seconds of a step beside the forward: all that a skipped one takes.
        self.skip_s = inf
        self.sample: Sample | None = None

    def step(self, latents: Tensor, velocity: Tensor) -> None:
        """Latents before a step and its guided velocity, [1, C, F, H, W]."""
        self._recorder.step(latents[:, :, self._given :], velocity[:, :, self._given :])

    def stepped(self, seconds: float) -> None:
        self.skip_s = min(self.skip_s, seconds)

    def finish(self, latents: Tensor) -> None:
        """The latents after the last step."""
        self.sample = self._recorder.finish(latents[:, :, self._given :])
