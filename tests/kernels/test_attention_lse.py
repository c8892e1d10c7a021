"""The log-sum-exp of attend(), causal and padded keys, shared key heads, and merging what a ring computes in parts."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.attention import attend
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.merge import merge

Fixture = Callable[..., Tensor]
Close = Callable[..., None]
ON_A_CPU = ["sdpa", "reference"]


@pytest.mark.parametrize("backend", ON_A_CPU)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 9), (9, 9), (9, 4)])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_equals_the_formula(
    backend: str, causal: bool, padded: bool, queries: int, keys: int, key_heads: int, noise: Fixture, close: Close
) -> None:
    q, k, v = noise(3, queries, 4, 12), noise(3, keys, key_heads, 12), noise(3, keys, key_heads, 12)
    lengths = torch.tensor([keys, max(keys - 2, 1), 0]) if padded else None
    out, lse = attend(q, k, v, key_lengths=lengths, causal=causal, return_lse=True, backend=backend)
    truth, sums = written_out(q, k, v, lengths, causal)
    close(out, truth)
    close(lse, sums)
    close(attend(q, k, v, key_lengths=lengths, causal=causal, backend=backend), truth)


def written_out(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """One query after the other, each over the keys it sees."""
    q, k, v = q.double(), k.double(), v.double()
    out, lse = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf, dtype=torch.float64)
    for row, at, head in itertools.product(*map(range, q.shape[:-1])):
        last = at + k.shape[1] - q.shape[1] if causal else k.shape[1] - 1
        seen = max(min(last + 1, k.shape[1] if lengths is None else int(lengths[row])), 0)
        if seen:
            mine = head // (q.shape[2] // k.shape[2])
            scores = k[row, :seen, mine] @ q[row, at, head] / q.shape[-1] ** 0.5
            lse[row, at, head] = scores.logsumexp(0)
            out[row, at, head] = scores.softmax(0) @ v[row, :seen, mine]
    return out, lse


def test_empty_tensors_have_a_log_sum_exp(noise: Fixture) -> None:
    q, k = noise(2, 3, 2, 8), noise(2, 0, 2, 8)
    out, lse = attend(q, k, k, return_lse=True)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    assert attend(q[:, :0], q, q, return_lse=True)[1].shape == (2, 0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_the_keys_merge_to_the_whole_in_any_order(dtype: torch.dtype, noise: Fixture) -> None:
    q, k, v = (noise(2, 11, 3, 16, dtype=dtype) for _ in range(3))
    whole, whole_lse = reference.attend(q.double(), k.double(), v.double(), return_lse=True)
    parts = [attend(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 4), (4, 4), (4, 5), (5, 11))]
    results = []
    for order in itertools.permutations(parts):
        out, lse = torch.zeros(q.shape), torch.full(q.shape[:-1], -torch.inf)
        for part in order:
            out, lse = merge(out, lse, *part)
        assert out.dtype == lse.dtype == torch.float32
        results.append(out)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(out.double(), whole, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse.double(), whole_lse, atol=1e-2 if dtype != torch.float32 else 1e-5, rtol=0)
    for result in results:
        torch.testing.assert_close(result, results[0], atol=1e-6, rtol=1e-6)


def test_merge_equals_the_formula(noise: Fixture, close: Close) -> None:
    parts = noise(2, 5, 3, 8), noise(2, 5, 3) * 30, noise(2, 5, 3, 8), noise(2, 5, 3) * 30
    for got, truth in zip(merge(*parts), reference.merge(*(part.double() for part in parts)), strict=True):
        close(got, truth)


@pytest.mark.parametrize("name", ["flash", "xformers"])
def test_a_backend_for_cards_says_why_a_cpu_cannot_run_it(name: str, noise: Fixture) -> None:
    q = noise(1, 2, 1, 32)
    with pytest.raises(BackendUnavailableError, match=r"on cpu|is not installed"):
        attend(q, q, q, backend=name)
