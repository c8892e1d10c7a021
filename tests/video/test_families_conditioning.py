"""The conditioning against diffusers' `prepare_latents`, for the three layouts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import WanImageToVideoPipeline

from videoserve.planning.layout import read_layout
from videoserve.video.families.conditioning import Conditioning, build_conditioning, conditioning_video
from videoserve.video.families.vae import WanVae

LAYOUTS = ["wan21-i2v", "wan22-a14b", "wan22-ti2v"]


@pytest.mark.parametrize(("name", "with_last"), [*((name, False) for name in LAYOUTS), ("wan22-a14b", True)])
def test_the_conditioning_equals_diffusers(name: str, with_last: bool, tiny_model_dir: Callable[[str], Path]) -> None:
    directory = tiny_model_dir(name)
    pipeline = WanImageToVideoPipeline.from_pretrained(directory)
    layout, vae = read_layout(directory), WanVae(pipeline.vae)
    frames, height, width = 9, 32, 48
    generator = torch.Generator().manual_seed(1)
    image, last = torch.rand(2, 1, 3, height, width, generator=generator) * 2 - 1
    last_image = last if with_last else None
    noise = torch.randn(1, *layout.latent_shape(frames, height, width), generator=generator)
    with torch.no_grad():
        theirs = pipeline.prepare_latents(
            image,
            1,
            16,
            height,
            width,
            frames,
            torch.float32,
            torch.device("cpu"),
            latents=noise,
            last_image=last_image,
        )
    if layout.clean_first_frame:
        _, condition, mask = theirs
        model_input = finished = (1 - mask) * condition + mask * noise
    else:
        model_input, finished = torch.cat(theirs, dim=1), noise
    latents = vae.encode(conditioning_video(layout, image, last_image, frames))
    ours = build_conditioning(layout, latents, frames, last_image=with_last)
    assert model_input.shape[1] == layout.input_channels
    torch.testing.assert_close(ours.model_input(noise), model_input, atol=2e-5, rtol=0)
    torch.testing.assert_close(ours.finish(noise), finished, atol=2e-5, rtol=0)
    both = Conditioning.stack([ours, ours]).model_input(noise.expand(2, -1, -1, -1, -1))
    assert torch.equal(both[1], ours.model_input(noise)[0])


def test_a_last_image_where_none_is_taken_is_refused(tiny_model_dir: Callable[[str], Path]) -> None:
    image = torch.zeros(1, 3, 16, 16)
    with pytest.raises(ValueError, match="This wan22-ti2v model takes no last image"):
        conditioning_video(read_layout(tiny_model_dir("wan22-ti2v")), image, image, 5)


def test_a_model_between_two_pictures_needs_both(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model_dir("wan21-i2v"), model)
    config = json.loads((model / "transformer" / "config.json").read_text())
    (model / "transformer" / "config.json").write_text(json.dumps({**config, "pos_embed_seq_len": 10}))
    with pytest.raises(ValueError, match="it needs a last image too"):
        conditioning_video(read_layout(model), torch.zeros(1, 3, 16, 16), None, 5)
