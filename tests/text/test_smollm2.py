"""SmolLM2 itself: our engine against transformers on the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from videoserve.text.batch import Batch, Part
from videoserve.text.gguf_file import read_gguf
from videoserve.text.load import Loaded, found, load_model
from videoserve.text.pools import BLOCK, KvPool
from videoserve.text.shape import UnknownModelError

CPU = torch.device("cpu")
ASKED = (
    "What is {}?", "Write a haiku about {}.", "Explain {} to a child.", "List three facts about {}.",
    "def {}(n):", "Was ist {}?", "Tell me a story of {} in two sentences.", "Say {} backwards.",
)  # fmt: skip
THINGS = ("the sea", "gravity", "fibonacci", "12 times 12", "Paris", "an owl 🦉", "日本", "rain; or snow")
PROMPTS = [asked.format(thing) for asked in ASKED for thing in THINGS]
NEW = 64
# Where the two likeliest tokens are nearer than this, either may come first.
TIE = 1e-4


@pytest.fixture(scope="module")
def peer(smollm2: Loaded, tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    """transformers' Llama with the weights of the GGUF file, its heads laid out as transformers has them."""
    source = read_gguf(found("smollm2"))
    shape = source.shape
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context, rms_norm_eps=shape.eps, rope_theta=shape.theta,
        tie_word_embeddings=True,
    )  # fmt: skip
    weights = dict(source.weights)
    for name in weights:
        if "q_proj" in name or "k_proj" in name:
            pairs = torch.unflatten(weights[name], 0, (-1, shape.head_dim // 2, 2))
            weights[name] = pairs.transpose(1, 2).flatten(0, 2)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    left = model.load_state_dict(weights, strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


def prompt_of(loaded: Loaded, text: str) -> list[int]:
    vocabulary = loaded.vocabulary
    return vocabulary.encode(vocabulary.render([{"role": "user", "content": text}]), whole=False)


def test_the_template_and_the_tokens_are_transformers_own(smollm2: Loaded) -> None:
    vocabulary = smollm2.vocabulary
    peer = PreTrainedTokenizerFast(tokenizer_object=vocabulary.tokenizer, eos_token=vocabulary.end)
    for text in ("héllo 🦊  12345\n\n\tdef f(x):", "<|im_start|>user", "日本語"):
        messages = [{"role": "user", "content": text}]
        rendered = peer.apply_chat_template(
            messages, chat_template=vocabulary.template, add_generation_prompt=True, tokenize=False
        )
        assert vocabulary.render(messages) == rendered
        ids = vocabulary.encode(text)
        assert b"".join(vocabulary.pieces[i] for i in ids).decode() == text


@pytest.mark.slow
def test_greedy_answers_are_transformers_own_token_for_token(smollm2: Loaded, peer: LlamaForCausalLM) -> None:
    prompts = [prompt_of(smollm2, text) for text in PROMPTS]
    width = 1 + (max(len(prompt) for prompt in prompts) + NEW) // BLOCK
    pool = KvPool(smollm2.model.shape, width * len(prompts), device=CPU, dtype=torch.float32)
    tables = [list(range(width * i, width * (i + 1))) for i in range(len(prompts))]
    texts = [list(prompt) for prompt in prompts]
    parts = [Part(tokens=t, start=0, blocks=b, logits=True) for t, b in zip(texts, tables, strict=True)]
    steps = []
    for _ in range(NEW):
        logits = smollm2.model.forward(Batch.of(parts, BLOCK, CPU), pool)
        steps.append(logits)
        for text, row in zip(texts, logits, strict=True):
            text.append(int(row.argmax()))
        parts = [
            Part(tokens=t[-1:], start=len(t) - 1, blocks=b, logits=True) for t, b in zip(texts, tables, strict=True)
        ]
    ties = []
    for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        with torch.inference_mode():
            expected = peer(torch.tensor([text[:-1]]), logits_to_keep=NEW).logits[0]
        ours = torch.stack([step[i] for step in steps])
        # Logits are up to 30: float32 itself moves them by some 1e-5.
        assert float((ours - expected).abs().max()) <= 1e-4 * max(1.0, float(expected.abs().max()) / 10)
        first, second = expected.topk(2).values.unbind(-1)
        same = expected.argmax(-1) == torch.tensor(text[len(prompt) :])
        ties += [(PROMPTS[i], place) for place in (~same).nonzero().flatten().tolist()]
        assert bool((same | (first - second < TIE)).all())
    print(f"{len(ties)} of {NEW * len(prompts)} tokens are ties: {ties}")


def test_a_file_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2: Loaded) -> None:
    def load(name: Any) -> None:
        load_model(str(name), device=CPU, dtype=torch.float32, int8=False)

    with pytest.raises(UnknownModelError, match="There is no chat model 'absent'"):
        load(tmp_path / "absent")
    (tmp_path / "text.gguf").write_bytes(b"not a model at all")
    with pytest.raises(UnknownModelError, match=r"text\.gguf is no GGUF file"):
        load(tmp_path / "text.gguf")
    content = found("smollm2").read_bytes()
    for size, words in ((3000, "middle of its header|middle of a tensor"), (60_000_000, "middle of a tensor")):
        (tmp_path / "cut.gguf").write_bytes(content[:size])
        with pytest.raises(UnknownModelError, match=words):
            load(tmp_path / "cut.gguf")
