"""Our encode and decode against diffusers' `AutoencoderKLWan`, both kinds, float32."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from videoserve.video.families.vae import WanVae

KINDS = ["wan21-i2v", "wan22-ti2v"]
TOLERANCE = 2e-5
WHOLE, SMALLEST = 2**40, 1


@pytest.fixture(scope="module")
def module(tiny: ModuleType) -> Callable[[str], Any]:
    """module(layout) -> a tiny `AutoencoderKLWan` with statistics that are not 0 and 1."""

    def make(layout: str) -> Any:
        torch.manual_seed(11)
        return tiny.vae(layout)

    return make


def clip(frames: int, height: int, width: int, batch: int = 1) -> Tensor:
    return torch.rand(batch, 3, frames, height, width, generator=torch.Generator().manual_seed(2)) * 2 - 1


def statistics(vae: Any) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of the latents, as diffusers' pipeline uses them."""
    mean, deviation = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean, 1.0 / deviation


@torch.no_grad()
def encoded(vae: Any, video: Tensor) -> Tensor:
    mean, scale = statistics(vae)
    latents: Tensor = (vae.encode(video).latent_dist.mode() - mean) * scale
    return latents


@torch.no_grad()
def decoded(vae: Any, latents: Tensor) -> Tensor:
    mean, scale = statistics(vae)
    video: Tensor = vae.decode(latents / scale + mean).sample
    return video


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 16, 16), (5, 32, 48), (9, 48, 16), (17, 16, 32)])
@pytest.mark.parametrize("budget", [WHOLE, SMALLEST])
def test_equals_diffusers(kind: str, size: tuple[int, int, int], budget: int, module: Callable[[str], Any]) -> None:
    theirs = module(kind)
    ours = WanVae(theirs, budget_bytes=budget)
    video = clip(*size)
    latents = encoded(theirs, video)
    assert latents.std() > 0.1
    torch.testing.assert_close(ours.encode(video), latents, atol=TOLERANCE, rtol=0)
    back = decoded(theirs, latents)
    assert back.std() > 0.05
    torch.testing.assert_close(ours.decode(latents), back, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_several_blocks_a_level_and_attention_on_the_way(kind: str, tiny: ModuleType) -> None:
    torch.manual_seed(12)
    residual = tiny.vae(kind).config.is_residual
    # Attention between the levels exists in the 2.1 kind only.
    changes = {"num_res_blocks": 2} | ({} if residual else {"attn_scales": [0.5]})
    theirs = tiny.stirred(AutoencoderKLWan.from_config({**tiny.vae(kind).config, **changes}))
    ours = WanVae(theirs)
    video = clip(5, 32, 32)
    latents = encoded(theirs, video)
    torch.testing.assert_close(ours.encode(video), latents, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(ours.decode(latents), decoded(theirs, latents), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_every_length_give_the_same(kind: str, module: Callable[[str], Any]) -> None:
    video = clip(21, 16, 16)
    lengths, results = set(), []
    for exponent in (10, 20, 21, 22):
        ours = WanVae(module(kind), budget_bytes=2**exponent)
        pixels = ours.split_patches(video)
        lengths.add(len(ours.chunks(pixels, 4, pixels.shape[2:4])))
        results.append((ours.encode(video), ours.decode(ours.encode(video))))
    assert {1, 5} < lengths
    for latents, back in results[1:]:
        torch.testing.assert_close(latents, results[0][0], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(back, results[0][1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_in_a_batch_equals_the_clip_alone(kind: str, module: Callable[[str], Any]) -> None:
    ours = WanVae(module(kind))
    video = clip(5, 32, 16, batch=3)
    latents = ours.encode(video)
    back = ours.decode(latents)
    for row in range(3):
        torch.testing.assert_close(ours.encode(video[row : row + 1]), latents[row : row + 1], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(ours.decode(latents[row : row + 1]), back[row : row + 1], atol=TOLERANCE, rtol=0)


def test_a_frame_count_that_does_not_fit_is_refused(module: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="A clip of 4 frames cannot be encoded"):
        WanVae(module("wan22-ti2v")).encode(clip(4, 16, 16))


def test_what_is_not_finite_comes_through(module: Callable[[str], Any]) -> None:
    ours = WanVae(module("wan22-ti2v"))
    latents = torch.zeros(1, 16, 2, 2, 2)
    latents[0, 0, 1, 0, 0] = torch.nan
    video = ours.decode(latents)
    assert video[:, :, 0].isfinite().all()
    assert video[:, :, 1:].isnan().any()


def test_the_demo_vae_equals_diffusers(demo_model_dir: Path) -> None:
    theirs = AutoencoderKLWan.from_pretrained(demo_model_dir / "vae", torch_dtype=torch.float32)
    ours = WanVae(theirs)
    video = clip(13, 64, 96)
    latents = encoded(theirs, video)
    torch.testing.assert_close(ours.encode(video), latents, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(ours.decode(latents), decoded(theirs, latents), atol=TOLERANCE, rtol=0)
