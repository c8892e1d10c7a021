"""The rotary embedding: tables of a video and the turn of pairs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.rope import rotate, video_angles

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("head_dim", [12, 32, 128])
def test_every_token_has_the_angles_of_its_frame_row_and_column(head_dim: int) -> None:
    frames, rows, columns = 3, 2, 5
    angles = video_angles(frames, rows, columns, head_dim).view(frames, rows, columns, head_dim // 2)
    side = head_dim // 6
    along = head_dim // 2 - 2 * side
    for f, r, c in ((0, 0, 0), (2, 1, 4), (1, 0, 3)):
        expected = [f * 10000 ** (-2 * i / (2 * along)) for i in range(along)]
        expected += [p * 10000 ** (-2 * i / (2 * side)) for p in (r, c) for i in range(side)]
        torch.testing.assert_close(angles[f, r, c], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 30, 3, 12), (0, 30, 3, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotate_equals_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Callable[..., None]
) -> None:
    x = noise(*shape, dtype=dtype)
    angles = noise(shape[1], shape[-1] // 2, dtype=torch.float64) * 9
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    got = rotate(x, turns)
    assert got.dtype == dtype
    close(got, reference.rotate(x.double(), angles.cos(), angles.sin()))


def test_a_turn_keeps_lengths_and_depends_on_differences_only(noise: Fixture) -> None:
    angles = video_angles(6, 1, 1, 12)
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    q, k = (noise(1, 1, 1, 12).expand(1, 6, 1, 12) for _ in range(2))
    q, k = rotate(q.contiguous(), turns), rotate(k.contiguous(), turns)
    products = torch.einsum("bsnd,bsnd->s", q[:, :-2], k[:, 2:])
    torch.testing.assert_close(products, products[:1].expand(4))
