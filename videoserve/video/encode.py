"""Stage one: prompt and pictures to what the denoising needs."""

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from videoserve.errors import JobFailed
from videoserve.types import VideoPlan
from videoserve.video.families.conditioning import build_conditioning, conditioning_video
from videoserve.video.load import Components
from videoserve.video.run import Encoded

Pixels = NDArray[np.uint8]


@torch.inference_mode()
def encode(
    components: Components, plan: VideoPlan, first: Pixels, last: Pixels | None
) -> tuple[Encoded, list[list[int]]]:
    """The encoders' outputs for a plan and its fitted pictures [H, W, 3].

    Also [tokens of the text, tokens read] of the prompt and, with guidance, of the negative prompt. Raises JobFailed
    for a result that is not finite.
    """
    prompts = [plan.prompt, plan.negative_prompt] if plan.guidance > 1 else [plan.prompt]
    texts, tokens = zip(*(encode_text(components, text, plan.text_length) for text in prompts), strict=True)
    pictures = [first] if last is None else [first, last]
    image_embeds = encode_picture(components, pictures) if components.layout.image_embeds else None
    latents = encode_frames(components, plan, first, last)
    encoded = assembled(components, plan, texts, image_embeds, latents)
    check_finite(encoded)
    return encoded, [list(counts) for counts in tokens]


def assembled(
    components: Components, plan: VideoPlan, texts: tuple[Tensor, ...], image_embeds: Tensor | None, latents: Tensor
) -> Encoded:
    """The encoders' outputs as denoising takes them."""
    last_image = plan.last_image is not None
    conditioning = build_conditioning(components.layout, latents, plan.num_frames, last_image=last_image)
    return Encoded(texts=texts, image_embeds=image_embeds, conditioning=conditioning, text_length=plan.text_length)


@torch.inference_mode()
def encode_text(components: Components, text: str, length: int) -> tuple[Tensor, tuple[int, int]]:
    """The text encoder's output for a cleaned text, without padding [n, C], and (tokens of the text, n)."""
    whole = len(components.tokenizer(text, add_special_tokens=True).input_ids)
    read = components.tokenizer(
        [text],
        padding="max_length",
        max_length=length,
        truncation=True,
        return_attention_mask=True,
        return_tensors="pt",
    )
    device = components.device
    states = components.text_encoder(read.input_ids.to(device), read.attention_mask.to(device)).last_hidden_state
    count = int(read.attention_mask.sum())
    # A copy: a slice would keep the padded rows alive as long as the job.
    return states[0, :count].clone(), (whole, count)


@torch.inference_mode()
def encode_picture(components: Components, pictures: list[Pixels]) -> Tensor:
    """CLIP's next to last hidden states, the second picture's tokens after the first's: [1, I, C]."""
    assert components.image_processor is not None
    assert components.image_encoder is not None
    inputs = components.image_processor(images=[Image.fromarray(picture) for picture in pictures], return_tensors="pt")
    pixels = inputs.pixel_values.to(components.device)
    states: Tensor = components.image_encoder(pixel_values=pixels, output_hidden_states=True).hidden_states[-2]
    return states.flatten(0, 1).unsqueeze(0)


@torch.inference_mode()
def encode_frames(components: Components, plan: VideoPlan, first: Pixels, last: Pixels | None) -> Tensor:
    """The latents of the frames that are given, and of the grey ones between them: [1, C, F, H, W].

    In pieces as small as can be: those of a longer video then begin with those of a shorter one.
    """
    video = conditioning_video(
        components.layout,
        to_tensor(first).to(components.device),
        None if last is None else to_tensor(last).to(components.device),
        plan.num_frames,
    )
    return components.vae.encode(video, most=1)


def to_tensor(picture: Pixels) -> Tensor:
    """[H, W, 3] to float32 [1, 3, H, W] in -1..1, in the arithmetic of diffusers' VideoProcessor."""
    scaled = picture.astype(np.float32) / 255.0
    return 2.0 * torch.from_numpy(scaled.transpose(2, 0, 1)).unsqueeze(0) - 1.0


def draw_noise(plan: VideoPlan, device: torch.device) -> Tensor:
    """The latents before the first step, float32 [1, C, F, H, W]: what diffusers draws from a CPU generator."""
    generator = torch.Generator("cpu").manual_seed(plan.seed)
    return torch.randn((1, *plan.latent_shape), generator=generator, dtype=torch.float32).to(device)


def cut_sentences(plan: VideoPlan, tokens: list[list[int]]) -> list[str]:
    """What to tell of texts that did not fit, as far as the plan has not told it; `tokens` as `encode` gives them."""
    sentences = []
    for name, (whole, read) in zip(("prompt", "negative_prompt"), tokens, strict=False):
        start = f"{name} is {whole} tokens"
        if whole > read and not any(said.startswith(start) for said in plan.adjustments):
            sentences.append(f"{start} and the model reads {read}: the last {whole - read} are cut.")
    return sentences


def check_finite(encoded: Encoded) -> None:
    """Raises JobFailed when an encoder's output holds NaN or infinity."""
    parts = {"text encoder": encoded.texts, "VAE": (encoded.conditioning.fixed,)}
    if encoded.image_embeds is not None:
        parts["image encoder"] = (encoded.image_embeds,)
    for name, tensors in parts.items():
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise JobFailed("numerical_error", f"The {name} gave numbers that are not finite, before the first step.")
