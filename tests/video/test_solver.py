"""Solvers go on from a snapshot bit for bit, and what cannot drive a Wan model is refused."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve.video.solver import STARTED, Solver, SolverKind, UnusableSolverError

# diffusers' DPM++ converts tensors in a way that numpy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

CPU = torch.device("cpu")
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
KINDS: dict[str, dict[str, Any]] = {
    "UniPCMultistepScheduler": {**FLOW, "flow_shift": 3.0},
    "DPMSolverMultistepScheduler": {**FLOW, "flow_shift": 3.0},
    "FlowMatchEulerDiscreteScheduler": {"shift": 3.0},
    "FlowMatchHeunDiscreteScheduler": {"shift": 3.0},
}
STEPS = 6


def kind(name: str, **changes: Any) -> SolverKind:
    return SolverKind.from_config({"_class_name": name, **KINDS[name], **changes})


def velocity(latents: Tensor, timestep: Tensor) -> Tensor:
    return torch.sin(latents * float(timestep) / 100)


@pytest.mark.parametrize("name", KINDS)
def test_a_snapshot_goes_on_bit_for_bit(name: str) -> None:
    solver = kind(name).start(STEPS, flow_shift=5.0, device=CPU)
    latents = torch.randn((1, 4, 2, 3, 3), generator=torch.Generator().manual_seed(0))
    kept = []
    while solver.index < solver.total:
        tensors, state = solver.snapshot()
        kept.append((latents, tensors, json.dumps(state)))
        latents = solver.step(velocity(latents, solver.timestep), latents)
    for start, tensors, state in kept:
        mine = start
        again = kind(name).restore(tensors, json.loads(state), flow_shift=5.0, device=CPU)
        while again.index < again.total:
            mine = again.step(velocity(mine, again.timestep), mine)
        assert torch.equal(mine, latents)


@pytest.mark.parametrize("name", KINDS)
def test_a_snapshot_is_not_touched_by_further_steps(name: str) -> None:
    solver = kind(name).start(STEPS, flow_shift=None, device=CPU)
    latents = torch.ones(1, 4, 2, 3, 3)
    for _ in range(3):
        latents = solver.step(velocity(latents, solver.timestep), latents)
    tensors, state = solver.snapshot()
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    restored = kind(name).restore(tensors, state, flow_shift=None, device=CPU)
    for mover in (solver, restored):
        mover.step(velocity(latents, mover.timestep), latents)
    assert all(torch.equal(before[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize("name", KINDS)
def test_solvers_that_begin_alike_do_not_notice_each_other(name: str) -> None:
    latents = torch.randn((1, 4, 2, 3, 3), generator=torch.Generator().manual_seed(0))

    def ended(solver: Solver) -> Tensor:
        mine = latents
        while solver.index < solver.total:
            mine = solver.step(velocity(mine, solver.timestep), mine)
        return mine

    shared = kind(name)
    first = shared.start(STEPS, flow_shift=None, device=CPU)
    first.step(velocity(latents, first.timestep), latents)
    later = shared.start(STEPS, flow_shift=None, device=CPU, begin=2)
    assert (first.index, later.index) == (1, 2)
    alone = ended(kind(name).start(STEPS, flow_shift=None, device=CPU))
    assert torch.equal(ended(shared.start(STEPS, flow_shift=None, device=CPU)), alone)
    assert torch.equal(ended(later), ended(kind(name).start(STEPS, flow_shift=None, device=CPU, begin=2)))


def test_what_is_kept_of_starts_is_bounded() -> None:
    shared = kind("UniPCMultistepScheduler")
    for steps in range(2, 4 + STARTED):
        shared.start(steps, flow_shift=None, device=CPU)
    assert len(shared.started) == STARTED
    assert (STARTED + 3, None, CPU) in shared.started


@pytest.mark.parametrize("name", KINDS)
def test_shift(name: str) -> None:
    assert kind(name).start(STEPS, flow_shift=None, device=CPU).flow_shift == 3.0
    shifted = kind(name).start(STEPS, flow_shift=9.0, device=CPU)
    assert shifted.flow_shift == 9.0
    index = shifted.total // 2
    plain = kind(name).start(STEPS, flow_shift=1.0, device=CPU)
    assert shifted._scheduler.timesteps[index] > plain._scheduler.timesteps[index]


def test_the_estimate_is_exact_for_a_straight_path() -> None:
    video = torch.randn((1, 2, 1, 4, 4), generator=torch.Generator().manual_seed(1))
    noise = torch.randn((1, 2, 1, 4, 4), generator=torch.Generator().manual_seed(2))
    for name in KINDS:
        solver = kind(name).start(STEPS, flow_shift=None, device=CPU)
        latents = noise
        while solver.index < solver.total:
            sigma = float(solver._scheduler.sigmas[solver.index])
            latents = sigma * noise + (1 - sigma) * video
            assert (solver.denoised(noise - video, latents) - video).abs().max() < 1e-5
            solver.index += 1


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"_class_name": "NoSuchScheduler"}, "'NoSuchScheduler', which is not a scheduler"),
        ({"_class_name": "WanTransformer3DModel"}, "not a scheduler"),
        ({"_class_name": "UniPCMultistepScheduler"}, "set to epsilon"),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "stochastic_sampling": True}, "draws noise"),
    ],
)
def test_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnusableSolverError, match=sentence):
        SolverKind.from_config(config)
