"""Files as people upload them, and what becomes of each."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve_lora.canonical import write_canonical
from videoserve_lora.check import checked
from videoserve_lora.refused import Refused
from videoserve_lora.source import Source
from videoserve_lora.target import Target

Q = "diffusion_model.blocks.0.self_attn.q"


def pair(rank: int = 2, inputs: int = 48, outputs: int = 48) -> dict[str, Tensor]:
    """The change of one attention's query, as ComfyUI has it."""
    generator = torch.Generator().manual_seed(rank)
    return {
        f"{Q}.lora_A.weight": torch.randn(rank, inputs, generator=generator),
        f"{Q}.lora_B.weight": torch.randn(outputs, rank, generator=generator),
    }


def refusal(check: Any, file: dict[str, Tensor] | Path, target: Target, **options: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        check(file, target, **options)
    return refused.value


def test_keys_that_match_nothing_are_all_named(ti2v: Target, check: Any) -> None:
    strange = {"foo.lora_A.weight": torch.ones(2, 48), "foo.lora_B.weight": torch.ones(48, 2)}
    refused = refusal(check, {**pair(), **strange}, ti2v)
    assert refused.sentence == ("2 keys match no module of this model: foo.lora_A.weight, foo.lora_B.weight.")
    assert refused.keys == ("foo.lora_A.weight", "foo.lora_B.weight")


@pytest.mark.parametrize(("alpha", "rank", "factor"), [(8, 64, 0.125), (1, 32, 0.03125), (16.0, 16, 1.0)])
def test_alpha_by_rank_is_the_factor(alpha: float, rank: int, factor: float, ti2v: Target, check: Any) -> None:
    report = check({**pair(rank), f"{Q}.alpha": torch.tensor(float(alpha))}, ti2v).report.parts["any"]
    assert report.factor == (factor, factor)
    assert report.alpha == (alpha, alpha)
    assert report.ranks == {rank: 1}


def test_mixed_ranks_without_alpha_have_the_factor_one(ti2v: Target, known: Any, check: Any) -> None:
    report = check(known(ti2v, ranks=(16, 64)).file("kohya"), ti2v).report.parts["any"]
    assert report.factor == (1.0, 1.0)
    assert report.alpha is None
    assert set(report.ranks) == {16, 64}


def test_an_alpha_in_the_metadata_alone_is_told(ti2v: Target, check: Any, save: Any) -> None:
    config = '{"transformer.lora_alpha": 32, "transformer.r": 2}'
    path = save(pair(), {"lora_adapter_metadata": config})
    found = check(path, ti2v)
    assert found.report.notes == (
        "The file's metadata has the alpha 32, which is not applied; say it as alpha if it is meant.",
    )
    assert found.report.parts["any"].factor == (1.0, 1.0)
    assert check(path, ti2v, alpha=32.0).report.parts["any"].factor == (16.0, 16.0)
    assert check(path, ti2v, alpha=32.0).report.notes == ()
    assert check(save(pair(), {"config": config.replace("32", "2")}), ti2v).report.notes == ()


def test_metadata_configures_nothing(ti2v: Target, check: Any, save: Any, tmp_path: Path) -> None:
    plain, boastful = save(pair()), save(pair(), {"ss_network_alpha": "200", "lora_adapter_metadata": '{"r": 1}'})
    digests = {write_canonical(check(path, ti2v).adapter, tmp_path / "c") for path in (plain, boastful)}
    assert len(digests) == 1


def test_a_distilled_file_with_all_its_extras(ti2v: Target, check: Any, differs: Any) -> None:
    shapes = {
        "blocks.0.self_attn.q.diff_b": (48,),
        "blocks.0.self_attn.norm_k.diff": (48,),
        "blocks.1.norm3.diff": (48,),
        "blocks.1.norm3.diff_b": (48,),
        "blocks.0.modulation.diff": (1, 6, 48),
        "blocks.1.diff_m": (1, 6, 48),
        "head.modulation.diff": (1, 2, 48),
        "head.head.diff": (64, 48),
        "head.head.diff_b": (64,),
        "patch_embedding.diff": (48, 16, 1, 2, 2),
    }
    file = {key: torch.randn(shape) for key, shape in shapes.items()}
    found = check(
        {
            **file,
            "blocks.0.self_attn.q.lora_down": torch.ones(2, 48),
            "blocks.0.self_attn.q.lora_up": torch.ones(48, 2),
        },
        ti2v,
    )
    part = found.adapter.parts["any"]
    assert found.report.layout == "distill"
    assert found.report.parts["any"].deltas == len(shapes)
    places = {
        "blocks.0.self_attn.q.diff_b": "blocks.0.attn1.to_q.bias",
        "blocks.0.self_attn.norm_k.diff": "blocks.0.attn1.norm_k.weight",
        "blocks.1.norm3.diff": "blocks.1.norm2.weight",
        "blocks.1.norm3.diff_b": "blocks.1.norm2.bias",
        "blocks.0.modulation.diff": "blocks.0.scale_shift_table",
        "blocks.1.diff_m": "blocks.1.scale_shift_table",
        "head.modulation.diff": "scale_shift_table",
        "head.head.diff": "proj_out.weight",
        "head.head.diff_b": "proj_out.bias",
        "patch_embedding.diff": "patch_embedding.weight",
    }
    assert set(part.parameters) == {*places.values(), "blocks.0.attn1.to_q.weight"}
    for key, parameter in places.items():
        delta = part.delta(parameter)
        assert delta is not None
        assert torch.equal(
            torch.from_numpy(delta), file[key].flatten(1) if key == "patch_embedding.diff" else file[key]
        )


def test_a_bias_beside_b_is_scaled_with_it(ti2v: Target, check: Any) -> None:
    file = {**pair(4), f"{Q}.lora_B.bias": torch.ones(48), f"{Q}.alpha": torch.tensor(2.0)}
    delta = check(file, ti2v).adapter.parts["any"].delta("blocks.0.attn1.to_q.bias")
    assert (delta == 0.5).all()


def test_a_file_that_reads_clip_is_for_a_model_that_does(targets: dict[str, Target], known: Any, check: Any) -> None:
    file = known(targets["wan21-i2v"]).only(lambda place: place.startswith("blocks.")).file("kohya")
    extra = {"lora_unet_blocks_0_cross_attn_norm_k_img.diff": torch.ones(48)}
    refused = refusal(check, {**file, **extra}, targets["wan22-a14b"], expert="both")
    # Two modules of two matrices in two blocks, and the norm.
    assert refused.sentence.startswith("9 keys of the file are for what reads a picture's CLIP embedding (Wan 2.1 I2V)")
    assert "allow_unused=image" in refused.sentence
    found = check({**file, **extra}, targets["wan22-a14b"], expert="both", allow_unused=frozenset({"image"}))
    assert found.report.unused == tuple(sorted(refused.keys))
    assert found.report.parts["any"].modules == 20


def test_only_what_may_be_left_out_can_be_allowed_for(ti2v: Target, check: Any) -> None:
    refused = refusal(check, pair(), ti2v, allow_unused=frozenset({"imgae"}))
    assert refused.sentence == "allow_unused has 'imgae'; image and text_encoder are allowed."


def test_text_encoder_keys_are_left_out_only_if_allowed(ti2v: Target, check: Any) -> None:
    file = {**pair(), "lora_te_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight": torch.ones(2, 8)}
    assert "allow_unused=text_encoder" in refusal(check, file, ti2v).sentence
    assert check(file, ti2v, allow_unused=frozenset({"text_encoder"})).report.unused == (
        "lora_te_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight",
    )


def test_dora_is_not_additive(ti2v: Target, check: Any) -> None:
    for key in (f"{Q}.dora_scale", f"{Q}.lora_magnitude_vector", f"{Q}.lora_magnitude_vector.default.weight"):
        refused = refusal(check, {**pair(), key: torch.ones(48)}, ti2v)
        assert "need the base's weights (DoRA)" in refused.sentence
        assert refused.keys == (key,)


@pytest.mark.parametrize("alpha", [1e10, float("inf"), float("nan"), 0.0, -1.0])
def test_a_nonsense_alpha_of_a_full_lokr_is_ignored(alpha: float, ti2v: Target, check: Any) -> None:
    file = {f"{Q}.lokr_w1": torch.ones(2, 2), f"{Q}.lokr_w2": torch.ones(24, 24), f"{Q}.alpha": torch.tensor(alpha)}
    change = check(file, ti2v).adapter.parts["any"].changes["blocks.0.attn1.to_q"]
    assert change.factor == 1
    assert (change.dense() == 1).all()


def test_another_width_is_told_in_one_sentence(ti2v: Target, check: Any) -> None:
    # A wider model is deeper too.
    deeper = {"diffusion_model.blocks.39.self_attn.q.diff_b": torch.ones(1536)}
    refused = refusal(check, {**pair(inputs=1536, outputs=1536), **deeper}, ti2v)
    assert refused.sentence == "The file was trained for width 1536; this model has 48."


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_is_a_finite_number_above_zero(alpha: float, ti2v: Target, check: Any) -> None:
    assert "are an alpha of" in refusal(check, {**pair(), f"{Q}.alpha": torch.tensor(alpha)}, ti2v).sentence


def test_alpha_of_a_raw_peft_file_is_asked_for(ti2v: Target, known: Any, check: Any, differs: Any) -> None:
    raw = known(ti2v).file("peft")
    assert "say the lora_alpha in the adapter_config.json" in refusal(check, raw, ti2v).sentence
    found = check(raw, ti2v, alpha=8.0)
    assert found.report.parts["any"].factor == (2.0, 2.0)
    assert differs(found.adapter, known(ti2v, alpha=8.0)) < 1e-6


BROKEN: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "no B": ({f"{Q}.lora_B.weight": None}, "stand without their lora_B (up)"),
    "no A": ({f"{Q}.lora_A.weight": None}, "stand without their lora_A (down)"),
    "no half of LoHa": ({"blocks.0.ffn.0.hada_w1_a": torch.ones(72, 2)}, "stand without their hada_w1_b and hada_w2_a"),
    "no half of LoKr": ({"blocks.0.ffn.0.lokr_w1": torch.ones(2, 2)}, "stand without their lokr_w2_a and lokr_w2_b"),
    "NaN": ({f"{Q}.lora_A.weight": torch.full((2, 48), torch.nan)}, "have a NaN or an Inf"),
    "Inf": ({f"{Q}.lora_B.weight": torch.full((48, 2), torch.inf)}, "have a NaN or an Inf"),
    "past the last block": ({"blocks.2.ffn.0.diff_b": torch.ones(72)}, "are for a block past this model's last, 1"),
    "twice": ({"blocks.0.self_attn.q.lora_down": torch.ones(2, 48)}, "are for the same of one module"),
    "twice over": ({"blocks.0.attn1.to_q.diff": torch.ones(48, 48)}, "are for the same of one module"),
    "two kinds": ({"blocks.0.attn1.to_q.lokr_w1": torch.ones(2, 2)}, "belong to a module that is changed twice"),
    "no matrix": ({"blocks.0.norm3.lora_A.weight": torch.ones(2, 48)}, "change a module that has no matrix"),
    "a lone alpha": ({"blocks.0.ffn.0.alpha": torch.tensor(1.0)}, "are an alpha without a change"),
    "alphas": ({f"{Q}.alpha": torch.ones(2)}, "are an alpha of more than one number"),
    "another shape": ({f"{Q}.lora_B.weight": torch.ones(47, 2)}, "are [2, 48] and [47, 2] for a weight of [48, 48]"),
    "another rank": ({f"{Q}.lora_B.weight": torch.ones(48, 3)}, "are [2, 48] and [48, 3] for a weight of [48, 48]"),
    "a vector for B": ({f"{Q}.lora_B.weight": torch.ones(48)}, "are [2, 48] and [48] for a weight of [48, 48]"),
    "a number for A": ({f"{Q}.lora_A.weight": torch.tensor(1.0)}, "are [] and [48, 2] for a weight of [48, 48]"),
    "a delta of another shape": ({"head.head.diff": torch.ones(48, 48)}, "are [48, 48] for a parameter of [64, 48]"),
    "a bias where none is": (
        {"blocks.0.self_attn.norm_k.diff_b": torch.ones(48)},
        "change a parameter that this model",
    ),
    "an unknown end": ({f"{Q}.lora_mid.weight": torch.ones(2, 2)}, "match no module of this model"),
    "a module's own weight": ({Q: torch.ones(48, 48)}, "are of no kind that is known here"),
    "LoHa of two sizes": (
        {
            f"blocks.0.ffn.2.{name}": torch.ones(shape)
            for name, shape in (
                ("hada_w1_a", (48, 2)),
                ("hada_w1_b", (2, 72)),
                ("hada_w2_a", (48, 2)),
                ("hada_w2_b", (3, 72)),
            )
        },
        "do not multiply with each other",
    ),
    "LoKr of another size": (
        {"blocks.0.ffn.2.lokr_w1": torch.ones(2, 2), "blocks.0.ffn.2.lokr_w2": torch.ones(24, 24)},
        "make a change of [48, 48] for a weight of [48, 72]",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_is_said_with_its_keys(case: str, ti2v: Target, check: Any) -> None:
    changes, why = BROKEN[case]
    file = {key: tensor for key, tensor in {**pair(), **changes}.items() if tensor is not None}
    refused = refusal(check, file, ti2v)
    assert why in refused.sentence
    assert refused.keys
    assert set(refused.keys) <= set(file)


def test_ranks_have_a_limit(ti2v: Target, check: Any) -> None:
    assert check(pair(512), ti2v).report.parts["any"].ranks == {512: 1}
    assert "are of rank 513; at most 512 is accepted" in refusal(check, pair(513), ti2v).sentence


def test_on_two_experts_it_is_asked_which_one_is_meant(targets: dict[str, Target], check: Any) -> None:
    target = targets["wan22-a14b"]
    assert "say high, low or both" in refusal(check, pair(), target).sentence
    for expert, parts in (("high", ["high"]), ("low", ["low"]), ("both", ["any"])):
        assert list(check(pair(), target, expert=expert).adapter.parts) == parts


def test_what_the_keys_say_of_the_expert_is_not_overruled(targets: dict[str, Target], check: Any) -> None:
    target = targets["wan22-a14b"]
    low = {key.replace("diffusion_model.", "diffusion_model.transformer_2."): t for key, t in pair().items()}
    assert list(check(low, target).adapter.parts) == ["low"]
    assert "its keys are for low" in refusal(check, low, target, expert="high").sentence
    assert "these do not" in refusal(check, {**low, **pair()}, target).sentence


def test_one_transformer_has_no_experts(ti2v: Target, check: Any) -> None:
    low = {key.replace("diffusion_model.", "transformer_2."): t for key, t in pair().items()}
    assert "this model has one transformer" in refusal(check, low, ti2v).sentence
    assert "no adapter is for its expert 'low'" in refusal(check, pair(), ti2v, expert="low").sentence


def test_a_pair_is_one_file_for_each_expert(targets: dict[str, Target], save: Any) -> None:
    sources = [Source(path=save(pair()), expert=expert) for expert in ("high", "both")]
    with pytest.raises(Refused, match="One file of the pair is for both"), checked(sources, targets["wan22-a14b"]):
        pass
    sources = [Source(path=save(pair()), expert="high") for _ in range(2)]
    with pytest.raises(Refused, match="are for the same of one module"), checked(sources, targets["wan22-a14b"]):
        pass


def test_a_change_that_is_as_large_as_the_model_is_suspicious(ti2v: Target, check: Any) -> None:
    target = Target(shapes=ti2v.shapes, norms={"blocks.0.attn1.to_q.weight": 2.0})
    file = {**pair(), f"{Q}.alpha": torch.tensor(2.0)}
    size = float((file[f"{Q}.lora_B.weight"] @ file[f"{Q}.lora_A.weight"]).norm())
    report = check(file, target).report
    assert report.parts["any"].ratio == {"attn1": pytest.approx(size / 2, rel=1e-5)}
    assert len(report.notes) == 1
    assert check(pair(), ti2v).report.notes == ()


def test_what_would_be_infinite_with_its_alpha(ti2v: Target, check: Any) -> None:
    file = {**pair(), f"{Q}.alpha": torch.tensor(3e38)}
    assert "are too large for their alpha" in refusal(check, file, ti2v).sentence


def test_a_text_model_has_adapters_too(check: Any) -> None:
    target = Target(shapes={"model.layers.0.self_attn.q_proj.weight": (8, 6), "model.norm.weight": (8,)})
    file = {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 6),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(8, 2),
    }
    part = check(file, target, alpha=4.0).adapter.parts["any"]
    assert (part.delta("model.layers.0.self_attn.q_proj.weight") == 4).all()
