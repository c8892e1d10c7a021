"""Our forward against diffusers' `WanTransformer3DModel`, all layouts, float32."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from videoserve.video.families.context import TextContext
from videoserve.video.families.wan import WanTransformer
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan

LAYOUTS = ["wan21-i2v", "wan22-a14b", "wan22-ti2v"]
TOLERANCE = 1e-5
TEXT_LENGTH = 512
GRID = (3, 6, 10)
ALONE = Mesh(ParallelPlan())


class Case:
    """A transformer of diffusers, ours over the same weights, and inputs for two jobs with two guidance branches."""

    def __init__(self, theirs: Any, *, clean_first_frame: bool, grid: tuple[int, int, int], image_tokens: int) -> None:
        self.theirs = theirs
        self.ours = WanTransformer(theirs, clean_first_frame=clean_first_frame)
        config = theirs.config
        generator = torch.Generator().manual_seed(3)

        def noise(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.latents = noise(2, config.in_channels, *grid)
        self.timesteps = torch.tensor([811.0, 333.0])
        self.texts = [noise(count, config.text_dim) for count in (5, 1, TEXT_LENGTH, 17)]
        self.image_embeds = noise(2, image_tokens, config.image_dim) if config.image_dim else None

    def truth(self) -> Tensor:
        """diffusers' velocity, rows cond and uncond of job 0, then of job 1."""
        padded = torch.stack([torch.cat((t, t.new_zeros(TEXT_LENGTH - len(t), t.shape[1]))) for t in self.texts])
        latents, timesteps = (t.repeat_interleave(2, dim=0) for t in (self.latents, self.timesteps))
        if self.ours.clean_first_frame:
            tokens = torch.ones(self.latents.shape[2:])[:, ::2, ::2]
            tokens[0] = 0
            timesteps = tokens.flatten() * timesteps[:, None]
        images = self.image_embeds
        if images is not None:
            images = images.repeat_interleave(2, dim=0)
            if self.theirs.config.pos_embed_seq_len is not None:
                images = images.unflatten(1, (2, -1)).flatten(0, 1)
        with torch.no_grad():
            velocity: Tensor = self.theirs(latents, timesteps, padded, images, return_dict=False)[0]
        return velocity

    def context(self, jobs: Sequence[int] = (0, 1), branches: int = 2) -> TextContext:
        texts = [self.texts[2 * job + branch] for job in jobs for branch in range(branches)]
        images = None if self.image_embeds is None else self.image_embeds[list(jobs)]
        return self.ours.prepare_text(texts, TEXT_LENGTH, branches=branches, image_embeds=images)


@pytest.fixture
def case(tiny: ModuleType) -> Callable[..., Case]:
    """case(layout, grid, **changes of the transformer's config)."""

    def make(layout: str, grid: tuple[int, int, int] = GRID, **changes: Any) -> Case:
        torch.manual_seed(5)
        theirs = tiny.transformer(layout, **changes)
        tokens = changes.get("pos_embed_seq_len", 5)
        return Case(theirs, clean_first_frame=layout == "wan22-ti2v", grid=grid, image_tokens=tokens)

    return make


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grid", [(1, 2, 2), (3, 6, 10), (4, 10, 4)])
def test_equals_diffusers(layout: str, grid: tuple[int, int, int], case: Callable[..., Case]) -> None:
    tiny_case = case(layout, grid)
    truth = tiny_case.truth()
    assert truth.std() > 0.1
    velocity = tiny_case.ours.forward(tiny_case.latents, tiny_case.timesteps, tiny_case.context(), ALONE)
    torch.testing.assert_close(velocity, truth, atol=TOLERANCE, rtol=0)


def test_first_and_last_image_share_the_position_table(case: Callable[..., Case]) -> None:
    between = case("wan21-i2v", pos_embed_seq_len=10)
    with torch.no_grad():
        between.theirs.condition_embedder.image_embedder.pos_embed.normal_()
    velocity = between.ours.forward(between.latents, between.timesteps, between.context(), ALONE)
    torch.testing.assert_close(velocity, between.truth(), atol=TOLERANCE, rtol=0)


