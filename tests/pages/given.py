"""What pages take for granted: the names of ``<!-- given: ... -->``, and what each of them is in the tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

import zvl

__all__ = ["GIVEN", "Givens"]

RANKS = 8


class Givens:
    """Makes names on demand, each once a page. What has to be closed is closed with `stack`."""

    def __init__(self, stack: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.stack = stack
        self.patch = patch
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            assert name in GIVEN, f"nobody makes {name!r}; there are: {', '.join(sorted(GIVEN))}"
            self._made[name] = GIVEN[name](self)
        return self._made[name]


def processor(_: Givens) -> zvl.Processor:
    """For Qwen2.5-VL, with small pictures."""
    return zvl.Processor("qwen2_5_vl", "tokenizer", max_pixels=50_000)


def source(have: Givens) -> zvl.Mixture:
    """The demo's photos."""
    return zvl.Mixture({"web": have["web"]}, seed=17)


def pipeline(have: Givens) -> zvl.Pipeline:
    """Everything up to batches of small packs."""
    return (
        zvl.Pipeline(have["source"], lanes=RANKS)
        .probe_images(have["processor"])
        .tokenize_chat(have["processor"])
        .pack(max_tokens=1024, algorithm="best_fit", num_bins=2)
        .batch(1)
        .patchify(have["processor"])
    )


def batch(have: Givens) -> zvl.Batch:
    """The first one of `pipeline`."""
    with have["pipeline"].loader(max_steps=1) as loader:
        made: zvl.Batch = next(loader)
        return made


def model(_: Givens) -> Any:
    """Takes what a model of Hugging Face takes, and has a loss."""
    import torch

    def forward(input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> Any:
        assert input_ids.shape == labels.shape
        return SimpleNamespace(loss=torch.zeros((), requires_grad=True))

    return forward


def bucket(have: Givens) -> str:
    """s3://bucket and gs://bucket, served by moto: web/ and docs/ hold shards of the demo, parquet/ small files."""
    from pathlib import Path

    from services.s3 import S3

    server = have.stack.enter_context(S3())
    server.point_at(server.url, have.patch)
    have.patch.setenv("GOOGLE_BASE_URL", server.url)
    have.patch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    shard = min(Path("shards").glob("*.tar")).read_bytes()
    server.put({"web/0.tar": shard, "docs/0.tar": shard})
    server.put({f"chats/{number:03}.parquet": _parquet() for number in range(8)})
    return server.bucket


def hub(have: Givens) -> str:
    """Hugging Face's hub with one dataset, ORG/NAME."""
    from services.hub import Hub
    from services.server import Server

    data = _parquet()
    files = {"data/train-00000-of-00001.parquet": data, "en/train-00000-of-00001.parquet": data}
    made = Hub("ORG/NAME")
    made.push(files)
    made.push(files, "REVISION")
    server = have.stack.enter_context(Server(made))
    made.port = server.port
    have.patch.setenv("HF_ENDPOINT", server.url)
    return server.url


def list_of_dicts(_: Givens) -> list[dict[str, Any]]:
    """Rows without pictures."""
    return [{"text": f"Row {number}."} for number in range(8)]


def _parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["One.", "Two."]}), file)
    return file.getvalue()


GIVEN: dict[str, Callable[[Givens], Any]] = {
    "batch": batch,
    "bucket": bucket,
    "device": lambda _: "cpu",
    "docs": lambda _: zvl.open_dataset("docs.jsonl"),
    "hub": hub,
    "list_of_dicts": list_of_dicts,
    "model": model,
    "model_name": lambda _: "Qwen/Qwen2.5-VL-7B-Instruct",
    "pipeline": pipeline,
    "processor": processor,
    "rank": lambda _: 0,
    "saved": lambda _: None,
    "source": source,
    "train": lambda _: lambda **given: None,
    "web": lambda _: zvl.open_dataset("web/*.tar"),
    "world": lambda _: RANKS,
}
