"""The experts of DeepSeek-V4's layers on ranks that each hold some of them, or some channels of each."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from videoserve.text.dealt import Dealt
from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.models.deepseek_v4_weights import Experts
from videoserve.text.sharing import Sharing
from videoserve_kernels.comm.collectives import all_gather, reduce_scatter
from videoserve_kernels.comm.exchange import as_bytes
from videoserve_kernels.comm.small import all_reduce_by_size
from videoserve_kernels.comm.turns import sum_in_turns
from videoserve_kernels.moe import clamped_silu, route, run_experts


class Grow:
    """What a token's experts, and the one of all tokens, make of it; every rank computes its part for every token."""

    def __init__(self, shape: V4Shape, sharing: Sharing):
        self._shape, self._sharing = shape, sharing
        self._whole = sharing.share(shape.experts) if sharing.experts == "whole" else None

    def __call__(self, experts: Experts, x: Tensor, ids: Tensor, tokens: Dealt) -> Tensor:
        """x [t, C] and ids [t] of the tokens that this rank has; returns [t, C]."""
        sharing, shape = self._sharing, self._shape
        chosen, weights = route(
            linear(x, experts.router),
            count=shape.taken,
            scale=shape.expert_scale,
            bias=experts.bias,
            chosen=None if experts.of_token is None else experts.of_token[ids],
        )
        if tokens.group.size == 1:
            part = self._part(experts, x, chosen, weights)
            return all_reduce_by_size(part, sharing.everybody, at_once_bytes=sharing.at_once_bytes).wait()
        # Experts are chosen where a token is and travel with it: nobody can choose otherwise.
        packed = torch.cat([_rows(part) for part in (x, weights, chosen.int())], dim=1)
        wide = packed.shape[1]
        counts = [count * wide for count in tokens.counts]
        results = [count * shape.width for count in tokens.counts]

        def work(piece: Tensor, _: int = 0) -> Tensor:
            sizes = [shape.width * x.element_size(), shape.taken * weights.element_size(), 4 * shape.taken]
            theirs, weighed, picked = torch.split(piece.view(-1, wide), sizes, dim=1)
            return self._part(
                experts,
                theirs.contiguous().view(x.dtype),
                picked.contiguous().view(torch.int32).long(),
                weighed.contiguous().view(weights.dtype),
            )

        if sharing.overlaps:
            made = sum_in_turns(packed.view(-1), counts, work, tokens.group, results=results)
        else:
            every = torch.cat(all_gather(packed.view(-1), counts, tokens.group).wait())
            made = reduce_scatter(work(every), results, tokens.group).wait()
        return made.to(x.dtype).view_as(x)

    def _part(self, experts: Experts, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """This rank's part of the sum."""
        limit = self._shape.limit
        shared = linear(clamped_silu(linear(x, experts.shared_gate_up), limit), experts.shared_down)
        if self._whole is None:
            return run_experts(x, chosen, weights, experts.gate_up, experts.down, limit=limit).add_(shared)
        token, pick = ((chosen >= self._whole.start) & (chosen < self._whole.stop)).nonzero(as_tuple=True)
        ours = (chosen[token, pick] - self._whole.start)[:, None]
        made = run_experts(x[token], ours, weights[token, pick][:, None], experts.gate_up, experts.down, limit=limit)
        return shared.index_add_(0, token, made)


def _rows(x: Tensor) -> Tensor:
    """Bytes of [t, C], a row each."""
    return as_bytes(x.contiguous()).view(len(x), x.shape[1] * x.element_size())
