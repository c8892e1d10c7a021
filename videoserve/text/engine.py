"""The chat engine: admitted chats in, tokens out, one forward of the model at a time."""

import time
from typing import Any

from torch import Tensor

from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.metrics import Meter
from videoserve.planning.chat_model import NoChat, chat_card
from videoserve.text.admit import sequences_of
from videoserve.text.batch import Part
from videoserve.text.blocks import Blocks
from videoserve.text.chat import Chat
from videoserve.text.counts import Counts
from videoserve.text.grammar import Grammars
from videoserve.text.kept import KeptPrefixes
from videoserve.text.ranks import Leader
from videoserve.text.rings import Rings
from videoserve.text.sample import logprob_of
from videoserve.text.schedule import Schedule
from videoserve.text.sequence import Sequence
from videoserve.text.shape import UnknownModelError
from videoserve.text.speed import Speed
from videoserve.types import Appetite, Emit, Event, Job
from videoserve_cache.tiers import SharedCache
from videoserve_kernels.comm.channel import Channel


class TextEngine:
    """types.Engine for one chat model; one thread calls it, `load` first.

    Blocks belong to sequences, and the schedule is the only place that keeps those: what leaves it is free.
    """

    kind = "chat"

    def __init__(
        self,
        settings: Settings,
        cache: SharedCache | None = None,
        meter: Meter | None = None,
        channel: Channel | None = None,
    ):
        """`cache` keeps the beginnings of chats for other processes; None: for this one. `meter` has its counts.

        `channel` leads to other ranks, which are in ranks.follow.
        """
        self._channel = channel
        self._counts = Counts(meter or Meter())
        self._settings = settings
        self._cache = cache
        self._drops = 0
        self._kept: KeptPrefixes | None = None
        self._chats: dict[str, Chat] = {}
        self._speed = Speed()

    def load(self) -> None:
        """Loads settings.chat_model. Raises ValueError, a sentence, for what cannot be used."""
        settings = self._settings
        try:
            source = chat_card(settings).source
        except NoChat as error:
            raise UnknownModelError(str(error)) from None
        self._ranks = Leader(self._channel, settings, source)
        self.loaded, self._pool = self._ranks.loaded, self._ranks.pool
        rings = Rings(self._ranks, settings.chat_streams) if self._ranks.rings else None
        self._grammars = Grammars(self.loaded.vocabulary)
        self._adapters = self._ranks.adapters
        # What outlives the process is kept by position, and whole: of several ranks each has some heads only.
        if self._cache is not None and rings is None and self._ranks.alone:
            self._kept = KeptPrefixes(self._cache, self._pool, self.loaded.digest)
        self.blocks = Blocks(self._pool.blocks)
        self._schedule = Schedule(
            self.blocks,
            budget=settings.chat_step_tokens,
            streams=settings.chat_streams,
            restore=self._restore,
            rings=rings,
        )
        self._count()

    def admit(self, job: Job, checkpoint: dict[str, Any] | None) -> None:
        """Takes a chat in, from its beginning. Raises JobFailed for what this model or its memory cannot do."""
        if job.id in self._chats:
            raise ValueError(f"The job {job.id} is here already.")
        made = sequences_of(
            job,
            self.loaded,
            self._grammars,
            self._adapters,
            blocks=self.blocks.total,
            aging_s=self._settings.aging_s,
        )
        self._chats[job.id] = Chat(job, made)
        for sequence in made:
            self._schedule.add(sequence)

    def step(self, emit: Emit) -> bool:
        """One forward: a token of each chat that is answered, and pieces of prompts. False when nothing is left."""
        self._end_overdue(emit)
        self._hear_of_drops()
        picked = self._schedule.pick()
        if picked:
            self._forward(picked, emit)
        self._count()
        return bool(self._chats)

    def cancel(self, job_id: str) -> None:
        """Forgets a chat and frees its blocks; nothing when it is not here."""
        chat = self._chats.pop(job_id, None)
        for sequence in chat.sequences if chat else ():
            if sequence.finish is None:
                self._schedule.drop(sequence)
        if chat:
            self._count()

    def suspend(self, job_id: str) -> None:
        """Forgets a chat. It has no checkpoint: its seed gives the same again, and what it computed is kept."""
        chat = self._chats.get(job_id)
        for sequence in chat.sequences if chat else ():
            if sequence.finish is None:
                self._keep(sequence)
        self.cancel(job_id)

    def wants(self) -> Appetite | None:
        """Any further chat while there are streams; then only one more urgent than the least urgent here."""
        room = self._settings.chat_streams - len(self._schedule)
        if room > 0:
            return Appetite(idle=True, room=room)
        return Appetite(idle=False, before=max(sequence.rank for sequence in self._schedule))

    def costs(self) -> dict[str, Any]:
        """Measured seconds a token: of prompts, and of answers."""
        return self._speed.to_dict()

    def close(self) -> None:
        """Forgets every chat and the model; waits until what is to be kept is written."""
        for job_id in list(self._chats):
            self.cancel(job_id)
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        if hasattr(self, "_ranks"):
            self._ranks.close()
        for name in ("loaded", "_adapters", "_pool", "_ranks"):
            if hasattr(self, name):
                delattr(self, name)

    def _forward(self, picked: list[tuple[Sequence, int]], emit: Emit) -> None:
        began = time.perf_counter()
        parts = [
            Part(
                tokens=sequence.tokens[sequence.computed : sequence.computed + count],
                start=sequence.computed,
                blocks=sequence.blocks,
                logits=count == sequence.missing,
                ring=sequence.ring,
                adapted=sequence.adapted,
            )
            for sequence, count in picked
        ]
        logits = self._ranks.forward(parts, [sequence.plan.loras for sequence, _ in picked])
        ready = [sequence for (sequence, _), part in zip(picked, parts, strict=True) if part.logits]
        self._fail_broken(ready, logits, emit)
        for sequence, count in picked:
            if sequence.job in self._chats:
                self._schedule.computed(sequence, count)
        self._advance(ready, logits, emit)
        self._speed.count(sum(count for _, count in picked), len(picked), time.perf_counter() - began)

    def _fail_broken(self, sequences: list[Sequence], logits: Tensor, emit: Emit) -> None:
        """Ends chats whose logits [L, V] are not finite, before anybody finds the blocks they come from."""
        finite = logits.amax(dim=-1).isfinite().tolist()
        for sequence, well in zip(sequences, finite, strict=True):
            if not well:
                # Pieces before this one may have been broken as well.
                self.blocks.unseal(sequence.blocks)
                self._fail(sequence.job, JobFailed("not_finite", "The model gave no finite number."), emit)

    def _advance(self, sequences: list[Sequence], logits: Tensor, emit: Emit) -> None:
        """One more token for each of these, whose logits [L, V] are known."""
        likeliest = logits.argmax(dim=-1).tolist()
        for i, sequence in enumerate(sequences):
            if sequence.job not in self._chats:
                continue
            token = likeliest[i] if sequence.sampler.plain else sequence.sampler.choose(logits[i])
            self._take(sequence, token, logits[i])
            self._tell(sequence, emit)

    def _take(self, sequence: Sequence, token: int, logits: Tensor) -> None:
        vocabulary, plan = self.loaded.vocabulary, sequence.plan
        sequence.tokens.append(token)
        sequence.sampler.take(token)
        self._chats[sequence.job].count()
        ends = token in plan.stop_tokens or (token in vocabulary.ends and not plan.ignore_eos)
        if ends:
            sequence.finish = "stop"
            sequence.stop = token if token in plan.stop_tokens else None
        else:
            if plan.logprobs is not None:
                sequence.logprobs.append(logprob_of(logits, token, plan.logprobs, vocabulary))
            sequence.stream.push(b"" if token in vocabulary.special else vocabulary.pieces[token])
            grammar = sequence.sampler.grammar
            if sequence.stream.stopped is not None or (grammar is not None and grammar.complete):
                sequence.finish, sequence.stop = "stop", sequence.stream.stopped
            elif sequence.new >= sequence.limit:
                sequence.finish = "length"
        if sequence.finish is not None:
            sequence.stream.finish()

    def _tell(self, sequence: Sequence, emit: Emit) -> None:
        chat = self._chats[sequence.job]
        event = chat.tokens(sequence)
        if event is not None:
            emit(event)
        if sequence.finish is not None:
            self._keep(sequence)
            self._schedule.drop(sequence)
        if chat.finished:
            del self._chats[sequence.job]
            done = chat.done()
            self._counts.ended(done.data["receipt"])
            emit(done)

    def _end_overdue(self, emit: Emit) -> None:
        now = time.time()
        for chat in list(self._chats.values()):
            if chat.job.deadline is not None and chat.job.deadline < now:
                sentence = f"The deadline passed {now - chat.job.deadline:.1f} s ago and the answer is not finished."
                self._fail(chat.job.id, JobFailed("deadline_exceeded", sentence), emit)

    def _hear_of_drops(self) -> None:
        """Beginnings in memory go with the entries of the cache that somebody has dropped."""
        if self._cache is not None and self._cache.drops != self._drops:
            self._drops = self._cache.drops
            self.blocks.forget()
            for sequence in self._schedule.running:
                sequence.dropped = True
            if self._kept is not None:
                self._kept.forget()

    def _fail(self, job_id: str, failure: JobFailed, emit: Emit) -> None:
        if job_id not in self._chats:
            return
        self.cancel(job_id)
        data = {"code": failure.code, "message": failure.message, "retry": failure.retry}
        emit(Event(job_id=job_id, kind="failed", data=data))

    def _count(self) -> None:
        self._counts.blocks(self.blocks)
        self._counts.streams(len(self._schedule.running), len(self._schedule.waiting))

    def _restore(self, sequence: Sequence) -> int:
        return self._kept.restore(sequence, self._chats[sequence.job].job.tenant) if self._kept else 0

    def _keep(self, sequence: Sequence) -> None:
        if self._kept is not None and not sequence.dropped:
            self._kept.keep(sequence, self._chats[sequence.job].job.tenant, self._speed.prompt_token_s)
