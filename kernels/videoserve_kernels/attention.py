"""The one attention door. Layout is [B, S, N, D] everywhere."""

from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.masks import Masks
from videoserve_kernels.sdpa import sdpa
from videoserve_kernels.triton_gate import installed, no_triton

Attended = Tensor | tuple[Tensor, Tensor]


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = ...,
    backend: str | None = ...,
    **masks: Unpack[Masks],
) -> Tensor: ...


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], backend: str | None = ..., **masks: Unpack[Masks]
) -> tuple[Tensor, Tensor]: ...


def attend(q: Tensor, k: Tensor, v: Tensor, *, backend: str | None = None, **options: Any) -> Attended:
    """softmax(q kᵀ / √D + key_bias) v over the keys a query sees.

    q [B, S, N, D]; k and v [B, L, M, D], where M divides N and N/M query heads in a row share a key head. Returns
    [B, S, N, D] in q's dtype and, with `return_lse`, also the natural log-sum-exp of the scores, float32 [B, S, N]; a
    query that sees no key gets 0 and -inf. All of these may be combined:
    - key_bias [B, L] is added to the scores of a key: log(n) makes one key stand for n equal ones, -inf takes it out
      (at least one key of each row must stay);
    - of row b only the first key_lengths[b] keys exist, int32 or int64 [B];
    - positions are counted from the ends, so that the last query stands at the last key: `causal` lets a query see no
      later key, `window` only keys less than `window` away;
    - block_mask bool [B or 1, N or 1, ⌈S/128⌉, ⌈L/128⌉] says which 128 queries see which 128 keys at all;
    - sinks float32 [N] stand beside a head's keys with a score and no value. They count in the log-sum-exp: of parts
      that are merged, one alone takes them.
    `backend` forces one by name; BackendUnavailableError says why it cannot run.
    """
    return pick("attend", BACKENDS, backend, q, k, v, **options)


def no_sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, sinks: Tensor | None = None, **options: Any
) -> str | None:
    if return_lse or sinks is not None:
        if not q.is_cpu:
            return f"torch returns a log-sum-exp, which sinks need too, on a CPU only and the queries are on {q.device}"
        if not (q.numel() and k.numel()):
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


def xformers(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Attended:
    """xformers' memory-efficient attention, whose layout is ours."""
    from videoserve_kernels import xformers_attention

    return xformers_attention.attend(q, k, v, **options)


def no_xformers(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, **options: Any) -> str | None:
    if not q.is_cuda:
        return f"xformers' kernels run on cuda and the queries are on {q.device}"
    if not installed("xformers"):
        return "xformers is not installed; `pip install 'videoserve[gpu]'` brings it"
    for option in ("key_bias", "key_lengths", "block_mask"):
        if options.get(option) is not None:
            return f"it is called without {option}"
    if options.get("window") is not None and not options.get("causal"):
        return "it has a window for causal attention only"
    return None


def anywhere(*tensors: Tensor, **options: Any) -> str | None:
    return None


BACKENDS = (
    Backend(name="sdpa", fn=sdpa, why_not=no_sdpa),
    Backend(name="flash", fn=flash, why_not=no_flash),
    Backend(name="xformers", fn=xformers, why_not=no_xformers),
    Backend(name="reference", fn=reference.attend, why_not=anywhere),
)
