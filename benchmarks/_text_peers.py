"""One engine that answers chats, alone in a process of its own virtual environment. Imports nothing of the project.

    PYTHON _text_peers.py transformers|ctranslate2|vllm MODEL [int8]

MODEL is a directory in transformers' layout. A line of JSON on stdin is a task, {"prompts": [[ids]], "new": N}: N more
tokens of each prompt at once, greedy and past the model's end. A line of JSON on stdout answers it: {"seconds": …,
"tokens": …}. The first line says {"version": …} once the model is there.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

THREADS = 2
Generate = Callable[[list[list[int]], int], list[list[int]]]


def transformers(model: str, int8: bool) -> tuple[str, Generate]:
    import torch
    from transformers import AutoModelForCausalLM, __version__

    torch.set_num_threads(THREADS)
    causal = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        said = causal.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False
        )
        tokens: list[list[int]] = said[:, ids.shape[1] :].tolist()
        return tokens

    return __version__, generate


def ctranslate2(model: str, int8: bool) -> tuple[str, Generate]:
    import ctranslate2 as ct2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    with tempfile.TemporaryDirectory() as kept:
        ct2.converters.TransformersConverter(model).convert(
            kept, quantization="int8" if int8 else "float32", force=True
        )
        compute = "int8" if int8 else "float32"
        generator = ct2.Generator(kept, compute_type=compute, intra_threads=THREADS, inter_threads=1)

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        said = generator.generate_batch(
            [tokenizer.convert_ids_to_tokens(prompt) for prompt in prompts],
            max_length=new, min_length=new, sampling_topk=1, include_prompt_in_result=False,
        )  # fmt: skip
        return [result.sequences_ids[0] for result in said]

    return ct2.__version__, generate


def vllm(model: str, int8: bool) -> tuple[str, Generate]:
    from vllm import LLM, SamplingParams, __version__

    engine = LLM(model, dtype="float32", max_model_len=4096, max_num_seqs=32, enable_prefix_caching=False)

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        asked = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        said = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in said]

    return __version__, generate


def main() -> None:
    engine, model, *more = sys.argv[1:]
    engines: dict[str, Callable[[str, bool], tuple[str, Generate]]] = {
        "transformers": transformers, "ctranslate2": ctranslate2, "vllm": vllm,
    }  # fmt: skip
    # Libraries, and processes that they start, print what they like to stdout: answers go where nobody else writes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    version, generate = engines[engine](model, "int8" in more)
    tell(answers, {"version": version})
    for line in sys.stdin:
        task = json.loads(line)
        began = time.perf_counter()
        tokens = generate(task["prompts"], task["new"])
        tell(answers, {"seconds": time.perf_counter() - began, "tokens": tokens})


def tell(answers: Any, document: dict[str, Any]) -> None:
    print(json.dumps(document), file=answers, flush=True)


if __name__ == "__main__":
    main()
