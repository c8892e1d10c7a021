"""Chats with adapters: rows of one forward with different ones, beside peft, and what is kept of them apart."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from videoserve.config import Settings
from videoserve.errors import BadAdapter, JobFailed
from videoserve.planning.chat_model import ChatCard
from videoserve.storage.adapters import Adapters, Offer
from videoserve.storage.open_adapters import open_chat_adapters
from videoserve.text.batch import Batch, Part
from videoserve.text.load import load_model
from videoserve.text.pools import BLOCK
from videoserve.types import AdapterUse
from videoserve_lora.canonical import opened
from videoserve_lora.slots import Slots, Use
from videoserve_lora.source import Source

PROMPT = list(range(40, 40 + 2 * BLOCK + 5))
Q = "model.layers.{}.self_attn.q_proj"
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data")


@pytest.fixture
def adapters(settings: Settings, chat_dir: Callable[[str], Path]) -> Callable[[str], Adapters]:
    return lambda family: open_chat_adapters(settings, ChatCard(name=family, source=str(chat_dir(family))))


@pytest.fixture
def made(adapters: Callable[[str], Adapters], tmp_path: Path) -> Callable[..., AdapterUse]:
    """made(seed) -> an adapter of some matrices of the tiny Llama."""

    def make(seed: int, weight: float = 1.0) -> AdapterUse:
        target = adapters("llama").target.target
        places = [place for place in sorted(target.matrices) if seed % 2 or "q_proj" in place or "down_proj" in place]
        return AdapterUse(digest=added(adapters("llama"), drawn(target, places, seed), tmp_path), weight=weight)

    return make


def drawn(target: Any, places: Sequence[str], seed: int, rank: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    tensors = {}
    for place in places:
        outputs, inputs = target.matrix(place)
        tensors[f"{place}.lora_A.weight"] = generator.standard_normal((rank, inputs), np.float32)
        tensors[f"{place}.lora_B.weight"] = generator.standard_normal((outputs, rank), np.float32) / 5
    return tensors


def added(adapters: Adapters, tensors: dict[str, Any], folder: Path) -> str:
    save_file(tensors, folder / "sent.safetensors")
    ask, _ = adapters.bring(Offer(name="sent", sources=[Source(path=folder / "sent.safetensors", alpha=6.0)]))
    assert ask.digest is not None
    return ask.digest


def logits_of(model: Any, parts: Sequence[tuple[list[int], Any]]) -> torch.Tensor:
    """Of the last token of each prompt, with its set of adapters, all in one forward."""
    pool, first = model.pool(0.02, 4), 0
    batch = []
    for tokens, adapted in parts:
        count = -(-len(tokens) // BLOCK)
        blocks = list(range(first, first + count))
        batch.append(Part(tokens=tokens, start=0, blocks=blocks, logits=True, adapted=adapted))
        first += count
    found: torch.Tensor = model.forward(Batch.of(batch, BLOCK, model.device), pool)
    return found


@pytest.mark.parametrize(("family", "int8"), [("llama", False), ("qwen3", False), ("llama", True)])
def test_rows_with_different_adapters_in_one_forward_are_those_of_each_alone(
    family: str, int8: bool, adapters: Callable[[str], Adapters], chat_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    own = adapters(family)
    model = load_model(str(chat_dir(family)), device=torch.device("cpu"), dtype=torch.float32, int8=int8).model
    places = sorted(own.target.target.matrices)
    sets = []
    for seed, some in enumerate((places, [place for place in places if "v_proj" in place or "up_proj" in place])):
        digest = added(own, drawn(own.target.target, some, seed), tmp_path)
        with opened(own.store.path(digest)) as adapter:
            sets.append(model.adapted(Slots([Use(digest=digest, adapter=adapter, weight=0.7)], "any")))
    a, b = sets
    prompts = [(PROMPT[:20], a), (PROMPT[3:30], None), (PROMPT[:9], b), (PROMPT[:11], a)]
    alone = torch.cat([logits_of(model, [each]) for each in prompts])
    # Products of other sizes differ in their last bits; in 8 bits a value may then be the next one.
    close = {"rtol": 0, "atol": 0.2 if int8 else 1e-4}
    torch.testing.assert_close(logits_of(model, prompts), alone, **close)
    plain = torch.cat([logits_of(model, [(tokens, None)]) for tokens, _ in prompts])
    changed = (alone - plain).abs().amax(dim=1) > 1
    assert changed.tolist() == [True, False, True, True]


# Of peft, which asks transformers by an old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_adapter_gives_what_it_gives_merged_by_peft(
    family: str,
    adapters: Callable[[str], Adapters],
    chat_dir: Callable[[str], Path],
    truth: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    peft = pytest.importorskip("peft", reason="peft, of the dev extra, is what this is compared with.")
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=list(ALL), init_lora_weights=False)
    torch.manual_seed(3)
    theirs = peft.get_peft_model(truth(family), config)
    theirs.save_pretrained(tmp_path / "peft")
    own = adapters(family)
    source = Source(path=tmp_path / "peft" / "adapter_model.safetensors", alpha=6.0)
    digest = own.bring(Offer(name="peft", sources=[source]))[0].digest
    assert digest is not None
    model = load_model(str(chat_dir(family)), device=torch.device("cpu"), dtype=torch.float32, int8=False).model
    with opened(own.store.path(digest)) as adapter:
        adapted = model.adapted(Slots([Use(digest=digest, adapter=adapter, weight=1.0)], "any"))
    with torch.inference_mode():
        expected = theirs.merge_and_unload()(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(logits_of(model, [(PROMPT, adapted)])[0], expected, rtol=1e-4, atol=1e-4)
    assert (logits_of(model, [(PROMPT, None)])[0] - expected).abs().max() > 0.1


def test_chats_with_different_adapters_beside_each_other(
    talk: Callable[..., Any], settings: Settings, made: Callable[..., AdapterUse]
) -> None:
    sets = [(made(1),), (), (made(2),), tuple(sorted((made(1, 0.5), made(2, -1.0)), key=lambda use: use.digest))]
    alone = []
    for loras in sets:
        told = talk(data=settings.data).ask(tokens=tuple(PROMPT), max_tokens=12, ignore_eos=True, loras=loras)
        alone.append(told["choices"][0]["tokens"])
    assert len({tuple(tokens) for tokens in alone}) == len(sets)
    together = talk(data=settings.data)
    jobs = [together.admit(tokens=tuple(PROMPT), max_tokens=12, ignore_eos=True, loras=loras) for loras in sets]
    together.finish()
    assert [together.tokens(job) for job in jobs] == alone


def test_a_beginning_is_found_by_the_same_adapters_only(
    talk: Callable[..., Any], settings: Settings, made: Callable[..., AdapterUse]
) -> None:
    engine = talk(data=settings.data)

    def cached(*loras: AdapterUse, tenant: str = "t") -> int:
        job = engine.admit(tokens=tuple(PROMPT), max_tokens=2, ignore_eos=True, loras=loras, tenant=tenant)
        engine.finish()
        found: int = engine.receipt(job)["usage"]["cached_tokens"]
        return found

    whole = 2 * BLOCK
    assert (cached(), cached()) == (0, whole)
    assert (cached(made(1)), cached(made(1))) == (0, whole)
    assert (cached(made(1, 0.5)), cached(made(2)), cached(made(1), made(2))) == (0, 0, 0)
    assert (cached(made(1), tenant="other"), cached(), cached(made(1))) == (0, whole, whole)


def test_what_other_processes_find_is_kept_by_adapters(
    talk: Callable[..., Any], settings: Settings, made: Callable[..., AdapterUse]
) -> None:
    kept = Keeping()
    engine = talk(data=settings.data, cache=kept)
    for loras in ((), (made(1),), (made(1, 0.5),), (made(2),)):
        engine.ask(tokens=tuple(PROMPT * 4), max_tokens=2, ignore_eos=True, loras=loras)
    engine.engine.close()
    # A whole group and what is behind it, each by the adapters that it was computed with and by their weights.
    whole = kept.keys[::2]
    assert [key.loras for key in whole] == [(), (made(1).digest,), (made(1).digest,), (made(2).digest,)]
    assert len({key.digest for key in kept.keys}) == 8
    assert set(whole) <= set(kept.asked)


class Keeping:
    """A shared cache that has nothing and notes what it is asked for and given."""

    drops = 0

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.keys: list[Any] = []

    def get(self, key: Any) -> None:
        self.asked.append(key)

    def put(self, key: Any, *content: Any, **about: Any) -> bool:
        self.keys.append(key)
        return True


def test_an_adapter_that_goes_while_a_chat_has_it_stays_until_its_end(
    talk: Callable[..., Any], settings: Settings, made: Callable[..., AdapterUse], adapters: Callable[[str], Adapters]
) -> None:
    use = made(1)
    asked: dict[str, Any] = {"tokens": tuple(PROMPT), "max_tokens": 12, "ignore_eos": True, "loras": (use,)}
    expected = talk(data=settings.data).ask(**asked)["choices"][0]["tokens"]
    engine = talk(data=settings.data, adapter_memory=1)
    job = engine.admit(**asked)
    engine.engine.step(engine.events.append)
    adapters("llama").store.discard(use.digest)
    # Another one makes it the set that was used last no longer.
    other = engine.admit(tokens=tuple(PROMPT), max_tokens=2, loras=(made(2),))
    engine.finish()
    assert engine.tokens(job) == expected
    assert engine.tokens(other)
    with pytest.raises(JobFailed, match="No adapter has the digest") as failed:
        engine.admit(**asked)
    assert failed.value.code == "adapter_unusable"


REFUSED: list[tuple[dict[str, tuple[int, ...]], str]] = [
    ({Q.format(9) + ".lora_A.weight": (2, 48), Q.format(9) + ".lora_B.weight": (48, 2)}, "match no module"),
    ({"model.embed_tokens.lora_A.weight": (2, 257), "model.embed_tokens.lora_B.weight": (48, 2)}, "match no module"),
    ({Q.format(0) + ".lora_A.weight": (2, 40), Q.format(0) + ".lora_B.weight": (48, 2)}, "for a weight of"),
    ({Q.format(0) + ".lora_A.weight": (2, 48)}, "without their lora_B"),
    ({Q.format(0) + ".diff": (48, 48)}, "low-rank changes of weights are served alone"),
    ({Q.format(0) + ".lokr_w1": (6, 6), Q.format(0) + ".lokr_w2": (8, 8)}, "low-rank changes of weights"),
]  # fmt: skip


@pytest.mark.parametrize(("shapes", "words"), REFUSED)
def test_what_does_not_fit_is_refused_with_its_keys(
    shapes: dict[str, tuple[int, ...]], words: str, adapters: Callable[[str], Adapters], tmp_path: Path
) -> None:
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(BadAdapter, match=words) as refused:
        added(adapters("llama"), tensors, tmp_path)
    assert refused.value.keys


def test_other_families_take_none(
    adapters: Callable[[str], Adapters], chat_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    place = next(iter(sorted(adapters("llama").target.target.matrices)))
    with pytest.raises(BadAdapter, match="No adapters are served on v4"):
        added(adapters("v4"), {f"{place}.lora_A.weight": np.ones((1, 48), np.float32)}, tmp_path)
    v4 = load_model(str(chat_dir("v4")), device=torch.device("cpu"), dtype=torch.float32, int8=False).model
    with pytest.raises(ValueError, match="not served on models of the DeepSeek-V4 family"):
        v4.adapted(Slots([], "any"))


def test_the_file_of_smollm2_has_the_places_of_its_model(settings: Settings, smollm2: Any, tmp_path: Path) -> None:
    own = open_chat_adapters(settings, ChatCard(name="smollm2", source="smollm2"))
    target = own.target.target
    assert len(target.matrices) == 7 * smollm2.model.shape.layers
    digest = added(own, drawn(target, sorted(target.matrices), 0), tmp_path)
    with opened(own.store.path(digest)) as adapter:
        slots = Slots([Use(digest=digest, adapter=adapter, weight=1.0)], "any")
        assert len(smollm2.model.adapted(slots).slots) == 4 * smollm2.model.shape.layers
    again = open_chat_adapters(settings, ChatCard(name="smollm2", source="smollm2"))
    assert again.target.digest == own.target.digest
