"""What a chat engine counts: tokens as chats end, and where its blocks are after each step."""

from collections.abc import Callable
from pathlib import Path

from videoserve.chat_types import ChatPlan
from videoserve.config import Settings
from videoserve.metrics import Meter
from videoserve.text.engine import TextEngine
from videoserve.types import Event, Job


def test_tokens_and_blocks(chat_dir: Callable[[str], Path]) -> None:
    meter = Meter()
    settings = Settings(chat_model=str(chat_dir("llama")), chat_cache_gb=0.02, device="cpu")
    engine = TextEngine(settings, meter=meter)
    engine.load()
    total = engine.blocks.total
    events: list[Event] = []

    def told(name: str) -> dict[str, float]:
        return {values[0] if values else "": cells[0] for found, values, cells in meter.snapshot() if found == name}

    def ask(job_id: str) -> None:
        plan = ChatPlan(model="m", tokens=tuple(range(40)), max_tokens=5, temperature=0.0, ignore_eos=True)
        engine.admit(Job(id=job_id, kind="chat", tenant="t", request={}, created_at=1.0, plan=plan.to_dict()), None)

    assert told("videoserve_chat_blocks") == {"free": total, "held": 0, "kept": 0}
    ask("first")
    engine.step(events.append)
    assert told("videoserve_chat_streams") == {"running": 1, "waiting": 0}
    assert told("videoserve_chat_blocks")["held"] > 0
    engine.cancel("first")
    blocks = told("videoserve_chat_blocks")
    assert (blocks["held"], sum(blocks.values())) == (0, total)
    assert told("videoserve_chat_tokens") == {}

    for name in ("second", "third"):
        ask(name)
        while engine.step(events.append):
            assert sum(told("videoserve_chat_blocks").values()) == total
    cached = sum(event.data["receipt"]["usage"]["cached_tokens"] for event in events if event.kind == "done")
    assert cached > 0
    assert told("videoserve_chat_tokens") == {"prompt": 80 - cached, "cached": cached, "completion": 10}
    assert told("videoserve_chat_blocks")["held"] == 0
    engine.close()
