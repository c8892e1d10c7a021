"""The kernels of sparse models as the benchmark runs them: attention over named entries, streams, experts."""

import torch
from _kernel_cases import Case, Size, normal
from torch import Tensor

from videoserve_kernels.indexer import top_entries
from videoserve_kernels.mixing import Mixing
from videoserve_kernels.moe import run_experts
from videoserve_kernels.sparse import sparse_attention
from videoserve_kernels.streams import close_streams, open_streams


def sparse_cases(size: Size) -> list[Case]:
    """Every one of them at one size."""
    return [*attention_and_streams(size), *experts(size), indexer(size)]


def attention_and_streams(size: Size) -> list[Case]:
    """As many tokens as there are frames, each with a window of 16 and a quarter of all others; four streams."""
    tokens, far = size.frames, size.tokens // 4 + 1
    q, near, pool = (normal(size, *s, size.head_dim) for s in ((tokens, size.heads), (tokens + 15,), (size.tokens,)))
    at = torch.arange(16, device=size.device) + torch.arange(tokens, device=size.device)[:, None]
    far_at = torch.stack([torch.randperm(size.tokens, device=size.device)[:far] for _ in range(tokens)])
    sinks = torch.randn(size.heads, device=size.device)
    named = tokens * (16 + far)
    streams, out = normal(size, size.tokens, 4, size.channels), normal(size, size.tokens, size.channels)
    weight = torch.randn(24, 4 * size.channels, device=size.device) / size.channels**0.5
    mixing = Mixing(weight, torch.randn(24, device=size.device), torch.ones(3, device=size.device))
    doubled = Mixing(*(tensor.double() for tensor in mixing))
    opened = {"rounds": 20, "eps": 1e-6, "norm_eps": 1e-6}
    _, post, comb = open_streams(streams, mixing, **opened, backend="torch")

    def attended(backend: str) -> Tensor:
        return sparse_attention(q, near, at, pool, far_at, sinks=sinks, backend=backend)

    return [
        Case(
            op="sparse_attention", moved=named * near[0].numel() * near.element_size(),
            operations=4 * named * size.channels, ours=lambda: attended("triton"), torchs=lambda: attended("torch"),
            truth=lambda: sparse_attention(
                q.double(), near.double(), at, pool.double(), far_at, sinks=sinks.double(), backend="reference"
            ),
        ),
        Case(
            op="open_streams", moved=5 * out.numel() * out.element_size(), operations=2 * weight.numel() * size.tokens,
            ours=lambda: open_streams(streams, mixing, **opened, backend="triton")[0],
            torchs=lambda: open_streams(streams, mixing, **opened, backend="torch")[0],
            truth=lambda: open_streams(streams.double(), doubled, **opened, backend="reference")[0],
        ),
        Case(
            op="close_streams", moved=9 * out.numel() * out.element_size(),
            ours=lambda: close_streams(out, streams, post, comb, backend="triton"),
            torchs=lambda: close_streams(out, streams, post, comb, backend="torch"),
            truth=lambda: close_streams(
                out.double(), streams.double(), post.double(), comb.double(), backend="reference"
            ),
        ),
    ]  # fmt: skip


def indexer(size: Size) -> Case:
    """Four sequences of as many entries as there are tokens, a token each; how much the chosen ones are worth."""
    q, keys = normal(size, 4, size.heads, size.head_dim), normal(size, size.tokens, size.head_dim)
    weights = torch.rand(4, size.heads, device=size.device)
    places = torch.stack([torch.randperm(size.tokens, device=size.device) for _ in range(4)])
    rows, seen = torch.arange(4, device=size.device), size.tokens // torch.arange(1, 5, device=size.device)
    options = {"count": min(16, size.tokens // 4)}
    products = torch.einsum("thd,ted->the", q.double(), keys[places].double()).relu()
    worth = (weights.double()[..., None] * products).sum(dim=1)

    def chosen(backend: str, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        best = top_entries(q, weights, keys, places, rows, seen, **options, backend=backend)
        return worth.gather(1, best).sort(dim=1).values

    return Case(
        op="top_entries", moved=int(seen.sum()) * keys[0].numel() * keys.element_size(),
        operations=2 * int(seen.sum()) * size.channels,
        ours=lambda: chosen("triton", q, weights, keys), torchs=lambda: chosen("torch", q, weights, keys),
        truth=lambda: chosen("reference", q.double(), weights.double(), keys.double()),
    )  # fmt: skip


def experts(size: Size) -> list[Case]:
    """Eight experts of a fourth of the channels, of which each token takes two."""
    hidden, kept = size.channels // 4, 2
    x, gate_up = normal(size, size.tokens, size.channels), normal(size, 8, 2 * hidden, size.channels)
    gate_up, down = gate_up / size.channels**0.5, normal(size, 8, size.channels, hidden)
    chosen = torch.rand(size.tokens, 8, device=size.device).topk(kept).indices
    weights = torch.rand(size.tokens, kept, device=size.device).to(size.dtype)

    def run(backend: str) -> Tensor:
        return run_experts(x, chosen, weights, gate_up, down, limit=10.0, backend=backend)

    return [
        Case(
            op="run_experts", moved=(gate_up.numel() + down.numel() + 2 * x.numel()) * x.element_size(),
            operations=6 * size.tokens * kept * hidden * size.channels,
            ours=lambda: run("triton"), torchs=lambda: run("torch"),
            truth=lambda: run_experts(
                x.double(), chosen, weights.double(), gate_up.double(), down.double(), limit=10.0, backend="torch"
            ),
        )
    ]  # fmt: skip
