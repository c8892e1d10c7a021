"""Our DeepSeek-V4 against transformers' own, on tiny models with every kind of layer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve.text.batch import Batch, Part
from videoserve.text.load import Loaded, load_model
from videoserve.text.models import deepseek_v4_attention
from videoserve.text.models.deepseek_v4_pool import V4Pool
from videoserve.text.pools import BLOCK

CPU = torch.device("cpu")
IN_A_ROW = list(range(2, 12))
SCATTERED = [11, 3, 4, 9, 2, 7, 5, 10, 6, 8]
CHUNKS = {
    "whole": [97], "one by one": [1] * 97, "mixed": [40, 1, 16, 1, 30, 9], "blocks": [16, 32, 48, 1],
    "odd": [3, 5, 7, 11, 13, 58],
}  # fmt: skip


@pytest.fixture(scope="module")
def load(chat_dir: Callable[[str], Path]) -> Callable[[str], Loaded]:
    loaded: dict[str, Loaded] = {}

    def load_once(family: str) -> Loaded:
        if family not in loaded:
            loaded[family] = load_model(str(chat_dir(family)), device=CPU, dtype=torch.float32, int8=False)
        return loaded[family]

    return load_once


def pool_of(loaded: Loaded) -> V4Pool:
    """NaN wherever nothing was written."""
    pool: V4Pool = loaded.model.pool(0.01, 4)
    for layer in pool.layers:
        for tensor in (layer.window, layer.rows, layer.entries, layer.keys):
            if tensor is not None:
                tensor.fill_(torch.nan)
    return pool


def ids_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 257, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits(loaded: Loaded, pool: V4Pool, *parts: Part) -> Tensor:
    return loaded.model.forward(Batch.of(parts, BLOCK, CPU), pool)


def in_chunks(loaded: Loaded, ids: list[int], sizes: list[int], blocks: list[int]) -> Tensor:
    """Logits of the last token of each chunk."""
    pool, done, found = pool_of(loaded), 0, []
    for size in sizes:
        part = Part(tokens=ids[done : done + size], start=done, blocks=blocks, logits=True, ring=3)
        found.append(logits(loaded, pool, part))
        done += size
    assert done == len(ids)
    return torch.cat(found)


def ends_of(sizes: list[int]) -> list[int]:
    return [sum(sizes[: i + 1]) - 1 for i in range(len(sizes))]


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [IN_A_ROW, SCATTERED], ids=["in a row", "scattered"])
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("family", ["v4", "v4-wide"])
def test_prefill_chunks_and_decode_give_transformers_logits(
    family: str, sizes: list[int], blocks: list[int], load: Callable[[str], Loaded], truth: Callable[[str], Any]
) -> None:
    ids = ids_of(97)
    with torch.inference_mode():
        expected = truth(family)(torch.tensor([ids])).logits[0]
    close(in_chunks(load(family), ids, sizes, blocks), expected[ends_of(sizes)])


class Watched:
    """What transformers' indexers scored and chose in one forward, by layer: [S, E] and [S, K]."""

    def __init__(self, model: Any, ids: list[int]):
        self.scores: list[Tensor] = []
        self.chosen: list[Tensor] = []
        indexers = [layer.self_attn.compressor.indexer for layer in model.model.layers if has_indexer(layer)]
        for indexer in indexers:
            indexer.scorer.register_forward_hook(lambda module, given, found: self.scores.append(found[0]))
            indexer.register_forward_hook(lambda module, given, found: self.chosen.append(found[0]))
        with torch.inference_mode():
            self.logits = model(torch.tensor([ids])).logits[0]


def has_indexer(layer: Any) -> bool:
    return hasattr(getattr(layer.self_attn, "compressor", None), "indexer")


