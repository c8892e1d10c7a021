"""Our decoders against transformers' own, on tiny models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve.text.batch import Batch, Part
from videoserve.text.load import Loaded, load_model
from videoserve.text.pools import BLOCK, KvPool

CPU = torch.device("cpu")
IN_A_ROW = list(range(2, 12))
SCATTERED = [11, 3, 4, 9, 2, 7, 5, 10, 6, 8]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(family: str, chat_dir: Callable[[str], Path]) -> Loaded:
    return load_model(str(chat_dir(family)), device=CPU, dtype=torch.float32, int8=False)


def pool_of(loaded: Loaded, blocks: int = 24) -> KvPool:
    pool = KvPool(loaded.model.shape, blocks, device=CPU, dtype=torch.float32)
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    return pool


def ids_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 257, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits(loaded: Loaded, pool: KvPool, *parts: Part) -> Tensor:
    return loaded.model.forward(Batch.of(parts, BLOCK, CPU), pool)


def in_chunks(loaded: Loaded, ids: list[int], sizes: list[int], blocks: list[int]) -> Tensor:
    """Logits of the last token of each chunk."""
    pool, done, found = pool_of(loaded), 0, []
    for size in sizes:
        part = Part(tokens=ids[done : done + size], start=done, blocks=blocks, logits=True)
        found.append(logits(loaded, pool, part))
        done += size
    assert done == len(ids)
    return torch.cat(found)


@pytest.mark.parametrize("blocks", [IN_A_ROW, SCATTERED], ids=["in a row", "scattered"])
@pytest.mark.parametrize("sizes", [[97], [1] * 97, [40, 1, 16, 1, 30, 9], [16, 32, 48, 1]], ids=str)
def test_prefill_chunks_and_decode_give_transformers_logits(
    family: str, loaded: Loaded, truth: Callable[[str], Any], sizes: list[int], blocks: list[int]
) -> None:
    ids = ids_of(97)
    with torch.inference_mode():
        expected = truth(family)(torch.tensor([ids])).logits[0]
    ends = [sum(sizes[: i + 1]) - 1 for i in range(len(sizes))]
    torch.testing.assert_close(in_chunks(loaded, ids, sizes, blocks), expected[ends], rtol=1e-4, atol=1e-4)


def test_sequences_in_one_batch_give_what_each_gives_alone(loaded: Loaded) -> None:
    texts = [ids_of(count, seed) for seed, count in enumerate((5, 33, 1, 64))]
    tables = [[0], [7, 2, 3], [1], [4, 5, 6, 8]]
    parts = [Part(tokens=t, start=0, blocks=b, logits=True) for t, b in zip(texts, tables, strict=True)]
    together = logits(loaded, pool_of(loaded), *parts)
    alone = [logits(loaded, pool_of(loaded), part) for part in parts]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_only_wanted_tokens_get_logits(loaded: Loaded) -> None:
    pool = pool_of(loaded)
    parts = [Part(tokens=[1, 2], start=0, blocks=[i], logits=i == 1) for i in range(3)]
    assert logits(loaded, pool, *parts).shape == (1, 257)


def test_int8_weights_stay_near(family: str, chat_dir: Callable[[str], Path], loaded: Loaded) -> None:
    small = load_model(str(chat_dir(family)), device=CPU, dtype=torch.float32, int8=True)
    assert small.digest != loaded.digest
    part = Part(tokens=ids_of(50), start=0, blocks=IN_A_ROW, logits=True)
    exact, near = (logits(model, pool_of(model), part) for model in (loaded, small))
    assert 0 < (near - exact).norm() / exact.norm() < 0.1
