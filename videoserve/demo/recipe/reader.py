"""Prompts as the DiT reads them: frozen text encoder, padding folded into one token."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, UMT5EncoderModel

# One fixed length for training: longer prompts are cut.
LENGTH = 40


class Reader:
    """The tokenizer and text encoder of a diffusers directory."""

    def __init__(self, model: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model / "tokenizer")
        self.encoder = UMT5EncoderModel.from_pretrained(model / "text_encoder").eval()

    @torch.no_grad()
    def __call__(self, prompts: list[str], padded_to: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(text [B, LENGTH + 1, C], bias [B, 1, 1, LENGTH + 1]) as if the prompts were padded to `padded_to` tokens."""
        tokens = self.tokenizer(prompts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
        mask = tokens.attention_mask
        text = self.encoder(tokens.input_ids, mask).last_hidden_state * mask[..., None]
        text = torch.cat([text, text.new_zeros(text.shape[0], 1, text.shape[2])], 1)
        padding = (padded_to - mask.sum(1)).clamp(min=1).float().log()
        bias = torch.cat([(1 - mask.float()) * -1e9, padding[:, None]], 1)
        return text, bias[:, None, None]
