"""Train one of the demo's adapters on the frozen DiT: WORK/adapters/NAME.safetensors.

python -m videoserve.demo.recipe.adapters --work WORK --name swirl|sepia-fade [--model DIRECTORY] [--minutes 20]

Rank 16 on every attention and feed-forward layer, one process of one thread; minutes are CPU minutes. New clips are
rendered and encoded while it trains. The file is written anew with every report, so a run can be ended early.
"""

import argparse
import random
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline, WanTransformer3DModel
from peft import LoraConfig, get_peft_model_state_dict

from videoserve.demo.recipe.bank import Bank
from videoserve.demo.recipe.dit import PADDINGS, SHIPPED, UNPROMPTED, error, errors_at_levels, random_sigma
from videoserve.demo.recipe.effects import EFFECTS, Effect
from videoserve.demo.recipe.reader import Reader
from videoserve.demo.recipe.vae_net import channels_last, encode
from videoserve.demo.recipe.work import work_folder

RANK = 16
LAYERS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]
BATCH = 4
CLIP_NORM = 1.0
WARM_UP = 20
AVERAGE = 0.98
# A new clip every so many steps, of one of these sides; the first ones come before the first step.
NEW_EVERY = 2
SIDES = (128, 128, 96)
CHECK_CLIPS = 8
REPORT_EVERY = 50


class Examples:
    """Normalised latents of an effect's clips, with their prompts, by the side of the clips."""

    def __init__(self, effect: Effect, vae: AutoencoderKLWan, bank: Bank, rng: random.Random) -> None:
        self.effect, self.vae, self.bank, self.rng = effect, vae, bank, rng
        mean, std = vae.config.latents_mean, vae.config.latents_std
        self.mean = torch.tensor(mean).view(1, -1, 1, 1, 1)
        self.std = torch.tensor(std).view(1, -1, 1, 1, 1)
        self.by_side: dict[int, list[tuple[torch.Tensor, str]]] = {}

    @torch.no_grad()
    def add(self, side: int) -> None:
        """Film, encode and keep one more clip."""
        clip, camera = self.effect.film(self.bank, side, self.rng)
        latents = (encode(self.vae, clip[None] * 2 - 1) - self.mean) / self.std
        self.by_side.setdefault(side, []).append((latents[0].half(), self.effect.prompt(camera, self.rng)))

    def draw(self, side: int, count: int) -> tuple[torch.Tensor, list[str]]:
        """(latents [count, C, F, H, W], prompts), drawn with replacement; some prompts are empty, for guidance."""
        latents, prompts = zip(*self.rng.choices(self.by_side[side], k=count), strict=True)
        unprompted = ["" if self.rng.random() < UNPROMPTED else prompt for prompt in prompts]
        return torch.stack(latents).float(), unprompted


def adapted(model: Path) -> WanTransformer3DModel:
    """The DiT with an adapter that changes nothing yet; only the adapter is trained."""
    dit = WanTransformer3DModel.from_pretrained(model / "transformer", torch_dtype=torch.float32)
    dit.requires_grad_(False)
    dit.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, init_lora_weights=True, target_modules=LAYERS))
    return dit


class Training:
    """An adapter, its average over the last steps, and what it learns from."""

    def __init__(self, work: Path, arguments: argparse.Namespace) -> None:
        effect, rng = EFFECTS[arguments.name], random.Random(arguments.seed)
        vae = AutoencoderKLWan.from_pretrained(arguments.model / "vae", torch_dtype=torch.float32)
        vae = channels_last(vae).eval()
        self.reader = Reader(arguments.model)
        self.dit, self.mean = (adapted(arguments.model) for _ in range(2))
        self.parameters = [parameter for parameter in self.dit.parameters() if parameter.requires_grad]
        self.averages = [parameter for parameter in self.mean.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=arguments.rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.rate, self.rng, self.step_number = arguments.rate, rng, 0
        self.examples = Examples(effect, vae, Bank(work, "train"), rng)
        for number in range(arguments.clips):
            self.examples.add(SIDES[number % len(SIDES)])
        held_out = Examples(effect, vae, Bank(work, "held-out"), random.Random(5))
        for _ in range(CHECK_CLIPS):
            held_out.add(SIDES[0])
        self.check_latents = torch.stack([latents for latents, _ in held_out.by_side[SIDES[0]]]).float()
        self.check_text = self.reader([prompt for _, prompt in held_out.by_side[SIDES[0]]], PADDINGS[0])

    def step(self, done: float) -> float:
        """One step at that share of the run, whose rate falls to zero over the second half; returns the loss."""
        side = self.rng.choice(SIDES)
        if self.step_number % NEW_EVERY == 0:
            self.examples.add(side)
        latents, prompts = self.examples.draw(side, BATCH)
        text = self.reader(prompts, self.rng.choice(PADDINGS))
        loss = error(self.dit, latents, text, random_sigma(BATCH), torch.randn_like(latents))
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        self.step_number += 1
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1.0, self.step_number / WARM_UP, (1 - done) / 0.5)
        self.optimiser.step()
        with torch.no_grad():
            keep = min(AVERAGE, self.step_number / (self.step_number + 9))
            torch._foreach_lerp_(self.averages, self.parameters, 1 - keep)
        return loss.item()

    def held_out(self) -> list[float]:
        """The averaged adapter's errors on clips of held-out pictures."""
        return [round(each, 4) for each in errors_at_levels(self.mean, self.check_latents, self.check_text)]

    def save(self, folder: Path, name: str) -> None:
        """The averaged adapter as diffusers writes one."""
        WanImageToVideoPipeline.save_lora_weights(
            folder,
            transformer_lora_layers=get_peft_model_state_dict(self.mean),
            weight_name=f"{name}.safetensors",
            transformer_lora_adapter_metadata=self.mean.peft_config["default"].to_dict(),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this stage."""
    parser.add_argument("--name", choices=sorted(EFFECTS), required=True)
    parser.add_argument("--model", type=Path, default=SHIPPED, help="diffusers directory the adapter is for")
    parser.add_argument("--minutes", type=float, default=20, help="CPU minutes")
    parser.add_argument("--clips", type=int, default=24, help="clips before the first step")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=11)


def main() -> None:
    """Train one adapter."""
    work, arguments = work_folder(__doc__, add_arguments)
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    training = Training(work, arguments)
    print("held out before:", training.held_out(), flush=True)
    begun, losses = time.process_time(), [0.0][:0]
    while (done := (time.process_time() - begun) / 60 / arguments.minutes) < 1:
        losses.append(training.step(done))
        if training.step_number % REPORT_EVERY == 0:
            training.save(work / "adapters", arguments.name)
            loss = sum(losses) / len(losses)
            print(
                f"step {training.step_number}, {done:.0%}: loss {loss:.4f}, held out {training.held_out()}", flush=True
            )
            losses = []
    training.save(work / "adapters", arguments.name)
    print(f"held out after {training.step_number} steps:", training.held_out())


if __name__ == "__main__":
    main()
