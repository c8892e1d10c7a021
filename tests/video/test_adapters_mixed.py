"""Two hundred requests with and without adapters, that end well, fail and are cancelled: the base stays what it was."""

import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.tiny_adapters import Shop, use
from videoserve.types import Event, LoraAsk
from videoserve.video.engine import VideoEngine
from videoserve_lora import binder

RunAll = Callable[[VideoEngine], list[Event]]
Asks = tuple[LoraAsk, ...]
FIELDS: dict[str, Any] = {"num_frames": 5, "num_inference_steps": 2}
MIB = 1 << 20
# The sum of two stays within one room: another one would be another shape.
RANKS = (4, 7, 1, 3, 8)


class Compiled:
    """The only transformer of an engine under torch.compile; `graphs` counts what was compiled."""

    def __init__(self, engine: VideoEngine) -> None:
        self.graphs = 0
        (expert,) = engine.components.experts
        torch.compiler.reset()
        object.__setattr__(expert, "forward", torch.compile(expert.forward, backend=self._count))

    def _count(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants of adapters, and how it is to end: a failure's code, "done", or "cancelled"."""

    loras: Asks
    end: str


class Bad:
    """Adapters that end a request, each in its own way."""

    def __init__(self, shop: Shop, other: Shop) -> None:
        gone = "0" * 64
        damaged = shop.add(70)
        path = shop.store.path(damaged)
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        # Of another model: found out when it is bound.
        stranger = other.add(71)
        place = shop.store._place(stranger)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(other.store.path(stranger).read_bytes())
        # Finite, as all that is accepted; what comes of it is not.
        endless = shop.add(72, size=1e17)
        self.asks = [
            *(Ask((use(digest),), "adapter_unusable") for digest in (gone, damaged, stranger)),
            Ask((use(endless),), "numerical_error"),
        ]


class Scarce:
    """Memory that ends in the middle of a binding, when `left` is what is left of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        moved = binder.moved

        def move(slot: Any, device: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
            return moved(slot, device)

        monkeypatch.setattr(binder, "moved", move)


def asks_of(shop: Shop, bad: Bad) -> Iterator[Ask]:
    """What two hundred clients want, in any order."""
    rng = random.Random(0)
    digests = [shop.add(seed, rank=rank, extras=seed % 2 == 0) for seed, rank in enumerate(RANKS)]
    while True:
        named = rng.sample(digests, rng.choice((0, 1, 1, 2)))
        loras = tuple(use(digest, rng.choice((1.0, 0.5, -1.0))) for digest in named)
        end = rng.choice(("done", "done", "cancelled", "bad", "out_of_memory"))
        if end == "bad":
            yield rng.choice(bad.asks)
        elif end == "out_of_memory":
            # At a weight that is never bound: what is bound already needs no memory.
            yield Ask((use(digests[0], 0.75),), end)
        else:
            yield Ask(loras, end)


def flat(readings: list[int], slack: int) -> bool:
    return max(readings[len(readings) // 2 :]) <= max(readings[: len(readings) // 2]) + slack


@pytest.fixture
def young() -> Iterator[None]:
    """Every failure collects garbage: what is there already need not be looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_tensors() -> int:
    """Tensors made since the test began."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


# What the door asks of a machine does not change while a process lives.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "requests"), [("float32", 200), ("bfloat16", 60)])
def test_mixed_requests(
    tiny_studio: Any,
    studio: Any,
    run_all: RunAll,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    young: None,
    dtype: str,
    requests: int,
) -> None:
    shop = Shop(tiny_studio, tmp_path)
    (tmp_path / "other").mkdir()
    asks = asks_of(shop, Bad(shop, Shop(studio("wan21-i2v"), tmp_path / "other")))
    # One adapter of a request at a time is kept ready, so that they are read and let go all the time.
    engine = tiny_studio.engine(dtype=dtype, adapter_memory=1)
    probe = tiny_studio.job("probe", loras=(use(shop.add(9, extras=True)),), **FIELDS)
    engine.admit(tiny_studio.job("base", **FIELDS), None)
    outputs: dict[Any, set[str]] = {(): {tiny_studio.result(run_all(engine), "base")}}
    scarce, compiled = Scarce(monkeypatch), Compiled(engine)
    tensors, resident = [], []
    graphs = None
    for number in range(requests):
        ask = next(asks)
        scarce.left = 5 if ask.end == "out_of_memory" else None
        engine.admit(tiny_studio.job("job", loras=ask.loras, **FIELDS), None)
        if ask.end == "cancelled":
            for _ in range(number % 4):
                engine.step(lambda event: None)
            engine.cancel("job")
        else:
            last = run_all(engine)[-1]
            assert last.data.get("code", last.kind) == ask.end, last.data
        if ask.end == "done":
            key = tuple(sorted((each.digest, each.scale) for each in ask.loras))
            outputs.setdefault(key, set()).add(tiny_studio.result([last]))
        if number == 20:
            graphs = compiled.graphs
        if number % 20 == 19:
            # With the same one bound and kept ready.
            scarce.left = None
            engine.admit(probe, None)
            run_all(engine)
            tensors.append(live_tensors())
            resident.append(psutil.Process().memory_info().rss)
    # The base's output, and that of every set of adapters, is the same whatever came before.
    assert len(outputs) > requests / 10
    assert all(len(found) == 1 for found in outputs.values())
    assert len({found for (found,) in outputs.values()}) == len(outputs)
    assert (compiled.graphs, graphs) == (2, 2)
    assert flat(tensors, 0), tensors
    assert flat(resident, 16 * MIB), resident
