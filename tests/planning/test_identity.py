"""What makes two requests the same to the cache: every field is classified, and each that matters is in the keys."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from videoserve.planning.card import ModelCard
from videoserve.planning.identity import (
    DENOISED,
    KINDS,
    OURS,
    PLAN,
    REQUEST,
    Kind,
    Maker,
    identify,
    keyed,
    policy_of,
    repeatable,
    twin_of,
)
from videoserve.planning.plan import plan_video
from videoserve.types import LoraAsk, VideoPlan, VideoRequest

MAKER = Maker(text="t", clip="c", vae="v", guided="g", plain="p")
BASE: dict[str, Any] = {
    "model": "m",
    "prompt": "pan left",
    "negative_prompt": "",
    "image": "0" * 64,
    "last_image": None,
    "resize_mode": "crop",
    "width": 64,
    "height": 64,
    "num_frames": 9,
    "fps": 8,
    "steps": 4,
    "guidance": 3.0,
    "guidance_2": 3.0,
    "boundary": 0.9,
    "flow_shift": None,
    "seed": 7,
    "text_length": 32,
    "latent_shape": (16, 3, 8, 8),
    "crf": 18,
    "batch_key": "x",
    "loras": [],
    "adjustments": (),
}
# Another value of each field of a plan.
OTHER: dict[str, Any] = {
    "model": "n",
    "prompt": "pan right",
    "negative_prompt": "blur",
    "image": "1" * 64,
    "last_image": "2" * 64,
    "resize_mode": "pad",
    "width": 96,
    "height": 96,
    "num_frames": 13,
    "fps": 16,
    "steps": 5,
    "guidance": 2.0,
    "guidance_2": 2.0,
    "boundary": 0.8,
    "flow_shift": 5.0,
    "seed": 8,
    "text_length": 64,
    "latent_shape": (16, 4, 8, 8),
    "crf": 23,
    "cache": {"policy": "mask", "steps": "RR.R"},
    "loras": [{"digest": "a", "weight": 1.0, "target": "all"}],
    "batch_key": "y",
    "adjustments": ("Something was changed.",),
}


def digests(plan: dict[str, Any], maker: Maker = MAKER, tenant: str = "t") -> dict[str, Any]:
    """The digests of everything a plan's video could be made from."""
    found: dict[str, Any] = {kind: identify(kind, plan, maker, tenant) for kind in KINDS[1:]}
    found["boundary, late"] = identify("boundary", plan, maker, tenant, low=True)
    for name in ("prompt", "negative_prompt"):
        found[f"text_emb, {name}"] = identify("text_emb", plan, maker, tenant, text=plan[name])
    return found


