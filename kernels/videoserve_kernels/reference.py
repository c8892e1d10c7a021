"""The plain PyTorch truth of every op: the formula and nothing else. Signatures are those of the doors."""

import torch
from torch import Tensor

from videoserve_kernels.codes import Codes
from videoserve_kernels.masks import seen_keys
from videoserve_kernels.pages import Pages

# The largest value of a code that is used: int8 leaves -128 out, so that signs are alike.
LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_bias: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    sinks: Tensor | None = None,
    block_mask: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √D + key_bias) v over the keys a query sees, with e^sink more below; 0 where it sees none.

    q [B, S, N, D], k and v [B, L, M, D] with M dividing N, key_bias [B, L], key_lengths [B], sinks [N], block_mask
    [B or 1, N or 1, ⌈S/128⌉, ⌈L/128⌉]; returns [B, S, N, D] and the log-sum-exp of the scores [B, S, N].
    """
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for t in (k, v))
    scores = torch.einsum("bsnd,blnd->bnsl", q, k) / q.shape[-1] ** 0.5
    if key_bias is not None:
        scores = scores + key_bias[:, None, None, :]
    seen = seen_keys(
        q.shape[1], k.shape[1], q.device, key_lengths=key_lengths, causal=causal, window=window, block_mask=block_mask
    )
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(dim=-1)  # [B, N, S]
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks[:, None].to(lse.dtype))
    weights = (scores - lse[..., None]).exp().masked_fill(lse[..., None] == -torch.inf, 0)
    out = torch.einsum("bnsl,blnd->bsnd", weights, v)
    if not return_lse:
        return out
    return out, lse.transpose(1, 2).to(torch.promote_types(lse.dtype, torch.float32))


def paged_keys(pages: Pages, row: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Keys and values [stop - start, M, D] at these positions of a sequence."""
    at = torch.arange(start, stop, device=pages.tables.device)
    blocks, places = pages.tables[row, at // pages.size].long(), at % pages.size
    return pages.keys[blocks, places], pages.values[blocks, places]


def paged_attention(
    q: Tensor,
    pages: Pages,
    rows: Tensor,
    positions: Tensor,
    *,
    window: int | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """attend() of each token over its own position and those before, in its sequence; 0 at position -1.

    q [T, N, D], rows and positions [T], sinks [N]; returns [T, N, D] and the log-sum-exp [T, N].
    """
    outs, sums = [], []
    for token, row, position in zip(q, rows.tolist(), positions.tolist(), strict=True):
        start = 0 if window is None else max(position - window + 1, 0)
        k, v = (t[None].to(q.dtype) for t in paged_keys(pages, row, start, position + 1))
        out, lse = attend(token[None, None], k, v, sinks=sinks, return_lse=True)
        outs.append(out[0])
        sums.append(lse[0])
    out, lse = (torch.cat(found) if found else q.new_empty(0, *q.shape[1:]) for found in (outs, sums))
    return (out, lse) if return_lse else out


def store_kv(k: Tensor, v: Tensor, pages: Pages, rows: Tensor, positions: Tensor) -> None:
    """keys[tables[row, p // P], p % P] = k and the same of v, for each token; k and v [T, M, D]."""
    for token, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        if position >= 0:
            block = pages.tables[row, position // pages.size]
            pages.keys[block, position % pages.size] = k[token]
            pages.values[block, position % pages.size] = v[token]


def merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys out of the attention over each: Σ out · e^lse / Σ e^lse, and log Σ e^lse.

    out and more [B, S, N, D], lse and more_lse [B, S, N]; -inf is a set without keys.
    """
    total = torch.logaddexp(lse, more_lse)
    weight, more_weight = ((part - total).exp().masked_fill(total == -torch.inf, 0) for part in (lse, more_lse))
    return out * weight[..., None] + more * more_weight[..., None], total


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / √(mean(x²) + eps) · weight over the last axis. x [..., C], weight [C]."""
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    """(x - mean) / √(var + eps) · weight + bias over the last axis. x [..., C], weight and bias [C]."""
    mean = x.mean(dim=-1, keepdim=True)
    centred = x - mean
    normal = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    if weight is not None:
        normal = normal * weight
    return normal if bias is None else normal + bias


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """rms_norm() of x + residual, and x + residual. x and residual [..., C], weight [C]."""
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


def rotate(x: Tensor, turns: Tensor, *, halves: bool = False) -> Tensor:
    """Turns each pair (x[2i], x[2i+1]), or with `halves` (x[i], x[i + D/2]), by the angle of (position, i).

    x [B, S, N, D], turns complex [S, D/2].
    """
    first, second = x.chunk(2, dim=-1) if halves else (x[..., 0::2], x[..., 1::2])
    cos, sin = turns.real[:, None, :], turns.imag[:, None, :]
    turned = first * cos - second * sin, first * sin + second * cos
    return torch.cat(turned, dim=-1) if halves else torch.stack(turned, dim=-1).flatten(-2)


def rms_norm_rotate(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float, halves: bool = False) -> Tensor:
    """rotate() of the heads of rms_norm() over all of them, or over each with a weight of one head.

    x [B, S, N·D], weight [N·D] or [D], turns complex [S, D/2]; returns [B, S, N, D].
    """
    head_dim = 2 * turns.shape[1]
    normal = rms_norm(torch.unflatten(x, -1, (-1, len(weight))), weight, eps=eps).flatten(-2)
    return rotate(torch.unflatten(normal, -1, (-1, head_dim)), turns, halves=halves)


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor, frame_index: Tensor, *, eps: float) -> Tensor:
    """layer_norm(x) · (1 + scale) + shift with the row of the table that the token's frame points at.

    x [B, F·P, C] with P tokens a frame, shift and scale [B, K, C], frame_index [F] into K.
    """
    per_token = frame_index.repeat_interleave(x.shape[1] // len(frame_index))
    return layer_norm(x, None, None, eps=eps) * (1 + scale[:, per_token]) + shift[:, per_token]


def gated_residual(x: Tensor, y: Tensor, gate: Tensor, frame_index: Tensor) -> Tensor:
    """x + y · gate with the row of the table that the token's frame points at.

    x and y [B, F·P, C] with P tokens a frame, gate [B, K, C], frame_index [F] into K.
    """
    per_token = frame_index.repeat_interleave(x.shape[1] // len(frame_index))
    return x + y * gate[:, per_token]


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    past: Tensor | None = None,
    leading_zeros: int = 0,
    stride: int = 1,
) -> Tensor:
    """3-D convolution over the frames (leading_zeros zeros, past, x): no frame after the last tap is ever seen.

    x [B, F, H, W, C]; weight [O, C, kF, kH, kW], kH and kW odd; past [B, F', H, W, C]; `stride` is over frames.
    Returns [B, (leading_zeros + F' + F - kF) // stride + 1, H, W, O], zero padded in space to the same size.
    """
    frames = x if past is None else torch.cat((past, x), dim=1)
    kh, kw = weight.shape[3:]
    padding = (kw // 2, kw // 2, kh // 2, kh // 2, leading_zeros, 0)
    video = torch.nn.functional.pad(frames.permute(0, 4, 1, 2, 3), padding)
    return torch.nn.functional.conv3d(video, weight, bias, stride=(stride, 1, 1)).permute(0, 2, 3, 4, 1)


def upsampled_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Every pixel doubled in both directions, then a 3×3 convolution with padding 1.

    x [B, F, H, W, C], weight [O, C, 3, 3]; returns [B, F, 2H, 2W, O].
    """
    doubled = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    images = doubled.flatten(0, 1).permute(0, 3, 1, 2)
    out = torch.nn.functional.conv2d(images, weight, bias, padding=1).permute(0, 2, 3, 1)
    return torch.unflatten(out, 0, x.shape[:2])


def downsampled_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """3×3 convolution with stride 2 and one row and column of zeros after the last.

    x [B, F, H, W, C], weight [O, C, 3, 3]; returns [B, F, H/2, W/2, O].
    """
    images = torch.nn.functional.pad(x.flatten(0, 1).permute(0, 3, 1, 2), (0, 1, 0, 1))
    out = torch.nn.functional.conv2d(images, weight, bias, stride=2).permute(0, 2, 3, 1)
    return torch.unflatten(out, 0, x.shape[:2])


def quantise_heads(x: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes x / s, to the nearest, with s = max|x| / (largest code) over the channels of a head.

    x [B, S, N, D]; returns codes [N, B, S, D] of `dtype` (int8 or float8_e4m3fn) and scales float32 [N, B, S].
    """
    largest = LARGEST_CODE[dtype]
    heads = x.permute(2, 0, 1, 3).float()
    scales = heads.abs().amax(dim=-1) / largest
    # Past the largest only where the scale is subnormal, too coarse a number.
    codes = (heads / scales.masked_fill(scales == 0, 1).unsqueeze(-1)).clamp(-largest, largest).nan_to_num(0)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype).contiguous(), scales.contiguous()


def dequantise_heads(codes: Tensor, scales: Tensor, *, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Codes [N, B, S, D] · scales [N, B, S] as [B, S, N, D] of `dtype`, into `out` when there is one."""
    heads = (codes.float() * scales.unsqueeze(-1)).permute(1, 2, 0, 3).to(dtype)
    return heads.contiguous() if out is None else out.copy_(heads)


def drift(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Σ|a - b|, Σ|b| and the number of values of each row. a and b [B, S, C], mask bool [B, S]; returns [B, 3]."""
    moved, size = (a - b).abs().sum(dim=-1), b.abs().sum(dim=-1)  # [B, S]
    counts = torch.full_like(moved, a.shape[-1])
    sums = torch.stack((moved, size, counts), dim=-1)
    if mask is not None:
        sums = sums.masked_fill(~mask.unsqueeze(-1), 0)
    return sums.sum(dim=1)


def add_low_rank(y: Tensor, x: Tensor, a: Tensor, b: Tensor, *, slots: Tensor | None = None) -> Tensor:
    """y += (x Aᵀ) Bᵀ, in place. y [..., O], x [..., I], a [R, I], b [O, R].

    With slots [...] each row takes its own of a [L, R, I] and b [L, O, R], or none at -1.
    """
    if slots is None:
        return y.add_((x @ a.t()) @ b.t())
    used = slots >= 0
    of_row = slots[used].long()
    y[used] += torch.einsum("tor,tri,ti->to", b[of_row], a[of_row], x[used])
    return y


def numbers(codes: Codes) -> Tensor:
    """What a matrix of codes stands for, float64 [M, K]: values · scales."""
    if not codes.block:
        return codes.values.double() * codes.scales[:, None]
    rows, columns = codes.values.shape
    height = 1 if len(codes.scales) == rows else codes.block
    scales = codes.scales.repeat_interleave(codes.block, dim=1).repeat_interleave(height, dim=0)
    return codes.values.double() * scales[:rows, :columns]


def scaled_linear(
    x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """(x · s_x) (w · s_w)ᵀ + bias. x [M, K], weight [N, K], bias [N]; returns [M, N] of `dtype`."""
    out = numbers(x) @ numbers(weight).t()
    return (out if bias is None else out + bias).to(dtype)
