"""`loader.stats()` for Prometheus and OpenTelemetry: read when somebody asks, so that it costs nothing in between.

Needs ``pip install 'zvl[metrics]'``. docs/metrics.md lists what is exported.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from zvl.errors import ZvlError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client.registry import Collector, CollectorRegistry

    from zvl.loader import Loader

__all__ = ["METRICS", "Metric", "opentelemetry", "prometheus"]

Point = tuple[dict[str, str], float]
"""Labels and value."""


class Metric(NamedTuple):
    """One metric, and how it is found in `loader.stats()`."""

    name: str
    """With a unit at the end, where Prometheus wants one."""
    unit: str
    """As OpenTelemetry has it: "s", "By", or what is counted in braces."""
    help: str
    points: Callable[[Mapping[str, Any]], Iterable[Point]]
    counts: bool = True
    """Whether it only grows."""


def _total(key: str, stats: Mapping[str, Any]) -> Iterable[Point]:
    return [({}, stats[key])] if key in stats else []


def _by(label: str, stats: Mapping[str, Any]) -> Iterable[Point]:
    return [({label: name}, seconds) for name, seconds in stats["waited_for_s"][label].items()]


def _busy(stats: Mapping[str, Any]) -> Iterable[Point]:
    return [({"operator": name}, seconds) for name, seconds in stats["busy_s"].items()]


def _dropped(stats: Mapping[str, Any]) -> Iterable[Point]:
    for name, count in stats["dropped"].items():
        operator, _, reason = name.rpartition(":")
        yield {"operator": operator, "reason": reason}, count


METRICS = (
    Metric("batches", "{batch}", "Batches delivered.", partial(_total, "batches")),
    Metric("images", "{image}", "Images delivered.", partial(_total, "images")),
    Metric("tokens", "{token}", "Tokens of samples delivered; padding does not count.", partial(_total, "tokens")),
    Metric("loss_tokens", "{token}", "Tokens delivered that carry loss.", partial(_total, "loss_tokens")),
    Metric("wait_seconds", "s", "Seconds the trainer waited, by the operator it waited for.", partial(_by, "operator")),
    Metric("wait_dataset_seconds", "s", "Seconds the trainer waited, by dataset.", partial(_by, "dataset")),
    Metric("wait_size_seconds", "s", "Seconds the trainer waited, by megapixels of the image.", partial(_by, "size")),
    Metric("busy_seconds", "s", "Seconds that operators took, of all workers together.", _busy),
    Metric("dropped_samples", "{sample}", "Samples that were dropped or masked.", _dropped),
    Metric("worker_restarts", "{restart}", "Workers that were replaced.", partial(_total, "worker_restarts")),
    Metric("loader_restarts", "{restart}", "Loader's processes that were replaced.", partial(_total, "restarts")),
    Metric("peak_bytes", "By", "Most bytes that batches took at once.", partial(_total, "peak_bytes"), counts=False),
)

_loaders: weakref.WeakKeyDictionary[Any, dict[str, weakref.ref[Loader]]] = weakref.WeakKeyDictionary()
"""The loaders of each registry and meter, by name: a loader that replaces another goes on with its metrics."""


def prometheus(loader: Loader, registry: CollectorRegistry | None = None, *, name: str = "") -> None:
    """Export a loader's `stats()` to `registry`, prometheus_client's own by default, as ``zvl_images_total`` and so on.

    `name`, for several loaders, becomes the label `loader`. A loader of the same name takes the place of the one
    before; one that is gone exports nothing. ZvlError if prometheus_client is not installed.
    """
    module = _installed("prometheus_client")
    registry = module.REGISTRY if registry is None else registry
    if _add(registry, name, loader):
        registry.register(_collector(_loaders[registry]))


def opentelemetry(loader: Loader, meter: Meter | None = None, *, name: str = "") -> None:
    """Export a loader's `stats()` to `meter`, the global provider's "zvl" by default, as ``zvl.images`` and so on.

    `name` becomes the attribute `loader`; see `prometheus`. ZvlError if opentelemetry-api is not installed.
    """
    module = _installed("opentelemetry.metrics")
    meter = module.get_meter("zvl") if meter is None else meter
    if not _add(meter, name, loader):
        return
    loaders = _loaders[meter]

    def observe(metric: Metric, _: CallbackOptions) -> Iterator[Observation]:
        for labels, value in _points(metric, _stats(loaders)):
            yield module.Observation(value, labels)

    for metric in METRICS:
        create = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
        create(_dotted(metric), [partial(observe, metric)], metric.unit, metric.help)


def _installed(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ZvlError(f"metrics need {module}, which is not installed: pip install 'zvl[metrics]'") from error


def _add(target: Any, name: str, loader: Loader) -> bool:
    """Note a loader; whether it is the first of this registry or meter."""
    known = target in _loaders
    _loaders.setdefault(target, {})[name] = weakref.ref(loader)
    return not known


def _stats(loaders: Mapping[str, weakref.ref[Loader]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Of the loaders that are still there, by name."""
    return [(name, loader.stats()) for name, ref in [*loaders.items()] if (loader := ref()) is not None]


def _points(metric: Metric, named: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Point]:
    for name, stats in named:
        for labels, value in metric.points(stats):
            yield ({"loader": name} if name else {}) | labels, value


def _dotted(metric: Metric) -> str:
    """The name as OpenTelemetry has it: without the unit.

    >>> _dotted(METRICS[4])
    'zvl.wait'
    """
    return f"zvl.{metric.name.removesuffix('_seconds').removesuffix('_bytes').replace('wait_', 'wait.')}"


def _collector(loaders: Mapping[str, weakref.ref[Loader]]) -> Collector:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector

    class Loaders(Collector):
        """Reads the loaders' stats when it is asked."""

        def collect(self) -> Iterator[Family]:
            named = _stats(loaders)
            for metric in METRICS:
                kind = CounterMetricFamily if metric.counts else GaugeMetricFamily
                family: Family = kind(f"zvl_{metric.name}", metric.help)
                for labels, value in _points(metric, named):
                    total = f"zvl_{metric.name}{'_total' if metric.counts else ''}"
                    family.add_sample(total, labels, value)
                if family.samples:
                    yield family

        def describe(self) -> Iterable[Family]:
            return self.collect()

    return Loaders()