def test_every_field_is_classified() -> None:
    assert {field.name for field in fields(VideoPlan)} <= PLAN.keys()
    assert {field.name for field in fields(VideoRequest)} <= REQUEST.keys()
    assert {name for named in REQUEST.values() for name in named} <= PLAN.keys()
    assert PLAN.keys() == OTHER.keys()
    assert all(len(row) == len(KINDS) and set(row) <= set("KTLNEa-") for row in PLAN.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_nobody_has_classified_keeps_nothing(kind: Kind) -> None:
    assert identify(kind, BASE, MAKER, "t") is not None
    assert identify(kind, BASE | {"sharpness": 1}, MAKER, "t") is None


@pytest.mark.parametrize("name", PLAN)
def test_each_field_by_itself_is_in_the_keys_that_it_matters_to(name: str) -> None:
    before, after = digests(BASE), digests(BASE | {name: OTHER[name]})
    for entry, digest in after.items():
        kind, _, which = entry.partition(", ")
        letter = PLAN[name][KINDS.index(kind)]  # type: ignore[arg-type]
        matters = {
            "K": True,
            "T": which == name,
            "L": which == "late",
            # The other value is for both experts.
            "E": True,
            # The base has a first picture only.
            "N": False,
            "a": False,
            "-": False,
        }[letter]
        assert (digest != before[entry]) is matters, entry


def test_a_result_depends_on_all_that_a_plan_says_of_a_video() -> None:
    said_otherwise = {"model", "batch_key", "adjustments"}
    assert {name for name, row in PLAN.items() if row[KINDS.index("result")] != "K"} == said_otherwise


@pytest.mark.parametrize("last", [None, "2" * 64])
@pytest.mark.parametrize("frames", [1, 9])
def test_frames_are_a_length_of_the_conditioning_of_a_first_picture(last: str | None, frames: int) -> None:
    plan = BASE | {"last_image": last, "num_frames": frames}
    same = identify("img_cond", plan, MAKER, "t") == identify("img_cond", plan | {"num_frames": 13}, MAKER, "t")
    assert same is (last is None and frames > 1)


def test_adapters_of_the_low_noise_expert_come_after_the_boundary() -> None:
    def found(*loras: tuple[str, float, str]) -> dict[str, Any]:
        uses = [dict(zip(("digest", "weight", "target"), use, strict=True)) for use in loras]
        return digests(BASE | {"loras": uses})

    none, low, high, both = found(), found(("a", 1.0, "low")), found(("a", 1.0, "high")), found(("a", 1.0, "all"))
    assert low["boundary"] == none["boundary"]
    assert high["boundary"] == both["boundary"] != none["boundary"]
    assert high["boundary"] != found(("a", 0.5, "high"))["boundary"]
    for entry in ("boundary, late", "final_latent", "result"):
        assert len({each[entry] for each in (none, low, high, both)}) == 4


def test_both_texts_share_an_entry_where_they_are_equal() -> None:
    plan = BASE | {"negative_prompt": BASE["prompt"]}
    found = digests(plan)
    assert found["text_emb, prompt"] == found["text_emb, negative_prompt"]


def test_tenants_kinds_and_makers_share_nothing() -> None:
    mine = digests(BASE)
    assert len(set(mine.values())) == len(mine)
    assert not set(mine.values()) & set(digests(BASE, tenant="u").values())
    parts = {"text_emb": "text", "img_clip": "clip", "img_cond": "vae"}
    for entry, digest in mine.items():
        part = parts.get(entry.partition(",")[0], "guided")
        others = {field.name for field in fields(Maker) if field.name != part}
        assert digests(BASE, replace(MAKER, **{part: "other"}))[entry] != digest
        assert digests(BASE, replace(MAKER, **dict.fromkeys(others, "other")))[entry] == digest
    unguided = BASE | {"guidance": 1.0}
    assert digests(unguided)["result"] != digests(unguided, replace(MAKER, plain="other"))["result"]


@pytest.mark.parametrize("kind", DENOISED)
def test_what_a_calibration_decides_is_not_kept_under_the_request(kind: Kind) -> None:
    for asked in ({"quality": "fast"}, {"time_budget_s": 3.0}, {"policy": "schedule", "runs": 3}):
        assert identify(kind, BASE | {"cache": asked}, MAKER, "t") is None
        assert identify("img_cond", BASE | {"cache": asked}, MAKER, "t") == identify("img_cond", BASE, MAKER, "t")


@pytest.mark.parametrize(
    ("asked", "zero"),
    [
        ({"policy": "mask", "steps": "RR.R"}, "order"),
        ({"policy": "first_blocks", "threshold": 0.1}, "last"),
        ({"policy": "latent", "threshold": 0.1}, "threshold"),
    ],
)
def test_a_parameter_that_is_0_is_not_one_that_was_left_out(asked: dict[str, Any], zero: str) -> None:
    given = asked | {zero: 0}
    assert policy_of(given, verify=True) == given
    assert digests(BASE | {"cache": given})["result"] not in (None, digests(BASE | {"cache": asked})["result"])
    given_twin, asked_twin = (twin_of(BASE | {"cache": said}, "t", strict=False) for said in (given, asked))
    assert given_twin != asked_twin


@pytest.mark.parametrize("asked", [{"quality": "fast"}, {"time_budget_s": 3.0}, {"policy": "schedule", "runs": 3}])
def test_a_request_that_fails_without_a_calibration_is_no_twin_of_one_that_does_not(asked: dict[str, Any]) -> None:
    plan = BASE | {"cache": asked}
    assert twin_of(plan, "t", strict=True) != twin_of(plan, "t", strict=False)
    # Elsewhere being strict is done with once there is a plan.
    assert twin_of(BASE, "t", strict=True) == twin_of(BASE, "t", strict=False) is not None


def test_twins_are_told_the_same() -> None:
    plans = [BASE, BASE | {"adjustments": ("Another size is used.",)}, BASE | {"cache": {"reuse": True}}]
    assert len({twin_of(plan, "t", strict=False) for plan in plans}) == len(plans)


def test_how_to_use_the_cache_is_no_part_of_what_is_computed() -> None:
    mask = {"policy": "mask", "steps": "RR.R"}
    assert policy_of(None, verify=True) == policy_of({"quality": "exact"}, verify=True) == {"quality": "exact"}
    assert policy_of(mask | dict.fromkeys(OURS, 0.9), verify=True) == mask
    assert policy_of(mask | {"verify": True}, verify=False) == policy_of(mask | {"verify": False}, verify=True) == mask
    verified, plain = BASE | {"cache": mask | {"verify": True}}, BASE | {"cache": mask}
    assert identify("result", verified, MAKER, "t") != identify("result", plain, MAKER, "t")
    assert identify("final_latent", verified, MAKER, "t") == identify("final_latent", plain, MAKER, "t")


def test_without_a_seed_nobody_asks_for_the_same_video_again() -> None:
    assert repeatable({"seed": 0})
    assert not any(repeatable(request) for request in ({}, {"seed": None}, {"seed": -1}))


@pytest.fixture(scope="module")
def card(tiny_model_dir: Any) -> ModelCard:
    directory: Path = tiny_model_dir("wan22-a14b")
    return ModelCard.read(directory)


def lora(digest: str = "a" * 64, **fields: Any) -> LoraAsk:
    return LoraAsk(**{"name": digest[0], "digest": digest, "parts": ("high", "low")} | fields)


MASK = {"policy": "mask", "steps": "RR.R"}
# Requests that differ from another in one field: what they say, and what it says of that field, nothing if not told.
SAID: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        (said, {})
        for said in (
            {"prompt": "other"},
            {"image": "1" * 64},
            {"last_image": "1" * 64},
            {"seconds": 1.0},
            {"size": "96x64"},
            {"width": 96},
            {"height": 96},
            {"num_frames": 17},
            {"fps": 5},
            {"num_inference_steps": 3},
            {"guidance_scale": 4.0},
            {"guidance_scale_2": 4.0},
            {"flow_shift": 4.0},
            {"boundary_ratio": 0.5},
            {"negative_prompt": "blur"},
            {"seed": 8},
            {"resize_mode": "pad"},
            {"quality": "low"},
            {"cache": MASK},
            {"loras": (lora(),)},
            {"model": "tiny"},
            {"image_notes": ("A note.",)},
            {"strict": True},
            {"priority": 3},
            {"deadline_s": 60.0},
            {"user": "me"},
        )
    ),
    ({"cache": MASK}, {"cache": {"policy": "mask", "steps": "RRRR"}}),
    ({"cache": MASK}, {"cache": MASK | {"order": 0}}),
    ({"cache": MASK}, {"cache": MASK | {"verify": True}}),
    ({"loras": (lora(),)}, {"loras": (lora("b" * 64),)}),
    ({"loras": (lora(),)}, {"loras": (lora(scale=0.5),)}),
    ({"loras": (lora(),)}, {"loras": (lora(target="high"),)}),
    ({"loras": (lora(target="low"),)}, {"loras": (lora(target="high"),)}),
    ({"loras": (lora(),)}, {"loras": (lora(), lora("b" * 64, scale=0.01))}),
]


