"""What the cross-attention of a request sees. It does not change over the steps, so it is computed once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TextContext:
    """Cross-attention keys and values of every layer. Row j·branches + g is guidance branch g of job j.

    `keys` and `values` hold one [R, L, N, D] a layer; `key_bias` [R, L] is 0 for a text token, log(n) for the key that
    stands for n padding tokens, -inf for one that a shorter row does not have. `image_keys` and `image_values` hold
    one [R, I, N, D] a layer, and are empty without an image encoder.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    key_bias: Tensor
    image_keys: tuple[Tensor, ...] = ()
    image_values: tuple[Tensor, ...] = ()
    branches: int = 1

    @property
    def rows(self) -> int:
        return self.key_bias.shape[0]

    @staticmethod
    def stack(jobs: Sequence["TextContext"]) -> "TextContext":
        """The contexts of several jobs as one batch, in their order; ValueError when their branches differ."""
        branches = {job.branches for job in jobs}
        if len(branches) != 1:
            raise ValueError(f"Jobs with {sorted(branches)} guidance branches cannot share one forward.")
        if len(jobs) == 1:
            return jobs[0]
        length = max(job.key_bias.shape[1] for job in jobs)
        layers = range(len(jobs[0].keys))
        image_layers = range(len(jobs[0].image_keys))
        return TextContext(
            keys=tuple(torch.cat([lengthened(job.keys[i], length, 0.0) for job in jobs]) for i in layers),
            values=tuple(torch.cat([lengthened(job.values[i], length, 0.0) for job in jobs]) for i in layers),
            key_bias=torch.cat([lengthened(job.key_bias, length, -torch.inf) for job in jobs]),
            image_keys=tuple(torch.cat([job.image_keys[i] for job in jobs]) for i in image_layers),
            image_values=tuple(torch.cat([job.image_values[i] for job in jobs]) for i in image_layers),
            branches=branches.pop(),
        )


def lengthened(rows: Tensor, length: int, fill: float) -> Tensor:
    """[R, L, ...] filled up to [R, length, ...]."""
    missing = rows.new_full((rows.shape[0], length - rows.shape[1], *rows.shape[2:]), fill)
    return torch.cat((rows, missing), dim=1)


def pad_text(texts: Sequence[Tensor], text_length: int) -> tuple[Tensor, Tensor]:
    """Unpadded text embeddings, each [n, C], as rows of one length, and the bias that makes them exact.

    The model was trained on texts filled up with zeros to `text_length` and attends to all of them. Equal tokens have
    equal keys, so one zero token with the bias log(count) stands for them. Returns [R, L, C] and float32 [R, L].
    """
    for text in texts:
        if text.shape[0] > text_length:
            raise ValueError(f"A text of {text.shape[0]} tokens is longer than the text length of {text_length}.")
    length = max(min(text.shape[0] + 1, text_length) for text in texts)
    rows = texts[0].new_zeros(len(texts), length, texts[0].shape[1])
    bias = torch.full((len(texts), length), -torch.inf, device=rows.device)
    for row, text in enumerate(texts):
        count = text.shape[0]
        rows[row, :count] = text
        bias[row, :count] = 0.0
        if count < text_length:
            bias[row, count] = torch.tensor(float(text_length - count)).log()
    return rows, bias
