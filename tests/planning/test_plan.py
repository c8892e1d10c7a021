"""From request to plan: snapping, defaults, reports, refusals."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve.errors import InvalidField, NotFound, ServeError
from videoserve.planning.card import ModelCard
from videoserve.planning.geometry import nearest_size, snap_frames
from videoserve.planning.plan import check_deadline, estimate, plan_video, shape_key
from videoserve.types import VideoPlan, VideoRequest

SHA = "0" * 64


@pytest.fixture(scope="module")
def card(demo_model_dir: Path) -> ModelCard:
    return ModelCard.read(demo_model_dir)


@pytest.fixture(scope="module")
def two_experts(card: ModelCard) -> ModelCard:
    return dataclasses.replace(
        card, name="pair", layout="wan22-a14b", experts=2, boundary_ratio=0.9, last_image="optional", sizes=()
    )


def planned(card: ModelCard, image_size: tuple[int, int] = (256, 256), **fields: Any) -> VideoPlan:
    request = VideoRequest(**{"prompt": "pan left", "image": SHA, "seed": 1} | fields)
    return plan_video(request, card, image_size, random_seed=77)


def test_defaults(card: ModelCard) -> None:
    plan = planned(card)
    assert (plan.width, plan.height, plan.num_frames, plan.fps, plan.steps) == (128, 128, 17, 8, 20)
    assert (plan.guidance, plan.guidance_2, plan.boundary, plan.flow_shift) == (1.5, None, None, None)
    assert plan.latent_shape == (32, 5, 16, 16)
    assert plan.negative_prompt == ""
    assert plan.crf == 18
    assert plan.adjustments == ()
    assert VideoPlan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize(("asked", "used"), [(15, 13), (33, 33), (96, 97), (82, 81), (1, 1), (4, 5), (2, 1)])
def test_frames_snap_as_in_diffusers(card: ModelCard, asked: int, used: int) -> None:
    plan = planned(card, num_frames=asked)
    assert plan.num_frames == used == max(asked // 4 * 4 + 1, 1)
    assert bool(plan.adjustments) == (asked != used)
    if asked != used:
        assert str(asked) in plan.adjustments[0]
        assert str(used) in plan.adjustments[0]
        with pytest.raises(InvalidField, match="strict") as refusal:
            planned(card, num_frames=asked, strict=True)
        assert refusal.value.param == "num_frames"


@given(st.integers(1, 2000))
def test_snapped_frames_are_the_nearest(frames: int) -> None:
    used = snap_frames(frames, 4)
    assert used % 4 == 1
    assert abs(used - frames) == min(abs(4 * k + 1 - frames) for k in range(501))


@pytest.mark.parametrize(
    ("asked", "multiple", "used"),
    [
        ((1000, 1000), 32, (992, 992)),
        ((130, 130), 32, (128, 128)),
        ((1280, 720), 32, (1280, 704)),
        ((1280, 704), 32, (1280, 704)),
        ((1000, 700), 32, (992, 704)),
        ((3, 9), 16, (16, 16)),
        ((16000, 16000), 16, (16000, 16000)),
    ],
)
def test_nearest_size(asked: tuple[int, int], multiple: int, used: tuple[int, int]) -> None:
    assert nearest_size(asked, (multiple, multiple)) == used


@given(st.integers(64, 4096), st.integers(64, 4096), st.sampled_from([16, 32]))
def test_nearest_size_keeps_size_and_aspect(width: int, height: int, multiple: int) -> None:
    used = nearest_size((width, height), (multiple, multiple))
    assert all(side % multiple == 0 for side in used)
    assert abs(used[0] - width) < multiple
    assert abs(used[1] - height) < multiple


def test_size_and_its_other_spelling(card: ModelCard) -> None:
    assert planned(card, size="130x130").adjustments[0].startswith("size is 130x130; ")
    plan = planned(card, width=160, height=96, image_size=(320, 192))
    assert (plan.width, plan.height, plan.adjustments) == (160, 96, ())
    for fields, message in (
        ({"size": "128x128", "width": 96, "height": 96}, "width and height say 96x96"),
        ({"width": 128}, "give both"),
        ({"size": "big"}, "must be WIDTHxHEIGHT"),
        ({"size": "0x128"}, "a side is from 1"),
        ({"size": "128x99999"}, "a side is from 1"),
    ):
        with pytest.raises(InvalidField, match=message):
            planned(card, **fields)
    with pytest.raises(InvalidField, match="strict"):
        planned(card, size="130x130", strict=True)


@pytest.mark.parametrize(
    ("image_size", "size"), [((300, 300), (128, 128)), ((1000, 100), (160, 96)), ((90, 160), (96, 160))]
)
def test_size_from_the_picture(card: ModelCard, image_size: tuple[int, int], size: tuple[int, int]) -> None:
    plan = planned(card, image_size=image_size)
    assert (plan.width, plan.height) == size


@given(st.integers(50, 5000), st.integers(50, 5000))
def test_size_from_the_picture_keeps_the_area(width: int, height: int) -> None:
    card = ModelCard.read(Path(__file__).parents[2] / "videoserve" / "demo" / "model")
    big = dataclasses.replace(card, sizes=(), area=832 * 480, multiple=(16, 16))
    plan = planned(big, image_size=(width, height))
    assert plan.width % 16 == plan.height % 16 == 0
    if 1 / 4 < width / height < 4:
        assert 0.85 < plan.width * plan.height / big.area <= 1.01
        assert 0.88 < plan.width / plan.height / (width / height) < 1.13


def test_pictures_of_other_shape_are_reported(card: ModelCard) -> None:
    assert "are cut" in planned(card, image_size=(1000, 100)).adjustments[0]
    assert "bars" in planned(card, image_size=(1000, 100), resize_mode="pad").adjustments[0]
    assert "stretched" in planned(card, image_size=(1000, 100), resize_mode="stretch").adjustments[0]
    assert "scaled up" in planned(card, image_size=(7, 7)).adjustments[0]
    assert planned(card, image_notes=("The picture is the first of 9.",)).adjustments[0].endswith("first of 9.")


@pytest.mark.parametrize(
    ("fields", "frames", "fps", "adjusted"),
    [
        ({"seconds": 4.0}, 33, 8, True),
        ({"seconds": 4.125}, 33, 8, False),
        ({"seconds": 4.5, "fps": 10}, 45, 10, False),
        ({"seconds": 0.01}, 1, 8, True),
        ({"fps": 12}, 17, 12, False),
        ({"num_frames": 33, "fps": 11}, 33, 11, False),
        ({"num_frames": 33, "seconds": 3.0}, 33, 11, False),
        ({"num_frames": 33, "seconds": 4.0}, 33, 8, True),
        ({"num_frames": 33, "seconds": 4.0, "fps": 8}, 33, 8, True),
    ],
)
def test_seconds_frames_and_rate(
    card: ModelCard, fields: dict[str, Any], frames: int, fps: int, adjusted: bool
) -> None:
    plan = planned(card, **fields)
    assert (plan.num_frames, plan.fps, bool(plan.adjustments)) == (frames, fps, adjusted)
    if adjusted:
        with pytest.raises(InvalidField, match="strict"):
            planned(card, strict=True, **fields)


def test_contradictory_lengths_are_refused(card: ModelCard) -> None:
    with pytest.raises(InvalidField, match="leave out seconds, num_frames or fps"):
        planned(card, num_frames=81, seconds=4.0, fps=8)
    with pytest.raises(InvalidField, match="at most 10001"):
        planned(card, seconds=3000.0)
    with pytest.raises(InvalidField, match="81 frames at 8100 fps; at most 240 fps"):
        planned(card, num_frames=81, seconds=0.01)


def test_guidance_and_negative_prompt(card: ModelCard) -> None:
    plan = planned(card, guidance_scale=1.0, negative_prompt="blur")
    assert plan.negative_prompt == ""
    assert plan.adjustments == ("negative_prompt is not used: guidance_scale 1 runs no negative pass.",)
    plan = planned(card, guidance_scale=5.0)
    assert (plan.guidance, plan.negative_prompt, plan.adjustments) == (5.0, "", ())
    assert planned(card, guidance_scale=5.0, negative_prompt=" blur\n").negative_prompt == "blur"


def test_two_experts(card: ModelCard, two_experts: ModelCard) -> None:
    for name in ("guidance_scale_2", "boundary_ratio"):
        with pytest.raises(InvalidField, match=f"{name} is for models with two experts; demo has one"):
            planned(card, **{name: 0.5})
    plan = planned(two_experts, guidance_scale=4.0)
    assert (plan.guidance, plan.guidance_2, plan.boundary) == (4.0, 4.0, 0.9)
    plan = planned(two_experts, guidance_scale=4.0, guidance_scale_2=2.0, boundary_ratio=0.5, last_image=SHA)
    assert (plan.guidance_2, plan.boundary, plan.last_image) == (2.0, 0.5, SHA)


def test_the_first_scale_alone_decides_about_guidance(two_experts: ModelCard) -> None:
    said = {"guidance_scale": 1.0, "guidance_scale_2": 4.0, "negative_prompt": "blur"}
    plan = planned(two_experts, **said)
    assert (plan.guidance, plan.guidance_2, plan.negative_prompt) == (1.0, 1.0, "")
    assert shape_key(plan).endswith(":g0")
    assert plan.adjustments == (
        "guidance_scale_2 is 4, which is not used: guidance_scale 1 turns guidance off for both experts.",
        "negative_prompt is not used: guidance_scale 1 runs no negative pass.",
    )
    with pytest.raises(InvalidField, match="strict") as refusal:
        planned(two_experts, strict=True, **said)
    assert refusal.value.param == "guidance_scale_2"
    plan = planned(two_experts, guidance_scale=4.0, guidance_scale_2=1.0, negative_prompt="blur")
    assert (plan.guidance_2, plan.negative_prompt, plan.adjustments) == (1.0, "blur", ())
    assert shape_key(plan).endswith(":g1")
    assert plan.batch_key == planned(two_experts, guidance_scale=4.0, guidance_scale_2=3.0).batch_key


def test_last_image(card: ModelCard) -> None:
    with pytest.raises(InvalidField, match="continues from a first picture only"):
        planned(card, last_image=SHA)
    with pytest.raises(InvalidField, match="last_image is missing"):
        planned(dataclasses.replace(card, last_image="required"))


def test_long_prompts_are_cut_and_counted(card: ModelCard) -> None:
    long = "pan left " * 300
    plan = planned(card, prompt=long)
    tokens = card.count_tokens(plan.prompt)
    assert plan.adjustments == (f"prompt is {tokens} tokens and the model reads 64: the last {tokens - 64} are cut.",)
    with pytest.raises(InvalidField, match="tokens"):
        planned(card, prompt=long, strict=True)
    assert planned(card, prompt="").prompt == ""


def test_seeds(card: ModelCard) -> None:
    assert planned(card, seed=0).seed == 0
    assert planned(card, seed=2**64 - 1).seed == 2**64 - 1
    for random in (None, -1):
        plan = planned(card, seed=random)
        assert plan.seed == 77
        assert "77" in plan.adjustments[0]
        assert planned(card, seed=random, strict=True).seed == 77
    for wrong in (-2, 2**64):
        with pytest.raises(InvalidField, match=f"seed is {wrong}"):
            planned(card, seed=wrong)


@pytest.mark.parametrize(
    ("quality", "crf"), [("low", 28), ("medium", 23), ("high", 18), ("max", 12), ("1", 1), ("51", 51)]
)
def test_quality(card: ModelCard, quality: str, crf: int) -> None:
    assert planned(card, quality=quality).crf == crf


@pytest.mark.parametrize("quality", ["best", "0", "52", "-1", "²", "1e1", ""])
def test_other_quality_is_refused(card: ModelCard, quality: str) -> None:
    with pytest.raises(InvalidField, match="one of low, medium, high, max"):
        planned(card, quality=quality)


@pytest.mark.parametrize(
    "field", ["num_frames", "fps", "num_inference_steps", "width", "guidance_scale", "seconds", "flow_shift"]
)
def test_numbers_out_of_range(card: ModelCard, field: str) -> None:
    for wrong in (-1, float("nan"), 10**9):
        with pytest.raises(InvalidField, match=f"^{field} is "):
            planned(card, **{field: wrong})


@pytest.mark.parametrize(
    ("fields", "param", "video"),
    [
        ({"size": "16384x16384", "num_frames": 10_001}, "size", "16384x16384 and 10001 frames"),
        ({"num_frames": 9_001}, "num_frames", "128x128 and 9001 frames"),
        ({"seconds": 1000.125}, "seconds", "128x128 and 8001 frames"),
    ],
)
def test_more_pixels_than_allowed(card: ModelCard, fields: dict[str, Any], param: str, video: str) -> None:
    request = VideoRequest(prompt="", image=SHA, seed=1, **fields)
    pixels = plan_pixels(plan_video(request, card, (256, 256), random_seed=0))
    plan_video(request, card, (256, 256), random_seed=0, pixels_max=pixels)
    with pytest.raises(InvalidField, match=f"{video} are {pixels} pixels; at most {pixels - 1}") as refusal:
        plan_video(request, card, (256, 256), random_seed=0, pixels_max=pixels - 1)
    assert (refusal.value.status, refusal.value.param) == (422, param)


def plan_pixels(plan: VideoPlan) -> int:
    return plan.width * plan.height * plan.num_frames


def test_unknown_model(card: ModelCard) -> None:
    assert planned(card, model="demo").model == "demo"
    with pytest.raises(NotFound, match="'sora-2' here; this server has demo"):
        planned(card, model="sora-2")


def test_batch_keys(card: ModelCard) -> None:
    alike = planned(card).batch_key
    assert planned(card, prompt="zoom", seed=9, guidance_scale=7.0, image=SHA[::-1]).batch_key == alike
    for fields in (
        {"size": "96x96"},
        {"num_frames": 33},
        {"num_inference_steps": 5},
        {"guidance_scale": 1.0},
        {"flow_shift": 5.0},
    ):
        assert planned(card, **fields).batch_key != alike


def test_estimates(card: ModelCard) -> None:
    plan = planned(card)
    assert shape_key(plan) == "128x128x17:g1"
    assert estimate(plan, {}) is None
    costs = {"128x128x17:g1": {"encode": 0.1, "step": 0.2, "decode": 0.4, "write": 0.1}}
    assert estimate(plan, costs) == pytest.approx(4.6)
    assert estimate(planned(card, guidance_scale=1.0), costs) == pytest.approx(2.6)
    assert estimate(planned(card, size="256x256"), costs) == pytest.approx(4 * 4.6)


def test_deadlines() -> None:
    check_deadline(None, 100.0)
    check_deadline(5.0, None)
    check_deadline(5.0, 4.9)
    with pytest.raises(ServeError, match=r"about 5\.1 seconds") as refusal:
        check_deadline(5.0, 5.1)
    assert (refusal.value.status, refusal.value.code) == (422, "deadline_unreachable")
