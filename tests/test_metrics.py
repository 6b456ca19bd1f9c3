"""Prometheus and OpenTelemetry get what `stats()` says, when they ask."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from waits_operators import same

import zvl
from zvl import metrics
from zvl.errors import ZvlError
from zvl.loader import Loader


def odd(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 2)


def make(runner: str = "threads") -> Loader:
    rows = zvl.from_rows([{"n": n} for n in range(64)])
    pipeline = zvl.Pipeline(zvl.Mixture({"web": rows}, seed=1), lanes=1).filter(odd).batch(4).map(same)
    return pipeline.loader(max_steps=5, runner=runner, max_bytes=1 << 30)


@pytest.fixture
def loader() -> Iterator[Loader]:
    with make() as made:
        assert sum(1 for _ in made) == 5
        yield made


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Values by name and labels, as a server reads them."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_stats(loader: Loader) -> None:
    registry = CollectorRegistry()
    metrics.prometheus(loader, registry)
    stats, found = loader.stats(), scraped(registry)
    assert found["zvl_batches_total",] == 5
    assert found["zvl_images_total",] == 0
    assert found["zvl_peak_bytes",] == stats["peak_bytes"]
    for operator, seconds in stats["waited_for_s"]["operator"].items():
        assert found["zvl_wait_seconds_total", f"operator={operator}"] == pytest.approx(seconds)
    assert found["zvl_wait_dataset_seconds_total", "dataset=web"] > 0
    assert found["zvl_wait_size_seconds_total", "size=text"] > 0
    assert found["zvl_busy_seconds_total", "operator=map:same"] == pytest.approx(stats["busy_s"]["map:same"])
    dropped = stats["dropped"]["filter:odd:filtered"]
    assert found["zvl_dropped_samples_total", "operator=filter:odd", "reason=filtered"] == dropped > 0


def test_prometheus_counts_on() -> None:
    registry = CollectorRegistry()
    with make() as loader:
        metrics.prometheus(loader, registry)
        next(loader)
        assert scraped(registry)["zvl_batches_total",] == 1
        next(loader)
        assert scraped(registry)["zvl_batches_total",] == 2


def test_a_loader_takes_the_place_of_the_one_before(loader: Loader) -> None:
    registry = CollectorRegistry()
    metrics.prometheus(loader, registry)
    with make() as another:
        metrics.prometheus(another, registry)
        next(another)
        assert scraped(registry)["zvl_batches_total",] == 1


def test_loaders_of_other_names_stand_beside_it(loader: Loader) -> None:
    registry = CollectorRegistry()
    metrics.prometheus(loader, registry)
    with make() as another:
        metrics.prometheus(another, registry, name="eval")
        next(another)
        found = scraped(registry)
    assert (found["zvl_batches_total",], found["zvl_batches_total", "loader=eval"]) == (5, 1)


def test_a_loader_that_is_gone_exports_nothing() -> None:
    registry = CollectorRegistry()
    loader = make("inline")
    metrics.prometheus(loader, registry)
    next(loader)
    loader.close()
    del loader
    gc.collect()
    assert scraped(registry) == {}


def test_opentelemetry_reads_stats(loader: Loader) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    meter = provider.get_meter("test")
    metrics.opentelemetry(loader, meter, name="train")
    metrics.opentelemetry(loader, meter, name="train")  # again: no second instrument, which would be warned of
    data: Any = reader.get_metrics_data()
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    stats = loader.stats()
    (point,) = found["zvl.batches"].data.data_points
    assert (point.value, dict(point.attributes)) == (5, {"loader": "train"})
    assert found["zvl.batches"].unit == "{batch}"
    assert found["zvl.batches"].data.is_monotonic
    waits = {point.attributes["operator"]: point.value for point in found["zvl.wait"].data.data_points}
    assert waits == pytest.approx(stats["waited_for_s"]["operator"])
    assert found["zvl.wait"].unit == "s"
    assert found["zvl.peak"].unit == "By"
    assert found["zvl.peak"].data.data_points[0].value == stats["peak_bytes"]
    provider.shutdown()


@pytest.mark.parametrize(
    ("export", "module"),
    [(metrics.prometheus, "prometheus_client"), (metrics.opentelemetry, "opentelemetry.metrics")],
)
def test_a_missing_library_is_named_with_its_extra(
    export: Any, module: str, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ZvlError, match=rf"metrics need {module}, which is not installed: pip install 'zvl\[metrics\]'"):
        export(loader)


def test_every_metric_and_figure_is_documented(loader: Loader) -> None:
    page = (Path(metrics.__file__).parents[1] / "docs/metrics.md").read_text(encoding="utf-8")
    for metric in metrics.METRICS:
        assert f"`zvl_{metric.name}{'_total' if metric.counts else ''}`" in page, metric.name
        assert f"`{metrics._dotted(metric)}`" in page, metric.name
    for key in loader.stats():
        assert f"`{key}`" in page, key
