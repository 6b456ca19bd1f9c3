from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zvl
from zvl import registry
from zvl.batch import Segment
from zvl.errors import BadData, RecipeError
from zvl.hashing import Rng
from zvl.operator import Sample
from zvl.testing import check_resume
from zvl_operators.batch import Batch
from zvl_operators.pack import Pack


def run(operator: Batch | Pack, samples: list[Sample]) -> list[Sample]:
    accumulator = operator.start(Rng(1))
    out = [batch for sample in samples for batch in accumulator.push(sample)]
    return out + list(accumulator.flush())


def tokenized(number: int, tokens: int, images: int = 0, axes: int = 0) -> Sample:
    ids = np.arange(tokens) + 1000 * (number + 1)
    positions = np.arange(tokens) if not axes else np.broadcast_to(np.arange(tokens), (axes, tokens))
    return {
        "__key__": f"web/a.tar#{number}@0",
        "input_ids": ids,
        "labels": ids,
        "position_ids": positions,
        "images": [f"image {number}.{i}" for i in range(images)],
    }


@settings(deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(1, 16), st.integers(0, 3)), min_size=1, max_size=20),
    size=st.integers(1, 4),
    axes=st.sampled_from([0, 3]),
)
def test_rows_of_pack_are_stacked_and_the_last_batch_is_filled(costs: Any, size: int, axes: int) -> None:
    samples = [tokenized(i, tokens, images, axes) for i, (tokens, images) in enumerate(costs)]
    rows = run(Pack(max_tokens=16, lookahead=4), samples)
    batches = run(Batch(size=size), rows)
    assert len(batches) == -(-len(rows) // size)
    padding = Pack(max_tokens=16).blank({"position_ids": np.zeros((3, 0))} if axes else {})
    rows += [padding] * (size * len(batches) - len(rows))
    for number, batch in enumerate(batches):
        check_batch(batch, rows[number * size : (number + 1) * size], (3,) if axes else ())


def check_batch(batch: Sample, rows: list[Sample], axes: tuple[int, ...]) -> None:
    """Every field of a batch against its rows."""
    for field in ("input_ids", "labels", "segment_ids"):
        assert batch[field].dtype == rows[0][field].dtype
        assert (batch[field] == [row[field] for row in rows]).all()
    assert batch["position_ids"].shape == (*axes, len(rows), 16)
    for number, row in enumerate(rows):
        assert (batch["position_ids"][..., number, :] == row["position_ids"]).all()
        assert [s[:3] for s in batch["segments"][number]] == [s[:3] for s in row["segments"]]
        own = [batch["images"][s.first_image : s.last_image] for s in batch["segments"][number]]
        assert own == [row["images"][s.first_image : s.last_image] for s in row["segments"]]
    assert batch["images"] == [image for row in rows for image in row["images"]]
    flat = batch["segment_ids"] + 100 * np.arange(len(rows))[:, None]
    borders = np.flatnonzero(np.diff(flat.ravel(), prepend=-1, append=-1))
    assert batch["cu_seqlens"].tolist() == borders.tolist()
    assert batch["cu_seqlens"].dtype == np.int32


def test_tokenized_samples_are_padded_to_the_longest() -> None:
    (batch,) = run(Batch(size=2, pad_id=9), [tokenized(0, 2, images=1), tokenized(1, 3, images=2)])
    assert batch["input_ids"].tolist() == [[1000, 1001, 9], [2000, 2001, 2002]]
    assert batch["labels"].tolist() == [[-100, 1001, -100], [-100, 2001, 2002]]
    assert batch["segment_ids"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 0], [0, 1, 2]]
    assert batch["cu_seqlens"].tolist() == [0, 2, 3, 6]
    assert batch["images"] == ["image 0.0", "image 1.0", "image 1.1"]
    assert batch["segments"] == [(Segment("web/a.tar#0@0", 0, 2, 0, 1),), (Segment("web/a.tar#1@0", 0, 3, 1, 3),)]


