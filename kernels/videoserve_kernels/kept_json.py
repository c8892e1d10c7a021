"""JSON that a process keeps on disk for the next one: whole or not there, also after a power cut."""

import json
import os
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """What was kept; None when nothing was. Raises ValueError, a sentence, for what is not JSON."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"The file {path} is not JSON; without it, what it held is found out again.") from None


def write_json(path: Path, value: Any) -> None:
    """In place of what was kept before. Other processes may read and write it at any time: the last one's stays."""
    text = json.dumps(value, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    with half.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        # A rename may reach the disk before the bytes do.
        os.fsync(file.fileno())
    half.replace(path)
