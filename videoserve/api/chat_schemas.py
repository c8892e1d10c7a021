"""What chats look like on the wire, as pydantic models: they check requests and describe them in /openapi.json."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from videoserve.api.schemas import Lora
from videoserve.planning.limits import LIMITS, SEED_MAX

N_MAX: Final = 16
STOPS_MAX: Final = 16
TOOLS_MAX: Final = 128
# What clients of OpenAI's API may send and this server does not do; a value of null asks for nothing.
UNSUPPORTED: Final = {
    "audio": "answers are text only",
    "best_of": "ask for n continuations and choose among them",
    "echo": "the answer never repeats its prompt",
    "function_call": "tool_choice has replaced it",
    "functions": "tools has replaced it",
    "metadata": "no chat is kept",
    "modalities": "answers are text only",
    "moderation": "there is none",
    "prediction": "nothing is predicted from it",
    "prompt_cache_key": "equal beginnings of chats are found without one",
    "prompt_cache_options": "equal beginnings of chats are found and kept as there is room",
    "prompt_cache_retention": "equal beginnings of chats are kept as long as there is room",
    "reasoning_effort": "chat_template_kwargs reaches the model's own switches",
    "safety_identifier": "user has its place",
    "service_tier": "priority has its place",
    "store": "no chat is kept",
    "suffix": "texts are continued at their end only",
    "verbosity": "the prompt may ask for it",
    "web_search_options": "there is no search",
}

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class Wire(BaseModel):
    """JSON as it is: no text for a number, no number for a switch."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Wire):
    include_usage: bool = Field(default=False, description="A last chunk with the tokens of the whole request.")


class Sampling(Wire):
    """What both kinds of requests say about how tokens are chosen. Null everywhere is as if it were left out."""

    model: str | None = Field(default=None, description="A chat model from /v1/models; the one served when left out.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS_MAX)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="As far as the model's context goes when left out."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(default=None, description="1 unless said.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = Field(default=None, description="0 and -1 leave all tokens in.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-1, le=SEED_MAX)] | None = Field(default=None, description="-1: a random one.")
    logit_bias: (
        dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]]
        | None
    ) = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=STOPS_MAX)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = Field(default=None, description="The ids of an answer's tokens in its choices.")
    lora: list[Lora] | None = Field(
        default=None,
        description="Adapters from /v1/loras that were made for this model; MODEL:NAME as the model names one as well.",
    )
    user: str | None = None
    priority: Annotated[int, Field(ge=LIMITS["priority"].low, le=LIMITS["priority"].high)] | None = None
    deadline_s: Annotated[float, Field(ge=LIMITS["deadline_s"].low, le=LIMITS["deadline_s"].high)] | None = None


class TextPart(Wire):
    type: Literal["text"]
    text: str


class CalledFunction(Wire):
    name: str
    arguments: str = Field(description="JSON as text.")


class ToolCall(Wire):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    # The official client puts it into what it has collected from a stream.
    index: int | None = None


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None
    tool_call_id: str | None = None
    # Part of every answer of the official client, which is sent back as it came.
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, message: Any) -> Any:
        parts = message.get("content") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise ValueError(f"its content has a part of type {str(kind)[:40]!r}; this model reads text only")
        return message

    @model_validator(mode="after")
    def _says_something(self) -> "Message":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("its content is missing")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of a tool needs tool_call_id")
        return self


class Function(Wire):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema of an object.")
    strict: bool | None = None


class Tool(Wire):
    type: Literal["function"]
    function: Function


class ChosenFunction(Wire):
    name: str


class ChosenTool(Wire):
    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(Wire):
    name: Name
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_with_its_type(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type json_schema, and that type with it")
        return self


class ChatCompletionRequest(Sampling):
    """A conversation that the model answers."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(default=None, description="max_tokens as well.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(default=None, description="Goes with logprobs.")
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="False: at most one call in an answer.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables of the chat template.")


class CompletionRequest(Sampling):
    """A text that the model continues."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(default=None, description="How many in each place.")
