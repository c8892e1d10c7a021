"""What is put aside: done in order by another thread, and all of it once somebody waits for it."""

import logging
import threading

import pytest

from videoserve.video.aside import MOST, Aside


def test_in_order_and_not_here() -> None:
    aside, gate, done = Aside(), threading.Event(), []
    aside.do(lambda: done.append(gate.wait(60)))
    for number in range(MOST - 1):
        aside.do(lambda number=number: done.append((number, threading.current_thread() is threading.main_thread())))
    # Nobody has waited for the gate.
    assert done == []
    gate.set()
    aside.settle()
    assert done == [True, *((number, False) for number in range(MOST - 1))]
    aside.close()


def test_who_puts_too_much_aside_waits() -> None:
    aside, gate, opened = Aside(), threading.Event(), []
    for _ in range(MOST):
        aside.do(lambda: opened.append(gate.wait(60)))
    threading.Thread(target=gate.set).start()
    aside.do(lambda: None)
    assert opened
    aside.close()
    assert opened == [True] * MOST


def test_a_failure_is_logged_and_fails_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    aside, done = Aside(), []

    def fail() -> None:
        raise RuntimeError("of no use")

    with caplog.at_level(logging.ERROR):
        aside.do(fail)
        aside.do(lambda: done.append(1))
        aside.close()
    assert done == [1]
    assert "of no use" in caplog.text