def test_the_indexer_chooses_what_transformers_chooses(
    load: Callable[[str], Loaded], truth: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, ours, choose = ids_of(97), [], deepseek_v4_attention.top_entries
    theirs = Watched(truth("v4-few"), ids)

    def watched(*given: Any, **options: Any) -> Tensor:
        # Both layers look at what the same hidden states lead to: the second one follows transformers' first choice.
        ours.append(choose(*given, **options))
        return theirs.chosen[len(ours) - 1]

    monkeypatch.setattr(deepseek_v4_attention, "top_entries", watched)
    in_chunks(load("v4-few"), ids, [97], IN_A_ROW)
    assert len(ours) == len(theirs.chosen) == 2
    for chosen, scores, expected in zip(ours, theirs.scores, theirs.chosen, strict=True):
        assert torch.equal((chosen >= 0).sum(1), (expected >= 0).sum(1))
        # Entries that no head is drawn to score 0 alike, and any of them may be chosen: scores tell, not numbers.
        best, wanted = (worth(scores, numbers) for numbers in (chosen, expected))
        torch.testing.assert_close(best, wanted, rtol=1e-4, atol=1e-5)


def worth(scores: Tensor, numbers: Tensor) -> Tensor:
    """Scores of chosen entries in order, -1e9 for none."""
    return scores.gather(1, numbers.clamp(min=0)).masked_fill(numbers < 0, -1e9).sort(dim=1).values


@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
def test_with_the_same_few_entries_chunks_and_decode_give_transformers_logits(
    sizes: list[int], load: Callable[[str], Loaded], truth: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, calls = ids_of(97), []
    theirs = Watched(truth("v4-few"), ids)
    # Of the chunks that see more than 8 entries both layers choose.
    choosing = [end for end in ends_of(sizes) if (end + 1) // 4 > 8 for layer in range(2)]

    def pinned(*given: Any, **options: Any) -> Tensor:
        end, tokens, layer = choosing[len(calls)], len(given[0]), len(calls) % 2
        calls.append(tokens)
        return theirs.chosen[layer][end + 1 - tokens : end + 1]

    monkeypatch.setattr(deepseek_v4_attention, "top_entries", pinned)
    close(in_chunks(load("v4-few"), ids, sizes, SCATTERED), theirs.logits[ends_of(sizes)])
    assert len(calls) == len(choosing) > 0


def test_sequences_in_one_batch_give_what_each_gives_alone(load: Callable[[str], Loaded]) -> None:
    loaded = load("v4")
    texts = [ids_of(count, seed) for seed, count in enumerate((5, 33, 1, 64))]
    tables = [[0], [7, 2, 3], [1], [4, 5, 6, 8]]
    cuts = [(0, 3, 5), (0, 20, 33), (0, 1), (0, 7, 39, 64)]
    alone, pool = [], pool_of(loaded)
    for i, text in enumerate(texts):
        for start, end in zip(cuts[i], cuts[i][1:], strict=False):
            last = logits(
                loaded, pool, Part(tokens=text[start:end], start=start, blocks=tables[i], logits=True, ring=i)
            )
        alone.append(last)
    together: dict[int, Tensor] = {}
    pool = pool_of(loaded)
    for step in range(3):
        going = [i for i in (2, 0, 3, 1) if step + 1 < len(cuts[i])]
        parts = [
            Part(
                tokens=texts[i][cuts[i][step] : cuts[i][step + 1]], start=cuts[i][step], blocks=tables[i], logits=True,
                ring=3 - i,
            )
            for i in going
        ]  # fmt: skip
        together |= dict(zip(going, logits(loaded, pool, *parts), strict=True))
    close(torch.stack([together[i] for i in range(4)]), torch.cat(alone))


def test_only_wanted_tokens_get_logits(load: Callable[[str], Loaded]) -> None:
    parts = [Part(tokens=[1, 2], start=0, blocks=[i], logits=i == 1, ring=i) for i in range(3)]
    assert logits(load("v4"), pool_of(load("v4")), *parts).shape == (1, 257)


def test_a_ring_that_was_copied_goes_on_from_the_end_of_the_last_whole_block(load: Callable[[str], Loaded]) -> None:
    loaded, ids = load("v4-wide"), ids_of(100)
    for computed in (80, 81, 95, 96):
        pool = pool_of(loaded)
        logits(loaded, pool, Part(tokens=ids[:computed], start=0, blocks=IN_A_ROW, logits=False, ring=0))
        # The other sequence shares five blocks and has blocks of its own behind them.
        pool.copy_ring(0, 1)
        other = [*IN_A_ROW[:5], 20, 21]
        got = logits(loaded, pool, Part(tokens=ids[80:], start=80, blocks=other, logits=True, ring=1))
        close(got, in_chunks(loaded, ids, [100], IN_A_ROW))


def test_sequences_that_part_within_an_entry_keep_entries_of_their_own(load: Callable[[str], Loaded]) -> None:
    loaded, pool = load("v4-wide"), pool_of(load("v4-wide"))
    texts = [ids_of(90), ids_of(16) + ids_of(74, seed=1)]
    # The first block is shared, and is half of the tokens of a heavily compressed entry.
    tables = [IN_A_ROW, [IN_A_ROW[0], *range(12, 21)]]
    logits(loaded, pool, Part(tokens=texts[0][:16], start=0, blocks=tables[0], logits=False, ring=0))
    pool.copy_ring(0, 1)
    for i in range(2):
        logits(loaded, pool, Part(tokens=texts[i][16:80], start=16, blocks=tables[i], logits=False, ring=i))
    for i in range(2):
        got = logits(loaded, pool, Part(tokens=texts[i][80:], start=80, blocks=tables[i], logits=True, ring=i))
        close(got, in_chunks(loaded, texts[i], [90], IN_A_ROW))


def test_half_precision_stays_near(chat_dir: Callable[[str], Path], load: Callable[[str], Loaded]) -> None:
    half = load_model(str(chat_dir("v4")), device=CPU, dtype=torch.bfloat16, int8=False)
    near = in_chunks(half, ids_of(50), [50], IN_A_ROW)
    exact = in_chunks(load("v4"), ids_of(50), [50], IN_A_ROW)
    assert 0 < (near - exact).norm() / exact.norm() < 0.1
