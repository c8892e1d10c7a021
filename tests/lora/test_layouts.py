"""Every layout of one known change makes the same effective weights; diffusers' own converters agree."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers.loaders.lora_conversion_utils import (
    _convert_musubi_wan_lora_to_diffusers,
    _convert_non_diffusers_wan_lora_to_diffusers,
)
from torch import Tensor

from videoserve_lora.canonical import write_canonical
from videoserve_lora.check import checked
from videoserve_lora.source import Source
from videoserve_lora.target import Target

MODELS = ("wan21-i2v", "wan22-a14b", "wan22-ti2v")
SUBSETS: dict[str, Callable[[str], bool]] = {
    "all": lambda place: True,
    "block 1": lambda place: place.startswith("blocks.1."),
    "attention": lambda place: ".attn" in place,
    "head": lambda place: place == "proj_out",
}
PEFT_ALPHA = 2.0


def expert(model: str) -> dict[str, str]:
    return {"expert": "both"} if model == "wan22-a14b" else {}


@pytest.mark.parametrize("alpha", [None, 2.0])
@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_of_one_change_is_one_adapter(
    model: str,
    subset: str,
    alpha: float | None,
    targets: dict[str, Target],
    known: Any,
    layouts: tuple[str, ...],
    check: Any,
    differs: Any,
    tmp_path: Path,
) -> None:
    expected = known(targets[model], alpha=alpha, ranks=(4, 1, 3)).only(SUBSETS[subset])
    digests = set()
    for layout in layouts:
        if layout == "peft" and alpha is None:
            continue
        found = check(expected.file(layout), targets[model], **expert(model))
        assert differs(found.adapter, expected) < 1e-6, layout
        assert found.report.unused == ()
        assert found.report.parts["any"].modules == len(expected.places)
        digests.add(write_canonical(found.adapter, tmp_path / "canonical"))
    assert len(digests) == 1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_file_of_fewer_bits_is_taken_as_it_is(
    kind: torch.dtype, ti2v: Target, known: Any, layouts: tuple[str, ...], check: Any, tmp_path: Path
) -> None:
    expected = known(ti2v, alpha=1.0, ranks=(4, 2, 3))
    digests = set()
    for layout in layouts:
        file = {key: tensor.to(kind) for key, tensor in expected.file(layout).items()}
        adapter = check(file, ti2v).adapter
        digests.add(write_canonical(adapter, tmp_path / "canonical"))
    assert len(digests) == 1
    for place in expected.places:
        a, b = (tensor.to(kind).double() for tensor in expected.pair(place))
        change = torch.from_numpy(adapter.parts["any"].changes[place].dense())
        assert (change - expected.factor(place) * b @ a).abs().max() < 1e-6


@pytest.mark.parametrize("model", ["wan21-i2v", "wan22-ti2v"])
def test_diffusers_own_converters_agree(model: str, targets: dict[str, Target], known: Any, check: Any) -> None:
    converters = {
        "comfyui": _convert_non_diffusers_wan_lora_to_diffusers,
        "kohya": _convert_musubi_wan_lora_to_diffusers,
    }
    for layout, convert in converters.items():
        expected = known(targets[model], alpha=2.0).only(lambda place: place.startswith("blocks."))
        theirs = convert(dict(expected.file(layout)))
        part = check(expected.file(layout), targets[model]).adapter.parts["any"]
        assert sorted(part.changes) == sorted(
            key.removeprefix("transformer.").removesuffix(".lora_A.weight") for key in theirs if "lora_A" in key
        )
        for place, change in part.changes.items():
            a, b = (theirs[f"transformer.{place}.lora_{half}.weight"] for half in "AB")
            assert (torch.from_numpy(change.dense()) - b @ a).abs().max() < 1e-6


def test_a_convolution_may_keep_the_axes_of_its_window(
    ti2v: Target, known: Any, check: Any, differs: Any, tmp_path: Path
) -> None:
    expected = known(ti2v).only(lambda place: place == "patch_embedding")
    a, b = expected.pair("patch_embedding")
    windowed = {
        "diffusion_model.patch_embedding.lora_A.weight": a.unflatten(1, ti2v.shapes["patch_embedding.weight"][1:]),
        "diffusion_model.patch_embedding.lora_B.weight": b[:, :, None, None, None],
    }
    adapter = check(windowed, ti2v).adapter
    assert differs(adapter, expected) < 1e-6
    flat = check(expected.file("comfyui"), ti2v).adapter
    assert write_canonical(adapter, tmp_path / "a") == write_canonical(flat, tmp_path / "b")


PAIRS = {
    "diffusers": ("transformer.", "transformer_2."),
    "comfyui": ("diffusion_model.transformer_1.", "diffusion_model.transformer_2."),
}


def halves(target: Target, known: Any) -> tuple[Any, Any]:
    """Different changes for the high-noise and the low-noise expert."""
    high = known(target, alpha=2.0, ranks=(2, 3)).only(lambda place: ".attn1" in place)
    low = known(target, alpha=2.0, ranks=(4,)).only(lambda place: ".ffn" in place)
    return high, low


@pytest.mark.parametrize("layout", PAIRS)
def test_a_pair_in_one_file(layout: str, targets: dict[str, Target], known: Any, check: Any, differs: Any) -> None:
    target = targets["wan22-a14b"]
    high, low = halves(target, known)
    single = {"diffusers": "bare, diffusers", "comfyui": "bare, native"}[layout]
    file = {
        prefix + key: tensor
        for prefix, half in zip(PAIRS[layout], (high, low), strict=True)
        for key, tensor in half.file(single).items()
    }
    adapter = check(file, target).adapter
    assert differs(adapter, high, "high") < 1e-6
    assert differs(adapter, low, "low") < 1e-6


def test_a_pair_of_files_is_the_same_adapter_as_one_file(
    targets: dict[str, Target], known: Any, layouts: tuple[str, ...], check: Any, save: Any, tmp_path: Path
) -> None:
    target = targets["wan22-a14b"]
    high, low = halves(target, known)
    one = {f"transformer.{k}": t for k, t in high.file("bare, diffusers").items()} | {
        f"transformer_2.{k}": t for k, t in low.file("bare, diffusers").items()
    }
    digests = {write_canonical(check(one, target).adapter, tmp_path / "one")}
    for layout in layouts:
        paths = [save(half.file(layout)) for half in (high, low)]
        sources = [Source(path=path, expert=name) for path, name in zip(paths, ("high", "low"), strict=True)]
        with checked(sources, target) as found:
            digests.add(write_canonical(found.adapter, tmp_path / "pair"))
    assert len(digests) == 1


def lokr(target: Target, place: str, form: str, alpha: float) -> tuple[dict[str, Tensor], Tensor]:
    """A module's tensors by role, and its change [O, I] in float64."""
    outputs, inputs = target.matrix(place)
    generator = torch.Generator().manual_seed(sum(map(ord, place)))
    draw = lambda *shape: torch.randn(*shape, generator=generator) / 8  # noqa: E731
    w1, w1_a, w1_b = draw(4, 2), draw(4, 3), draw(3, 2)
    w2, w2_a, w2_b = draw(outputs // 4, inputs // 2), draw(outputs // 4, 5), draw(5, inputs // 2)
    one = {"w1": w1} if form in ("full", "second") else {"w1_a": w1_a, "w1_b": w1_b}
    two = {"w2": w2} if form in ("full", "first") else {"w2_a": w2_a, "w2_b": w2_b}
    rank = {"full": alpha, "first": 3, "second": 5, "both": 3}[form]
    left = one["w1"].double() if "w1" in one else w1_a.double() @ w1_b.double()
    right = two["w2"].double() if "w2" in two else w2_a.double() @ w2_b.double()
    return {f"lokr_{role}": tensor for role, tensor in (one | two).items()}, torch.kron(left, right) * alpha / rank


def in_every_layout(tensors: dict[str, dict[str, Tensor]], known: Any, layouts: tuple[str, ...]) -> Iterator[Any]:
    """Files of the tensors, by place and role; one of them as LyCORIS names it."""
    for layout in layouts:
        stems = {place: known.stem(layout, place) for place in tensors}
        file = {f"{stems[place]}.{role}": each for place in tensors for role, each in tensors[place].items()}
        yield file
        if layout == "kohya":
            yield {key.replace("lora_unet_", "lycoris_"): each for key, each in file.items()}


@pytest.mark.parametrize("form", ["full", "first", "second", "both"])
def test_lokr(form: str, ti2v: Target, known: Any, layouts: tuple[str, ...], check: Any, tmp_path: Path) -> None:
    change = known(ti2v).only(lambda place: ".attn1" in place or ".ffn" in place)
    tensors, expected = {}, {}
    for place in change.places:
        roles, expected[place] = lokr(ti2v, place, form, 2.0)
        tensors[place] = roles | {"alpha": torch.tensor(2.0)}
    digests = set()
    for file in in_every_layout(tensors, change, layouts):
        found = check(file, ti2v)
        assert "LoKr" in found.report.layout
        digests.add(write_canonical(found.adapter, tmp_path / "canonical"))
    assert len(digests) == 1
    assert set(found.adapter.parts["any"].changes) == set(expected)
    for place, kron in found.adapter.parts["any"].changes.items():
        assert (torch.from_numpy(kron.dense()) - expected[place]).abs().max() < 1e-6
        assert kron.norm() == pytest.approx(float(expected[place].norm()), rel=1e-5)
        assert (kron.low_rank is None) == (form in ("full", "first"))
        if kron.low_rank:
            a, b = kron.factors()
            assert a.shape[0] == kron.low_rank
            assert abs(b @ a - expected[place].numpy()).max() < 1e-6


def loha(target: Target, place: str, ranks: tuple[int, int]) -> tuple[dict[str, Tensor], Tensor]:
    """A module's tensors by role, and its change [O, I] in float64 without a factor."""
    (outputs, inputs), generator = target.matrix(place), torch.Generator().manual_seed(sum(map(ord, place)))
    roles = {}
    for number, rank in zip((1, 2), ranks, strict=True):
        roles[f"hada_w{number}_a"] = torch.randn(outputs, rank, generator=generator) / 4
        roles[f"hada_w{number}_b"] = torch.randn(rank, inputs, generator=generator) / 4
    one, two = (roles[f"hada_w{number}_a"].double() @ roles[f"hada_w{number}_b"].double() for number in (1, 2))
    return roles, one * two


@pytest.mark.parametrize("alpha", [None, 1.5])
def test_loha(
    alpha: float | None, ti2v: Target, known: Any, layouts: tuple[str, ...], check: Any, tmp_path: Path
) -> None:
    change = known(ti2v).only(lambda place: ".attn1" in place or ".ffn" in place)
    tensors, expected, ranks = {}, {}, {}
    for number, place in enumerate(change.places):
        ranks[place] = ((3, 3), (2, 4), (1, 2))[number % 3]
        tensors[place], product = loha(ti2v, place, ranks[place])
        expected[place] = product * (1.0 if alpha is None else alpha / ranks[place][0])
        if alpha is not None:
            tensors[place]["alpha"] = torch.tensor(alpha)
    digests = set()
    for file in in_every_layout(tensors, change, layouts):
        # A raw file of peft has its alpha in a file beside it.
        if alpha is None and any(key.startswith("base_model.model.blocks") for key in file):
            continue
        found = check(file, ti2v)
        assert "LoHa" in found.report.layout
        digests.add(write_canonical(found.adapter, tmp_path / "canonical"))
    assert len(digests) == 1
    assert set(found.adapter.parts["any"].changes) == set(expected)
    for place, found_change in found.adapter.parts["any"].changes.items():
        a, b = found_change.factors()
        assert (torch.from_numpy(found_change.dense()) - expected[place]).abs().max() < 1e-6
        assert abs(b @ a - expected[place].numpy()).max() < 1e-6
        assert found_change.low_rank == ranks[place][0] * ranks[place][1]
        assert found_change.norm() == pytest.approx(float(expected[place].norm()), rel=1e-5)


def test_the_two_names_of_every_module_are_one_to_one(targets: dict[str, Target], tiny: ModuleType) -> None:
    for target in targets.values():
        assert len(set(target.named.values())) == len(target.places)
        # No native name is diffusers' name of something else.
        assert len(target.underscored) == len({*target.named})
        assert set(target.underscored.values()) == target.places


def test_a_product_of_ranks_that_is_large_goes_into_the_weight(ti2v: Target, known: Any, check: Any) -> None:
    place = known(ti2v).only(lambda place: ".attn1" in place).places[0]
    roles, expected = loha(ti2v, place, (40, 20))
    found = check({f"{place}.{role}": tensor for role, tensor in roles.items()}, ti2v)
    change = found.adapter.parts["any"].changes[place]
    assert change.low_rank is None
    assert found.report.parts["any"].dense == (place,)
    assert (torch.from_numpy(change.dense()) - expected).abs().max() < 1e-5 * float(expected.abs().max())