def test_pad_to_gives_every_batch_one_shape_and_refuses_longer_samples() -> None:
    batches = run(Batch(size=2, pad_to=5), [tokenized(i, i + 1, axes=3) for i in range(3)])
    assert [batch["input_ids"].shape for batch in batches] == [(2, 5), (2, 5)]
    assert [batch["position_ids"].shape for batch in batches] == [(3, 2, 5), (3, 2, 5)]
    assert batches[1]["segments"][1] == ()
    assert batches[1]["cu_seqlens"].tolist() == [0, 3, 5, 10]
    with pytest.raises(BadData, match="too_long: expected at most pad_to=5 tokens, got 6: raise pad_to, or filter"):
        run(Batch(size=2, pad_to=5), [tokenized(0, 6)])


def test_text_beside_m_rope_rows_has_the_same_position_on_each_axis() -> None:
    (batch,) = run(Batch(size=2), [tokenized(0, 2), tokenized(1, 2, axes=3)])
    assert batch["position_ids"].tolist() == [[[0, 1], [0, 1]]] * 3


def test_a_sample_without_tokens_is_a_row_of_padding_with_a_key() -> None:
    (batch,) = run(Batch(size=1), [tokenized(0, 0)])
    assert batch["input_ids"].shape == (1, 1)
    assert batch["cu_seqlens"].tolist() == [0, 1]
    assert batch["segments"] == [(Segment("web/a.tar#0@0", 0, 0, 0, 0),)]


def test_other_fields_of_rows_are_stacked_and_padded() -> None:
    (row,) = run(Pack(max_tokens=4), [tokenized(0, 3)])
    row |= {"__key__": "lane 0", "score": 0.5, "name": "a", "mask": np.ones(4, bool), "count": np.int32(3)}
    (batch,) = run(Batch(size=2), [row])
    assert "__key__" not in batch
    assert batch["score"].tolist() == [0.5, 0.0]
    assert batch["name"] == ["a", None]
    assert batch["mask"].tolist() == [[True] * 4, [False] * 4]
    assert batch["count"].dtype == np.int32
    assert batch["count"].tolist() == [3, 0]


def test_arbitrary_samples_are_stacked_field_by_field() -> None:
    samples = [
        {
            "__key__": f"k{n}",
            "n": n,
            "x": n / 2,
            "flag": n == 1,
            "text": str(n),
            "vector": np.full(2, n, np.float32),
            "ragged": np.zeros(n),
            "huge": 2**70,
        }
        for n in range(3)
    ]
    samples[2]["late"] = 1
    whole, short = run(Batch(size=2), samples)
    assert whole["n"].tolist() == [0, 1]
    assert whole["n"].dtype == np.int64
    assert whole["x"].tolist() == [0.0, 0.5]
    assert whole["flag"].dtype == np.bool_
    assert whole["text"] == ["0", "1"]
    assert whole["vector"].dtype == np.float32
    assert whole["vector"].tolist() == [[0, 0], [1, 1]]
    assert [len(part) for part in whole["ragged"]] == [0, 1]
    assert whole["huge"] == [2**70, 2**70]
    assert whole["segments"] == [(Segment("k0", 0, 0, 0, 0),), (Segment("k1", 0, 0, 0, 0),)]
    assert "__key__" not in whole
    assert short["n"].tolist() == [2]
    assert short["late"].tolist() == [1]


def test_a_field_that_some_samples_lack_is_a_list() -> None:
    (batch,) = run(Batch(size=2), [{"a": 1}, {"b": 2}])
    assert batch["a"] == [1, None]
    assert batch["b"] == [None, 2]
    assert [segments[0].key for segments in batch["segments"]] == ["", ""]


def test_images_of_arbitrary_samples_are_those_of_all_rows() -> None:
    (batch,) = run(Batch(size=2), [{"__key__": "a", "images": [b"1"]}, {"__key__": "b", "images": [b"2", b"3"]}])
    assert batch["images"] == [b"1", b"2", b"3"]
    assert batch["segments"] == [(Segment("a", 0, 0, 0, 1),), (Segment("b", 0, 0, 1, 3),)]


