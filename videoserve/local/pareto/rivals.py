"""The settings that the rivals run with: their authors' defaults, and what makes them faster or better here."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from diffusers import FirstBlockCacheConfig, MagCacheConfig, TaylorSeerCacheConfig

from videoserve.local.pareto.theirs import Install

# TaylorSeer's default identifiers match no module of Wan.
MODULES = [r"blocks\.\d+\.(attn1|attn2|ffn)"]
# Optional, and slow to import.
CACHE_DIT = "cache_dit"
NO_CACHE_DIT = "cache-dit is not installed, so its rows are left out: pip install videoserve[bench]."


def diffusers_caches(ratios: list[float]) -> dict[str, Install]:
    """diffusers' hooks; `ratios` are MagCache's for this model."""
    rows = {f"diffusers FirstBlockCache {threshold:g}": first_block(threshold) for threshold in (0.08, 0.2)}
    rows |= {f"diffusers MagCache {threshold:g}": magnitude(threshold, ratios) for threshold in (0.06, 0.24)}
    rows["diffusers TaylorSeer modules, 1 of 2"] = taylorseer(2, cache_identifiers=MODULES)
    rows |= {f"diffusers TaylorSeer lite, 1 of {every}": taylorseer(every, use_lite_mode=True) for every in (2, 3)}
    return rows


def first_block(threshold: float) -> Install:
    return hooked(lambda: FirstBlockCacheConfig(threshold=threshold))


def magnitude(threshold: float, ratios: list[float]) -> Install:
    return hooked(lambda: MagCacheConfig(threshold=threshold, num_inference_steps=len(ratios), mag_ratios=list(ratios)))


def taylorseer(interval: int, **settings: Any) -> Install:
    # Factors in bfloat16, the default, lose against float32 on a model in float32.
    return hooked(
        lambda: TaylorSeerCacheConfig(cache_interval=interval, taylor_factors_dtype=torch.float32, **settings)
    )


def hooked(config: Callable[[], Any]) -> Install:
    """A cache of diffusers' own."""

    def install(pipeline: Any) -> Callable[[], None]:
        pipeline.transformer.enable_cache(config())
        return lambda: pipeline.transformer.disable_cache()

    return install


def cache_dit_caches(steps: int) -> dict[str, Install]:
    """cache-dit's DBCache with dynamic and with static steps; empty where it is not installed."""
    if not has_cache_dit():
        return {}
    cache_dit = importlib.import_module(CACHE_DIT)
    masks = {name: cache_dit.steps_mask(mask_policy=name, total_steps=steps) for name in ("medium", "fast")}
    rows = {"cache-dit F1B0 W4 0.08": dual({"residual_diff_threshold": 0.08}, 0)}
    rows["cache-dit F1B0 W4 0.24 TaylorSeer"] = dual({"residual_diff_threshold": 0.24}, 1)
    for name, mask in masks.items():
        settings = {"steps_computation_mask": mask, "steps_computation_policy": "static", "num_inference_steps": steps}
        rows[f"cache-dit mask {name} TaylorSeer"] = dual(settings, 1)
    return rows


def has_cache_dit() -> bool:
    return importlib.util.find_spec(CACHE_DIT) is not None


def dual(settings: dict[str, Any], order: int) -> Install:
    """DBCache, which forecasts its residual with TaylorSeer of that order; 0: it keeps it."""

    def install(pipeline: Any) -> Callable[[], None]:
        cache_dit = importlib.import_module(CACHE_DIT)
        cache_dit.enable_cache(
            pipeline,
            cache_config=cache_dit.DBCacheConfig(
                Fn_compute_blocks=1, Bn_compute_blocks=0, max_warmup_steps=4, **settings
            ),
            calibrator_config=cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=order) if order else None,
        )
        return lambda: cache_dit.disable_cache(pipeline)

    return install
