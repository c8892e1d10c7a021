"""Rank 0: decides what is computed and tells the others. What changes from step to step is here only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from videoserve.video.inside import Place, told
from videoserve.video.links import measure, request_for
from videoserve.video.memory import release
from videoserve.video.ranks import GRACE_S, MEMORY, PEER, Meshes, Plans, described, send
from videoserve.video.run import Run, need
from videoserve_kernels.comm.calibration import Calibration
from videoserve_kernels.comm.channel import Channel
from videoserve_kernels.comm.exchange import CommunicationError, Handle
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.topology import Host


class RankFailedError(RuntimeError):
    """Another rank could not do its part; the message has its number and what it said."""


def open_channel() -> Channel | None:
    """The way to the other ranks of torch.distributed's world, which are in follower.follow; None where none are."""
    return Channel() if dist.is_initialized() and dist.get_world_size() > 1 else None


class Leader:
    """What the engine uses of the ranks of torch.distributed's world. With one rank it tells nobody anything.

    A unit of work is a header to every other rank, then the tensors it needs, then the same computation on all. Noise,
    solver and guidance stay here, so a result does not depend on the number of ranks, and what a new group of ranks
    needs is this rank's checkpoint.
    """

    def __init__(self, channel: Channel | None, *, device: torch.device, time_limit_s: float = 30.0) -> None:
        """Without a channel this rank is alone, whatever torch.distributed's world."""
        self._channel = channel
        self._device = device
        self._limit_s = time_limit_s
        self._known: set[str] = set()
        self._dropped: list[str] = []
        self._ending: Handle[None] = Handle(lambda: None)
        one = ParallelPlan()
        self.meshes = Meshes(Plans(guided=one, plain=one), device, time_limit_s)

    @property
    def size(self) -> int:
        return 1 if self._channel is None else self._channel.size

    @property
    def world(self) -> Mesh:
        """The mesh for what all ranks share alike."""
        return self.meshes.plain

    def begin(self, plans: Plans, config: str) -> None:
        """Makes the meshes on every rank, in place of those there were; `config` is the model's, the same everywhere.

        Jobs begun before must not go on. Waits for the ranks that still load. ValueError when the plans need another
        number of ranks.
        """
        if plans.guided.ranks != self.size:
            raise ValueError(f"The plan {plans.guided.name} needs {plans.guided.ranks} ranks; here are {self.size}.")
        self._ending.wait()
        self.meshes.close()
        if self._channel is not None:
            names = [plans.guided.name, plans.plain.name]
            self._channel.tell({"kind": "begin", "plans": names, "model": config, "limit_s": self._limit_s})
        self._known.clear()
        self.meshes = Meshes(plans, self._device, self._limit_s)

    def measure(self, host: Host, dtype: torch.dtype) -> Calibration:
        """What the links between the ranks give and how fast these compute in `dtype`; all ranks take part.

        CommunicationError when a rank is gone.
        """
        assert self._channel is not None
        request = request_for(host, self.size, self._device, dtype)
        self._tell({"kind": "measure", **request})
        return measure(request, self._device, self._limit_s)

    @contextmanager
    def denoise(
        self, runs: Sequence[Run], expert: int, latents: Tensor, timesteps: Tensor, place: Place | None = None
    ) -> Iterator[Mesh]:
        """A forward of these runs, on every rank: the mesh for it. See `_unit` for what goes wrong.

        `place` where the only run's cache decides inside it.
        """
        mesh = self.meshes.of(runs[0].guided)
        if self._channel is None:
            yield mesh
            return
        new = [run for run in {run.id: run for run in runs}.values() if run.id not in self._known]
        header = {
            "kind": "denoise",
            "jobs": [run.id for run in runs],
            "steps": [need(run.solver, "solver").index for run in runs],
            "expert": expert,
            "adapters": [use.to_dict() for use in runs[0].plan.loras],
            "inside": None if place is None else asdict(place),
            "timesteps": [float(timestep) for timestep in timesteps],
            "new": {run.id: about(run) for run in new},
        }
        with self._unit(header, [latents, *(tensor for run in new for tensor in shared(run))], mesh):
            yield mesh
        self._known.update(run.id for run in new)

    @contextmanager
    def decode(self, job_id: str, latents: Tensor | None) -> Iterator[None]:
        """A piece of a clip, on every rank; the finished latents [1, C, F, H, W] with the first one."""
        if self._channel is None:
            yield
            return
        header = {"kind": "decode", "job": job_id, "first": latents is not None}
        with self._unit(header, [] if latents is None else [latents], self.world):
            yield

    def drop(self, job_id: str) -> None:
        """The others may forget this job; they hear it with the next header."""
        if self._channel is not None:
            self._known.discard(job_id)
            self._dropped.append(job_id)

    def rest(self) -> None:
        """There is no more work for now: what was dropped is told at once."""
        if self._channel is not None and self._dropped:
            self._tell({"kind": "rest"})

    def close(self) -> None:
        """Lets the other ranks end."""
        if self._channel is not None:
            self._tell({"kind": "close"})
            self._channel.close()
        self.meshes.close()

    @contextmanager
    def _unit(self, header: dict[str, Any], tensors: Sequence[Tensor], mesh: Mesh) -> Iterator[None]:
        """Header, tensors, the work inside, and the comparison of what the ranks have issued.

        When a rank fails, this one too, all make new meshes and what is raised is why; nobody has moved. When a rank
        is gone CommunicationError is raised, and the ranks have to be started again.
        """
        about_it = {"plan": mesh.plan.digest, "guided": mesh is self.meshes.guided, "tensors": described(tensors)}
        try:
            # What the last unit ended with was under way while solver and previews ran.
            self._ending.wait()
            self._tell({**header, **about_it})
            # This rank has them already: it begins while they travel.
            sent = send(tensors, mesh)
            yield
            for handle in sent:
                handle.wait()
            self._ending = mesh.step_ending()
        except torch.AcceleratorError:
            raise
        except Exception as error:
            raise self._recovered(error) from error

    def _tell(self, header: dict[str, Any]) -> None:
        assert self._channel is not None
        self._channel.tell({**header, "dropped": self._dropped}, limit_s=self._limit_s)
        self._dropped = []

    def _recovered(self, error: Exception) -> Exception:
        """Why a unit failed, after the ranks are in step again; raises CommunicationError when they cannot be."""
        assert self._channel is not None
        limit_s = 2 * self._limit_s + GRACE_S
        self._channel.tell({"kind": "recover", "dropped": []}, limit_s=limit_s)
        answers = self._channel.answers(limit_s=limit_s)
        cause = error if not isinstance(error, CommunicationError) else reported(answers)
        if cause is None:
            raise error
        release(self._device)
        self._ending = Handle(lambda: None)
        self.meshes.renew()
        return cause


def about(run: Run) -> dict[str, Any]:
    """What else than tensors a rank must know of a job."""
    encoded = need(run.encoded, "encoded")
    return {
        "texts": len(encoded.texts),
        "image": encoded.image_embeds is not None,
        "text_length": encoded.text_length,
        "clean_first_frame": encoded.conditioning.clean_first_frame,
        # Of a step cache that decides inside the forward; what rank 0 decides before it no other rank hears of.
        "cache": told(run),
    }


def shared(run: Run) -> list[Tensor]:
    """The tensors of a job that every rank holds."""
    encoded = need(run.encoded, "encoded")
    image = [] if encoded.image_embeds is None else [encoded.image_embeds]
    return [*encoded.texts, encoded.conditioning.fixed, *image]


def reported(answers: dict[int, dict[str, Any]]) -> Exception | None:
    """The first failure of a rank that is not merely that another one failed."""
    for rank, answer in answers.items():
        if answer["failure"] == MEMORY:
            return torch.OutOfMemoryError(f"Rank {rank} ran out of memory.")
        if answer["failure"] not in (None, PEER):
            return RankFailedError(f"Rank {rank}: {answer['failure']}")
    return None
