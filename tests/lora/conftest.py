"""One known change of a tiny Wan, and files of it in every layout."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from videoserve_lora.adapter import Adapter, PartName
from videoserve_lora.check import Checked, checked
from videoserve_lora.names import native
from videoserve_lora.source import Source
from videoserve_lora.target import Target

Save = Callable[..., Path]
Check = Callable[..., Checked]


@pytest.fixture(scope="session")
def targets(tiny: ModuleType) -> dict[str, Target]:
    """The parameters of real transformers at tiny size, by layout."""
    made = {}
    for layout in tiny.LAYOUTS:
        parameters = tiny.transformer(layout).named_parameters()
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters}
        made[layout] = Target(shapes=shapes, two_experts=layout == "wan22-a14b")
    return made


@pytest.fixture(scope="session")
def ti2v(targets: dict[str, Target]) -> Target:
    return targets["wan22-ti2v"]


class Known:
    """A change that is known beforehand: A and B of any module of a model, of its own rank, and an alpha."""

    def __init__(self, target: Target, *, alpha: float | None = None, ranks: tuple[int, ...] = (4,)) -> None:
        self.target = target
        self.alpha = alpha
        self.places = sorted(target.matrices)
        self._ranks = {place: ranks[number % len(ranks)] for number, place in enumerate(self.places)}

    def only(self, wanted: Callable[[str], bool]) -> "Known":
        self.places = [place for place in self.places if wanted(place)]
        return self

    def pair(self, place: str) -> tuple[Tensor, Tensor]:
        outputs, inputs = self.target.matrix(place)
        rank = self._ranks[place]
        generator = torch.Generator().manual_seed(sum(map(ord, place)))
        return (
            torch.randn(rank, inputs, generator=generator) / inputs**0.5,
            torch.randn(outputs, rank, generator=generator) / 4,
        )

    def factor(self, place: str) -> float:
        return 1.0 if self.alpha is None else self.alpha / self._ranks[place]

    def delta(self, place: str) -> Tensor:
        """float64 [O, I]."""
        a, b = self.pair(place)
        return self.factor(place) * b.double() @ a.double()

    def stem(self, layout: str, place: str) -> str:
        """How a module is called in a layout."""
        return LAYOUTS[layout][0](place)

    def file(self, layout: str) -> dict[str, Tensor]:
        """The keys and tensors of a file in that layout."""
        name, down, up, alpha = LAYOUTS[layout]
        tensors = {}
        for place in self.places:
            a, b = self.pair(place)
            tensors[name(place) + down], tensors[name(place) + up] = a, b
            if self.alpha is not None and alpha:
                tensors[name(place) + ".alpha"] = torch.tensor(self.alpha)
        return tensors


def under(text: str) -> str:
    return text.replace(".", "_")


PEFT = (".lora_A.weight", ".lora_B.weight", True)
KOHYA = (".lora_down.weight", ".lora_up.weight", True)
# How a module is called in it, the ends of A and B, and whether it has alphas.
LAYOUTS: dict[str, tuple[Callable[[str], str], str, str, bool]] = {
    "diffusers": (lambda place: f"transformer.{place}", *PEFT),
    "diffusers, old": (lambda place: f"transformer.{place}", ".lora.down.weight", ".lora.up.weight", True),
    "bare, diffusers": (lambda place: place, *PEFT),
    "bare, native": (native, *PEFT),
    "unet": (lambda place: f"unet.{place}", *PEFT),
    "model.diffusion_model": (lambda place: f"model.diffusion_model.{native(place)}", *PEFT),
    "peft of comfyui": (lambda place: f"base_model.model.diffusion_model.{native(place)}", *PEFT),
    "peft": (lambda place: f"base_model.model.{place}", *PEFT),
    "kohya": (lambda place: f"lora_unet_{under(native(place))}", *KOHYA),
    "kohya, diffusers": (lambda place: f"lora_unet_{under(place)}", *KOHYA),
    "wan-fun": (lambda place: f"lora_unet__{under(native(place))}", *KOHYA),
    "kohya, dots": (lambda place: "lora_unet_" + native(place).replace(".", "_", 1), *KOHYA),
    "comfyui": (lambda place: f"diffusion_model.{native(place)}", *PEFT),
    "distill": (native, ".lora_down", ".lora_up", True),
    "diffsynth": (native, ".lora_A.default.weight", ".lora_B.default.weight", True),
}


@pytest.fixture(scope="session")
def known() -> type[Known]:
    return Known


@pytest.fixture(scope="session")
def layouts() -> tuple[str, ...]:
    return tuple(LAYOUTS)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """save(tensors) -> a file that the safetensors library wrote."""
    count = iter(range(1_000_000))

    def write(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
        path = tmp_path / f"{next(count)}.safetensors"
        # A file has the same bytes whether or not its tensors share memory.
        save_file({key: tensor.clone().contiguous() for key, tensor in tensors.items()}, path, metadata)
        return path

    return write


@pytest.fixture
def check(save: Save) -> Iterator[Check]:
    """check(tensors, target, ...) -> what `checked` makes of a file of these tensors; open until the test ends."""
    with ExitStack() as stack:

        def run(tensors: Mapping[str, Tensor] | Path, target: Target, **options: Any) -> Checked:
            path = tensors if isinstance(tensors, Path) else save(tensors)
            told = {name: options.pop(name) for name in ("expert", "alpha") if name in options}
            return stack.enter_context(checked([Source(path=path, **told)], target, **options))

        yield run


@pytest.fixture(scope="session")
def differs() -> Callable[[Adapter, Known, PartName], float]:
    """differs(adapter, known, part) -> the largest difference of any weight's change from the known one.

    What is not to change at all must not: another set of changed modules is infinitely different.
    """

    def measure(adapter: Adapter, expected: Known, part: PartName = "any") -> float:
        found = adapter.parts[part]
        if sorted(found.changes) != expected.places:
            return float("inf")
        changes = {place: torch.from_numpy(found.changes[place].dense()) for place in expected.places}
        return max(float((changes[place] - expected.delta(place)).abs().max()) for place in expected.places)

    return measure


@pytest.fixture(scope="session")
def resident() -> Callable[[], int]:
    """resident() -> bytes of memory that this process holds."""
    return lambda: psutil.Process().memory_info().rss
