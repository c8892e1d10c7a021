"""Windows, block masks and sinks of attend() against a loop over queries, and what each backend says of them."""

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from videoserve_kernels import attention, reference
from videoserve_kernels.attention import attend
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.merge import merge

Fixture = Callable[..., Tensor]
Close = Callable[..., None]
ON_A_CPU = ["sdpa", "reference"]


def written_out(q: Tensor, k: Tensor, v: Tensor, sees: Callable[..., bool], sinks: Tensor) -> tuple[Tensor, Tensor]:
    """One query after the other; sees(row, head, position of the query, key)."""
    q, k, v = q.double(), k.double(), v.double()
    out, lse = torch.zeros_like(q), sinks.double().expand(q.shape[:-1]).clone()
    for row, at, head in itertools.product(*map(range, q.shape[:-1])):
        keys = [key for key in range(k.shape[1]) if sees(row, head, at + k.shape[1] - q.shape[1], key)]
        mine = head // (q.shape[2] // k.shape[2])
        scores = k[row, keys, mine] @ q[row, at, head] / q.shape[-1] ** 0.5
        lse[row, at, head] = torch.cat((scores, sinks[head : head + 1].double())).logsumexp(0)
        out[row, at, head] = (scores - lse[row, at, head]).exp() @ v[row, keys, mine]
    return out, lse


@pytest.mark.parametrize("backend", ON_A_CPU)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 9), (9, 4)])
def test_windows_and_sinks(
    backend: str, causal: bool, window: int, queries: int, keys: int, noise: Fixture, close: Close
) -> None:
    q, k, v, sinks = noise(2, queries, 4, 12), noise(2, keys, 2, 12), noise(2, keys, 2, 12), noise(4)
    lengths = torch.tensor([keys, keys // 2])

    def sees(row: int, head: int, at: int, key: int) -> bool:
        return abs(at - key) < window and key < lengths[row] and (key <= at or not causal)

    options = {"causal": causal, "window": window, "key_lengths": lengths, "sinks": sinks, "backend": backend}
    out, lse = attend(q, k, v, return_lse=True, **options)
    truth, sums = written_out(q, k, v, sees, sinks)
    close(out, truth)
    close(lse, sums)
    close(attend(q, k, v, **options), truth)
    close(attend(q, k, v, **{**options, "sinks": None}), written_out(q, k, v, sees, sinks - torch.inf)[0])


@pytest.mark.parametrize("backend", ON_A_CPU)
@pytest.mark.parametrize("shared", [False, True])
def test_block_masks(backend: str, shared: bool, noise: Fixture, close: Close) -> None:
    q, k, v = noise(2, 130, 2, 4), noise(2, 270, 2, 4), noise(2, 270, 2, 4)
    mask = noise(1 if shared else 2, 1 if shared else 2, 2, 3) > 0
    mask[0, 0, 0] = False
    of_all = mask.expand(2, 2, 2, 3)

    def sees(row: int, head: int, at: int, key: int) -> bool:
        return bool(of_all[row, head, (at - 140) // 128, key // 128])

    truth, sums = written_out(q, k, v, sees, torch.full((2,), -torch.inf))
    out, lse = attend(q, k, v, block_mask=mask, return_lse=True, backend=backend)
    close(out, truth)
    close(lse, sums)
    assert (out[0, :128, 0] == 0).all()


def test_a_sink_that_one_part_takes_stands_beside_the_whole(noise: Fixture, close: Close) -> None:
    q, k, v, sinks = noise(1, 5, 2, 8), noise(1, 9, 2, 8), noise(1, 9, 2, 8), noise(2)
    first = attend(q, k[:, :4], v[:, :4], sinks=sinks, return_lse=True)
    out, lse = merge(*first, *attend(q, k[:, 4:], v[:, 4:], return_lse=True))
    truth, sums = reference.attend(q.double(), k.double(), v.double(), sinks=sinks.double(), return_lse=True)
    close(out, truth)
    close(lse, sums)


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("window", [None, 3])
def test_xformers_gets_its_layout(
    key_heads: int, window: int | None, noise: Fixture, close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not installed here: its documented calls, computed by the reference, behind our backend."""

    def computed(q: Tensor, k: Tensor, v: Tensor, *, attn_bias: SimpleNamespace | None) -> tuple[Tensor, Tensor]:
        shape = q.shape
        q, k, v = (t.flatten(2, -2) for t in (q, k, v))
        options = {} if attn_bias is None else {"causal": True, "window": attn_bias.window}
        out, lse = reference.attend(q, k, v, return_lse=True, **options)
        sums = torch.nn.functional.pad(lse.transpose(1, 2), (0, 3), value=torch.nan)
        return out.view(shape), sums.unflatten(1, shape[2:-1])

    class Mask(SimpleNamespace):
        def make_local_attention(self, window: int) -> "Mask":
            return Mask(window=window)

    ops = ModuleType("xformers.ops")
    ops.fmha = SimpleNamespace(
        memory_efficient_attention=lambda *tensors, attn_bias: computed(*tensors, attn_bias=attn_bias)[0],
        memory_efficient_attention_forward_requires_grad=computed,
        attn_bias=SimpleNamespace(LowerTriangularFromBottomRightMask=lambda: Mask(window=None)),
    )
    monkeypatch.setitem(sys.modules, "xformers", ModuleType("xformers"))
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    # Under another name: nobody else may find what was built on these.
    spec = importlib.util.spec_from_file_location("apart", Path(attention.__file__).with_name("xformers_attention.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    q, k, v, sinks = noise(2, 5, 4, 8), noise(2, 7, key_heads, 8), noise(2, 7, key_heads, 8), noise(4)
    wide = [t.double() for t in (q, k, v)]
    truth, sums = reference.attend(*wide, causal=True, window=window, sinks=sinks, return_lse=True)
    out, lse = module.attend(q, k, v, causal=True, window=window, sinks=sinks, return_lse=True)
    close(out, truth)
    close(lse, sums)
    close(module.attend(q, k, v), reference.attend(*wide))


def test_a_backend_says_which_option_it_cannot_take(noise: Fixture) -> None:
    q = noise(1, 0, 1, 8)
    with pytest.raises(BackendUnavailableError, match="fails on empty tensors"):
        attend(q, q, q, sinks=noise(1), backend="sdpa")
