"""A video of the synthetic trace: what its entries are called, how large they are and what they take to compute."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """`latents` in bytes of float32; `denoise_s` is all its steps, `vae_s` one pass of the encoder."""

    latents: int
    denoise_s: float
    vae_s: float


# A 14B image-to-video model on one card: 480p of 49 and 81 frames, 720p of 81.
SHAPES: Final = (Shape(5_200_000, 34.0, 1.5), Shape(8_400_000, 66.0, 2.5), Shape(19_400_000, 260.0, 6.0))


@dataclass(frozen=True, slots=True)
class Job:
    """What a request names. `after` is what it changes behind the checkpoint that it starts from."""

    picture: str
    prompt: str
    seed: int
    shape: Shape
    after: str = ""

    @property
    def checkpoint(self) -> str:
        return f"{self.picture}, {self.prompt}, {self.seed}, {self.shape.latents}"

    @property
    def whole(self) -> str:
        return f"{self.checkpoint}, {self.after}"

    @property
    def conditioning(self) -> str:
        return f"{self.picture}, {self.shape.latents}"
