"""A chat that the engine works on: its continuations, and what has been told of them."""

import time

from videoserve.chat_types import ChatReceipt, TokensData, Usage
from videoserve.text.sequence import Sequence
from videoserve.types import Event, Job


class Chat:
    """`emit`ted are the tokens of each continuation as they become certain, and in the end the receipt."""

    def __init__(self, job: Job, sequences: list[Sequence]):
        self.job = job
        self.sequences = sequences
        self._began = time.monotonic()
        self._first_s: float | None = None
        self._counted = 0

    @property
    def finished(self) -> bool:
        return all(sequence.finish is not None for sequence in self.sequences)

    def count(self) -> None:
        """One more token was made."""
        self._counted += 1
        if self._first_s is None:
            self._first_s = time.monotonic() - self._began

    def tokens(self, sequence: Sequence) -> Event | None:
        """What has become certain of a continuation; None for nothing."""
        text, first, end = sequence.stream.take(last=sequence.finish is not None)
        if not text and first == end and sequence.finish is None:
            return None
        with_logprobs = sequence.plan.logprobs is not None
        data = TokensData(
            index=sequence.index,
            start=first,
            text=text,
            tokens=sequence.tokens[sequence.prompt + first : sequence.prompt + end],
            logprobs=sequence.logprobs[first:end] if with_logprobs else None,
            finish_reason=sequence.finish,
        )
        return Event(job_id=self.job.id, kind="tokens", data=dict(data))

    def done(self) -> Event:
        leader = self.sequences[0]
        assert self._first_s is not None
        receipt = ChatReceipt(
            choices=[sequence.choice() for sequence in self.sequences],
            usage=Usage(prompt_tokens=leader.prompt, completion_tokens=self._counted, cached_tokens=leader.cached),
            first_token_s=self._first_s,
            total_s=time.monotonic() - self._began,
            preemptions=sum(sequence.preemptions for sequence in self.sequences),
        )
        return Event(job_id=self.job.id, kind="done", data={"outputs": {}, "receipt": dict(receipt)})
