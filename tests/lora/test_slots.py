"""Slots: several adapters as one padded pair of matrices a module, and what does not fit into one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve_kernels.low_rank import add_low_rank
from videoserve_lora.adapter import Adapter
from videoserve_lora.slots import Slots, Use
from videoserve_lora.target import Target

PLACE = "blocks.0.attn1.to_q"


@pytest.fixture
def two(ti2v: Target, known: Any, check: Any) -> tuple[Adapter, Adapter]:
    """One of rank 3 with a factor of 2/3, one of rank 4 on attention alone."""
    one = check(known(ti2v, alpha=2.0, ranks=(3,)).file("kohya"), ti2v).adapter
    other = check(known(ti2v, ranks=(4,)).only(lambda place: ".attn" in place).file("comfyui"), ti2v).adapter
    return one, other


def uses(*adapters: Adapter, weights: tuple[float, ...]) -> list[Use]:
    digests = ("a" * 64, "b" * 64)
    return [Use(digest=d, adapter=a, weight=w) for d, a, w in zip(digests, adapters, weights, strict=True)]


def dense(adapter: Adapter, place: str) -> Tensor:
    return torch.from_numpy(adapter.parts["any"].changes[place].dense()).double()


def test_a_slot_is_the_weighted_sum(two: tuple[Adapter, Adapter], ti2v: Target) -> None:
    slots = Slots(uses(*two, weights=(0.5, -1.0)), "any", rank=16)
    assert set(slots.modules) == ti2v.matrices
    assert slots.needed == 7
    for place in slots.modules:
        slot = slots.slot(place)
        assert slot.a.shape == (16, ti2v.matrix(place)[1])
        assert slot.b.shape == (ti2v.matrix(place)[0], 16)
        expected = 0.5 * dense(two[0], place) - (dense(two[1], place) if ".attn" in place else 0)
        assert (slot.b.double() @ slot.a.double() - expected).abs().max() < 1e-6
        rank = 7 if ".attn" in place else 3
        assert not slot.a[rank:].any()
        assert not slot.b[:, rank:].any()


def test_the_low_rank_door_takes_slots(two: tuple[Adapter, Adapter]) -> None:
    slot = Slots(uses(*two, weights=(1.0, 1.0)), "any", rank=8).slot(PLACE)
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(0))
    added = add_low_rank(torch.zeros(5, 48), x, slot.a, slot.b)
    expected = x.double() @ (dense(two[0], PLACE) + dense(two[1], PLACE)).T
    assert (added - expected).abs().max() < 1e-5


def test_the_order_of_a_request_changes_no_bit(two: tuple[Adapter, Adapter]) -> None:
    both = uses(*two, weights=(0.5, 2.0))
    one, other = (Slots(order, "any").slot(PLACE, torch.bfloat16) for order in (both, both[::-1]))
    assert torch.equal(one.a, other.a)
    assert torch.equal(one.b, other.b)


def test_weight_nought_is_not_there(two: tuple[Adapter, Adapter]) -> None:
    slots = Slots(uses(*two, weights=(0.0, 1.0)), "any")
    assert slots.digests == (("b" * 64, 1.0),)
    assert Slots(uses(two[0], two[0], weights=(1.0, 0.0))[1:], "any").modules == ()


def test_the_same_adapter_twice_is_one_with_the_weights_added(two: tuple[Adapter, Adapter]) -> None:
    twice = [Use(digest="a" * 64, adapter=two[0], weight=weight) for weight in (0.25, 0.5)]
    assert Slots(twice, "any").digests == (("a" * 64, 0.75),)
    assert Slots(twice, "any").needed == 3
    opposite = [Use(digest="a" * 64, adapter=two[0], weight=weight) for weight in (1.0, -1.0)]
    assert Slots(opposite, "any").modules == ()


def test_opposite_weights_of_the_same_change_leave_the_base(ti2v: Target, known: Any, check: Any) -> None:
    """Two files of the same change, so that neither is left out."""
    same = [check(known(ti2v).file(layout), ti2v).adapter for layout in ("kohya", "comfyui")]
    slot = Slots(uses(*same, weights=(1.0, -1.0)), "any").slot(PLACE)
    assert (slot.b @ slot.a).abs().max() < 1e-6


def test_b_is_rounded_once(two: tuple[Adapter, Adapter], ti2v: Target, known: Any) -> None:
    slot = Slots(uses(*two, weights=(0.7, 1.0))[:1], "any").slot(PLACE, torch.bfloat16)
    _, b = known(ti2v, ranks=(3,)).pair(PLACE)
    assert torch.equal(slot.b, (b * torch.tensor(2 / 3) * torch.tensor(0.7)).bfloat16())
    # Rounding the factors first, as code that scales in the model's type does, gives other bits.
    assert not torch.equal(slot.b, b.bfloat16() * torch.tensor(2 / 3 * 0.7).bfloat16())


def test_what_has_no_room_is_added_in_full(two: tuple[Adapter, Adapter], ti2v: Target) -> None:
    slots = Slots(uses(*two, weights=(0.5, 1.0)), "any", rank=6)
    attention = {place for place in ti2v.matrices if ".attn" in place}
    assert set(slots.modules) == ti2v.matrices - attention
    assert set(slots.parameters) == {f"{place}.weight" for place in attention}
    expected = 0.5 * dense(two[0], PLACE) + dense(two[1], PLACE)
    assert (slots.delta(f"{PLACE}.weight") - expected).abs().max() < 1e-6


def test_full_deltas_stand_beside_slots(two: tuple[Adapter, Adapter], ti2v: Target, check: Any) -> None:
    file = {
        "blocks.0.self_attn.q.diff": torch.full((48, 48), 3.0),
        "blocks.0.self_attn.q.diff_b": torch.ones(48),
        "blocks.0.norm3.diff": torch.ones(48),
        "blocks.0.modulation.diff": torch.ones(1, 6, 48),
        "patch_embedding.diff": torch.ones(48, 16, 1, 2, 2),
        "head.head.lokr_w1": torch.ones(4, 4),
        "head.head.lokr_w2": torch.ones(16, 12),
    }
    extras = check(file, ti2v).adapter
    slots = Slots(uses(two[0], extras, weights=(1.0, 2.0)), "any")
    shapes = {
        "blocks.0.attn1.to_q.weight": (48, 48),
        "blocks.0.attn1.to_q.bias": (48,),
        "blocks.0.norm2.weight": (48,),
        "blocks.0.scale_shift_table": (1, 6, 48),
        "patch_embedding.weight": (48, 64),
        "proj_out.weight": (64, 48),
    }
    assert {name: tuple(slots.delta(name).shape) for name in slots.parameters} == shapes
    # Its low-rank change is in the slot, the other's full one is not.
    assert (slots.delta("blocks.0.attn1.to_q.weight") == 6).all()
    assert PLACE in slots.modules
    # A LoKr of full factors has no room in any slot, and what stands beside it goes along.
    assert "proj_out" not in slots.modules
    assert (slots.delta("proj_out.weight") - 2 - dense(two[0], "proj_out")).abs().max() < 1e-6


def test_an_expert_has_what_is_for_it(targets: dict[str, Target], known: Any, check: Any) -> None:
    target = targets["wan22-a14b"]
    file = known(target).file("comfyui")
    high, both = (check(file, target, expert=expert).adapter for expert in ("high", "both"))
    assert Slots(uses(high, both, weights=(1.0, 1.0))[:1], "low").modules == ()
    assert set(Slots(uses(high, both, weights=(1.0, 1.0))[:1], "high").modules) == target.matrices
    assert Slots(uses(high, both, weights=(1.0, 1.0)), "low").digests == (("b" * 64, 1.0),)
