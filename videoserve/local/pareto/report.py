"""What all cases together say of each row: a table, and JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from videoserve.local.pareto.clip import Family, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row over its cases: median speed-ups, mean and worst fidelity of the frames after the first.

    `denoise_x` is against our uncached run, `own_x` against the uncached run of the pipeline that made the row. PSNR in
    dB, None where no frame differs; `first_db` is the lowest; `letters` the commonest string.
    """

    name: str
    family: Family
    cases: int
    denoise_x: float
    own_x: float
    whole_x: float
    mean_db: float | None
    worst_db: float | None
    first_db: float | None
    mean_ssim: float
    worst_ssim: float
    motion: float | None
    letters: str


def lines(found: Sequence[Measured]) -> list[Line]:
    """In the order in which the rows were first measured."""
    names = list(dict.fromkeys(one.row for one in found))
    return [line(name, [one for one in found if one.row == name]) for name in names]


def alike(found: Sequence[Measured]) -> list[Measured]:
    """Of the cases that have every row: only on these may one row be held against another."""
    rows = {one.row for one in found}
    cases = {one.case for one in found}
    whole = {case for case in cases if rows == {one.row for one in found if one.case == case}}
    return [one for one in found if one.case in whole]


def line(name: str, found: Sequence[Measured]) -> Line:
    means = [one.mean_db for one in found if one.mean_db is not None]
    motions = [one.motion for one in found if one.motion is not None]
    strings = [one.letters for one in found]
    return Line(
        name=name,
        family=found[0].family,
        cases=len(found),
        denoise_x=median(one.base_denoise_s / one.denoise_s for one in found),
        own_x=median(one.own_denoise_s / one.denoise_s for one in found),
        whole_x=median(one.base_whole_s / one.whole_s for one in found),
        mean_db=fmean(means) if means else None,
        worst_db=least(one.worst_db for one in found),
        first_db=least(one.first_db for one in found),
        mean_ssim=fmean(one.mean_ssim for one in found),
        worst_ssim=min(one.worst_ssim for one in found),
        motion=fmean(motions) if motions else None,
        letters=max(set(strings), key=strings.count),
    )


def least(values: Any) -> float | None:
    return min((value for value in values if value is not None), default=None)


def table(found: Sequence[Line]) -> str:
    """As Markdown."""
    head = (
        "| row | cases | denoise × | own × | whole × | PSNR mean / worst | SSIM mean / worst | motion | first | steps |"
    )
    rows = [head, "| --- " * 10 + "|"]
    for one in found:
        speeds = " | ".join(f"{value:.2f}" for value in (one.denoise_x, one.own_x, one.whole_x))
        rows.append(
            f"| {one.name} | {one.cases} | {speeds} | {decibels(one.mean_db)} / {decibels(one.worst_db)} "
            f"| {one.mean_ssim:.4f} / {one.worst_ssim:.4f} | {'' if one.motion is None else f'{one.motion:.3f}'} "
            f"| {decibels(one.first_db)} | `{one.letters}` |"
        )
    return "\n".join(rows)


def decibels(value: float | None) -> str:
    return "equal" if value is None else f"{value:.1f}"


def to_json(found: Sequence[Line], about: dict[str, Any]) -> dict[str, Any]:
    return {**about, "rows": [asdict(one) for one in found]}
