"""What tells chat models apart, as far as keys and values depend on it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path


def digest_of(files: Sequence[Path], kept: str) -> str:
    """sha256 (hex) over the contents of a model's files, in order, and over how its weights are kept."""
    total = hashlib.sha256(b"videoserve-chat-1")
    for file in files:
        with file.open("rb") as content:
            total.update(hashlib.file_digest(content, "sha256").digest())
    total.update(kept.encode())
    return total.hexdigest()
