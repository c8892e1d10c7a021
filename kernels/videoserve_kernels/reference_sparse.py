"""The plain PyTorch truth of the ops of sparse models: compressed entries, experts, residual streams.

The formula and nothing else. Signatures are those of the doors.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from videoserve_kernels import reference
from videoserve_kernels.mixing import Mixing


def compress(values: Tensor, gates: Tensor, bias: Tensor, members: Tensor, before: Tensor | None = None) -> Tensor:
    """Σ softmax(gate + bias) · value over the rows of each group, channel by channel.

    values and gates [R, C], bias [P, C], members and before [G, P] into R; returns [G, D]. Without `before` D is C.
    With it rows have two halves: a group takes the second of its own and the first of those before it, -1 for none.
    """
    channels = values.shape[1] if before is None else values.shape[1] // 2
    entries = values.new_empty(len(members), channels)
    for group, own in enumerate(members):
        v, g = values[own], gates[own] + bias  # [P, C]
        if before is not None:
            v, g = v[:, channels:], g[:, channels:]
            if before[group, 0] >= 0:
                earlier = before[group]
                v = torch.cat((values[earlier, :channels], v))
                g = torch.cat(((gates[earlier] + bias)[:, :channels], g))
        entries[group] = (v * g.softmax(dim=0)).sum(dim=0)
    return entries


def top_entries(
    q: Tensor, weights: Tensor, keys: Tensor, places: Tensor, rows: Tensor, seen: Tensor, *, count: int
) -> Tensor:
    """The `count` entries e < seen with the largest Σ_h w_h · relu(q_h · k_e), -1 where there are fewer.

    q [T, H, D], weights [T, H], keys [L, D], places [B, E] into L, rows and seen [T]; returns int64 [T, count].
    """
    chosen = torch.full((len(q), count), -1, dtype=torch.int64, device=q.device)
    for token, (row, entries) in enumerate(zip(rows.tolist(), seen.tolist(), strict=True)):
        k = keys[places[row, :entries]]  # [E, D]
        scores = ((q[token] @ k.t()).relu() * weights[token, :, None]).sum(dim=0)
        best = scores.topk(min(count, entries)).indices
        chosen[token, : len(best)] = best
    return chosen


def sparse_attention(
    q: Tensor, near: Tensor, at: Tensor, far: Tensor | None = None, far_at: Tensor | None = None, *, sinks: Tensor
) -> Tensor:
    """attend() of each token over the entries that it names; keys are values.

    q [T, N, D], near [L, D] and at [T, K] into L, far and far_at alike, -1 for none; sinks [N]. Returns [T, N, D].
    """
    out = torch.empty_like(q)
    for token in range(len(q)):
        kv = near[at[token][at[token] >= 0]]
        if far is not None and far_at is not None:
            kv = torch.cat((kv, far[far_at[token][far_at[token] >= 0]]))
        kv = kv[None, :, None]  # [1, K, 1, D]
        attended = reference.attend(q[token][None, None], kv, kv, sinks=sinks)
        assert isinstance(attended, Tensor)
        out[token] = attended[0, 0]
    return out


def route(
    logits: Tensor, *, count: int, scale: float, bias: Tensor | None = None, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """√softplus(logits) of the chosen experts, scaled to a sum of `scale`; chosen are the largest with `bias` added.

    logits [T, E], bias [E], chosen [T, K] where they are known; returns chosen int64 [T, K] and weights [T, K].
    """
    scores = softplus(logits).sqrt()
    if chosen is None:
        chosen = (scores if bias is None else scores + bias).topk(count).indices
    weights = scores.gather(1, chosen)
    return chosen, weights / weights.sum(dim=1, keepdim=True) * scale


def run_experts(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, limit: float) -> Tensor:
    """Σ_k w_k · down_e (silu(min(gate, limit)) · clamp(up, ±limit)) with (gate, up) = gate_up_e x and e = chosen_k.

    x [T, C], chosen and weights [T, K], gate_up [E, 2I, C], down [E, C, I]; returns [T, C].
    """
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for expert, weight in zip(chosen[token].tolist(), weights[token], strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            out[token] += weight * (down[expert] @ (silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)))
    return out


def open_streams(
    streams: Tensor, mixing: Mixing, *, rounds: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What a block gets out of the streams, and how its result comes back into them.

    streams [T, H, C]; returns x [T, C], post [T, H] and comb [T, H, H], after `rounds` of Sinkhorn's scaling to rows
    and columns that sum to 1.
    """
    count = streams.shape[1]
    pre, post, comb = torch.split(mixed(streams, mixing, norm_eps), [count, count, count**2], dim=1)
    pre_bias, post_bias, comb_bias = torch.split(mixing.bias, [count, count, count**2])
    pre = (pre * mixing.scale[0] + pre_bias).sigmoid() + eps
    post = 2 * (post * mixing.scale[1] + post_bias).sigmoid()
    comb = torch.unflatten(comb * mixing.scale[2] + comb_bias, 1, (count, count)).softmax(dim=2) + eps
    comb = comb / (comb.sum(dim=1, keepdim=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(dim=2, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=1, keepdim=True) + eps)
    return torch.einsum("th,thc->tc", pre, streams), post, comb


def close_streams(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """post_k · out + Σ_j comb_jk · stream_j. out [T, C], streams [T, H, C], post [T, H], comb [T, H, H]."""
    return post[:, :, None] * out[:, None] + torch.einsum("tjk,tjc->tkc", comb, streams)


def join_streams(streams: Tensor, mixing: Mixing, *, eps: float, norm_eps: float) -> Tensor:
    """Σ_h (sigmoid(scale · weight rms_norm(streams) + bias) + eps)_h · stream_h. streams [T, H, C]; [T, C]."""
    pre = (mixed(streams, mixing, norm_eps) * mixing.scale + mixing.bias).sigmoid() + eps
    return torch.einsum("th,thc->tc", pre, streams)


def mixed(streams: Tensor, mixing: Mixing, norm_eps: float) -> Tensor:
    """weight · rms_norm of all streams of a token in one row, [T, M]."""
    flat = streams.flatten(1)
    return flat / (flat.square().mean(dim=1, keepdim=True) + norm_eps).sqrt() @ mixing.weight.t()
