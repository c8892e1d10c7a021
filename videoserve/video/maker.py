"""What an engine's results depend on besides the request: its model, its code, its device and its ranks, as digests."""

import hashlib
import platform
from collections.abc import Iterable
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from videoserve.planning.identity import VERSION, Maker
from videoserve.video.digest import DigestMemo
from videoserve.video.environment import Environment
from videoserve.video.load import Components
from videoserve_cache.digest import digest
from videoserve_kernels.triton_gate import installed

# Others' code that pictures and videos go through, beside what an environment tells.
CODECS = ("av", "numpy", "pillow")
# What kernels are compiled by, or are from; not everywhere.
KERNELS = ("triton", "xformers")
# Packages whose code decides about bits.
CODE = ("videoserve.media", "videoserve.video", "videoserve_cache.steps", "videoserve_kernels", "videoserve_lora")


def maker_of(components: Components, environment: Environment, directory: Path, memo: DigestMemo) -> Maker:
    """Of a loaded model in `directory` whose ranks have their plans."""
    where = {**surroundings(environment), "code": code_digest()}
    meshes = components.ranks.meshes
    text = parts_digest(directory, ("text_encoder", "tokenizer"), memo)

    def made(*what: Any) -> str:
        return digest("maker", VERSION, [where, *what])

    whole = (components.digest, components.config, text)
    return Maker(
        text=made(text),
        clip=made(parts_digest(directory, ("image_encoder", "image_processor"), memo)),
        vae=made(parts_digest(directory, ("vae",), memo)),
        guided=made(*whole, meshes.guided.plan.name, meshes.plain.plan.name),
        plain=made(*whole, meshes.plain.plan.name),
    )


def surroundings(environment: Environment) -> dict[str, Any]:
    """What may change bits of where a process runs; which of several equal devices it has does not."""
    told = environment.to_dict()
    names = ("device_name", "dtype", "attention", "threads", "torch", "diffusers", "transformers")
    return {name: told[name] for name in names} | {
        "device": environment.device.partition(":")[0],
        "machine": platform.machine(),
        "codecs": [version(package) for package in CODECS],
        "kernels": [version(package) if installed(package) else None for package in KERNELS],
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def parts_digest(directory: Path, parts: Iterable[str], memo: DigestMemo) -> str:
    """Of all files of these parts of a model directory, those that are there."""
    files = [file for part in parts for file in sorted((directory / part).rglob("*")) if file.is_file()]
    return digest("parts", VERSION, [[file.relative_to(directory).as_posix(), memo.digest(file)] for file in files])


def code_digest() -> str:
    """Of the source of CODE: another version of ours may round otherwise."""
    total = hashlib.sha256()
    for package in CODE:
        root = Path(str(resources.files(package)))
        for file in sorted(root.rglob("*.py")):
            total.update(f"{package}/{file.relative_to(root).as_posix()}\0".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()
