"""Mixtures of experts: which experts a token takes, and what they make of it."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu, softplus

from videoserve_kernels import reference_sparse
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.triton_gate import no_triton


def route(
    logits: Tensor,
    *,
    count: int,
    scale: float,
    bias: Tensor | None = None,
    chosen: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Scores √softplus(logits); a token takes the `count` experts whose score + bias is largest, or those chosen.

    logits [T, E], bias float32 [E], chosen int64 [T, K]. Returns chosen [T, K] and weights [T, K] in the dtype of
    the logits: the scores without bias, scaled to a sum of `scale`.
    """
    return pick("route", ROUTE, backend, logits, count=count, scale=scale, bias=bias, chosen=chosen)


def run_experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    limit: float,
    backend: str | None = None,
) -> Tensor:
    """Σ_k w_k · down_e (silu(gate) · up) with (gate, up) = gate_up_e x, e = chosen_k, gate ≤ limit and |up| ≤ limit.

    x [T, C], chosen int64 and weights [T, K], gate_up [E, 2I, C], down [E, C, I]; returns [T, C] in x's dtype. Results
    of a token's experts are added in the order in which it names them.
    """
    return pick("run_experts", EXPERTS, backend, x, chosen, weights, gate_up, down, limit=limit)


def clamped_silu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit) of [T, 2I], gate first; returns [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate.clamp(max=limit)).mul_(up.clamp(-limit, limit))


def route_in_torch(
    logits: Tensor, *, count: int, scale: float, bias: Tensor | None = None, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The formula; the order of the chosen is free."""
    scores = softplus(logits).sqrt_()
    if chosen is None:
        chosen = (scores if bias is None else scores + bias).topk(count, dim=-1, sorted=False).indices
    weights = scores.gather(1, chosen)
    return chosen, weights.mul_(scale / weights.sum(dim=-1, keepdim=True))


def experts_in_torch(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, limit: float
) -> Tensor:
    """Tokens sorted by expert, two products for each expert that has any, and a weighted sum over each token's own."""
    picks = chosen.flatten()
    order = picks.argsort(stable=True)
    gathered = x.index_select(0, order // chosen.shape[1])
    made = torch.empty_like(gathered)
    first = 0
    for expert, tokens in enumerate(torch.bincount(picks, minlength=len(gate_up)).tolist()):
        if tokens:
            part = slice(first, first + tokens)
            made[order[part]] = linear(clamped_silu(linear(gathered[part], gate_up[expert]), limit), down[expert])
            first += tokens
    return torch.einsum("tk,tkc->tc", weights.to(x.dtype), made.view(*chosen.shape, x.shape[1]))


def experts_in_triton(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, limit: float
) -> Tensor:
    """Our Triton kernels."""
    from videoserve_kernels import moe_kernel

    return moe_kernel.run_experts(x, chosen, weights, gate_up, down, limit=limit)


def no_kernel(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, limit: float) -> str | None:
    if why := no_triton(x, chosen, weights, gate_up, down):
        return why
    if any(tensor.stride(-1) != 1 for tensor in (x, gate_up, down)):
        return "it takes contiguous channels only"
    if not x.dtype == gate_up.dtype == down.dtype:
        return f"it takes one type, not {x.dtype}, {gate_up.dtype} and {down.dtype}"
    return None


def anywhere(*tensors: Any, **options: Any) -> str | None:
    return None


ROUTE = (
    Backend(name="torch", fn=route_in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.route, why_not=anywhere),
)
EXPERTS = (
    Backend(name="triton", fn=experts_in_triton, why_not=no_kernel),
    Backend(name="torch", fn=experts_in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.run_experts, why_not=anywhere),
)
