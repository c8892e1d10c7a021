"""Put a model together as a diffusers directory.

python -m videoserve.demo.recipe.pack --work WORK --out DIRECTORY [--model DIRECTORY] [--text] [--vae] [--dit]

The named parts come from WORK, all others from --model, by default the one that ships. With a new VAE its latents'
mean and deviation are measured first, so the DiT has to be trained after packing. The VAE and the DiT are stored in
float16; the text encoder stays float32 because transformers loads it in the type of its file.
"""

import argparse
import json
import random
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel

from videoserve.demo.recipe.bank import Bank
from videoserve.demo.recipe.dit import SHIPPED
from videoserve.demo.recipe.dit_net import new_dit
from videoserve.demo.recipe.text import CHANNELS as TEXT_CHANNELS
from videoserve.demo.recipe.vae import training_batch
from videoserve.demo.recipe.vae_net import encode, new_vae
from videoserve.demo.recipe.work import work_folder

MEASURED_CLIPS = 64


@torch.no_grad()
def packed_vae(work: Path) -> AutoencoderKLWan:
    """The averaged weights of WORK/vae.pt with the statistics of their latents in the configuration."""
    vae = new_vae()
    vae.load_state_dict(torch.load(work / "vae.pt")["mean"])
    bank, rng = Bank(work, "train"), random.Random(2)
    latents = torch.cat([encode(vae, training_batch(bank, rng, (1, 17, 96))) for _ in range(MEASURED_CLIPS)])
    channels = latents.transpose(0, 1).flatten(1)
    vae.register_to_config(
        latents_mean=[round(mean, 5) for mean in channels.mean(1).tolist()],
        latents_std=[round(std, 5) for std in channels.std(1).tolist()],
    )
    return vae


def packed_dit(work: Path, channels: int) -> WanTransformer3DModel:
    """The averaged weights of WORK/dit.pt."""
    dit = new_dit(channels, TEXT_CHANNELS)
    dit.load_state_dict(torch.load(work / "dit.pt")["mean"])
    return dit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this stage."""
    parser.add_argument("--out", type=Path, required=True, help="directory to write; an old one is replaced")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="where the other parts come from")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--vae", action="store_true")
    parser.add_argument("--dit", action="store_true")


def main() -> None:
    """Write a whole directory beside --out, then put it in its place."""
    work, arguments = work_folder(__doc__, add_arguments)
    draft = arguments.out.with_name(arguments.out.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(arguments.model, draft)
    if arguments.text:
        for part in ("tokenizer", "text_encoder"):
            shutil.rmtree(draft / part)
            shutil.copytree(work / part, draft / part)
    if arguments.vae:
        packed_vae(work).half().save_pretrained(draft / "vae")
    if arguments.dit:
        channels = json.loads((draft / "vae" / "config.json").read_text())["z_dim"]
        packed_dit(work, channels).half().save_pretrained(draft / "transformer")
    shutil.rmtree(arguments.out, ignore_errors=True)
    draft.rename(arguments.out)
    size = sum(file.stat().st_size for file in arguments.out.rglob("*") if file.is_file())
    print(f"{arguments.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
