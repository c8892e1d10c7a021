"""The rotary embedding: tables of a video and the turn of pairs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.rope import angles_at, rotate, video_angles

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
@pytest.mark.parametrize("halves", [False, True])
def test_rotate_equals_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, halves: bool, noise: Fixture, close: Callable[..., None]
) -> None:
    x = noise(*shape, dtype=dtype)
    angles = noise(shape[1], shape[-1] // 2, dtype=torch.float64) * 9
    turns = torch.polar(torch.ones_like(angles), angles)
    got = rotate(x, turns.to(torch.complex64), halves=halves)
    assert got.dtype == dtype
    close(got, reference.rotate(x.double(), turns, halves=halves))


@pytest.mark.parametrize("halves", [False, True])
def test_each_pair_of_a_head_is_turned_by_its_angle(halves: bool, noise: Fixture) -> None:
    x, angles = noise(1, 3, 2, 6), angles_at(torch.tensor([4, 0, 900]), 6, theta=500.0)
    got = rotate(x, torch.polar(torch.ones_like(angles), angles).to(torch.complex64), halves=halves)
    for token, position in enumerate((4, 0, 900)):
        for pair in range(3):
            first, second = (pair, pair + 3) if halves else (2 * pair, 2 * pair + 1)
            angle = torch.tensor(position * 500.0 ** (-2 * pair / 6))
            turn = torch.stack((torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos()))))
            expected = x[0, token][:, [first, second]] @ turn.t()
            torch.testing.assert_close(got[0, token][:, [first, second]], expected, atol=1e-4, rtol=1e-4)


def test_a_turn_keeps_lengths_and_depends_on_differences_only(noise: Fixture) -> None:
    angles = video_angles(6, 1, 1, 12)
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    q, k = (noise(1, 1, 1, 12).expand(1, 6, 1, 12) for _ in range(2))
    q, k = rotate(q.contiguous(), turns), rotate(k.contiguous(), turns)
    products = torch.einsum("bsnd,bsnd->s", q[:, :-2], k[:, 2:])
    torch.testing.assert_close(products, products[:1].expand(4))
