"""From a chat's plan to its sequences: the prompt as tokens, checked against the model and the memory."""

from collections.abc import Mapping
from typing import Any

from videoserve.chat_types import ChatPlan
from videoserve.errors import JobFailed
from videoserve.text.adapters import ChatAdapters
from videoserve.text.grammar import BadGrammar, Grammars
from videoserve.text.load import Loaded
from videoserve.text.pools import BLOCK
from videoserve.text.prefix import root_of
from videoserve.text.sample import Sampler
from videoserve.text.sequence import Sequence
from videoserve.text.text_stream import TextStream
from videoserve.text.vocabulary import BadConversation, Vocabulary
from videoserve.types import Job, rank


def sequences_of(
    job: Job, loaded: Loaded, grammars: Grammars, adapters: ChatAdapters, *, blocks: int, aging_s: float
) -> list[Sequence]:
    """The continuations of a job, the first one leading. Raises JobFailed, "invalid_value" or "adapter_unusable"."""
    plan = ChatPlan.from_dict(job.plan)
    adapted = adapters.of(plan.loras)
    most = min(loaded.model.shape.context, blocks * BLOCK)
    _refuse_endless(plan, loaded.vocabulary, most)
    prompt = prompt_of(plan, loaded.vocabulary)
    limit = _limit(plan, len(prompt), most)
    made: list[Sequence] = []
    for index in range(plan.n):
        made.append(
            Sequence(
                job=job.id,
                index=index,
                rank=rank(job.created_at, job.priority, aging_s),
                plan=plan,
                tokens=list(prompt),
                prompt=len(prompt),
                limit=limit,
                root=root_of(loaded.digest, job.tenant, [f"{use.digest}:{use.weight!r}" for use in plan.loras]),
                sampler=_sampler(plan, index, prompt, grammars),
                stream=TextStream(plan.stop),
                leader=made[0] if made else None,
                adapted=adapted,
            )
        )
    return made


def prompt_of(plan: ChatPlan, vocabulary: Vocabulary) -> list[int]:
    """The token ids a plan begins with."""
    if plan.messages is not None:
        try:
            tokens = vocabulary.converse(plan.messages, tools=plan.tools, variables=plan.template)
        except BadConversation as error:
            raise JobFailed("invalid_value", str(error)) from None
    elif plan.prompt is not None:
        tokens = vocabulary.encode(plan.prompt)
    else:
        tokens = list(plan.tokens or ())
    if not tokens:
        raise JobFailed("invalid_value", "The prompt has no tokens; it has to have at least one.")
    for token in (*tokens, *map(int, plan.logit_bias)):
        if not 0 <= token < vocabulary.size:
            raise JobFailed("invalid_value", f"There is no token {token}; this model's are 0 to {vocabulary.size - 1}.")
    return tokens


def _refuse_endless(plan: ChatPlan, vocabulary: Vocabulary, most: int) -> None:
    """Raises JobFailed for texts that cannot fit whatever their tokens are: to find those takes the engine's time."""
    letters = len(plan.prompt or "") + sum(map(_letters, plan.messages or ()))
    if letters > most * vocabulary.longest:
        raise JobFailed(
            "context_length_exceeded",
            f"The prompt has {letters} letters; with an answer at most {most} tokens fit here, and no token has more "
            f"than {vocabulary.longest} letters.",
        )


def _letters(message: Mapping[str, Any]) -> int:
    content = message.get("content") or ""
    return len(content) if isinstance(content, str) else sum(len(part.get("text") or "") for part in content)


def _limit(plan: ChatPlan, prompt: int, most: int) -> int:
    """The most new tokens a continuation can have, of `most` tokens with its prompt."""
    if prompt >= most:
        raise JobFailed(
            "context_length_exceeded", f"The prompt has {prompt} tokens, and with an answer at most {most} fit here."
        )
    if plan.max_tokens is not None and prompt + plan.max_tokens > most:
        raise JobFailed(
            "context_length_exceeded",
            f"The prompt has {prompt} tokens and max_tokens is {plan.max_tokens}; together at most {most} fit here.",
        )
    return plan.max_tokens if plan.max_tokens is not None else most - prompt


def _sampler(plan: ChatPlan, index: int, prompt: list[int], grammars: Grammars) -> Sampler:
    try:
        grammar = grammars.start(plan.grammar) if plan.grammar is not None else None
    except BadGrammar as error:
        raise JobFailed("invalid_value", str(error)) from None
    return Sampler(plan, index, prompt, grammar)
