"""Any accepted file can be had for diffusers and for ComfyUI, and read again it is the same adapter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_wan_lora_to_diffusers
from safetensors.torch import load_file
from torch import Tensor

from videoserve_lora.adapter import Adapter, PartName
from videoserve_lora.canonical import opened, write_canonical
from videoserve_lora.check import checked
from videoserve_lora.convert import convert
from videoserve_lora.source import Source
from videoserve_lora.target import Target

Q = "blocks.0.self_attn.q"


def odd(target: Target, known: Any) -> dict[str, Tensor]:
    """A file with something of every kind, in several types."""
    file = known(target, alpha=3.0, ranks=(4, 7)).only(lambda place: ".attn2" in place).file("bare, native")
    generator = torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return {
        **{key: tensor.half() if "lora_A" in key else tensor.bfloat16() for key, tensor in file.items()},
        **{f"{Q}.lokr_w1": draw(2, 2), f"{Q}.lokr_w2_a": draw(24, 3), f"{Q}.lokr_w2_b": draw(3, 24).half()},
        f"{Q}.alpha": torch.tensor(0.7),
        **{f"blocks.1.ffn.0.lokr_w{n}": draw(*shape) for n, shape in ((1, (8, 6)), (2, (9, 8)))},
        **{f"blocks.1.ffn.2.hada_w{n}_a": draw(48, 2) for n in (1, 2)},
        **{f"blocks.1.ffn.2.hada_w{n}_b": draw(2, 72) for n in (1, 2)},
        "blocks.0.self_attn.k.diff_b": draw(48).to(torch.float8_e4m3fn),
        "blocks.1.norm3.diff": draw(48),
        "blocks.1.modulation.diff": draw(1, 6, 48),
        "patch_embedding.lora_A.weight": draw(2, 16, 1, 2, 2),
        "patch_embedding.lora_B.weight": draw(48, 2, 1, 1, 1),
        "patch_embedding.lora_B.bias": draw(48),
        "patch_embedding.alpha": torch.tensor(5.0),
        "head.head.diff": draw(64, 48).bfloat16(),
    }


def same_bits(one: Adapter, other: Adapter, part: PartName = "any") -> bool:
    """Whether the changes of all parameters are equal bit for bit."""
    left, right = one.parts[part], other.parts[part]
    pairs = [(left.delta(name), right.delta(name)) for name in left.parameters]
    return left.parameters == right.parameters and all(
        a is not None and b is not None and np.array_equal(a, b) for a, b in pairs
    )


def test_the_canonical_file_is_the_adapter_bit_for_bit(ti2v: Target, known: Any, check: Any, tmp_path: Path) -> None:
    adapter = check(odd(ti2v, known), ti2v).adapter
    digest = write_canonical(adapter, tmp_path / "one")
    with opened(tmp_path / "one") as again:
        assert same_bits(adapter, again)
        assert write_canonical(again, tmp_path / "two") == digest
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    # The library of everyone else reads it too.
    theirs = load_file(tmp_path / "one")["any.blocks.1.norm2.weight.diff"]
    assert torch.equal(theirs, odd(ti2v, known)["blocks.1.norm3.diff"])


def test_another_file_is_not_taken_for_a_canonical_one(save: Any) -> None:
    path = save({"any.proj_out.weight.diff": torch.ones(64, 48)}, {"format": "videoserve-adapter-2"})
    with pytest.raises(ValueError, match="is not of the form videoserve-adapter-1"), opened(path):
        pass


def test_comfyui_and_back_is_the_same_file(ti2v: Target, known: Any, check: Any, tmp_path: Path) -> None:
    adapter = check({k: t for k, t in odd(ti2v, known).items() if "lora_B.bias" not in k}, ti2v).adapter
    done = convert(adapter, tmp_path / "comfy.safetensors", "comfyui")
    assert done.files == (tmp_path / "comfy.safetensors",)
    assert done.unread == ()
    again = check(done.files[0], ti2v)
    assert again.report.layout == "comfyui + LoKr + LoHa"
    assert write_canonical(again.adapter, tmp_path / "b") == write_canonical(adapter, tmp_path / "a")


def test_comfyui_reads_a_bias_beside_b_as_a_full_delta(ti2v: Target, known: Any, check: Any, tmp_path: Path) -> None:
    adapter = check(odd(ti2v, known), ti2v).adapter
    done = convert(adapter, tmp_path / "comfy.safetensors", "comfyui")
    assert "diffusion_model.patch_embedding.diff_b" in load_file(done.files[0])
    assert same_bits(adapter, check(done.files[0], ti2v).adapter)


def test_diffusers_and_back_makes_the_same_changes(ti2v: Target, known: Any, check: Any, tmp_path: Path) -> None:
    adapter = check(odd(ti2v, known), ti2v).adapter
    done = convert(adapter, tmp_path / "d.safetensors", "diffusers")
    again = check(done.files[0], ti2v).adapter
    ours, theirs = adapter.parts["any"], again.parts["any"]
    assert ours.parameters == theirs.parameters
    for name in ours.parameters:
        one, other = ours.delta(name), theirs.delta(name)
        place = name.removesuffix(".weight")
        # A product of Kronecker or Hadamard factors is summed in another order when it is a low-rank one.
        exact = place not in ours.changes or ours.changes[place].kind == "LoRA" or ours.changes[place].low_rank is None
        assert one is not None
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if exact else 1e-5)
    # What diffusers itself would refuse is told.
    assert "transformer.blocks.1.norm2.diff" in done.unread
    assert not any("attn2" in key for key in done.unread)


@pytest.mark.parametrize("alpha", [None, 3.0])
def test_what_is_written_for_diffusers_is_what_diffusers_makes_of_comfyui(
    alpha: float | None, ti2v: Target, known: Any, check: Any, tmp_path: Path
) -> None:
    expected = known(ti2v, alpha=alpha).only(lambda place: place.startswith("blocks."))
    adapter = check(expected.file("kohya"), ti2v).adapter
    ours = load_file(convert(adapter, tmp_path / "d", "diffusers").files[0])
    comfy = load_file(convert(adapter, tmp_path / "c", "comfyui").files[0])
    theirs = _convert_non_diffusers_wan_lora_to_diffusers(comfy)
    assert set(ours) == set(theirs)
    for key in (key for key in ours if "lora_A" in key):
        one, other = (file[key.replace("lora_A", "lora_B")] @ file[key] for file in (ours, theirs))
        assert (one - other).abs().max() < 1e-6


def test_a_pair_is_one_file_for_diffusers_and_two_for_comfyui(
    targets: dict[str, Target], known: Any, check: Any, tmp_path: Path
) -> None:
    target = targets["wan22-a14b"]
    high, low = (known(target, alpha=2.0, ranks=(rank,)).file("comfyui") for rank in (3, 4))
    file = {
        key.replace("diffusion_model.", f"diffusion_model.transformer_{n}."): tensor
        for n, half in ((1, high), (2, low))
        for key, tensor in half.items()
    }
    adapter = check(file, target).adapter
    one = convert(adapter, tmp_path / "pair.safetensors", "diffusers").files
    assert one == (tmp_path / "pair.safetensors",)
    again = check(one[0], target).adapter
    assert same_bits(adapter, again, "high")
    assert same_bits(adapter, again, "low")
    two = convert(adapter, tmp_path / "pair.safetensors", "comfyui").files
    assert [path.name for path in two] == ["pair-high.safetensors", "pair-low.safetensors"]
    sources = [Source(path=path, expert=name) for path, name in zip(two, ("high", "low"), strict=True)]
    with checked(sources, target) as found:
        assert write_canonical(found.adapter, tmp_path / "x") == write_canonical(adapter, tmp_path / "y")
