"""A model with our changes added to its weights gives what the same file gives through peft."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import WanImageToVideoPipeline
from torch import Tensor

from videoserve.video.families.wan import WanTransformer
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_lora.adapter import Adapter
from videoserve_lora.binder import Binder
from videoserve_lora.convert import convert
from videoserve_lora.prepared import prepare
from videoserve_lora.slots import Use
from videoserve_lora.target import Target

peft = pytest.importorskip("peft", reason="peft, of the dev extra, is what this is compared with.")

pytestmark = pytest.mark.slow
IN_BLOCKS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]


class Beside:
    """Two equal models, ours for weights with the changes added, theirs for peft; and what they are run on."""

    def __init__(self, tiny: ModuleType, model: str) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.theirs = tiny.transformer(model)
        self.ours = tiny.transformer(model)
        self.ours.load_state_dict(self.theirs.state_dict())
        self.inputs = conditioned(model, self.theirs)

    @torch.no_grad()
    def difference(self, adapter: Adapter) -> float:
        """The largest of the outputs, of the largest output, with theirs adapted by now. Both differ from the base."""
        base = self.ours(**self.inputs, return_dict=False)[0]
        for name, parameter in self.ours.named_parameters():
            delta = adapter.parts["any"].delta(name)
            if delta is not None:
                parameter += torch.from_numpy(delta).view_as(parameter)
        a, b = (each(**self.inputs, return_dict=False)[0] for each in (self.ours, self.theirs))
        assert (a - base).abs().max() > 0.05
        return float((a - b).abs().max() / a.abs().max())


@pytest.mark.parametrize("model", ["wan21-i2v", "wan22-ti2v"])
def test_what_we_write_for_diffusers_is_what_we_compute(
    model: str, targets: dict[str, Target], known: Any, check: Any, tiny: ModuleType, tmp_path: Path
) -> None:
    adapter = check(known(targets[model], alpha=3.0, ranks=(4, 7)).file("kohya"), targets[model]).adapter
    both = Beside(tiny, model)
    written = convert(adapter, tmp_path / "a.safetensors", "diffusers").files[0]
    both.theirs.load_lora_adapter(written, prefix="transformer")
    assert both.difference(adapter) < 2e-6


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("layout", "part", "alpha", "ranks"),
    [
        ("diffusers", "", None, (4,)),
        ("diffusers", "proj_out", None, (4,)),
        ("comfyui", "blocks.", 2.0, (4, 1, 2)),
        ("comfyui", ".attn", None, (4, 7)),
        ("kohya", "blocks.", 2.0, (8, 1, 2)),
    ],
)
def test_the_same_file_through_peft(
    layout: str,
    part: str,
    alpha: float | None,
    ranks: tuple[int, ...],
    kind: torch.dtype,
    ti2v: Target,
    known: Any,
    check: Any,
    save: Any,
    tiny: ModuleType,
) -> None:
    expected = known(ti2v, alpha=alpha, ranks=ranks).only(lambda place: part in place and "patch" not in place)
    path = save({key: tensor.to(kind) for key, tensor in expected.file(layout).items()})
    both = Beside(tiny, "wan22-ti2v")
    # diffusers' converters fold alpha / r in as the file's type; a power of two is not rounded there.
    theirs = WanImageToVideoPipeline.lora_state_dict(path)
    both.theirs.load_lora_adapter({key: tensor.float() for key, tensor in theirs.items()}, prefix="transformer")
    assert both.difference(check(path, ti2v).adapter) < 2e-6


@pytest.mark.parametrize("weight", [1.0, 0.5])
@pytest.mark.parametrize("layout", ["diffusers", "comfyui", "kohya"])
@pytest.mark.parametrize("model", ["wan21-i2v", "wan22-a14b", "wan22-ti2v"])
def test_slots_in_our_forward_are_peft_in_that_of_diffusers(
    model: str,
    layout: str,
    weight: float,
    targets: dict[str, Target],
    known: Any,
    check: Any,
    save: Any,
    tiny: ModuleType,
) -> None:
    target = targets[model]
    # Of its own layout diffusers reads no alpha.
    alpha = None if layout == "diffusers" else 2.0
    path = save(known(target, alpha=alpha, ranks=(4, 8, 2)).only(lambda place: "blocks." in place).file(layout))
    both = Beside(tiny, model)
    ours = WanTransformer(both.ours, clean_first_frame=False)
    plain = velocity(ours, both.inputs)
    both.theirs.load_lora_adapter(WanImageToVideoPipeline.lora_state_dict(path), prefix="transformer", adapter_name="a")
    both.theirs.set_adapters(["a"], [weight])
    with torch.no_grad():
        theirs = both.theirs(**both.inputs, return_dict=False)[0]
    expert = "high" if target.two_experts else "any"
    adapter = check(path, target, **({"expert": expert} if target.two_experts else {})).adapter
    binder = Binder(both.ours)
    uses = [Use(digest="a" * 64, adapter=adapter, weight=weight)]
    binder.bind(prepare(uses, expert, binder.places(torch.float32)))
    found = velocity(ours, both.inputs)
    assert (found - plain).abs().max() > 0.05
    assert (found - theirs).abs().max() < 2e-6 * theirs.abs().max()
    binder.reset()
    assert torch.equal(velocity(ours, both.inputs), plain)


def velocity(ours: WanTransformer, inputs: Mapping[str, Any]) -> Tensor:
    """What diffusers gives for these inputs, by our forward."""
    text = inputs["encoder_hidden_states"]
    image = inputs.get("encoder_hidden_states_image")
    context = ours.prepare_text(list(text), text.shape[1], image_embeds=image)
    return ours.forward(inputs["hidden_states"], inputs["timestep"], context, Mesh(ParallelPlan()))


@pytest.mark.parametrize("alpha", [8, 2.5])
@pytest.mark.parametrize("kind", ["LoraConfig", "LoHaConfig", "LoKrConfig"])
def test_a_file_of_peft_itself(kind: str, alpha: float, ti2v: Target, check: Any, save: Any, tiny: ModuleType) -> None:
    options = {"lora_alpha" if kind == "LoraConfig" else "alpha": alpha}
    both = Beside(tiny, "wan22-ti2v")
    # At a higher rank peft keeps both factors of a LoKr whole.
    adapted = peft.get_peft_model(both.theirs, getattr(peft, kind)(r=2, target_modules=IN_BLOCKS, **options))
    drawn = drawn_anew(peft.get_peft_model_state_dict(adapted))
    peft.set_peft_model_state_dict(adapted, drawn)
    found = check(save(drawn), ti2v, alpha=float(alpha))
    assert found.report.parts["any"].modules == 2 * (8 + 2)
    assert both.difference(found.adapter) < 2e-6


def drawn_anew(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same keys with numbers that change something: a new adapter changes nothing."""
    generator = torch.Generator().manual_seed(4)
    return {key: torch.randn(tensor.shape, generator=generator) / 3 for key, tensor in tensors.items()}


def conditioned(model: str, transformer: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    config = transformer.config
    inputs = {
        "hidden_states": torch.randn(1, config.in_channels, 2, 4, 6, generator=generator),
        "timestep": torch.tensor([700.0]),
        "encoder_hidden_states": torch.randn(1, 512, config.text_dim, generator=generator),
    }
    if config.image_dim:
        inputs["encoder_hidden_states_image"] = torch.randn(1, 5, config.image_dim, generator=generator)
    return inputs
