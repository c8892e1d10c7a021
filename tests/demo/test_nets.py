"""Are the recipe's faster forwards the same functions as diffusers' own?"""

from importlib.resources import files
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel

from videoserve.demo.recipe.dit_net import new_dit, velocity
from videoserve.demo.recipe.muon import Muon, orthogonalise
from videoserve.demo.recipe.reader import Reader
from videoserve.demo.recipe.vae_net import CONFIG, decode, encode

MODEL = Path(str(files("videoserve.demo") / "model"))


def test_the_velocity_is_the_transformer_of_diffusers() -> None:
    torch.manual_seed(0)
    dit = WanTransformer3DModel.from_pretrained(MODEL / "transformer", torch_dtype=torch.float32)
    channels = dit.config.in_channels
    reader = Reader(MODEL)
    latents, prompts = torch.randn(2, channels, 3, 4, 6), ["pan left slowly", "zoom in"]
    tokens = reader.tokenizer(prompts, padding="max_length", max_length=64, return_tensors="pt")
    with torch.no_grad():
        hidden = reader.encoder(tokens.input_ids, tokens.attention_mask).last_hidden_state
        times = torch.full((2, 3, 2, 3), 500.0)
        times[:, 0] = 0
        theirs = dit(latents, times.flatten(1), hidden * tokens.attention_mask[..., None]).sample
        ours = velocity(dit, latents, torch.full((2,), 500.0), *reader(prompts, 64))
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_a_new_dit_predicts_nothing_yet() -> None:
    dit = new_dit(4, 8)
    text, bias = torch.randn(1, 5, 8), torch.zeros(1, 1, 1, 5)
    with torch.no_grad():
        out = velocity(dit, torch.randn(1, 4, 2, 4, 4), torch.tensor([300.0]), text, bias)
    assert out.abs().max() == 0


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("frames", [1, 9])
def test_the_whole_clip_vae_is_the_chunked_one(residual: bool, frames: int) -> None:
    torch.manual_seed(0)
    small = {"base_dim": 4, "decoder_base_dim": 4, "z_dim": 6, "latents_mean": [0.0] * 6, "latents_std": [1.0] * 6}
    mult = [1, 4, 4] if residual else [2, 4, 8]
    vae = AutoencoderKLWan(**{**CONFIG, **small, "dim_mult": mult, "is_residual": residual})
    clip = torch.rand(1, 3, frames, 32, 48) * 2 - 1
    with torch.no_grad():
        latents = encode(vae, clip)
        torch.testing.assert_close(latents, vae.encode(clip).latent_dist.mode(), atol=1e-5, rtol=1e-4)
        theirs = vae.decode(latents).sample
        torch.testing.assert_close(decode(vae, latents).clamp(-1, 1), theirs, atol=1e-5, rtol=1e-4)
    assert latents.shape == (1, 6, 1 + (frames - 1) // 4, 4, 6)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(2, 24, 9), steps=6))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_muon_fits_a_matrix_and_its_state_goes_on_exactly() -> None:
    torch.manual_seed(0)
    goal = torch.linalg.qr(torch.randn(6, 6))[0]

    def steps(optimiser: Muon, matrix: torch.nn.Parameter, bias: torch.nn.Parameter, count: int) -> float:
        for _ in range(count):
            loss = ((matrix - goal) ** 2).sum() + ((bias - 1) ** 2).sum()
            matrix.grad = bias.grad = None
            torch.autograd.backward(loss)
            optimiser.step(1.0)
        return ((matrix - goal) ** 2).sum().item() + ((bias - 1) ** 2).sum().item()

    matrix, bias = torch.nn.Parameter(torch.zeros(6, 6)), torch.nn.Parameter(torch.zeros(6))
    optimiser = Muon([matrix], [bias], rates=(0.02, 0.02))
    assert steps(optimiser, matrix, bias, 20) < 11
    twin = [torch.nn.Parameter(p.detach().clone()) for p in (matrix, bias)]
    other = Muon([twin[0]], [twin[1]], rates=(0.02, 0.02))
    other.load(optimiser.state())
    assert steps(other, twin[0], twin[1], 60) == steps(optimiser, matrix, bias, 60) < 0.5
