"""Conversations in DeepSeek-V4's own words: DeepSeek publishes a recipe for them, and no chat template."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from videoserve.text.vocabulary import BadConversation

# What a request may say of its prompt beside messages and tools.
VARIABLES = ("thinking", "reasoning_effort")
# By a model's name the recipe knows which of its versions is meant.
NAME = "DeepSeek-V4-Pro"


class DeepseekPrompt:
    """A vocabulary.Recipe of one tokenizer. What it needs is imported when the first conversation comes."""

    def __init__(self, tokenizer_json: str):
        self._tokenizer_json = tokenizer_json

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """Special tokens are those that the recipe writes: spelled out in a message they are plain text.

        `variables` are `thinking`, false where it is not said, and `reasoning_effort`, with which the model thinks.
        """
        if find_spec("deepseek_recipe") is None:
            raise BadConversation("DeepSeek-V4's conversations need deepseek-recipe: pip install 'videoserve[text]'.")
        request = _request(messages, tools, variables)
        options = self._recipe.ConversionOptions(default_thinking_mode=False)
        try:
            asked = self._recipe.ChatCompletionRequest(request).convert(options)
        except (ValueError, self._recipe.ConversionError) as error:
            said = getattr(error, "body", str(error))
            raise BadConversation(f"DeepSeek-V4's prompts have no words for these messages: {said}") from None
        ids: list[int] = self._encoding.encode(asked.conversation)
        return ids

    @cached_property
    def _recipe(self) -> Any:
        # An extra, and compiled.
        import deepseek_recipe  # noqa: PLC0415

        return deepseek_recipe

    @cached_property
    def _encoding(self) -> Any:
        tokenizer = self._recipe.Tokenizer.from_str(self._tokenizer_json)
        return self._recipe.DeepseekV4Encoding().with_tokenizer(tokenizer)


def _request(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]
) -> dict[str, Any]:
    """OpenAI's body of the conversation, which the recipe reads. Raises BadConversation for what it would leave out."""
    for name in variables:
        if name not in VARIABLES:
            raise BadConversation(f"DeepSeek-V4's prompts know {' and '.join(VARIABLES)}, not {name!r}.")
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") != "text":
                raise BadConversation(f"DeepSeek-V4 reads text alone; a message has a part {part.get('type')!r}.")
    body: dict[str, Any] = {"model": NAME, "messages": [dict(message) for message in messages]}
    if tools:
        body["tools"] = [dict(tool) for tool in tools]
    if "thinking" in variables:
        body["thinking"] = {"type": "enabled" if variables["thinking"] else "disabled"}
    if "reasoning_effort" in variables:
        body["reasoning_effort"] = variables["reasoning_effort"]
    return body