def test_samples_with_and_without_tokens_do_not_mix() -> None:
    with pytest.raises(
        RecipeError,
        match=r"expected all samples or none to have input_ids, got both, 'web/a.tar#0@0' with and 'a' without",
    ):
        run(Batch(size=2), [tokenized(0, 2), {"__key__": "a", "text": ""}])


def test_rows_of_several_lengths_are_refused() -> None:
    rows = [Pack(max_tokens=length).blank({}) for length in (4, 8)]
    with pytest.raises(RecipeError, match=r"expected rows of one length, got \[4, 8\]: pack all samples, or none"):
        run(Batch(size=2), rows)


def test_the_input_is_not_changed() -> None:
    sample = tokenized(0, 3, images=1)
    before = {field: value.copy() for field, value in sample.items() if field != "__key__"}
    run(Batch(size=2), [sample, tokenized(1, 5)])
    assert all(np.array_equal(sample[field], value) for field, value in before.items())


@pytest.mark.parametrize("axes", [0, 3])
@pytest.mark.parametrize("packed", [True, False])
def test_blank_has_the_shapes_and_types_of_a_batch(packed: bool, axes: int) -> None:
    samples = [tokenized(i, 10, 1, axes) for i in range(2)]
    empty = tokenized(0, 0, 0, axes)
    pack = Pack(max_tokens=16)
    batch = Batch(size=2, pad_to=None if packed else 16)
    real = run(batch, run(pack, samples) if packed else samples)[0]
    blank = batch.blank(pack.blank(empty) if packed else empty)
    assert set(blank) == set(real)
    for field, value in real.items():
        if isinstance(value, np.ndarray) and field != "cu_seqlens":
            assert (blank[field].shape, blank[field].dtype) == (value.shape, value.dtype)
    assert blank["segments"] == [(), ()]
    assert blank["images"] == []
    assert blank["cu_seqlens"].tolist() == [0, 16, 32]
    assert (blank["labels"] == -100).all()


def test_blank_without_fields_has_no_rows() -> None:
    assert Batch(size=4).blank({}) == {"segments": []}


def test_blank_of_other_fields_is_that_row_size_times() -> None:
    blank = Batch(size=2).blank({"score": 0.0, "images": []})
    assert blank["score"].tolist() == [0.0, 0.0]
    assert blank["images"] == []
    assert blank["segments"] == [(), ()]


def test_nothing_held_gives_nothing() -> None:
    assert run(Batch(size=2), []) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": 0}, "batch: expected size of at least 1 row, got 0"),
        ({"size": 1, "pad_to": 0}, "batch: expected pad_to of at least 1 token, got 0: leave it out for the longest"),
    ],
)
def test_wrong_configurations_are_refused(fields: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Batch(**fields)


def test_it_is_found_by_its_name_and_says_what_it_holds() -> None:
    assert registry.load("operators", "batch") is Batch
    assert Batch(size=3).name == "batch"
    assert Batch(size=3).holds() == 3


def as_tokens(sample: Sample) -> Sample:
    return tokenized(sample["n"], sample["n"] % 7 + 1) | {"__key__": sample["__key__"]}


def test_it_resumes_exactly_from_every_step() -> None:
    source = zvl.Mixture({"a": zvl.from_rows([{"n": n} for n in range(50)])}, seed=3)
    check_resume(zvl.Pipeline(source, lanes=2, flush_every=20).map(as_tokens).batch(3), steps=10)


@pytest.mark.parametrize("tokens", [True, False])
def test_every_row_of_a_finite_source_is_in_one_batch_and_done_lanes_yield_blank_ones(tokens: bool) -> None:
    rows = zvl.from_rows([{"n": n} for n in range(23)])
    source = zvl.Mixture({"a": rows}, passes={"a": zvl.Once()}, chunk_rows=20, seed=3)
    pipeline = zvl.Pipeline(source, lanes=2, flush_every=8)
    pipeline = (pipeline.map(as_tokens) if tokens else pipeline).batch(4)
    with pipeline.loader(runner="inline") as loader:
        keys = [key for batch in loader for row in batch.keys for key in row]
    assert len(keys) == len(set(keys)) == 23