def test_every_field_of_a_request_is_tried() -> None:
    assert {name for said, _ in SAID for name in said} == {field.name for field in fields(VideoRequest)}


@pytest.mark.parametrize(("said", "otherwise"), SAID, ids=lambda said: ",".join(said) or "-")
def test_a_request_that_differs_in_one_field_that_matters_has_another_result(
    card: ModelCard, said: dict[str, Any], otherwise: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"prompt": "p", "image": "0" * 64, "seed": 7, "width": 64, "height": 64, "num_frames": 9}
    asked |= {"fps": 8, "num_inference_steps": 4}

    def result(more: dict[str, Any]) -> str:
        plan = plan_video(VideoRequest(**(asked | more)), card, (64, 64), random_seed=0)
        found = identify("result", plan.to_dict(), MAKER, "t")
        assert found is not None
        return found

    said = {name: card.name if name == "model" else value for name, value in said.items()}
    gone = {"size": ("width", "height"), "seconds": ("num_frames",)}.get(next(iter(said)), ())
    asked = {name: value for name, value in asked.items() if name not in gone}
    matters = any(REQUEST[name] for name in said)
    assert (result(otherwise) != result(said)) is matters


def test_keyed_names_fields_of_the_plan() -> None:
    assert keyed("boundary", BASE) == [n for n in keyed("boundary", BASE, low=True) if n != "guidance_2"]
