"""What the processes count, and how the counts of all of them become one Prometheus page.

Any process may be asked for the page, and the load balancer or the kernel decides which. So no process keeps its counts
to itself: each publishes `Meter.snapshot()` in its heartbeat, and the page is made of everybody's snapshots, each
sample labelled with its process.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric: what it is called on the page, what it means, which labels its samples carry."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()


DEFINITIONS: Final = {
    definition.name: definition
    for definition in (
        Definition("counter", "videoserve_http_requests", "Answers of the API.", ("method", "route", "status")),
        Definition("histogram", "videoserve_http_seconds", "From a request to the start of its answer.", ("route",)),
        Definition("counter", "videoserve_webhooks", "Webhook deliveries by outcome.", ("outcome",)),
        Definition("counter", "videoserve_jobs", "Attempts at jobs by how they ended.", ("kind", "outcome")),
        Definition("histogram", "videoserve_job_seconds", "From the claim of a job to its end.", ("kind",)),
        Definition("histogram", "videoserve_stage_seconds", "Time of a stage of one job.", ("kind", "stage")),
        Definition("counter", "videoserve_steps", "Denoising steps run, one per job and step.", ("kind",)),
        Definition("gauge", "videoserve_jobs_in_engine", "Jobs an engine has admitted.", ("kind",)),
        Definition("counter", "videoserve_chat_tokens", "Tokens of chats: prompt, cached or completion.", ("kind",)),
        Definition("counter", "videoserve_chat_preemptions", "Chats that gave their blocks to more urgent ones."),
        Definition("histogram", "videoserve_chat_first_token_seconds", "From a chat's admission to its first token."),
        Definition("gauge", "videoserve_chat_streams", "Continuations in the engine: running, waiting.", ("state",)),
        Definition("gauge", "videoserve_chat_blocks", "Blocks of keys and values: free, held, kept.", ("state",)),
    )
}


class Meter:
    """The counts of one process, safe to use from any of its threads. Names and labels must be defined above."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[tuple[str, tuple[str, ...]], list[float]] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counter(name, **labels).add(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._cells(name, "gauge", labels, 1)[0] = value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Adds one duration to a histogram."""
        self.histogram(name, **labels).observe(seconds)

    def counter(self, name: str, **labels: str) -> "Counter":
        """One counter looked up once, for what is counted hundreds of times a second."""
        with self._lock:
            return Counter(self._lock, self._cells(name, "counter", labels, 1))

    def histogram(self, name: str, **labels: str) -> "Histogram":
        """One histogram looked up once."""
        with self._lock:
            return Histogram(self._lock, self._cells(name, "histogram", labels, len(SECONDS) + 2))

    def snapshot(self) -> list[list[Any]]:
        """Everything counted so far, as JSON can hold it: [name, label values, cells] a sample."""
        with self._lock:
            return [[name, list(values), list(cells)] for (name, values), cells in self._samples.items()]

    def _cells(self, name: str, kind: str, labels: dict[str, str], count: int) -> list[float]:
        definition = DEFINITIONS[name]
        assert definition.kind == kind, f"{name} is a {definition.kind}"
        assert len(labels) == len(definition.labels), f"{name} has the labels {definition.labels}"
        place = (name, tuple([labels[label] for label in definition.labels]))
        return self._samples.setdefault(place, [0.0] * count)


class Counter:
    """One sample of a Meter that only grows."""

    def __init__(self, lock: threading.Lock, cells: list[float]) -> None:
        self._lock = lock
        self._cells = cells

    def add(self, amount: float = 1) -> None:
        with self._lock:
            self._cells[0] += amount


class Histogram:
    """One sample of a Meter whose cells are a count per bucket, one for longer durations, and the sum."""

    def __init__(self, lock: threading.Lock, cells: list[float]) -> None:
        self._lock = lock
        self._cells = cells

    def observe(self, seconds: float) -> None:
        bucket = bisect_left(SECONDS, seconds)
        with self._lock:
            self._cells[bucket] += 1
            self._cells[-1] += seconds


def process_snapshot() -> dict[str, float]:
    """CPU seconds, memory, open files and start time of this process, by Prometheus' usual names; Linux only."""
    collector = ProcessCollector(registry=None)
    return {sample.name: sample.value for metric in collector.collect() for sample in metric.samples}


def page(snapshots: Mapping[str, Mapping[str, Any]], gauges: Iterable[Metric]) -> bytes:
    """The Prometheus text of all processes, given {process: {"metrics": …, "process": …}}, and of `gauges`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page([*_counted(snapshots), *_measured(snapshots), *gauges]))
    return generate_latest(registry)


class _Page:
    """Ready-made metrics in the form a registry asks for them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _counted(snapshots: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for definition in DEFINITIONS.values():
        family = _family(definition)
        for process, info in snapshots.items():
            for name, values, cells in info.get("metrics", ()):
                if name == definition.name:
                    _add(family, [*values, process], cells)
        if family.samples:
            yield family


def _family(definition: Definition) -> Metric:
    labels = [*definition.labels, "process"]
    if definition.kind == "counter":
        return CounterMetricFamily(definition.name, definition.help, labels=labels)
    if definition.kind == "gauge":
        return GaugeMetricFamily(definition.name, definition.help, labels=labels)
    return HistogramMetricFamily(definition.name, definition.help, labels=labels)


def _add(family: Metric, labels: list[str], cells: list[float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        total, buckets = 0.0, []
        for bound, cell in zip([*map(str, SECONDS), "+Inf"], cells[:-1], strict=True):
            total += cell
            buckets.append((bound, total))
        family.add_metric(labels, buckets, cells[-1])
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        family.add_metric(labels, cells[0])


def _measured(snapshots: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    names = dict.fromkeys(name for info in snapshots.values() for name in info.get("process", ()))
    for name in names:
        shape = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = shape(name.removesuffix("_total"), "As the process measured it.", labels=["process"])
        for process, info in snapshots.items():
            if name in info.get("process", ()):
                family.add_metric([process], info["process"][name])
        yield family
