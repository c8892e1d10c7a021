"""What identifies a model's weights: sha256 over the contents of its safetensors files."""

import hashlib
import json
import os
from pathlib import Path


class DigestMemo:
    """Digests of files that have not changed since they were read, kept in one JSON file.

    A file is the same when inode, size and modification time are. `path` None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, str] = json.loads(path.read_text()) if path is not None and path.is_file() else {}

    def digest(self, file: Path) -> str:
        """sha256 of the contents, as hex; read only when the file is not known."""
        about = file.stat()
        key = f"{about.st_dev}:{about.st_ino}:{about.st_size}:{about.st_mtime_ns}"
        if key not in self._known:
            with file.open("rb") as content:
                self._known[key] = hashlib.file_digest(content, "sha256").hexdigest()
            self._keep()
        return self._known[key]

    def _keep(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Two workers may write at once: each replaces the whole file.
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(self._known))
        fresh.replace(self._path)


def model_digest(directory: Path, memo: DigestMemo) -> str:
    """One sha256 (hex) for all weights under a model directory: names, then contents, in the order of the names."""
    total = hashlib.sha256(b"videoserve-model-1")
    for file in sorted(directory.rglob("*.safetensors")):
        name = file.relative_to(directory).as_posix()
        total.update(f"\n{len(name)}:{name}:{memo.digest(file)}".encode())
    return total.hexdigest()


def config_digest(directory: Path) -> str:
    """One sha256 (hex) for the JSON files that change what the weights compute: configurations, no tokenizer."""
    total = hashlib.sha256(b"videoserve-config-1")
    for file in sorted([*directory.glob("*/*config.json"), directory / "model_index.json"]):
        name = file.relative_to(directory).as_posix()
        content = json.dumps(json.loads(file.read_text(encoding="utf-8")), sort_keys=True, separators=(",", ":"))
        total.update(f"\n{len(name)}:{name}:{len(content)}:{content}".encode())
    return total.hexdigest()


def text_digest(text: str) -> str:
    """sha256 (hex) of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
