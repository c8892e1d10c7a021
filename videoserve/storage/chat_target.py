"""The chat model that adapters are checked against: the seven projections of each layer of the Llama family."""

import json
import re
from functools import cached_property
from pathlib import Path

from videoserve.errors import BadAdapter
from videoserve.planning.chat_model import ChatCard, model_file
from videoserve.storage.adapter_target import AdapterTarget
from videoserve_kernels.kept_json import read_json, write_json
from videoserve_lora.canonical import opened
from videoserve_lora.refused import listed
from videoserve_lora.target import Target, shapes_of

FAMILIES = ("llama", "qwen3")
# GGUF's names of what adapters change, and transformers'.
PROJECTIONS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
IN_FILE = re.compile(rf"blk\.(\d+)\.({'|'.join(PROJECTIONS)})\.weight")
IN_DIRECTORY = re.compile(rf"model\.layers\.\d+\.({'|'.join(map(re.escape, PROJECTIONS.values()))})\.weight")


class ChatTarget(AdapterTarget):
    """Read when first asked for; what a GGUF file's header says is kept in the folder `kept`."""

    def __init__(self, card: ChatCard, kept: Path):
        super().__init__(Path(card.source), card.name, kept)
        self._card = card

    @cached_property
    def target(self) -> Target:
        """Raises BadAdapter, a sentence, for a model of another family."""
        place = model_file(self._card)
        shapes = self._of_directory(place) if place.is_dir() else self._of_file(place)
        if not shapes:
            raise BadAdapter(f"No adapters are served on {self.name}: it is not of the Llama family.")
        return Target(shapes=shapes)

    @cached_property
    def measured(self) -> Target:
        """The same: of a chat model no norms are told."""
        return self.target

    def admit(self, file: Path) -> None:
        with opened(file) as adapter:
            changes = adapter.parts["any"].changes
            full = [place for place, change in changes.items() if change.low_rank is None or "b_bias" in change.tensors]
            full += adapter.parts["any"].deltas
        if full:
            raise BadAdapter(
                f"On chats low-rank changes of weights are served alone, and these are others: {listed(full)}.", full
            )

    def _of_directory(self, place: Path) -> dict[str, tuple[int, ...]]:
        about = place / "config.json"
        config = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
        if config.get("model_type") not in FAMILIES:
            return {}
        return {name: shape for name, shape in shapes_of(place).items() if IN_DIRECTORY.fullmatch(name)}

    def _of_file(self, place: Path) -> dict[str, tuple[int, ...]]:
        about = place.stat()
        kept = self._kept / f"{place.stem}-{about.st_size}-{about.st_mtime_ns}.json"
        told = read_json(kept)
        if told is None:
            # Of the extra `text`, and slow: a vocabulary is read as well.
            import gguf  # noqa: PLC0415

            told = {
                f"model.layers.{found[1]}.{PROJECTIONS[found[2]]}.weight": [int(size) for size in tensor.shape[::-1]]
                for tensor in gguf.GGUFReader(place).tensors
                if (found := IN_FILE.fullmatch(tensor.name))
            }
            write_json(kept, told)
        return {name: tuple(shape) for name, shape in told.items()}
