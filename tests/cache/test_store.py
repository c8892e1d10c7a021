"""What a request keeps: copies of its own, under the budget, and nothing after the end."""

import pytest
import torch

from tests.toy_denoiser import even
from videoserve_cache.steps.store import Budget, BudgetExceededError, Store

SCHEDULE = even(8, boundary=4)


def test_keeps_copies_of_the_newest_in_the_same_buffers() -> None:
    store = Store(Budget(1000))
    value = torch.zeros(4)
    buffers = set()
    for step in range(4):
        value += 1
        store.put(SCHEDULE.at(step), "kept", value, depth=2)
        buffers |= {anchor.value.data_ptr() for anchor in store.anchors(SCHEDULE.at(step), "kept")}
    anchors = store.anchors(SCHEDULE.at(3), "kept")
    assert [(anchor.step, anchor.value[0].item()) for anchor in anchors] == [(2, 3.0), (3, 4.0)]
    assert len(buffers) == 2
    assert value.data_ptr() not in buffers


def test_experts_branches_and_streams_are_apart() -> None:
    store = Store(Budget(1000))
    store.put(SCHEDULE.at(0), "kept", torch.ones(2))
    assert store.newest(SCHEDULE.at(0, "uncond"), "kept") is None
    assert store.newest(SCHEDULE.at(5), "kept") is None
    assert store.newest(SCHEDULE.at(0), "seen") is None


def test_the_budget_is_shared_and_given_back() -> None:
    budget = Budget(48)
    first, second = Store(budget), Store(budget)
    first.put(SCHEDULE.at(0), "kept", torch.ones(4), depth=2)
    with pytest.raises(BudgetExceededError, match="needs 32 bytes more; 32 of the budget's 48 bytes are taken"):
        second.put(SCHEDULE.at(0), "kept", torch.ones(4), depth=2)
    assert (first.nbytes, second.nbytes, budget.held) == (32, 0, 32)
    first.drop()
    assert budget.held == 0
    second.put(SCHEDULE.at(0), "kept", torch.ones(4), depth=2)
    assert budget.held == 32


def test_a_state_restores_values_order_and_depth() -> None:
    store, other = Store(Budget(1000)), Store(Budget(1000))
    for step in range(3):
        store.put(SCHEDULE.at(step), "kept", torch.full((2,), step + 0.1, dtype=torch.bfloat16), depth=2)
    tensors, about = store.state()
    other.restore(tensors, about, torch.device("cpu"))
    for kept in (store, other):
        kept.put(SCHEDULE.at(3), "kept", torch.full((2,), 3.1, dtype=torch.bfloat16), depth=2)
    mine, theirs = store.anchors(SCHEDULE.at(3), "kept"), other.anchors(SCHEDULE.at(3), "kept")
    assert [(a.step, a.sigma) for a in mine] == [(a.step, a.sigma) for a in theirs]
    assert all(torch.equal(a.value, b.value) for a, b in zip(mine, theirs, strict=True))
    assert store.nbytes == other.nbytes
