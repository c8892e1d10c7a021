"""diffusers' scheduler of the model directory, one instance a job, whose whole state can be kept and put back."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import diffusers
import numpy as np
import torch
from torch import Tensor

# Every client may ask for another number of steps, or another shift.
STARTED = 8


class UnusableSolverError(ValueError):
    """The directory's scheduler cannot drive a Wan model; the message says why."""


@dataclass(frozen=True, slots=True)
class SolverKind:
    """The scheduler class that a directory names, its configuration, and schedulers that are only copied.

    `started` has the last ones whose timesteps are set, by number of steps, shift and device: that takes as long as
    all else that is done for a request whose parts are known.
    """

    scheduler: type[Any]
    config: dict[str, Any]
    first: Any
    started: dict[tuple[int, float | None, torch.device], Any] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SolverKind":
        """From the content of scheduler_config.json; UnusableSolverError for any but a deterministic flow solver."""
        name = config.get("_class_name", "")
        scheduler = getattr(diffusers, name, None)
        if scheduler is None or not hasattr(scheduler, "set_timesteps"):
            raise UnusableSolverError(f"scheduler_config.json names {name!r}, which is not a scheduler of diffusers.")
        told = {key: value for key, value in config.items() if not key.startswith("_")}
        kind = cls(scheduler, told, scheduler.from_config(told))
        settings = kind.first.config
        if settings.get("prediction_type", "flow_prediction") != "flow_prediction":
            raise UnusableSolverError(
                f"{name} is set to {settings['prediction_type']}; Wan models predict a flow: flow_prediction."
            )
        if settings.get("stochastic_sampling"):
            raise UnusableSolverError(f"{name} draws noise at every step, so that no seed would repeat its video.")
        return kind

    @property
    def shift_name(self) -> str | None:
        """What this scheduler calls the shift of its noise schedule; None when it has none."""
        return shift_name(self.first.config)

    def start(self, steps: int, *, flow_shift: float | None, device: torch.device, begin: int = 0) -> "Solver":
        """A solver before its first step, or before a later one, which is then its first. flow_shift None keeps the
        directory's."""
        scheduler = copied(self._started(steps, flow_shift, device))
        if begin:
            scheduler.set_begin_index(begin)
        return Solver(scheduler, index=begin, device=device)

    def restore(
        self, tensors: dict[str, Tensor], state: dict[str, Any], *, flow_shift: float | None, device: torch.device
    ) -> "Solver":
        """The solver that `Solver.snapshot` described, bit for bit."""
        scheduler = self._create(flow_shift)
        for name, packed in state["attributes"].items():
            setattr(scheduler, name, _unpack(packed, tensors, device))
        return Solver(scheduler, index=state["index"], device=device)

    def _started(self, steps: int, flow_shift: float | None, device: torch.device) -> Any:
        asked = (steps, flow_shift, device)
        found = self.started.pop(asked, None)
        if found is None:
            found = self._create(flow_shift)
            found.set_timesteps(steps, device=device)
        self.started[asked] = found
        if len(self.started) > STARTED:
            del self.started[next(iter(self.started))]
        return found

    def _create(self, flow_shift: float | None) -> Any:
        if flow_shift is None:
            # To make one from its configuration takes as long as what a small model's encoders do.
            return copied(self.first)
        if self.shift_name is None:
            raise UnusableSolverError(f"{self.scheduler.__name__} has no shift, so flow_shift {flow_shift} has no use.")
        return self.scheduler.from_config(self.config, **{self.shift_name: flow_shift})


class Solver:
    """Where one job stands in its noise schedule.

    `index` counts the steps taken; `total` is how many there are (more than asked for with a second-order scheduler).
    """

    def __init__(self, scheduler: Any, *, index: int, device: torch.device) -> None:
        self._scheduler = scheduler
        self._device = device
        self.index = index
        self.total = len(scheduler.timesteps)

    @property
    def timestep(self) -> Tensor:
        """The timestep of the next step, as the transformer takes it, []."""
        timestep: Tensor = self._scheduler.timesteps[self.index]
        return timestep

    @property
    def timesteps(self) -> tuple[float, ...]:
        """Of all steps."""
        return tuple(self._scheduler.timesteps.tolist())

    @property
    def sigmas(self) -> tuple[float, ...]:
        """The noise level before each step, and the one after the last."""
        return tuple(self._scheduler.sigmas[: self.total + 1].tolist())

    @property
    def train_timesteps(self) -> int:
        """The length of the training schedule: what an expert boundary is a share of."""
        return int(self._scheduler.config.num_train_timesteps)

    @property
    def flow_shift(self) -> float | None:
        """The shift in force; None for a scheduler that has none."""
        settings = self._scheduler.config
        name = shift_name(settings)
        return None if name is None else float(settings[name])

    def denoised(self, velocity: Tensor, latents: Tensor) -> Tensor:
        """What the video would be if the velocity held to the end, same shape as latents; before `step`."""
        sigma = float(self._scheduler.sigmas[self.index])
        return latents - sigma * velocity

    def step(self, velocity: Tensor, latents: Tensor) -> Tensor:
        """The latents one noise level further down, same shape."""
        moved: Tensor = self._scheduler.step(velocity, self.timestep, latents, return_dict=False)[0]
        self.index += 1
        return moved

    def copy(self) -> "Solver":
        """The solver as it is now, to go back to: neither notices the other's steps. Shares tensors."""
        return Solver(copied(self._scheduler), index=self.index, device=self._device)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the next step depends on: tensors on the CPU by name, and the rest as JSON that names them."""
        tensors: dict[str, Tensor] = {}
        attributes = {
            name: _pack(value, tensors) for name, value in vars(self._scheduler).items() if name != "_internal_dict"
        }
        return tensors, {"index": self.index, "attributes": attributes}

    def device_tensors(self) -> list[Tensor]:
        """What this solver holds on its device between two steps."""
        held = [item for value in vars(self._scheduler).values() for item in (value if _is_list(value) else [value])]
        return [item for item in held if isinstance(item, Tensor)]


def copied(scheduler: Any) -> Any:
    """A scheduler in the same state; neither notices what the other does. Shares tensors."""
    twin = copy.copy(scheduler)
    for name, value in vars(twin).items():
        # Schedulers replace tensors and write into lists.
        if isinstance(value, list):
            setattr(twin, name, list(value))
    return twin


def shift_name(settings: Mapping[str, Any]) -> str | None:
    """What a scheduler of these settings calls the shift of its noise schedule."""
    return next((name for name in ("flow_shift", "shift") if name in settings), None)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON for a value of a scheduler; tensors and arrays move to `tensors`."""
    if isinstance(value, Tensor):
        name = f"solver.{len(tensors)}"
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name, "on_device": value.device.type != "cpu"}
    if isinstance(value, np.ndarray):
        return {"array": _pack(torch.from_numpy(value.copy()), tensors)}
    if isinstance(value, np.generic):
        return _pack(value.item(), tensors)
    if isinstance(value, list | tuple):
        return {"list": [_pack(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnusableSolverError(f"A scheduler that keeps a {type(value).__name__} cannot be put into a checkpoint.")


def _unpack(packed: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    if not isinstance(packed, dict):
        return packed
    if "list" in packed:
        return [_unpack(item, tensors, device) for item in packed["list"]]
    if "array" in packed:
        return _unpack(packed["array"], tensors, device).numpy()
    # A tensor of the checkpoint may be shared by two resumes: every solver gets its own.
    return tensors[packed["tensor"]].to(device if packed["on_device"] else "cpu", copy=True)