def test_a_model_without_a_cross_attention_norm(case: Callable[..., Case]) -> None:
    plain = case("wan22-ti2v", cross_attn_norm=False)
    velocity = plain.ours.forward(plain.latents, plain.timesteps, plain.context(), ALONE)
    torch.testing.assert_close(velocity, plain.truth(), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_job_in_a_batch_equals_the_job_alone(layout: str, case: Callable[..., Case]) -> None:
    both = case(layout)
    together = both.ours.forward(both.latents, both.timesteps, both.context(), ALONE)
    contexts = [both.context([job]) for job in (0, 1)]
    stacked = both.ours.forward(both.latents, both.timesteps, TextContext.stack(contexts), ALONE)
    torch.testing.assert_close(stacked, together, atol=TOLERANCE, rtol=0)
    for job in (0, 1):
        one = slice(job, job + 1)
        alone = both.ours.forward(both.latents[one], both.timesteps[one], contexts[job], ALONE)
        torch.testing.assert_close(alone, together[2 * job : 2 * job + 2], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_guidance_there_is_one_row_a_job(layout: str, case: Callable[..., Case]) -> None:
    both = case(layout)
    velocity = both.ours.forward(both.latents, both.timesteps, both.context(branches=1), ALONE)
    torch.testing.assert_close(velocity, both.truth()[::2], atol=TOLERANCE, rtol=0)


def test_the_second_forward_equals_the_first_bit_for_bit(case: Callable[..., Case]) -> None:
    both = case("wan22-ti2v")
    context = both.context()
    first = both.ours.forward(both.latents, both.timesteps, context, ALONE)
    assert torch.equal(first, both.ours.forward(both.latents, both.timesteps, context, ALONE))


def test_bfloat16_follows_diffusers_casts(case: Callable[..., Case], tiny: ModuleType, tmp_path: Path) -> None:
    torch.manual_seed(5)
    tiny.transformer("wan22-ti2v").save_pretrained(tmp_path)
    theirs = WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    half = Case(theirs, clean_first_frame=True, grid=GRID, image_tokens=0)
    half.latents, half.texts = half.latents.bfloat16(), [text.bfloat16() for text in half.texts]
    velocity = half.ours.forward(half.latents, half.timesteps, half.context(), ALONE)
    assert velocity.dtype == torch.bfloat16
    whole = case("wan22-ti2v").truth()
    # Both round to eight bits at the same places: as far from float32 as diffusers is, no farther.
    own_error = (half.truth().float() - whole).abs().max()
    assert (velocity.float() - whole).abs().max() < 1.5 * own_error


def test_a_text_longer_than_the_text_length_is_refused(case: Callable[..., Case]) -> None:
    both = case("wan22-ti2v")
    with pytest.raises(ValueError, match="A text of 5 tokens is longer than the text length of 4"):
        both.ours.prepare_text(both.texts[:1], 4)


def test_jobs_with_different_branches_cannot_share_a_forward(case: Callable[..., Case]) -> None:
    both = case("wan22-ti2v")
    with pytest.raises(ValueError, match=r"Jobs with \[1, 2\] guidance branches"):
        TextContext.stack([both.context([0]), both.context([1], branches=1)])


def test_the_demo_model_equals_diffusers(demo_model_dir: Path) -> None:
    theirs = WanTransformer3DModel.from_pretrained(demo_model_dir / "transformer", torch_dtype=torch.float32)
    demo = Case(theirs, clean_first_frame=True, grid=(5, 16, 16), image_tokens=0)
    truth = demo.truth()
    assert truth.std() > 0.3
    velocity = demo.ours.forward(demo.latents, demo.timesteps, demo.context(), ALONE)
    torch.testing.assert_close(velocity, truth, atol=TOLERANCE, rtol=0)
