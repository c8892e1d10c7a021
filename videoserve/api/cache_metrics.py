"""What the cache counts, for Prometheus: its index has the sums over all processes of all nodes."""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

# By how the counts of the index begin: metric, what it means, and the labels that the rest of a count's name has.
COUNTERS: Final = {
    "hits": ("videoserve_cache_hits", "Entries asked for and found.", ("kind", "tier")),
    "misses": ("videoserve_cache_misses", "Entries asked for and not found.", ("kind",)),
    "evicted": ("videoserve_cache_evictions", "Entries that left a tier for others.", ("kind", "tier")),
    "saved_s": ("videoserve_cache_saved_seconds", "What computing the entries found took once.", ("kind",)),
    "bytes": ("videoserve_cache_hit_bytes", "Bytes of the entries found.", ("kind", "tier")),
}
TROUBLES: Final = ("corrupt", "full", "refused", "conflicts")


def families(stats: dict[str, Any]) -> Iterator[Metric]:
    """The metrics of `SharedCache.stats()`."""
    for what, (name, about, labels) in COUNTERS.items():
        counter = CounterMetricFamily(name, about, labels=labels)
        for values, number in _counted(stats, what):
            counter.add_metric(values, number)
        yield counter
    yield _troubles(stats)
    entries = GaugeMetricFamily("videoserve_cache_entries", "Entries in the index.", labels=["kind"])
    for kind, number in stats["entries"].items():
        entries.add_metric([kind], number)
    yield entries
    for field, about in (("bytes", "Bytes that a tier holds."), ("blobs", "Files that a tier holds.")):
        held = GaugeMetricFamily(f"videoserve_cache_tier_{field}", about, labels=["node", "tier"])
        for node, told in stats["nodes"].items():
            for tier, numbers in told["tiers"].items():
                held.add_metric([node, tier], numbers[field])
        yield held


def _troubles(stats: dict[str, Any]) -> Metric:
    about = "What was found damaged, found no room, or came too late."
    troubles = CounterMetricFamily("videoserve_cache_troubles", about, labels=["what", "tier"])
    for what in TROUBLES:
        for rest, number in _counted(stats, what):
            troubles.add_metric([what, *(rest or ["none"])], number)
    return troubles


def _counted(stats: dict[str, Any], what: str) -> Iterator[tuple[list[str], float]]:
    for name, number in stats["counts"].items():
        first, *rest = name.split(":")
        if first == what:
            yield rest, number
