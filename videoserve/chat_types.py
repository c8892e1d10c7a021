"""What a chat is between the rooms: what was asked, what is to be done, and the shapes of what comes out."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypedDict

from videoserve.types import AdapterUse, JsonRecord, LoraAsk

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(JsonRecord):
    """What the client asked, validated, nothing chosen yet: None means "not said".

    Exactly one of `messages`, `prompt` and `tokens` is given: a conversation for the model's template, a text that is
    continued as it is, or its token ids. The other fields are those of OpenAI's chat completions; top_k, min_p,
    repetition_penalty, stop_token_ids and ignore_eos are what other servers add to them. `loras` as they were found.
    """

    records: ClassVar[dict[str, type[JsonRecord]]] = {"loras": LoraAsk}

    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    tokens: tuple[int, ...] | None = None
    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    loras: tuple[LoraAsk, ...] = ()
    priority: int = 0
    deadline_s: float | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan(JsonRecord):
    """Every decision that can be made without the tokenizer.

    messages, prompt, tokens   one of the three; the other two are None
    tools        what the template is told of tools; None for nothing
    template     further variables of the chat template
    n            how many continuations of the same prompt
    max_tokens   most new tokens of each; None: as far as the context goes
    temperature  0 takes the likeliest token and draws nothing
    top_k        0 leaves all tokens in
    logit_bias   token id in decimal -> what is added to its logit
    seed         the effective one, 0 to 2**64 - 1; continuation i draws from its own stream of it
    stop         texts that end a continuation and are not part of it
    stop_tokens  token ids that do, beside the model's own ends unless `ignore_eos`
    logprobs     None: no logprobs; k: of each token, and of the k likeliest in its place
    grammar      None, {"type": "json_object"}, {"type": "json_schema", "schema": {…}}, {"type": "regex", "pattern": …}
                 or {"type": "lark", "grammar": …}
    loras        adapters by digest, each once; none whose weight is 0
    """

    records: ClassVar[dict[str, type[JsonRecord]]] = {"loras": AdapterUse}

    model: str
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    tokens: tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    template: dict[str, Any] = field(default_factory=dict)
    n: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: dict[str, Any] | None = None
    loras: tuple[AdapterUse, ...] = ()
    adjustments: tuple[str, ...] = ()


class TokenChance(TypedDict):
    """One token and its natural log-probability; `bytes` are what it adds to the text, which may split a letter."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TokenChance):
    """A token that was taken, and the likeliest in its place."""

    top: list[TokenChance]


class TokensData(TypedDict):
    """`data` of an Event of kind "tokens": what a continuation has grown by.

    start          how many tokens of this continuation came before: after a restart the same may come twice
    text           what is certain of it; a split letter and what may be the beginning of a stop text are held back
    logprobs       one for each of `tokens`, or None
    finish_reason  with the last one of a continuation, else None
    """

    index: int
    start: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason | None


class Usage(TypedDict):
    """Tokens of a request; `cached_tokens` of its prompt were not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class ChoiceData(TypedDict):
    """A whole continuation. `stop` is the text or token id that ended it, None for the model's own end or a length."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason
    stop: str | int | None


class ChatReceipt(TypedDict):
    """`receipt` in the data of a chat's "done" Event, which has no outputs. Times in seconds since admission."""

    choices: list[ChoiceData]
    usage: Usage
    first_token_s: float
    total_s: float
    preemptions: int
