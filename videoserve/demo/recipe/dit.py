"""Train the DiT by flow matching on clips that are rendered and encoded while it trains: WORK/dit.pt.

python -m videoserve.demo.recipe.dit --work WORK [--model DIRECTORY] [--fresh | --resume] --minutes 60

The VAE and the text encoder come from a diffusers directory, by default the one that ships; so do the weights to go on
from, unless --fresh starts new ones or --resume goes on from WORK/dit.pt. Minutes are CPU minutes of one process; the
run also ends after --wall minutes of real time, whichever comes first. The rate is constant and falls to zero over the
last `decay` of the run.
"""

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch.nn import functional

from videoserve.demo.recipe import processes
from videoserve.demo.recipe.bank import Bank
from videoserve.demo.recipe.checkpoint import save
from videoserve.demo.recipe.dit_net import new_dit, velocity
from videoserve.demo.recipe.motions import Label
from videoserve.demo.recipe.muon import Muon
from videoserve.demo.recipe.prompts import prompt_for
from videoserve.demo.recipe.reader import Reader
from videoserve.demo.recipe.reservoir import Reservoir, Shape
from videoserve.demo.recipe.vae_net import channels_last
from videoserve.demo.recipe.work import work_folder

SHIPPED = Path(__file__).parents[1] / "model"
# (height, width): (clips of a step and process, how often it is drawn).
SHAPES: dict[Shape, tuple[int, float]] = {
    (128, 128): (4, 5),
    (96, 160): (4, 2),
    (160, 96): (4, 2),
    (96, 96): (6, 1),
}
FIRST_CLIPS = 12
# The same shift that the scheduler samples with.
SHIFT = 3.0
UNPROMPTED = 0.1
# The lengths prompts are padded to when the model is used; 64 is what the demo ships with.
PADDINGS = (64, 64, 64, 512)
CLIP_NORM = 1.0
AVERAGE = 0.99
REPORT_EVERY = 10
CHECK_EVERY = 60
CHECK_CLIPS = 12
CHECK_SIGMAS = (0.95, 0.7, 0.35)


