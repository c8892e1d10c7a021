"""A rank above 0: computes its share of every unit of work that rank 0 announces."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from videoserve.config import Settings
from videoserve.types import AdapterUse
from videoserve.video.bindings import Shelf
from videoserve.video.decode import draw
from videoserve.video.denoise import predict
from videoserve.video.families.conditioning import Conditioning
from videoserve.video.inside import Place, heard
from videoserve.video.links import measure
from videoserve.video.load import Model, load_model
from videoserve.video.memory import out_of_memory, release
from videoserve.video.ranks import GRACE_S, MEMORY, PEER, Guest, Meshes, Plans, receive
from videoserve.video.run import Encoded
from videoserve_cache.steps.store import Budget
from videoserve_kernels.comm.channel import FOREVER_S, Channel
from videoserve_kernels.comm.exchange import CommunicationError
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.device import pick_device, pick_dtype

log = logging.getLogger(__name__)


def follow(settings: Settings, model_dir: Path) -> None:
    """The life of this rank: loads what it needs of the model and works until rank 0 closes its engine.

    Its process must outlive what rank 0 still does after a SIGTERM: ignore the signal here. Raises CommunicationError
    when rank 0, or any rank in the middle of a unit, is gone; ValueError for a model or device that cannot be used.
    """
    channel = Channel()
    device = pick_device(settings.device)
    dtype = pick_dtype(settings.dtype, device)
    model = load_model(model_dir, device=device, dtype=dtype, adapters=Shelf.of(settings))
    Follower(model, channel, Budget(settings.step_cache_bytes)).serve()


class Follower:
    """What a rank above 0 keeps: weights, and of each job in work what a forward and a decode need."""

    def __init__(self, model: Model, channel: Channel, budget: Budget) -> None:
        self._model = model
        self._budget = budget
        self._channel = channel
        self._jobs: dict[str, Guest] = {}
        self._clips: dict[str, Iterator[object]] = {}
        self._meshes: Meshes | None = None
        self._limit_s = FOREVER_S

    def serve(self) -> None:
        """Follows the headers until rank 0 says that it closes."""
        failure: Exception | None = None
        while True:
            header = self._hear(failure)
            for job_id in header.get("dropped", ()):
                self._drop(job_id)
                self._clips.pop(job_id, None)
            if header["kind"] == "close":
                break
            if header["kind"] == "recover":
                # An exception holds the frames, and so the tensors, of the work that failed.
                what, failure = told(failure), None
                self._recover(what)
            elif failure is not None:
                raise failure
            else:
                failure = self._try(header)
        self._end()

    def _hear(self, failure: Exception | None) -> dict[str, Any]:
        # After a failure rank 0 fails as well, at the latest at its own time limit, and says so.
        return self._channel.hear(limit_s=FOREVER_S if failure is None else 2 * self._limit_s + GRACE_S)

    def _try(self, header: dict[str, Any]) -> Exception | None:
        """Does what a header says; the exception is kept until rank 0 asks for it."""
        try:
            self._do(header)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            if told(error) not in (PEER, MEMORY):
                # Rank 0 hears one sentence of it.
                log.exception("a unit of work failed", extra={"kind": header["kind"]})
            return error
        return None

    def _do(self, header: dict[str, Any]) -> None:
        if header["kind"] == "begin":
            self._begin(header)
        elif header["kind"] == "measure":
            measure(header, self._model.device, self._limit_s)
        elif header["kind"] in ("denoise", "decode"):
            mesh = self._mesh(header)
            {"denoise": self._denoise, "decode": self._decode}[header["kind"]](header, mesh)
            mesh.end_step()

    def _begin(self, header: dict[str, Any]) -> None:
        if header["model"] != self._model.config:
            raise ValueError(f"Rank {self._channel.rank} has loaded another model than rank 0.")
        self._limit_s = header["limit_s"]
        for job_id in list(self._jobs):
            self._drop(job_id)
        self._clips.clear()
        guided, plain = (ParallelPlan.parse(name) for name in header["plans"])
        if self._meshes is not None:
            self._meshes.close()
        self._meshes = Meshes(Plans(guided=guided, plain=plain), self._model.device, self._limit_s)

    def _mesh(self, header: dict[str, Any]) -> Mesh:
        assert self._meshes is not None
        mesh = self._meshes.of(header["guided"])
        if mesh.plan.digest != header["plan"]:
            raise ValueError(f"Rank {self._channel.rank} follows the plan {mesh.plan.name} and rank 0 another one.")
        return mesh

    def _denoise(self, header: dict[str, Any], mesh: Mesh) -> None:
        latents, *rest = receive(header["tensors"], mesh)
        tensors = iter(rest)
        for job_id, about in header["new"].items():
            texts = tuple(next(tensors) for _ in range(about["texts"]))
            fixed = next(tensors)
            encoded = Encoded(
                texts=texts,
                image_embeds=next(tensors) if about["image"] else None,
                conditioning=Conditioning(fixed=fixed, clean_first_frame=about["clean_first_frame"]),
                text_length=about["text_length"],
            )
            # Of one that was told before, in a unit that failed.
            self._drop(job_id)
            cache = about["cache"]
            self._jobs[job_id] = Guest(encoded, None if cache is None else heard(cache, self._budget, mesh))
        jobs = [self._jobs[job_id] for job_id in header["jobs"]]
        timesteps = torch.tensor(header["timesteps"], device=mesh.device)
        place = None if header["inside"] is None else Place(**header["inside"])
        self._model.adapters.bind(header["expert"], [AdapterUse.from_dict(use) for use in header["adapters"]])
        predict(self._model, header["expert"], jobs, latents, timesteps, mesh, place)

    def _drop(self, job_id: str) -> None:
        guest = self._jobs.pop(job_id, None)
        if guest is not None and guest.steps is not None:
            guest.steps.close()

    def _decode(self, header: dict[str, Any], mesh: Mesh) -> None:
        if header["first"]:
            (latents,) = receive(header["tensors"], mesh)
            self._clips[header["job"]] = draw(self._model.vae, latents, mesh)
        next(self._clips[header["job"]])

    def _recover(self, what: str | None) -> None:
        """Tells rank 0 what went wrong here, and makes new meshes with the others."""
        assert self._meshes is not None
        self._channel.answer({"failure": what}, limit_s=self._limit_s)
        release(self._model.device)
        self._meshes.renew()

    def _end(self) -> None:
        if self._meshes is not None:
            self._meshes.close()
        self._channel.close()


def told(failure: Exception | None) -> str | None:
    """What rank 0 hears of a failure: MEMORY, PEER, or a sentence."""
    if failure is None:
        return None
    if isinstance(failure, CommunicationError):
        return PEER
    return MEMORY if out_of_memory(failure) else f"{type(failure).__name__}: {failure}"
