"""The tables of `videoserve cache`."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from videoserve.commands.sizes import shown_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from videoserve_cache.trace.compare import Comparison

WIDE: Final = 200


def show_entries(page: dict[str, Any]) -> None:
    from rich.markup import escape

    table = columns(("kind", "digest"), ("size", "cost", "age", "uses"), ("class", "tenant", "where"))
    for entry in page["data"]:
        where = ", ".join(f"{replica['tier']} of {replica['node']}" for replica in entry["replicas"])
        numbers = (shown_bytes(entry["size"]), shown_s(entry["cost_s"]), shown_s(entry["age_s"]), str(entry["uses"]))
        last = (entry["class"], escape(entry["tenant"]), where + ", pinned" * entry["pinned"])
        table.add_row(entry["kind"], entry["digest"], *numbers, *last)
    printed(table)
    if page["has_more"]:
        typer.echo(f"There are more: --after {page['last_id']}")


def show_stats(stats: dict[str, Any]) -> None:
    kinds = columns(("kind",), ("entries", "hits", "misses", "hit rate", "evicted", "saved"))
    for kind in sorted({*stats["kinds"], *(kind for kind, count in stats["entries"].items() if count)}):
        row = stats["kinds"].get(kind, {"hits": 0, "misses": 0, "evictions": 0, "saved_s": 0.0})
        kinds.add_row(kind, str(stats["entries"].get(kind, 0)), *tallied(row))
    kinds.add_row("all", str(sum(stats["entries"].values())), *tallied(stats["total"]))
    printed(kinds)
    nodes = columns(("node", "tier"), ("holds", "blobs"))
    for node, told in stats["nodes"].items():
        name = node if told["alive"] else f"{node} (gone)"
        for tier, held in told["tiers"].items():
            nodes.add_row(name, tier, shown_bytes(held["bytes"]), str(held["blobs"]))
    printed(nodes)


def tallied(row: dict[str, Any]) -> tuple[str, ...]:
    asked = row["hits"] + row["misses"]
    rate = f"{row['hits'] / asked:.1%}" if asked else "–"
    return str(row["hits"]), str(row["misses"]), rate, str(row["evictions"]), shown_s(row["saved_s"])


def show_replay(compared: "Iterable[Comparison]") -> None:
    table = columns(("capacity", "policy"), ("saved", "of all", "hits", "bytes hit", "evicted"))
    for one in compared:
        for name, outcome in one.outcomes.items():
            total = outcome.total
            saved, hits = f"{total.saved_s:,.0f} s", f"{total.hits / total.asked:.1%}"
            row = (saved, f"{total.share:.3f}", hits, shown_bytes(total.hit_bytes), f"{outcome.evictions:,}")
            table.add_row(shown_bytes(one.capacity), name, *row)
        table.add_row("", "bound", f"{one.most_s:,.0f} s", f"{one.most_s / total.asked_s:.3f}", "", "", "")
    printed(table)


def columns(left: Sequence[str], right: Sequence[str], last: Sequence[str] = ()) -> "Table":
    """A table without lines; the columns of numbers are on the right of theirs."""
    from rich.table import Table

    table = Table(box=None)
    for names, justify in ((left, "left"), (right, "right"), (last, "left")):
        for name in names:
            table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
    return table


def printed(table: "Table") -> None:
    """A table for a file or another program is not cut to the width of a terminal that is not there."""
    from rich.console import Console

    Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else WIDE).print(table)


def shown_s(seconds: float) -> str:
    """Seconds as people say them."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
