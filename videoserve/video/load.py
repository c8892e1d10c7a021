"""A diffusers directory as components on a device. Local files only: nothing is ever downloaded."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from transformers import AutoImageProcessor, AutoTokenizer, CLIPVisionModel, UMT5EncoderModel

from videoserve.planning.layout import Layout, read_layout
from videoserve.video.bindings import Bindings, Shelf
from videoserve.video.digest import DigestMemo, config_digest, model_digest
from videoserve.video.families.vae import WanVae
from videoserve.video.families.wan import WanTransformer
from videoserve.video.leader import Leader
from videoserve.video.solver import SolverKind


class IncompleteModelError(ValueError):
    """A part of the model directory is missing; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What every rank holds of a model: what denoising and decoding take.

    `experts` holds the transformer, or the high-noise and the low-noise one in that order, `adapters` what is bound to
    them. `config` is a digest over the configurations.
    """

    layout: Layout
    vae: WanVae
    experts: tuple[WanTransformer, ...]
    adapters: Bindings
    device: torch.device
    dtype: torch.dtype
    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Components(Model):
    """A loaded model as rank 0 has it, with the encoders and the ranks that share the rest of the work.

    `image_encoder` and `image_processor` are CLIP's, None on the layouts without. `digest` is over the weights.
    """

    tokenizer: Any
    text_encoder: Any
    image_processor: Any | None
    image_encoder: Any | None
    solver: SolverKind
    digest: str
    ranks: Leader


def load_model(directory: Path, *, device: torch.device, dtype: torch.dtype, adapters: Shelf | None = None) -> Model:
    """What every rank needs of `directory`: transformers in `dtype`, the VAE in float32 as is usual.

    Raises IncompleteModelError or UnknownLayoutError, whose messages say what is wrong.
    """
    layout = read_layout(directory)
    check_parts(directory, layout)
    names = ("transformer", "transformer_2")[: layout.experts]
    vae = AutoencoderKLWan.from_pretrained(
        directory / "vae", dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    experts = tuple(load_transformer(directory / name, layout, device, dtype) for name in names)
    return Model(
        layout=layout,
        vae=WanVae(vae.to(device)),
        experts=experts,
        adapters=Bindings(experts, adapters),
        device=device,
        dtype=dtype,
        config=config_digest(directory),
    )


def load_components(
    directory: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    memo: DigestMemo,
    ranks: Leader,
    adapters: Shelf | None = None,
) -> Components:
    """Everything in `directory`: the model with the text encoder in `dtype` and CLIP in float32.

    Raises as load_model does, and UnusableSolverError.
    """
    model = load_model(directory, device=device, dtype=dtype, adapters=adapters)
    encoder = UMT5EncoderModel.from_pretrained(
        directory / "text_encoder", dtype=dtype, local_files_only=True, use_safetensors=True
    )
    scheduler = directory / "scheduler" / "scheduler_config.json"
    clip = model.layout.image_embeds
    return Components(
        **{part.name: getattr(model, part.name) for part in fields(model)},
        tokenizer=AutoTokenizer.from_pretrained(directory / "tokenizer", local_files_only=True),
        text_encoder=encoder.eval().requires_grad_(False).to(device),
        image_processor=load_image_processor(directory) if clip else None,
        image_encoder=load_image_encoder(directory, device) if clip else None,
        solver=SolverKind.from_config(json.loads(scheduler.read_text(encoding="utf-8"))),
        digest=model_digest(directory, memo),
        ranks=ranks,
    )


def check_parts(directory: Path, layout: Layout) -> None:
    """Every part is there with its weights; IncompleteModelError names the first that is not."""
    weights = ["transformer", "vae", "text_encoder"]
    weights += ["transformer_2"] if layout.experts == 2 else []
    weights += ["image_encoder"] if layout.image_embeds else []
    for part in weights:
        for pattern in ("config.json", "*.safetensors"):
            if not any((directory / part).glob(pattern)):
                raise IncompleteModelError(f"The model {directory.name} has no {part}/{pattern}: it is not complete.")
        check_shards(directory, part)
    files = ["scheduler/scheduler_config.json", "tokenizer/tokenizer_config.json"]
    files += ["image_processor/preprocessor_config.json"] if layout.image_embeds else []
    for file in files:
        if not (directory / file).is_file():
            raise IncompleteModelError(f"The model {directory.name} has no {file}: it is not complete.")


def check_shards(directory: Path, part: str) -> None:
    """Of weights in several files, every file that the index names is there."""
    for index in (directory / part).glob("*.safetensors.index.json"):
        for shard in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            if not (directory / part / shard).is_file():
                raise IncompleteModelError(f"The model {directory.name} has no {part}/{shard}: it is not complete.")


def load_transformer(path: Path, layout: Layout, device: torch.device, dtype: torch.dtype) -> WanTransformer:
    module = WanTransformer3DModel.from_pretrained(path, dtype=dtype, local_files_only=True, use_safetensors=True)
    return WanTransformer(module.to(device), clean_first_frame=layout.clean_first_frame)


def load_image_processor(directory: Path) -> Any:
    return AutoImageProcessor.from_pretrained(directory / "image_processor", local_files_only=True)


def load_image_encoder(directory: Path, device: torch.device) -> Any:
    encoder = CLIPVisionModel.from_pretrained(
        directory / "image_encoder", dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    return encoder.eval().requires_grad_(False).to(device)
