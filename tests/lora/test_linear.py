"""LoraLinear and Binder: nothing bound is the base bit for bit, and what is bound comes off again."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from videoserve_kernels.codes import Codes
from videoserve_kernels.gemm import quantise_blocks, quantise_groups, quantise_rows, scaled_linear
from videoserve_lora.binder import Binder
from videoserve_lora.linear import LoraLinear
from videoserve_lora.prepared import ROOM, Prepared, prepare, room
from videoserve_lora.slots import Slot, Use
from videoserve_lora.target import Target

Quantise = Callable[[Tensor], Codes]


def slot(rank: int, seed: int = 0, inputs: int = 24, outputs: int = 40) -> Slot:
    generator = torch.Generator().manual_seed(seed)
    return Slot(a=torch.randn(rank, inputs, generator=generator), b=torch.randn(outputs, rank, generator=generator))


def test_without_a_slot_it_is_the_base() -> None:
    base = nn.Linear(24, 40)
    x = torch.randn(2, 5, 24)
    linear = LoraLinear(base)
    assert torch.equal(linear(x), base(x))
    linear.slot = slot(16)
    with torch.inference_mode():
        expected = base(x).double() + x.double() @ (linear.slot.b.double() @ linear.slot.a.double()).T
        assert (linear(x) - expected).abs().max() < 1e-4
        # A part of the sequence of several jobs is no contiguous tensor.
        assert torch.equal(linear(x[:, 1:3]), linear(x[:, 1:3].contiguous()))
    assert linear.weight is base.weight
    linear.slot = None
    assert torch.equal(linear(x), base(x))


def test_a_dear_slot_is_folded_into_a_copy() -> None:
    base = nn.Linear(24, 40)
    # As a CPU's transformer stores it: input by input.
    base.weight.data = base.weight.data.t().contiguous().t()
    before, one, x = base.weight.clone(), slot(16), torch.randn(2, 5, 24)
    linear = LoraLinear(base)
    linear.hold(one)
    with torch.inference_mode():
        expected = base(x).double() + x.double() @ (one.b.double() @ one.a.double()).T
        assert (linear(x) - expected).abs().max() < 1e-6 * expected.abs().max()
    assert linear.folded is not None
    assert linear.folded.stride() == base.weight.stride()
    assert torch.equal(base.weight, before)
    linear.hold(None)
    assert linear.folded is None
    assert torch.equal(linear(x), base(x))


@pytest.mark.parametrize(("inputs", "dtype"), [(24, torch.bfloat16), (640, torch.float32)], ids=["bfloat16", "wide"])
def test_a_slot_that_would_lose_bits_or_costs_little_is_not_folded(inputs: int, dtype: torch.dtype) -> None:
    one = slot(16, inputs=inputs, outputs=640)
    linear = LoraLinear(nn.Linear(inputs, 640).to(dtype))
    linear.hold(Slot(a=one.a.to(dtype), b=one.b.to(dtype)))
    assert linear.folded is None


def test_a_slot_beside_a_full_delta_of_its_weight() -> None:
    module, x, one = nn.Sequential(nn.Linear(24, 40)), torch.randn(3, 24), slot(16)
    plain = module(x)
    binder = Binder(module)
    with torch.inference_mode():
        binder.bind(Prepared(slots={"0": one}, deltas={"0.weight": torch.full((40, 24), 0.5)}))
        assert binder.linears["0"].folded is not None
        expected = plain.double() + x.double() @ (one.b.double() @ one.a.double() + 0.5).T
        assert (module(x) - expected).abs().max() < 1e-4
        binder.reset()
        assert torch.equal(module(x), plain)


def test_w_and_minus_w_is_the_base_within_rounding() -> None:
    base, x = nn.Linear(24, 40), torch.randn(7, 24)
    one = slot(8)
    linear = LoraLinear(base)
    linear.slot = Slot(a=torch.cat((one.a, one.a)), b=torch.cat((one.b, -one.b), dim=1))
    with torch.inference_mode():
        assert (linear(x) - base(x)).abs().max() < 1e-4


class CodedLinear(nn.Module):
    """A linear whose weights have 8 bits, int8 or float8."""

    def __init__(self, base: nn.Linear, weight: Quantise, tokens: Quantise) -> None:
        super().__init__()
        self._codes, self._tokens, self.bias = weight(base.weight.detach()), tokens, base.bias

    @property
    def weight(self) -> Tensor:
        return self._codes.values

    def forward(self, x: Tensor) -> Tensor:
        rows = self._tokens(x.reshape(-1, x.shape[-1]))
        y = scaled_linear(rows, self._codes, bias=self.bias, dtype=x.dtype)
        return y.view(*x.shape[:-1], -1)


@pytest.mark.parametrize(
    ("weight", "tokens"), [(quantise_rows, quantise_rows), (quantise_blocks, quantise_groups)], ids=["int8", "fp8"]
)
def test_on_top_of_weights_of_8_bits(weight: Quantise, tokens: Quantise) -> None:
    base, x = nn.Linear(128, 32), torch.randn(3, 5, 128)
    module = nn.Sequential(CodedLinear(base, weight, tokens))
    plain = module(x)
    binder = Binder(module, (CodedLinear,))
    one = slot(16, inputs=128, outputs=32)
    with torch.inference_mode():
        binder.bind(Prepared(slots={"0": one}, deltas={}))
        assert (module(x) - plain - x @ one.a.T @ one.b.T).abs().max() < 1e-3
        binder.reset()
        assert torch.equal(module(x), plain)


# What the door asks of a machine does not change while a process lives.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["folded", "slots"])
def test_another_adapter_compiles_nothing_anew(dtype: torch.dtype) -> None:
    """Every sum of ranks has the same room, so that numbers change and shapes do not."""
    torch.compiler.reset()
    compiled = 0

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    module = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24)).to(dtype)
    binder = Binder(module)
    forward = torch.compile(module, backend=count)
    x = torch.randn(3, 24, dtype=dtype)
    with torch.no_grad():
        forward(x)
        assert compiled == 1
        for rank in (4, 12, 16, 7, 1):
            slots = {
                name: padded(slot(rank, rank, *sides), room(rank), dtype)
                for name, sides in (("0", (24, 40)), ("2", (40, 24)))
            }
            binder.bind(Prepared(slots=slots, deltas={}))
            assert torch.allclose(forward(x), module(x))
            binder.reset()
            forward(x)
    # The base alone, and the base with a slot.
    assert compiled == 2


def padded(one: Slot, rank: int, dtype: torch.dtype) -> Slot:
    missing = rank - one.a.shape[0]
    a, b = nn.functional.pad(one.a, (0, 0, 0, missing)), nn.functional.pad(one.b, (0, missing))
    return Slot(a=a.to(dtype), b=b.to(dtype))


def test_room() -> None:
    assert [room(rank) for rank in (0, 1, 16, 17, 64, 100, 128, 129, 300)] == [16, 16, 16, 32, 64, 128, 128, 256, 384]
    assert tuple(sorted(ROOM)) == ROOM


@pytest.fixture
def bound(tiny: ModuleType, ti2v: Target, known: Any, check: Any) -> Callable[..., Prepared]:
    def make(module: nn.Module, binder: Binder, *, weight: float = 1.0) -> Prepared:
        adapter = check(known(ti2v, ranks=(3, 4)).file("comfyui"), ti2v).adapter
        return prepare([Use(digest="a" * 64, adapter=adapter, weight=weight)], "any", binder.places(torch.float32))

    return make


def test_two_hundred_bindings_leave_the_base_as_it_was(tiny: ModuleType, bound: Callable[..., Prepared]) -> None:
    module = tiny.transformer("wan22-ti2v")
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    binder = Binder(module)
    prepared = [bound(module, binder, weight=weight) for weight in (1.0, -0.3)]
    # A convolution is no module that takes a slot.
    assert "patch_embedding.weight" in prepared[0].deltas
    for number in range(200):
        binder.bind(prepared[number % 2])
    assert not torch.equal(module.get_parameter("patch_embedding.weight"), before["patch_embedding.weight"])
    binder.reset()
    after = {name.replace(".base.", "."): parameter for name, parameter in module.named_parameters()}
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("place", ["slots", "deltas"])
def test_what_does_not_fit_binds_nothing(tiny: ModuleType, bound: Callable[..., Prepared], place: str) -> None:
    module = tiny.transformer("wan22-ti2v")
    binder = Binder(module)
    good = bound(module, binder)
    binder.bind(good)
    wrong = {"nowhere": slot(4)} if place == "slots" else {"blocks.0.scale_shift_table": torch.zeros(5)}
    with pytest.raises(ValueError, match="for another model"):
        binder.bind(Prepared(**{"slots": good.slots, "deltas": good.deltas} | {place: wrong}))
    assert all(linear.slot is None for linear in binder.linears.values())
    binder.bind(good)
    assert all(binder.linears[name].slot is not None for name in good.slots)
