"""Plans on disk."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from videoserve_kernels.comm.choices import Choice, Choices
from videoserve_kernels.comm.plan import ParallelPlan


def choice(name: str, measured_s: float | None = None) -> Choice:
    return Choice(plan=ParallelPlan.parse(name), step_s=1.5, measured_s=measured_s)


def test_a_choice_is_kept_under_its_key_and_its_host(tmp_path: Path) -> None:
    kept = Choices(tmp_path, "host")
    assert kept.get("demo:8x8x1:g1") is None
    kept.keep("demo:8x8x1:g1", choice("cfg2-u4-g5", 1.25))
    kept.keep("demo:8x8x1:g0", choice("u8-int8-atonce"))
    again = Choices(tmp_path, "host")
    assert again.get("demo:8x8x1:g1") == choice("cfg2-u4-g5", 1.25)
    assert again.get("demo:8x8x1:g0") == choice("u8-int8-atonce")
    assert Choices(tmp_path, "another").get("demo:8x8x1:g1") is None


def test_a_later_choice_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    kept = Choices(tmp_path, "host")
    kept.keep("key", choice("u8"))
    kept.keep("key", choice("r8"))
    assert kept.get("key") == choice("r8")


def test_many_may_keep_theirs_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: Choices(tmp_path, "host").keep(f"{number}", choice("u8")), range(40)))
    assert all(Choices(tmp_path, "host").get(f"{number}") for number in range(40))