def noised(latents: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Latents at noise level sigma [B], the first frame clean."""
    level = sigma.view(-1, 1, 1, 1, 1)
    mixed = (1 - level) * latents + level * noise
    mixed[:, :, 0] = latents[:, :, 0]
    return mixed


def error(
    dit: Any, latents: torch.Tensor, text: tuple[torch.Tensor, torch.Tensor], sigma: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """Mean square error of the velocity noise - latents at noise levels sigma [B], the first frame left out.

    `text` is what the reader made of the prompts.
    """
    out = velocity(dit, noised(latents, noise, sigma), sigma * 1000, *text)
    return functional.mse_loss(out[:, :, 1:], (noise - latents)[:, :, 1:])


def random_sigma(count: int) -> torch.Tensor:
    """Noise levels [count] as the shifted schedule spreads them."""
    uniform = torch.rand(count)
    return SHIFT * uniform / (1 + (SHIFT - 1) * uniform)


@torch.no_grad()
def errors_at_levels(dit: Any, latents: torch.Tensor, text: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    """The error at fixed noise, one number a level of CHECK_SIGMAS."""
    generator = torch.Generator().manual_seed(1)
    errors = []
    for level in CHECK_SIGMAS:
        sigma = torch.full((len(latents),), level)
        errors.append(error(dit, latents, text, sigma, torch.randn(latents.shape, generator=generator)).item())
    return errors


class Lesson:
    """What a step needs: latents with prompts, and the loss on them."""

    def __init__(self, reader: Reader, rng: random.Random) -> None:
        self.reader, self.rng = reader, rng

    def loss(self, dit: Any, latents: torch.Tensor, labels: list[Label]) -> torch.Tensor:
        """The error at random noise levels."""
        prompts = ["" if self.rng.random() < UNPROMPTED else prompt_for(label, self.rng) for label in labels]
        text = self.reader(prompts, self.rng.choice(PADDINGS))
        return error(dit, latents, text, random_sigma(len(labels)), torch.randn_like(latents))

    def check(self, dit: Any, latents: torch.Tensor, labels: list[Label]) -> list[float]:
        """The errors at fixed noise and prompts."""
        rng = random.Random(5)
        return errors_at_levels(dit, latents, self.reader([prompt_for(label, rng) for label in labels], 64))


def first_weights(arguments: argparse.Namespace, vae: AutoencoderKLWan, text_channels: int) -> WanTransformer3DModel:
    """New weights, or those of the model that is trained on."""
    if arguments.fresh:
        return new_dit(vae.config.z_dim, text_channels)
    folder = arguments.model / "transformer"
    return WanTransformer3DModel.from_pretrained(folder, torch_dtype=torch.float32)


def held_out_latents(work: Path, vae: AutoencoderKLWan) -> tuple[torch.Tensor, list[Label]]:
    """Fixed clips of held-out pictures, 128 x 128."""
    store = Reservoir(vae, Bank(work, "held-out"), random.Random(5))
    for _ in range(CHECK_CLIPS):
        store.add((128, 128))
    pairs = store.clips[(128, 128)]
    return torch.stack([latents for latents, _ in pairs]).float(), [label for _, label in pairs]


def train(work: Path, arguments: argparse.Namespace) -> None:
    """One process of the training."""
    processes.join(arguments.rank, arguments.world, arguments.rendezvous)
    lead = arguments.rank == 0
    rng, shapes = random.Random(arguments.seed * 1000 + arguments.rank), random.Random(arguments.seed)
    torch.manual_seed(arguments.seed * 1000 + arguments.rank)
    vae = channels_last(AutoencoderKLWan.from_pretrained(arguments.model / "vae", torch_dtype=torch.float32)).eval()
    reader = Reader(arguments.model)
    store = Reservoir(vae, Bank(work, "train"), rng)
    store_file, file = work / f"clips-{arguments.rank}.pt", work / "dit.pt"
    dit = first_weights(arguments, vae, reader.encoder.config.d_model)
    processes.share_weights(dit)
    mean = WanTransformer3DModel.from_config(dit.config)
    mean.load_state_dict(dit.state_dict())
    inner = [p for name, p in dit.named_parameters() if name.startswith("blocks") and p.ndim == 2]
    known = {id(p) for p in inner}
    rest = [p for p in dit.parameters() if id(p) not in known]
    optimiser = Muon(inner, rest, rates=(arguments.muon, arguments.adam), decay=0.02)
    if arguments.resume:
        state = torch.load(file)
        dit.load_state_dict(state["raw"])
        mean.load_state_dict(state["mean"])
        optimiser.load(state["optimiser"])
    if arguments.clips:
        store.load(store_file)
    for shape in SHAPES:
        for _ in range(FIRST_CLIPS - len(store.clips.get(shape, []))):
            store.add(shape)
    lesson = Lesson(reader, rng)
    check = held_out_latents(work, vae) if lead else None
    if check is not None:
        print("held out before:", [round(error, 4) for error in lesson.check(mean, *check)], flush=True)
    cpu, wall, step, losses = time.process_time(), time.time(), 0, [0.0][:0]
    while True:
        spent = (time.process_time() - cpu) / 60 / arguments.minutes
        done = processes.agree(max(spent, (time.time() - wall) / 60 / arguments.wall))
        if done >= 1:
            break
        shape = shapes.choices(list(SHAPES), [weight for _, weight in SHAPES.values()])[0]
        store.add(shape)
        loss = lesson.loss(dit, *store.draw(shape, SHAPES[shape][0]))
        dit.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        processes.average_gradients(dit.parameters(), CLIP_NORM)
        optimiser.step(min(1.0, (step + 1) / 20) * min(1.0, (1 - done) / arguments.decay))
        step += 1
        keep = min(AVERAGE, (step + 1) / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(mean.parameters()), list(dit.parameters()), 1 - keep)
        losses.append(loss.item())
        if lead and step % REPORT_EVERY == 0:
            kept = sum(len(clips) for clips in store.clips.values())
            loss_text = f"loss {sum(losses) / len(losses):.4f}, {kept} clips"
            print(f"{time.time() - wall:.0f} s, step {step}, {done:.0%}: {loss_text}", flush=True)
            losses = []
        if step % CHECK_EVERY == 0:
            store.save(store_file)
            if check is not None:
                print("held out:", [round(error, 4) for error in lesson.check(mean, *check)], flush=True)
                save(file, raw=dit.state_dict(), mean=mean.state_dict(), optimiser=optimiser.state())
    store.save(store_file)
    if check is not None:
        save(file, raw=dit.state_dict(), mean=mean.state_dict(), optimiser=optimiser.state())
        print(f"held out after {step} steps:", [round(error, 4) for error in lesson.check(mean, *check)], flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this stage."""
    parser.add_argument("--model", type=Path, default=SHIPPED, help="diffusers directory to go on from")
    parser.add_argument("--fresh", action="store_true", help="start new DiT weights")
    parser.add_argument("--resume", action="store_true", help="go on from WORK/dit.pt")
    parser.add_argument("--clips", action="store_true", help="begin with the clips of the last run; same VAE only")
    parser.add_argument("--minutes", type=float, default=60, help="CPU minutes of one process")
    parser.add_argument("--wall", type=float, default=1e6, help="minutes of real time")
    parser.add_argument("--decay", type=float, default=0.4, help="share of the run over which the rate falls to zero")
    parser.add_argument("--muon", type=float, default=0.01, help="learning rate of the blocks' matrices")
    parser.add_argument("--adam", type=float, default=7e-4, help="learning rate of the rest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)


def main() -> None:
    """Start the processes, or be one of them."""
    work, arguments = work_folder(__doc__, add_arguments)
    if arguments.rank is None:
        processes.launch("videoserve.demo.recipe.dit", sys.argv[1:], work, arguments.processes)
    else:
        train(work, arguments)


if __name__ == "__main__":
    main()
