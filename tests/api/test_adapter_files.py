"""The files that people upload, each with the outcome it must have, over HTTP."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.adapter_bytes import WIDTH, Q, Tensors, file, pair
from videoserve.api.app import create_app
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.storage.files import FileStore

pytestmark = pytest.mark.anyio
Add = Callable[..., Awaitable[httpx.Response]]


def spelled(tensors: Tensors, old: str, new: str) -> Tensors:
    return {key.replace(old, new): tensor for key, tensor in tensors.items()}


def kohya(name: str, **options: Any) -> Tensors:
    return spelled(spelled(pair(f"lora_unet{name}", **options), "lora_A", "lora_down"), "lora_B", "lora_up")


def alpha(value: float, key: str = Q) -> Tensors:
    return {f"{key}.alpha": np.array(value, np.float32)}


DISTILLED: Tensors = {
    **spelled(spelled(pair("blocks.0.self_attn.q"), "lora_A.weight", "lora_down"), "lora_B.weight", "lora_up"),
    "blocks.0.self_attn.q.diff_b": np.ones(WIDTH, np.float32),
    "blocks.0.self_attn.norm_k.diff": np.ones(WIDTH, np.float32),
    "blocks.1.norm3.diff": np.ones(WIDTH, np.float32),
    "blocks.0.modulation.diff": np.ones((1, 6, WIDTH), np.float32),
}
LOKR: Tensors = {
    f"{Q}.lokr_w1": np.ones((2, 2), np.float32),
    f"{Q}.lokr_w2": np.ones((WIDTH // 2, WIDTH // 2), np.float32),
}
TRANSFORMER = "base_model.model.diffusion_model.blocks.0.self_attn.q"
# What is sent, and what the report of its one part says of it.
ACCEPTED: dict[str, tuple[Tensors, dict[str, Any]]] = {
    "diffusers' names, no prefix": (pair("blocks.0.attn1.to_q"), {"modules": 1, "factor": [1.0, 1.0]}),
    "a prefix of peft's": (pair(TRANSFORMER), {"modules": 1}),
    "alpha 8 of rank 64": (pair(rank=64) | alpha(8), {"alpha": [8.0, 8.0], "factor": [0.125, 0.125]}),
    "alpha 1 of rank 32": (pair(rank=32) | alpha(1), {"factor": [0.03125, 0.03125]}),
    "mixed ranks": (
        pair(rank=16) | pair("diffusion_model.blocks.1.self_attn.q", rank=64),
        {"ranks": {"16": 1, "64": 1}, "alpha": None, "factor": [1.0, 1.0]},
    ),
    "one block of musubi's": (kohya("_blocks_2_self_attn_q") | kohya("_blocks_2_cross_attn_o"), {"modules": 2}),
    "two underscores": (kohya("__blocks_0_self_attn_q"), {"modules": 1}),
    "dots after the prefix": (kohya("_blocks_0.cross_attn.k"), {"modules": 1}),
    "DiffSynth's": (
        spelled(spelled(pair("blocks.0.self_attn.q"), "lora_A", "lora_A.default"), "lora_B", "lora_B.default"),
        {"modules": 1},
    ),
    "distilled": (DISTILLED, {"modules": 1, "deltas": 4}),
    "LoKr of two full factors": (LOKR | alpha(1e10), {"alpha": None, "kinds": {"LoKr": 1}}),
}
# What is sent, what its sentence says, and how many keys are at fault.
REFUSED: dict[str, tuple[Tensors, str, int]] = {
    "no key matches": (pair("foo.bar"), "2 keys match no module of this model: foo.bar.lora_A.weight", 2),
    "DoRA": (pair() | {f"{Q}.dora_scale": np.ones(WIDTH, np.float32)}, "need the base's weights (DoRA)", 1),
    "another width": (pair(width=1536), "trained for width 1536; this model has 256", 2),
    "A without B": ({f"{Q}.lora_A.weight": np.ones((2, WIDTH), np.float32)}, "stand without their lora_B", 1),
    "alpha 0": (pair() | alpha(0), "are an alpha of 0", 1),
    "a block past the last": (pair("diffusion_model.blocks.6.self_attn.q"), "past this model's last, 5", 2),
    "rank over the limit": (pair(rank=513), "at most 512 is accepted", 2),
    "one module twice": (pair() | pair("blocks.0.self_attn.q"), "", 4),
}


async def test_files_that_fit(add: Add) -> None:
    for number, (what, (tensors, found)) in enumerate(ACCEPTED.items()):
        answer = await add(file(tensors), name=f"a{number}")
        assert answer.status_code == 201, (what, answer.text)
        part = answer.json()["report"]["parts"]["any"]
        assert {name: part[name] for name in found} == found, what
        assert answer.json()["report"]["unused"] == []


async def test_files_that_do_not(add: Add, client: httpx.AsyncClient) -> None:
    for what, (tensors, words, keys) in REFUSED.items():
        answer = await add(file(tensors))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (422, "invalid_adapter", "file"), (
            what,
            answer.text,
        )
        assert words in error["message"], what
        assert len(error["keys"]) == keys, what
        assert set(error["keys"]) <= set(tensors)
    assert (await client.get("/v1/loras")).json()["data"] == []
    # A bad one leaves nothing in the way of a good one.
    assert (await add(file(pair()))).status_code == 201


async def test_alpha_of_a_peft_file_is_asked_for(add: Add) -> None:
    bare = file(pair("base_model.model.blocks.0.attn1.to_q", rank=4))
    answer = await add(bare)
    assert answer.status_code == 422
    assert "say the lora_alpha" in answer.json()["error"]["message"]
    assert (await add(bare, alpha="8")).json()["report"]["parts"]["any"]["factor"] == [2.0, 2.0]


async def test_metadata_configures_nothing(add: Add) -> None:
    plain = (await add(file(pair()))).json()
    boasts = {"ss_network_alpha": "200", "lora_adapter_metadata": '{"transformer.lora_alpha": 32, "r": 1}'}
    answer = await add(file(pair(), boasts))
    assert (answer.status_code, answer.json()["digest"]) == (200, plain["digest"])


@pytest.fixture
async def two_experts(
    settings: Settings, broker: Broker, files: FileStore, tiny_model_dir: Callable[[str], Path]
) -> Any:
    """A client of a server whose model has two experts, of width 48."""
    model = tiny_model_dir("wan22-a14b")
    app = create_app(settings.model_copy(update={"model": str(model)}), broker, files)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        yield client


async def test_two_experts(two_experts: httpx.AsyncClient, data_url: str, broker: Broker) -> None:
    async def send(name: str, low: bytes | None = None, content: bytes | None = None, **fields: Any) -> httpx.Response:
        files = {"file": content or file(pair(width=48))} | ({} if low is None else {"file_low": low})
        return await two_experts.post("/v1/loras", data={"name": name} | fields, files=files)

    async def ask(**lora: Any) -> httpx.Response:
        body = {"prompt": "", "input_reference": data_url, "lora": [lora]}
        return await two_experts.post("/v1/videos", json=body)

    answer = await send("a")
    assert "say high, low or both" in answer.json()["error"]["message"]
    for target, parts in (("high", ["high"]), ("low", ["low"]), ("all", ["any"])):
        assert list((await send(target, target=target)).json()["report"]["parts"]) == parts
    made = (await send("pair", low=file(pair(width=48, seed=2)))).json()
    assert sorted(made["report"]["parts"]) == ["high", "low"]
    assert len(made["files"]) == 2
    refused = await send("b", low=file(pair(width=48, seed=2)), target="high")
    assert refused.json()["error"]["param"] == "target"
    # What is asked for, and what of the adapter is bound to the experts.
    for name, target, bound in (
        ("pair", "all", ["all"]),
        ("pair", "low", ["low"]),
        ("high", "all", ["high"]),
        ("high", "high", ["high"]),
        ("all", "low", ["low"]),
    ):
        answer = await ask(name=name, target=target)
        assert answer.status_code == 200, answer.text
        found = await broker.get(answer.json()["id"])
        assert found is not None
        assert [use["target"] for use in found[0].plan["loras"]] == bound
    answer = await ask(name="high", target="low")
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "lora")
    assert "changes nothing" in answer.json()["error"]["message"]


async def test_what_reads_clip_is_left_out_only_if_said(two_experts: httpx.AsyncClient) -> None:
    image = {
        f"blocks.0.cross_attn.{name}": pair(f"diffusion_model.blocks.0.cross_attn.{name}", width=48)
        for name in ("k_img", "v_img")
    }
    tensors = pair(width=48) | {key: tensor for each in image.values() for key, tensor in each.items()}
    upload = {"data": {"name": "a", "target": "all"}, "files": {"file": file(tensors)}}
    answer = await two_experts.post("/v1/loras", **upload)  # type: ignore[arg-type]
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith(
        "4 keys of the file are for what reads a picture's CLIP embedding"
    )
    upload["data"]["allow_unused"] = "image"  # type: ignore[assignment]
    answer = await two_experts.post("/v1/loras", **upload)  # type: ignore[arg-type]
    assert answer.status_code == 201, answer.text
    assert len(answer.json()["report"]["unused"]) == 4
