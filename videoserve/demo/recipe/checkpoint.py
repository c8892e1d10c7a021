"""Checkpoints that are whole or not there."""

from pathlib import Path
from typing import Any

import torch


def save(file: Path, **state: Any) -> None:
    """Write `state` beside `file`, then rename: a reader never meets half a file."""
    draft = file.with_suffix(".draft")
    torch.save(state, draft)
    draft.rename(file)
