"""Receipt v2: what was computed for a job, with what, and where."""

from typing import Any

from videoserve.planning.reuse import told
from videoserve.types import Output
from videoserve.video.digest import text_digest
from videoserve.video.environment import Environment
from videoserve.video.load import Components
from videoserve.video.run import Run, need
from videoserve_cache.steps.context import Decision

VERSION = 2


def make_receipt(
    run: Run, components: Components, environment: Environment, outputs: dict[str, Output], finished_at: float
) -> dict[str, Any]:
    """JSON for a finished run. Seconds, bytes, sha256 as hex.

    `adapters` are by digest. `steps` has a letter a step: R was computed, . forecast by the step cache. `reuse` is of
    what earlier requests left.
    `parallel` is the plan by which ranks shared the work; one with 8 bits on the wire gives frames of its own.
    """
    plan, record = run.plan, run.record
    stages = {stage: round(seconds, 4) for stage, seconds in record.seconds.items()}
    return {
        "version": VERSION,
        "job": run.id,
        "model": {"name": plan.model, "layout": components.layout.name, "sha256": components.digest},
        "parameters": parameters(run, components),
        "adjustments": [*plan.adjustments, *record.adjustments],
        "image": {"sha256": plan.image},
        "last_image": None if plan.last_image is None else {"sha256": plan.last_image},
        "prompt": about_text(plan.prompt, record.tokens[0]),
        "negative_prompt": about_text(plan.negative_prompt, record.tokens[1]) if run.guided else None,
        "adapters": components.adapters.describe(plan.loras),
        "steps": record.computed,
        "batch": list(record.batches),
        "cache": about_cache(run),
        "reuse": told(record.reuse),
        "parallel": components.ranks.meshes.of(run.guided).plan.name,
        "resumed_from": list(record.resumed),
        "stages": stages,
        "total_s": round(sum(record.seconds.values()), 4),
        "peak_memory_bytes": record.peak_memory,
        "environment": environment.to_dict(),
        "outputs": {variant: output.to_dict() for variant, output in outputs.items()},
        "started_at": record.started_at,
        "finished_at": finished_at,
    }


def about_cache(run: Run) -> dict[str, Any]:
    """What the step cache was asked and did; `foretold` is what the calibration says that chose the policy."""
    record = run.record
    steps = record.computed
    did = {"steps": steps, "steps_saved": steps.count(Decision.SKIP)}
    policy = record.policy or {"policy": "off"}
    return {
        "asked": run.plan.cache,
        **(policy | did if run.steps is None else run.steps.receipt()),
        "uncond_steps": steps if run.guided else None,
        "calibration": record.calibration,
        "foretold": record.foretold,
        "fidelity": record.fidelity,
    }


def parameters(run: Run, components: Components) -> dict[str, Any]:
    """The effective ones: nothing is left to a default that a reader would have to look up."""
    plan = run.plan
    solver = need(run.solver, "solver")
    return {
        "width": plan.width,
        "height": plan.height,
        "num_frames": plan.num_frames,
        "fps": plan.fps,
        "num_inference_steps": plan.steps,
        "guidance_scale": plan.guidance,
        "guidance_scale_2": plan.guidance_2,
        "boundary_ratio": plan.boundary,
        "flow_shift": solver.flow_shift,
        "solver": components.solver.scheduler.__name__,
        "seed": plan.seed,
        "text_length": plan.text_length,
        "resize_mode": plan.resize_mode,
        "crf": plan.crf,
    }


def about_text(text: str, tokens: list[int]) -> dict[str, Any]:
    whole, read = tokens
    return {"sha256": text_digest(text), "tokens": whole, "tokens_read": read}
