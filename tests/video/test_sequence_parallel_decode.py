"""The VAE's decode in bands of rows, one a rank, equals the decode of whole pictures."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny
from videoserve.errors import JobFailed
from videoserve.video.decode import assembled, draw
from videoserve.video.families.vae import WanVae
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.rows import Rows

RanksOf = Callable[[int], Callable[..., list[Any]]]
TOLERANCE = 1e-5
# Latent frames, rows and columns; of three rows not each of four ranks has one.
SHAPES = [(1, 4, 3), (3, 3, 5), (4, 9, 2)]


def vae(kind: str) -> WanVae:
    torch.manual_seed(11)
    return WanVae(tiny.vae(kind))


def latents(shape: tuple[int, int, int]) -> Tensor:
    return torch.randn(1, tiny.Z_DIM, *shape, generator=torch.Generator().manual_seed(4))


def bands(world: Any, kind: str, shape: tuple[int, int, int]) -> tuple[list[Tensor], int, Any]:
    """This rank's band of every piece, the messages sent for them, and the pictures that rank 0 puts together."""
    mesh = world.mesh(ulysses=world.size)
    ours, z = vae(kind), latents(shape)
    rows = Rows(mesh, shape[1])
    mine = list(ours.pieces(z, most=1, rows=rows)) if rows.sizes[world.rank] else []
    sent = mesh.counters.sent().messages
    drawn = [assembled(piece) if world.rank == 0 else None for piece in draw(ours, z, mesh)]
    mesh.end_step()
    return mine, sent, drawn


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["wan21-i2v", "wan22-ti2v"])
def test_bands_equal_whole_pictures(ranks_of: RanksOf, ranks: int, kind: str) -> None:
    for shape in SHAPES:
        whole = list(vae(kind).pieces(latents(shape), most=1))
        results = ranks_of(ranks)(bands, kind, shape)
        for piece, truth in enumerate(whole):
            together = torch.cat([mine[piece] for mine, _, _ in results if mine], dim=3)
            torch.testing.assert_close(together, truth, atol=TOLERANCE, rtol=0)
            pictures = (truth[0].permute(1, 2, 3, 0) * 0.5 + 0.5).mul(255)
            assert (torch.from_numpy(results[0][2][piece]) - pictures).abs().max() < 0.5 + 255 * TOLERANCE
        if shape[1] >= ranks:
            # The first and the last have one neighbour, those between them two; each meets all in the attention.
            between = [sent for _, sent, _ in results[1:-1]]
            first, last = results[0][1], results[-1][1]
            assert first == last > 0
            assert all(sent > first for sent in between)


def one_band_is_not_finite(world: Any) -> str:
    mesh = world.mesh(ulysses=world.size)
    ours, z = vae("wan22-ti2v"), latents((2, 4, 2))
    if world.rank == 1:
        with torch.inference_mode():
            ours.module.decoder.conv_out.bias.fill_(torch.nan)
    (piece,) = draw(ours, z, mesh)
    if world.rank:
        return ""
    with pytest.raises(JobFailed) as caught:
        assembled(piece)
    return str(caught.value)


def test_a_band_that_is_not_finite_is_told_to_rank_0(ranks_of: RanksOf) -> None:
    assert "The decoder gave numbers that are not finite" in ranks_of(2)(one_band_is_not_finite)[0]


def test_one_rank_takes_the_way_of_whole_pictures() -> None:
    mesh = Mesh(ParallelPlan())
    ours, z = vae("wan22-ti2v"), latents((3, 4, 4))
    for whole, alone in zip(ours.pieces(z, most=1), ours.pieces(z, most=1, rows=Rows(mesh, 4)), strict=True):
        assert torch.equal(whole, alone)
    assert mesh.counters.sent().messages == 0
