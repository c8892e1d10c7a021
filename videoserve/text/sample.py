"""The next token of a continuation, out of the logits of its last one."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from videoserve.chat_types import ChatPlan, TokenChance, TokenLogprob
from videoserve.text.grammar import Grammar
from videoserve.text.vocabulary import Vocabulary


class Sampler:
    """One continuation's way to choose. What it draws depends on its seed, its index and how many came before alone."""

    def __init__(self, plan: ChatPlan, index: int, prompt: Sequence[int], grammar: Grammar | None):
        self._plan, self._index = plan, index
        self.grammar = grammar
        self._bias = {int(token): value for token, value in plan.logit_bias.items()}
        self._prompt = set(prompt) if plan.repetition_penalty != 1 else set()
        self._counts: Counter[int] = Counter()
        self._taken = 0

    @property
    def plain(self) -> bool:
        """Whether it is the likeliest token, and nothing changes the logits."""
        plan = self._plan
        penalties = (plan.presence_penalty, plan.frequency_penalty, plan.repetition_penalty - 1)
        return plan.temperature == 0 and not self._bias and not any(penalties) and self.grammar is None

    def choose(self, logits: Tensor) -> int:
        """A token out of logits float32 [V], which stay as they are."""
        adjusted = self._adjusted(logits.clone())
        if self._plan.temperature == 0:
            return int(adjusted.argmax())
        return self._draw(self._cut(adjusted.div_(self._plan.temperature)))

    def take(self, token: int) -> None:
        """The token that follows, however it was chosen."""
        self._counts[token] += 1
        self._taken += 1
        if self.grammar is not None:
            self.grammar.take(token)

    def _adjusted(self, logits: Tensor) -> Tensor:
        plan = self._plan
        if self._bias:
            ids = torch.tensor(list(self._bias), device=logits.device)
            logits[ids] += torch.tensor(list(self._bias.values()), device=logits.device)
        if plan.repetition_penalty != 1 and (seen := self._prompt | self._counts.keys()):
            ids = torch.tensor(sorted(seen), device=logits.device)
            found = logits[ids]
            logits[ids] = torch.where(found > 0, found / plan.repetition_penalty, found * plan.repetition_penalty)
        if self._counts and (plan.presence_penalty or plan.frequency_penalty):
            ids = torch.tensor(list(self._counts), device=logits.device)
            counts = torch.tensor(list(self._counts.values()), device=logits.device, dtype=logits.dtype)
            logits[ids] -= plan.presence_penalty + plan.frequency_penalty * counts
        if self.grammar is not None:
            self.grammar.forbid(logits)
        return logits

    def _cut(self, logits: Tensor) -> Tensor:
        """Takes out what min_p, top_k and top_p leave out, in this order, in place."""
        plan = self._plan
        if plan.min_p:
            logits.masked_fill_(logits < logits.max() + math.log(plan.min_p), -torch.inf)
        if 0 < plan.top_k < len(logits):
            logits.masked_fill_(logits < logits.topk(plan.top_k).values[-1], -torch.inf)
        if plan.top_p < 1:
            ranked, order = logits.sort(descending=True, stable=True)
            chances = ranked.softmax(dim=0)
            # The first token stays, and each one until those before it reach top_p.
            logits[order[chances.cumsum(dim=0) - chances >= plan.top_p]] = -torch.inf
        return logits

    def _draw(self, logits: Tensor) -> int:
        sums = logits.double().softmax(dim=0).cumsum(dim=0)
        at = int(torch.searchsorted(sums, sums[-1] * uniform(self._plan.seed, self._index, self._taken), right=True))
        # Rounding may lead past the last one that has a chance.
        return at if at < len(logits) and logits[at] > -torch.inf else int(logits.argmax())


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) that these three alone decide."""
    drawn = hashlib.blake2b(f"{seed}:{index}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(drawn, "little") >> 11) / (1 << 53)


def logprob_of(logits: Tensor, token: int, top: int, vocabulary: Vocabulary) -> TokenLogprob:
    """What the model itself gives a token, before temperature and penalties, and its `top` likeliest ones."""
    chances = logits.log_softmax(dim=0)
    values, ids = chances.topk(top)
    likeliest = [_chance(int(i), float(value), vocabulary) for value, i in zip(values, ids, strict=True)]
    return TokenLogprob(**_chance(token, float(chances[token]), vocabulary), top=likeliest)


def _chance(token: int, logprob: float, vocabulary: Vocabulary) -> TokenChance:
    piece = vocabulary.pieces[token]
    return TokenChance(id=token, token=piece.decode("utf-8", errors="replace"), bytes=list(piece), logprob=logprob)
