"""Late fetch: pictures that are references while planning give the same batches, and are read for their batch alone."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

import zvl
from zvl.digest import batch_digest
from zvl.errors import BadData, OperatorError, StorageError
from zvl.image import ImageRef
from zvl.images.header import read_header

ROWS = 60


def picture(row: int, place: int) -> bytes:
    rng = np.random.default_rng(100 * row + place)
    pixels = rng.integers(0, 255, (28 + 7 * (row % 5), 40 + 9 * place, 3), np.uint8)
    out = io.BytesIO()
    PilImage.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


PICTURES = {(row, place): picture(row, place) for row in range(ROWS) for place in range(row % 3)}


class Eager:
    """Two shards of rows whose pictures come with them."""

    on_error = "raise"
    shards = ("a", "b")
    shard_rows = np.array([ROWS // 2, ROWS // 2], np.int64)
    row_bytes = 3000

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [self.row(shard * 30 + row) for row in rows]

    def row(self, row: int) -> dict[str, Any]:
        return {"n": row, "images": [PICTURES[row, place] for place in range(row % 3)]}

    def fingerprint(self) -> Any:
        return "fake"


class Late(Eager):
    """The same rows; pictures stay behind. `gone` and `broken` name what can no longer be read."""

    late = True

    def __init__(self, gone: Sequence[tuple[int, int]] = (), broken: bool = False) -> None:
        self.gone = set(gone)
        self.broken = broken
        self.calls: list[tuple[int, tuple[tuple[int, int], ...]]] = []
        self._lock = threading.Lock()

    def row(self, row: int) -> dict[str, Any]:
        data = [PICTURES[row, place] for place in range(row % 3)]
        refs = [ImageRef(self, row // 30, row % 30, i, len(data[i]), read_header(data[i])) for i in range(len(data))]
        return {"n": row, "images": refs}

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        with self._lock:
            self.calls.append((shard, tuple(wanted)))
        if self.broken:
            raise StorageError("the shard is gone")
        return [
            BadData("missing", "it is gone")
            if (shard * 30 + row, place) in self.gone
            else PICTURES[shard * 30 + row, place]
            for row, place in wanted
        ]


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Any) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer)


def pipeline(dataset: Any, processor: zvl.Processor, **fields: Any) -> zvl.Pipeline:
    source = zvl.Mixture(dataset, passes=zvl.Once(), chunk_rows=5, seed=3)
    return zvl.Pipeline(source, lanes=2, flush_every=8).probe_images(processor).batch(4).patchify(processor, **fields)


def digests(pipeline: zvl.Pipeline, runner: str = "threads") -> list[str]:
    with pipeline.loader(runner=runner, workers=2) as loader:
        return [batch_digest(batch).sha256 for batch in loader]


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_the_same_batches_with_each_picture_read_once(processor: zvl.Processor, runner: str) -> None:
    late = Late()
    assert digests(pipeline(late, processor), runner) == digests(pipeline(Eager(), processor))
    read = [(shard * 30 + row, place) for shard, wanted in late.calls for row, place in wanted]
    assert sorted(read) == sorted(PICTURES)


def test_a_batch_reads_each_shard_in_one_call(processor: zvl.Processor) -> None:
    late = Late()
    batches = digests(pipeline(late, processor))
    assert len(late.calls) <= 2 * len(batches)


def test_a_replay_reads_no_picture_of_what_was_delivered(processor: zvl.Processor) -> None:
    first = Late()
    with pipeline(first, processor).loader(workers=2) as loader:
        before = [next(loader) for _ in range(3)]
    second = Late()
    with pipeline(second, processor).loader(workers=2) as loader:
        loader.load_state_dict(before[-1].state)
        for _ in loader:
            pass
    delivered = {key for batch in before for row in batch.keys for key in row}
    again = {f"data/{'ab'[shard]}#{row}@0" for shard, wanted in second.calls for row, _ in wanted}
    assert delivered
    assert again
    assert not delivered & again


def test_gone_pictures_are_masked_or_stop_the_run(processor: zvl.Processor) -> None:
    masked = []
    with pipeline(Late(gone=[(7, 0), (31, 0)]), processor, on_error="mask").loader(workers=2) as loader:
        for batch in loader:
            masked += batch.masked
    assert sorted(masked) == [("data/a#7@0", "missing", ""), ("data/b#1@0", "missing", "")]
    with pytest.raises(OperatorError, match=r"patchify.*data/a#7@0.*it is gone"):
        digests(pipeline(Late(gone=[(7, 0)]), processor))


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_a_shard_that_cannot_be_read_stops_the_run(processor: zvl.Processor, runner: str) -> None:
    with pytest.raises(StorageError, match="the shard is gone"):
        digests(pipeline(Late(broken=True), processor, on_error="mask"), runner)


def test_pictures_that_nobody_plans_arrive_as_bytes() -> None:
    source = zvl.Mixture(Late(), passes=zvl.Once(), shuffle="none")
    with zvl.Pipeline(source, lanes=1).batch(4).loader() as loader:
        batch = next(loader)
    assert batch["images"] == [PICTURES[1, 0], PICTURES[2, 0], PICTURES[2, 1]]
    gone = zvl.Mixture(Late(gone=[(1, 0)]), passes=zvl.Once(), shuffle="none")
    with (
        zvl.Pipeline(gone, lanes=1).batch(4).loader() as loader,
        pytest.raises(OperatorError, match="it is gone"),
    ):
        next(loader)


def test_a_picture_known_to_be_bad_is_bad_while_planning(processor: zvl.Processor) -> None:
    class Bad(Late):
        def row(self, row: int) -> dict[str, Any]:
            ref = ImageRef(self, row // 30, row % 30, 0, 9, None, BadData("header", "cut", "ab12"))
            return {"n": row, "images": [ref]}

    late = Bad()
    with pytest.raises(OperatorError, match="image 0: cut"):
        digests(pipeline(late, processor))
    assert late.calls == []


def test_guards_hold_for_headers_from_an_index(processor: zvl.Processor) -> None:
    source = zvl.Mixture(Late(), passes=zvl.Once())
    built = zvl.Pipeline(source, lanes=1).probe_images(processor, max_source_pixels=10).batch(1).patchify(processor)
    with pytest.raises(OperatorError, match="at most 10 pixels"), built.loader() as loader:
        next(loader)


def test_a_dataset_that_answers_wrongly_stops_the_run(processor: zvl.Processor) -> None:
    class Wrong(Late):
        def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
            return super().fetch(shard, wanted)[1:]

    with pytest.raises(zvl.ZvlError, match="unexpected ValueError"):
        digests(pipeline(Wrong(), processor))
