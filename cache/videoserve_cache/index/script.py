"""One atomic call of Redis, in Lua, and how a package's calls are read from the .lua files beside it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """Lua text and the SHA-1 under which Redis caches it."""

    text: str
    sha1: str


def read(
    package: str, names: Sequence[str], *, shared: Sequence[str], frame: str, keys: Mapping[str, str], **parts: str
) -> dict[str, Script]:
    """The calls by name: `frame` around the key table, the files that all share, the call's own, and `parts`."""
    folder = resources.files(package)
    fixed = parts | {
        "shared": "".join((folder / name).read_text() for name in shared),
        "keys": ", ".join(f"{name} = {json.dumps(key)}" for name, key in keys.items()),
    }
    scripts = {}
    for name in names:
        text = frame % (fixed | {"body": (folder / f"{name}.lua").read_text()})
        scripts[name] = Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    return scripts
