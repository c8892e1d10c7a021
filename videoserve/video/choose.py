"""Which plans the ranks of an engine work with when nobody has said: forecast, then tried on the model itself."""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch.distributed as dist

from videoserve.config import Settings
from videoserve.planning.card import ModelCard
from videoserve.planning.workload import Workload, choice_key
from videoserve.types import VideoPlan
from videoserve.video.denoise import velocities
from videoserve.video.links import places_of
from videoserve.video.load import Components
from videoserve.video.memory import out_of_memory
from videoserve.video.ranks import Plans
from videoserve.video.warmup import PROMPTS, default_plan, fastest, started
from videoserve_kernels.comm import calibration
from videoserve_kernels.comm.calibrate import name_of
from videoserve_kernels.comm.choices import Choice, Choices
from videoserve_kernels.comm.planner import Forecasted, Terms, confirm, pair
from videoserve_kernels.comm.topology import Host, look

log = logging.getLogger(__name__)

# A scale that asks for guidance, whatever the model's own is.
GUIDED = 2.0


def told(plans: Plans, choices: Mapping[bool, Choice] = MappingProxyType({})) -> dict[str, Any]:
    """The plans as JSON holds them, with what a step was forecast to take and took where they were chosen."""
    return {
        name: choices[guided].to_dict()
        if guided in choices
        else {"plan": plan.name, "step_s": None, "measured_s": None}
        for name, guided, plan in (("guided", True, plans.guided), ("plain", False, plans.plain))
    }


def choose(components: Components, settings: Settings, directory: Path) -> dict[bool, Choice]:
    """The plan for jobs with guidance, under True, and for those without; all ranks have begun with them.

    What was found on this host for the model's default shape before is taken again, so that a job that is interrupted
    ends with the plan it began with. Otherwise the links are measured, unless that was done before, every plan is
    forecast, and the two best take steps of the model.
    """
    ranks = components.ranks
    plan = default_plan(ModelCard.read(directory))
    host = look()
    kept = Choices(settings.data, host.fingerprint_for(places_of(ranks.size, components.device)))
    keys = {guided: key_of(plan, components, guided, settings.wire) for guided in (True, False)}
    found = {guided: choice for guided, key in keys.items() if (choice := kept.get(key)) is not None}
    if len(found) < len(keys):
        found = {guided: Choice.of(one) for guided, one in best(components, settings, directory, plan, host).items()}
        for guided, choice in found.items():
            kept.keep(keys[guided], choice)
    ranks.begin(Plans(guided=found[True].plan, plain=found[False].plan), components.config)
    log.info("plans", extra={"guided": found[True].to_dict(), "plain": found[False].to_dict()})
    return found


def key_of(plan: VideoPlan, components: Components, guided: bool, wire: str) -> str:
    return choice_key(
        plan.model,
        plan.width,
        plan.height,
        plan.num_frames,
        guided=guided,
        ranks=components.ranks.size,
        dtype=name_of(components.dtype),
        wire=wire,
    )


def best(
    components: Components, settings: Settings, directory: Path, plan: VideoPlan, host: Host
) -> dict[bool, Forecasted]:
    """The two plans, measured where there was a choice."""
    ranks = components.ranks
    fingerprint = host.fingerprint_for(places_of(ranks.size, components.device))
    links = calibration.once(
        settings.data,
        fingerprint,
        ranks.size,
        dist.get_backend(),
        name_of(components.dtype),
        lambda: ranks.measure(host, components.dtype),
    )
    work = Workload.read(directory, components.dtype.itemsize).at((plan.width, plan.height), plan.num_frames, None)
    # The ranks sit where they sit.
    terms = Terms(codecs=(settings.wire,), cards=tuple(range(ranks.size)))
    guided, plain = pair(work.model(2, links.rates), links.box, ranks.size, terms)
    both = with_guidance(plan, max(plan.guidance, GUIDED))
    measured = confirm(guided, lambda one: step_seconds(components, both, Plans(guided=one, plain=plain[0].plan)))
    single = with_guidance(plan, 1.0)
    others = confirm(plain, lambda one: step_seconds(components, single, Plans(guided=one, plain=one)))
    return {True: measured[0], False: others[0]}


def with_guidance(plan: VideoPlan, scale: float) -> VideoPlan:
    return replace(plan, guidance=scale, guidance_2=None if plan.guidance_2 is None else scale)


def step_seconds(components: Components, plan: VideoPlan, plans: Plans) -> float:
    """Seconds of a step of one job with these plans; infinite where memory does not allow them."""
    ranks = components.ranks
    ranks.begin(plans, components.config)
    run = started(components, replace(plan, prompt=PROMPTS[0]), "warm-up 0")
    try:
        # The first pays for what is done once.
        velocities(components, [run])
        return fastest(components, lambda: velocities(components, [run]))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return math.inf
    finally:
        ranks.drop(run.id)
