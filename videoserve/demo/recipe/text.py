"""Train the tokenizer and the text encoder: WORK/tokenizer and WORK/text_encoder.

python -m videoserve.demo.recipe.text --work WORK [--steps 3000]      about four CPU minutes

Byte-level BPE with 2048 tokens and a two-layer UMT5 encoder. Before the DiT sees it, the encoder learns that a fixed
projection of every token's output is the motion the prompt asks for; then it is frozen.
"""

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from videoserve.demo.recipe.motions import PAN, TURN, ZOOM, Label, path_of, sample_label
from videoserve.demo.recipe.paraphrases import PARAPHRASES
from videoserve.demo.recipe.prompts import prompt_for
from videoserve.demo.recipe.work import work_folder

CHANNELS = 128
VOCABULARY = 2048
CORPUS = 30_000
BATCH = 24
RATE = 1.5e-3
LONGEST = 64
EMPTY = 0.03
# What the projected output is divided by before it is compared with the motion.
SCALE = 4.0


def train_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE on template prompts, lower case, any Unicode text accepted, `</s>` appended."""
    rng = random.Random(1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([prompt_for(sample_label(rng), rng) for _ in range(CORPUS)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
        padding_side="right",
    )
    fast.save_pretrained(folder)
    return fast


def new_encoder() -> UMT5EncoderModel:
    """Two layers of four heads, 0.6 million parameters."""
    config = UMT5Config(
        vocab_size=VOCABULARY,
        d_model=CHANNELS,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=64,
        dropout_rate=0.05,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        is_encoder_decoder=False,
        use_cache=False,
        tie_word_embeddings=False,
    )
    encoder = UMT5EncoderModel(config)
    for parameter in encoder.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=min(0.5, parameter.shape[1] ** -0.5))
    return encoder


def probe() -> torch.Tensor:
    """The fixed projection [CHANNELS, 4] with orthonormal columns."""
    generator = torch.Generator().manual_seed(7)
    columns: torch.Tensor = torch.linalg.qr(torch.randn(CHANNELS, 4, generator=generator))[0]
    return columns


def target(label: Label) -> list[float]:
    """The motion in units of the normal speed: dx, dy, log zoom, rotation."""
    path = path_of(label)
    units = (PAN["normal"], PAN["normal"], ZOOM["normal"], TURN["normal"])
    return [part / unit for part, unit in zip((path.dx, path.dy, path.log_zoom, path.rotation), units, strict=True)]


def projected(encoder: Any, tokenizer: Any, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """(motion read at every token [B, L, 4], mask [B, L, 1])."""
    tokens = tokenizer(prompts, padding=True, return_tensors="pt", truncation=True, max_length=LONGEST)
    hidden = encoder(tokens.input_ids, tokens.attention_mask).last_hidden_state
    return hidden @ probe() / SCALE, tokens.attention_mask[..., None].float()


@torch.no_grad()
def mistakes(encoder: Any, tokenizer: Any) -> list[str]:
    """The hand-written prompts whose motion is read wrong by more than 0.4 of the normal speed."""
    encoder.eval()
    read, mask = projected(encoder, tokenizer, [prompt for prompt, _ in PARAPHRASES])
    error = (read * mask).sum(1) / mask.sum(1) - torch.tensor([target(label) for _, label in PARAPHRASES])
    encoder.train()
    return [PARAPHRASES[k][0] for k in (error.abs().amax(1) > 0.4).nonzero().flatten()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this stage."""
    parser.add_argument("--steps", type=int, default=3000)


def main() -> None:
    """Train both and save them."""
    work, arguments = work_folder(__doc__, add_arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(3)
    tokenizer, encoder = train_tokenizer(work / "tokenizer"), new_encoder()
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(arguments.steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 100, (arguments.steps - step) / (arguments.steps * 0.5))
        labels = [sample_label(rng) for _ in range(BATCH)]
        prompts, targets = [prompt_for(label, rng) for label in labels], [target(label) for label in labels]
        for k in range(BATCH):
            if rng.random() < EMPTY:
                prompts[k], targets[k] = "", [0.0] * 4
        read, mask = projected(encoder, tokenizer, prompts)
        wanted = torch.tensor(targets)[:, None].expand_as(read)
        loss = (functional.smooth_l1_loss(read, wanted, reduction="none", beta=0.2) * mask).sum() / mask.sum()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimiser.step()
        if step % 250 == 249:
            print(f"step {step + 1}: loss {loss.item():.4f}, read wrong: {mistakes(encoder, tokenizer)}", flush=True)
    encoder.eval().save_pretrained(work / "text_encoder")


if __name__ == "__main__":
    main()
