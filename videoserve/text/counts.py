"""What a chat engine counts for Prometheus."""

from videoserve.chat_types import ChatReceipt
from videoserve.metrics import Meter
from videoserve.text.blocks import Blocks


class Counts:
    """Tokens of chats as they end, and at each boundary between two steps where the blocks of the pool are."""

    def __init__(self, meter: Meter):
        self._meter = meter

    def blocks(self, blocks: Blocks) -> None:
        for state, count in blocks.counts().items():
            self._meter.set("videoserve_chat_blocks", count, state=state)

    def streams(self, running: int, waiting: int) -> None:
        self._meter.set("videoserve_chat_streams", running, state="running")
        self._meter.set("videoserve_chat_streams", waiting, state="waiting")

    def ended(self, receipt: ChatReceipt) -> None:
        usage = receipt["usage"]
        computed = usage["prompt_tokens"] - usage["cached_tokens"]
        told = {"prompt": computed, "cached": usage["cached_tokens"], "completion": usage["completion_tokens"]}
        for kind, count in told.items():
            self._meter.count("videoserve_chat_tokens", count, kind=kind)
        self._meter.observe("videoserve_chat_first_token_seconds", receipt["first_token_s"])
        self._meter.count("videoserve_chat_preemptions", receipt["preemptions"])
