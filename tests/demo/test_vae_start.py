"""Does the closed-form start hand pictures through where a random one does not?"""

import random
from importlib.resources import files

import torch
from PIL import Image

from videoserve.demo.recipe.bank import pyramid
from videoserve.demo.recipe.clips import render
from videoserve.demo.recipe.motions import path_of, sample_label
from videoserve.demo.recipe.vae import decibels
from videoserve.demo.recipe.vae_net import decode, encode, new_vae
from videoserve.demo.recipe.vae_start import start


def test_the_start_reconstructs_pictures_it_was_not_fitted_to() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    folder = files("videoserve.demo") / "pictures"
    seen, unseen = (
        torch.stack(
            [
                render(levels, 32, 48, path_of(sample_label(rng), rng), rng, share=(0.2, 0.4), colours=False)
                for levels in [pyramid(Image.open(str(folder / f"{name}.jpg"))) for name in names]
                for _ in range(count)
            ]
        )
        * 2
        - 1
        for names, count in ((("astronaut", "chelsea", "coffee"), 4), (("china",), 3))
    )
    vae = new_vae()
    with torch.no_grad():
        assert decibels(decode(vae, encode(vae, unseen)), unseen) < 12
        start(vae, seen)
        assert decibels(decode(vae, encode(vae, unseen)), unseen) > 18
