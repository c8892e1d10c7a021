"""The one attention door. Layout is [B, S, N, D] everywhere."""

from typing import Any, Literal, overload

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.sdpa import sdpa
from videoserve_kernels.triton_gate import installed, no_triton

Attended = Tensor | tuple[Tensor, Tensor]


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_bias: Tensor | None = ...,
    key_lengths: Tensor | None = ...,
    causal: bool = ...,
    return_lse: Literal[False] = ...,
    backend: str | None = ...,
) -> Tensor: ...


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_bias: Tensor | None = ...,
    key_lengths: Tensor | None = ...,
    causal: bool = ...,
    return_lse: Literal[True],
    backend: str | None = ...,
) -> tuple[Tensor, Tensor]: ...


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_bias: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    return_lse: bool = False,
    backend: str | None = None,
) -> Attended:
    """softmax(q kᵀ / √D + key_bias) v over the keys a query sees.

    q [B, S, N, D]; k and v [B, L, M, D], where M divides N and N/M query heads in a row share a key head; key_bias
    [B, L] is added to the scores of a key: log(n) makes one key stand for n equal ones, -inf takes it out (at least one
    key of each row must stay). Of row b only the first key_lengths[b] keys exist, int32 or int64 [B]. `causal` is read
    from the ends: the last query sees the last key. Returns [B, S, N, D] in q's dtype and, with `return_lse`, also the
    natural log-sum-exp of the scores, float32 [B, S, N]; a query that sees no key gets 0 and -inf.
    `backend` forces one by name; BackendUnavailableError says why it cannot run.
    """
    return pick(
        "attend", BACKENDS, backend, q, k, v,
        key_bias=key_bias, key_lengths=key_lengths, causal=causal, return_lse=return_lse,
    )  # fmt: skip


def no_sdpa(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, **options: Any) -> str | None:
    if return_lse and q.device.type != "cpu":
        return f"torch returns a log-sum-exp on a CPU only and the queries are on {q.device}"
    if return_lse and not (q.numel() and k.numel()):
        return "torch's operator with a log-sum-exp fails on empty tensors"
    return None


def flash(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Attended:
    """Our Triton kernel."""
    from videoserve_kernels import flash as kernel

    return kernel.flash(q, k, v, **options)


def no_flash(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> str | None:
    if why := no_triton(q, k, v):
        return why
    if q.shape[-1] not in (32, 64, 128):
        return f"it takes 32, 64 or 128 channels a head, not {q.shape[-1]}"
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it takes float32, float16 and bfloat16, not {q.dtype}"
    if any(t.stride(-1) != 1 for t in (q, k, v)):
        return "it takes contiguous channels only"
    return None


def xformers(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **options: Any) -> Attended:
    """xformers' memory-efficient attention, whose layout is ours."""
    from xformers.ops import fmha

    mask = fmha.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    out: Tensor = fmha.memory_efficient_attention(q, k, v, attn_bias=mask)
    return out


def no_xformers(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **options: Any) -> str | None:
    if not installed("xformers"):
        return "xformers is not installed; `pip install 'videoserve[gpu]'` brings it"
    if q.device.type != "cuda":
        return f"xformers' kernels run on cuda and the queries are on {q.device}"
    if any(option is not None and option is not False for option in options.values()) or q.shape[2] != k.shape[2]:
        return "it is called without key_bias, key_lengths, return_lse and shared key heads only"
    return None


def anywhere(*tensors: Tensor, **options: Any) -> str | None:
    return None


BACKENDS = (
    Backend(name="sdpa", fn=sdpa, why_not=no_sdpa),
    Backend(name="flash", fn=flash, why_not=no_flash),
    Backend(name="xformers", fn=xformers, why_not=no_xformers),
    Backend(name="reference", fn=reference.attend, why_not=anywhere),
)
