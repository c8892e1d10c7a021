"""What identifies a model's weights: sha256 over the contents of its safetensors files."""

import hashlib
import json
from pathlib import Path

from videoserve.video.memo import Memo


class DigestMemo(Memo):
    """Digests of files that have not changed since they were read: inode, size and modification time are the same."""

    def digest(self, file: Path) -> str:
        """sha256 of the contents, as hex; read only when the file is not known."""
        about = file.stat()
        key = f"{about.st_dev}:{about.st_ino}:{about.st_size}:{about.st_mtime_ns}"
        digest: str | None = self.get(key)
        if digest is None:
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            self.keep(key, digest)
        return digest


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
