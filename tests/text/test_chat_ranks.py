"""The chat engine on several ranks: what it answers is what one rank answers, whichever layout its batches take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks import Ranks, World
from tests.text.test_adapters import added, drawn
from videoserve.chat_types import ChatPlan
from videoserve.config import Settings
from videoserve.planning.chat_model import ChatCard
from videoserve.storage.open_adapters import open_chat_adapters
from videoserve.text import phases
from videoserve.text.batch import Part
from videoserve.text.engine import TextEngine
from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.phases import layout_of, tokens_from
from videoserve.text.ranks import follow
from videoserve.types import AdapterUse, Event, Job
from videoserve_kernels.comm.calibration import NO_BACKEND, Calibration
from videoserve_kernels.comm.channel import Channel

RanksOf = Callable[[int], Ranks]
LONG = torch.randint(0, 256, (96,), generator=torch.Generator().manual_seed(9)).tolist()
# The same beginning twice, so that a copy of a ring is gone on from; and a short one beside it.
PROMPTS = [LONG, LONG[:7], [*LONG, 5, 6, 7]]


def settings_of(directory: str, data: str) -> Settings:
    return Settings(
        data=Path(data), chat_model=directory, chat_cache_gb=0.02, device="cpu", chat_step_tokens=48, chat_streams=4
    )


def adapter_for(directory: str, data: Path) -> AdapterUse:
    """An adapter of every matrix of a tiny Llama."""
    own = open_chat_adapters(settings_of(directory, str(data)), ChatCard(name="llama", source=directory))
    target = own.target.target
    return AdapterUse(digest=added(own, drawn(target, sorted(target.matrices), 3), data), weight=1.0)


def answered(engine: TextEngine, loras: tuple[AdapterUse, ...] = ()) -> list[list[int]]:
    """The likeliest tokens behind each prompt, of which the second has adapters."""
    engine.load()
    events: list[Event] = []
    try:
        for number, prompt in enumerate(PROMPTS):
            plan = ChatPlan(
                model="m", temperature=0.0, tokens=tuple(prompt), max_tokens=8, ignore_eos=True,
                loras=loras if number == 1 else (),
            )  # fmt: skip
            job = Job(
                id=str(number), kind="chat", tenant="t", request={}, created_at=float(number), plan=plan.to_dict()
            )
            engine.admit(job, None)
            # The first one is computed alone, so that the last one finds it.
            while number != 1 and engine.step(events.append):
                pass
    finally:
        engine.close()
    done = {event.job_id: event.data["receipt"] for event in events if event.kind == "done"}
    assert done["2"]["usage"]["cached_tokens"] > 0
    return [done[str(number)]["choices"][0]["tokens"] for number in range(len(PROMPTS))]


def on_a_rank(
    world: World, directory: str, data: str, at_tokens: int | None, loras: tuple[AdapterUse, ...]
) -> list[list[int]] | None:
    settings, channel = settings_of(directory, data), Channel()
    if world.rank:
        follow(settings, channel)
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("videoserve.text.ranks.tokens_from", lambda *_, **__: at_tokens)
        return answered(TextEngine(settings, channel=channel), loras)


@pytest.mark.parametrize(("family", "ranks", "at_tokens"), [("v4-wide", 4, 20), ("llama", 2, None)])
def test_ranks_answer_like_one(
    family: str, ranks: int, at_tokens: int | None, ranks_of: RanksOf, chat_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = str(chat_dir(family))
    loras = (adapter_for(directory, tmp_path),) if family == "llama" else ()
    alone = answered(TextEngine(settings_of(directory, str(tmp_path))), loras)
    first, *others = ranks_of(ranks)(on_a_rank, directory, str(tmp_path), at_tokens, loras)
    assert first == alone
    assert others == [None] * (ranks - 1)
    # The links were measured once, and are kept.
    assert len(list(tmp_path.glob("calibrations/*.json"))) == 1


def links(**said: Any) -> Calibration:
    base: dict[str, Any] = {
        "fingerprint": "f", "ranks": 8, "backend": NO_BACKEND, "device": "cuda", "dtype": "bfloat16", "pairs": (),
        "shifts": (), "all_to_all": 22e9, "all_to_all_staged": 22e9, "islands": (), "neighbours": 50e9,
        "crossing": 22e9, "trunk": None, "latency_s": 2e-5, "at_once_bytes": 48 * 1024, "attention": 1.0,
        "linear": 1.0, "card_bytes": None, "host_copies": None, "seconds": 1.0,
    }  # fmt: skip
    return Calibration(**(base | said))


def test_prompts_go_by_tokens_from_where_their_bytes_outweigh_the_messages(chat_dir: Callable[[str], Path]) -> None:
    from videoserve.text.safetensors_dir import read_directory  # noqa: PLC0415

    shape = read_directory(chat_dir("v4")).shape
    assert isinstance(shape, V4Shape)

    def start(**said: Any) -> int | None:
        return tokens_from(shape, links(**({"ranks": 4} | said)), itemsize=2, most=2**14)

    slow, fast = start(all_to_all=1e8), start(all_to_all=1e9)
    assert slow is not None
    assert fast is not None
    assert slow < fast
    # Links on which nothing but the number of messages counts.
    assert start(all_to_all=1e15) is None
    assert start(ranks=1) is None
    assert tokens_from(object(), links(), itemsize=2, most=2**14) is None


@pytest.mark.parametrize("ranks", [4, 8])
def test_no_longer_prompt_is_dealt_by_tokens_where_heads_wait_less(ranks: int) -> None:
    from transformers import DeepseekV4Config  # noqa: PLC0415

    # Its ranks take 128 tokens in a row: a short prompt is one rank's, which alone sends for all of it.
    shape = V4Shape.of_config(DeepseekV4Config().to_dict())
    measured = links(ranks=ranks)
    start = tokens_from(shape, measured, itemsize=2, most=2**12)
    assert start is not None
    for tokens in [2**power for power in range(13) if 2**power >= start]:
        heads, by_tokens = (phases._seconds(shape, measured, tokens, 2, layout) for layout in phases.LAYOUTS)
        assert by_tokens < heads, tokens


def test_answers_go_by_heads_however_many_there_are() -> None:
    def part(count: int) -> Part:
        return Part(tokens=[1] * count, start=0, blocks=[0], logits=True)

    assert layout_of([part(1)] * 100, 64) == "heads"
    assert layout_of([part(1), part(63)], 64) == "heads"
    assert layout_of([part(1), part(40), part(24)], 64) == "tokens"
    assert layout_of([part(4096)], None) == "heads"
    assert phases.LAYOUTS == ("heads", "tokens")
