"""Encoding where the parts that earlier requests have encoded are not encoded again."""

import time
from collections.abc import Callable
from typing import Any

import torch

from videoserve.planning.identity import Kind
from videoserve.planning.reuse import missed
from videoserve.types import VideoPlan
from videoserve.video.decode import is_flat
from videoserve.video.encode import Pixels, assembled, check_finite, encode_frames, encode_picture, encode_text
from videoserve.video.families.vae import TEMPORAL_FACTOR
from videoserve.video.kept import Kept, Part
from videoserve.video.load import Components
from videoserve.video.run import Run


def encode_kept(components: Components, run: Run, kept: Kept, picture: Callable[[str], Pixels]) -> None:
    """Sets what the encoders make of a run's plan, its tokens, and whether its picture is flat.

    `picture` reads a stored picture as the model gets it, [H, W, 3]. Raises JobFailed for a result that is not finite,
    which leaves nothing.
    """
    plan, parts = run.plan, Parts(components, run, kept)
    texts = [parts.text(text) for text in ([plan.prompt, plan.negative_prompt] if run.guided else [plan.prompt])]

    def pictures() -> list[Pixels]:
        return [picture(sha256) for sha256 in (plan.image, plan.last_image) if sha256 is not None]

    clip = parts.clip(pictures) if components.layout.image_embeds else None
    frames = parts.frames(pictures)
    latents = frames.tensors["latents"][:, :, : latent_frames(components, plan)]
    states = tuple(part.tensors["states"] for part in texts)
    embeds = None if clip is None else clip.tensors["embeds"]
    encoded = assembled(components, plan, states, embeds, latents)
    # What others left was right.
    if parts.made:
        check_finite(encoded)
    run.encoded = encoded
    run.record.tokens = [part.about["tokens"] for part in texts]
    run.flat_picture = frames.about["flat"]
    parts.leave()


def latent_frames(components: Components, plan: VideoPlan) -> int:
    """Of the frames that the VAE encodes for a plan."""
    return 1 if components.layout.clean_first_frame else (plan.num_frames - 1) // TEMPORAL_FACTOR + 1


class Parts:
    """The parts of one run: found, or made and to be left once all of them are right."""

    def __init__(self, components: Components, run: Run, kept: Kept) -> None:
        self._components = components
        self._run = run
        self._kept = kept
        self.made: list[tuple[Kind, Part, float, dict[str, Any]]] = []

    def text(self, text: str) -> Part:
        def make() -> Part:
            states, (whole, count) = encode_text(self._components, text, self._run.plan.text_length)
            return Part(tensors={"states": states}, about={"tokens": [whole, count]})

        return self._kept.recall("text_emb", self._run, text=text) or self._make("text_emb", make, text=text)

    def clip(self, pictures: Callable[[], list[Pixels]]) -> Part:
        def make() -> Part:
            return Part(tensors={"embeds": encode_picture(self._components, pictures())})

        return self._kept.recall("img_clip", self._run) or self._make("img_clip", make)

    def frames(self, pictures: Callable[[], list[Pixels]]) -> Part:
        """The latents of at least as many frames as the run has."""

        def make() -> Part:
            first, *last = pictures()
            latents = encode_frames(self._components, self._run.plan, first, last[0] if last else None)
            return Part(tensors={"latents": latents}, about={"flat": is_flat(first)})

        found = self._kept.recall("img_cond", self._run)
        if found is None:
            return self._make("img_cond", make)
        if found.tensors["latents"].shape[2] < latent_frames(self._components, self._run.plan):
            self._run.record.reuse[-1] = missed("img_cond")
            self._kept.forget("img_cond", self._run)
            return self._make("img_cond", make)
        return found

    def leave(self) -> None:
        for kind, part, seconds, more in self.made:
            self._kept.keep(kind, self._run, part, seconds, place={}, **more)

    def _make(self, kind: Kind, make: Callable[[], Part], **more: Any) -> Part:
        began = time.perf_counter()
        part = make()
        if self._components.device.type == "cuda":
            torch.cuda.synchronize(self._components.device)
        self.made.append((kind, part, time.perf_counter() - began, more))
        return part
