from __future__ import annotations

import pickle
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zvl
from zvl import registry
from zvl.errors import BadData, RecipeError
from zvl.hashing import Rng
from zvl.image import Image, ImageInfo, ImagePlan
from zvl.testing import check_resume
from zvl_operators._packers import Item
from zvl_operators.pack import Algorithm, Pack

WHOLE: tuple[Algorithm, ...] = ("knapsack", "first_fit", "best_fit")
"""The algorithms that keep samples whole."""


def image(patches: int) -> Image:
    plan = ImagePlan(rows=patches, tokens=patches // 4, patches=patches, width=1, height=1, geometry=(1, 1, patches))
    return Image(b"", ImageInfo("jpeg", 1, 1), plan)


def tokenized(number: int, tokens: int, patches: tuple[int, ...] = (), axes: int = 0) -> dict[str, Any]:
    """A sample whose ids tell which it is, with positions that are not 0, 1, 2, ..."""
    ids = np.arange(tokens) + 10_000 * (number + 1)
    positions = np.arange(tokens) * 2 if not axes else np.arange(axes * tokens).reshape(axes, tokens)
    return {
        "__key__": f"web/a.tar#{number}@0",
        "input_ids": ids,
        "labels": ids + 1,
        "position_ids": positions,
        "images": [image(count) for count in patches],
        "messages": "not for packing",
    }


def run(pack: Pack, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    accumulator = pack.start(Rng(1))
    rows = [row for sample in samples for row in accumulator.push(sample)]
    return rows + list(accumulator.flush())


costs = st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(1, 12), max_size=3).map(tuple)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(
    costs=costs,
    algorithm=st.sampled_from(WHOLE),
    lookahead=st.integers(2, 12),
    bins=st.integers(1, 5),
    patches=st.sampled_from([None, 36, 50]),
    images=st.sampled_from([None, 3, 5]),
    axes=st.sampled_from([0, 3]),
)
def test_every_sample_is_in_one_row_whole_and_within_the_budgets(
    costs: Any, algorithm: Any, lookahead: int, bins: int, patches: int | None, images: int | None, axes: int
) -> None:
    samples = [tokenized(i, tokens, own, axes) for i, (tokens, own) in enumerate(costs)]
    pack = Pack(
        max_tokens=24,
        max_patches=patches,
        max_images=images,
        algorithm=algorithm,
        lookahead=lookahead,
        num_bins=bins,
        pad_id=7,
    )
    rows = run(pack, samples)
    by_key = {sample["__key__"]: sample for sample in samples}
    order = {sample["__key__"]: i for i, sample in enumerate(samples)}
    packed = [segment.key for row in rows for segment in row["segments"]]
    assert sorted(packed) == sorted(by_key)
    for row in rows:
        assert sum(each.plan.patches for each in row["images"]) <= (patches or 10**9)
        assert len(row["images"]) <= (images or 10**9)
        keys = [segment.key for segment in row["segments"]]
        assert keys == sorted(keys, key=order.__getitem__)
        check_row(row, by_key, length=24, pad_id=7)


def check_row(row: dict[str, Any], by_key: dict[str, Any], length: int, pad_id: int) -> None:
    """Every field of a row against its samples, token by token."""
    assert set(row) == {"input_ids", "labels", "segment_ids", "position_ids", "images", "segments"}
    assert row["input_ids"].shape == row["labels"].shape == row["segment_ids"].shape == (length,)
    assert row["input_ids"].dtype == row["labels"].dtype == row["position_ids"].dtype == np.int64
    assert row["segment_ids"].dtype == np.int32
    start = first = 0
    for number, segment in enumerate(row["segments"], 1):
        sample = by_key[segment.key]
        tokens = len(sample["input_ids"])
        assert segment[1:] == (start, start + tokens, first, first + len(sample["images"]))
        here = slice(start, start + tokens)
        assert (row["input_ids"][here] == sample["input_ids"]).all()
        assert row["labels"][start] == -100
        assert (row["labels"][here][1:] == sample["labels"][1:]).all()
        assert (row["segment_ids"][here] == number).all()
        assert (row["position_ids"][..., here] == sample["position_ids"]).all()
        assert row["images"][first : segment.last_image] == sample["images"]
        start, first = segment.stop, segment.last_image
    assert len(row["images"]) == first
    assert (row["input_ids"][start:] == pad_id).all()
    assert (row["labels"][start:] == -100).all()
    assert (row["segment_ids"][start:] == 0).all()
    assert (row["position_ids"][..., start:] == np.arange(length - start)).all()


mostly_short = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 2, 5, 22, 23]), st.sampled_from([(), (), (4,), (12, 12)])), max_size=60
)


@settings(max_examples=300, deadline=None)
@given(costs=st.one_of(costs, mostly_short), lookahead=st.integers(2, 8), patches=st.sampled_from([None, 36]))
def test_knapsack_lets_no_sample_wait_for_more_than_lookahead_rows(
    costs: Any, lookahead: int, patches: int | None
) -> None:
    accumulator = Pack(max_tokens=24, max_patches=patches, lookahead=lookahead).start(Rng(1))
    entered: dict[str, int] = {}
    rows = 0

    def leave(left: Any) -> None:
        nonlocal rows
        for row in left:
            rows += 1
            for segment in row["segments"]:
                assert rows - entered[segment.key] <= lookahead

    for i, (tokens, own) in enumerate(costs):
        sample = tokenized(i, tokens, own)
        entered[sample["__key__"]] = rows
        leave(accumulator.push(sample))
    leave(accumulator.flush())


def test_knapsack_waits_until_a_row_can_be_filled_even_with_very_short_samples() -> None:
    samples = [tokenized(i, 2) for i in range(400)]
    rows = run(Pack(max_tokens=100, lookahead=8), samples)
    assert [len(row["segments"]) for row in rows] == [50] * 8


def test_first_fit_takes_the_oldest_row_and_best_fit_the_fullest() -> None:
    samples = [tokenized(i, tokens) for i, tokens in enumerate((5, 8, 2, 9, 9))]
    first = run(Pack(max_tokens=10, algorithm="first_fit", num_bins=2), samples)
    best = run(Pack(max_tokens=10, algorithm="best_fit", num_bins=2), samples)
    assert [[s.stop - s.start for s in row["segments"]] for row in first] == [[5, 2], [8], [9], [9]]
    assert [[s.stop - s.start for s in row["segments"]] for row in best] == [[8, 2], [9], [5], [9]]


@given(sizes=st.lists(st.integers(1, 40), max_size=20), axes=st.sampled_from([0, 3]))
def test_wrap_cuts_one_stream_at_the_row_ends(sizes: list[int], axes: int) -> None:
    samples = [tokenized(i, tokens, axes=axes) for i, tokens in enumerate(sizes)]
    for sample in samples:
        sample["position_ids"] = np.broadcast_to(np.arange(len(sample["input_ids"])), sample["position_ids"].shape)
    rows = run(Pack(max_tokens=16, algorithm="wrap"), samples)
    assert len(rows) == -(-sum(sizes) // 16)
    ids = np.concatenate([np.zeros(0), *(row["input_ids"] for row in rows)])[: sum(sizes)]
    assert ids.tolist() == [token for sample in samples for token in sample["input_ids"]]
    for row in rows:
        assert row["images"] == []
        for number, segment in enumerate(row["segments"], 1):
            here = slice(segment.start, segment.stop)
            assert (row["segment_ids"][here] == number).all()
            assert row["labels"][segment.start] == -100
            assert (row["labels"][here][1:] == row["input_ids"][here][1:] + 1).all()
            assert (row["position_ids"][..., here] == np.arange(segment.stop - segment.start)).all()
            assert row["input_ids"][segment.start] // 10_000 == int(segment.key.split("#")[1][:-2]) + 1


def test_wrap_refuses_images() -> None:
    with pytest.raises(RecipeError, match="'wrap' is for text without images, got a sample with 2: use algorithm='kn"):
        run(Pack(max_tokens=16, algorithm="wrap"), [tokenized(0, 8, (4, 4))])


@pytest.mark.parametrize("algorithm", WHOLE)
def test_the_same_samples_give_the_same_rows(algorithm: Any) -> None:
    samples = [tokenized(i, 1 + i * 7 % 23, (4,) * (i % 3)) for i in range(80)]
    pack = Pack(max_tokens=32, max_images=4, algorithm=algorithm, lookahead=16)
    once, again = run(pack, samples), run(pickle.loads(pickle.dumps(pack)), samples)
    assert [row["segments"] for row in once] == [row["segments"] for row in again]
    assert all((a["input_ids"] == b["input_ids"]).all() for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize(
    ("fields", "sample", "reason", "words"),
    [
        ({}, tokenized(0, 33), "too_long", "expected at most max_tokens=32 tokens, got 33: drop it with overflow='dr"),
        ({"max_patches": 8}, tokenized(0, 9, (4, 5)), "too_many_patches", "at most max_patches=8 patches, got 9"),
        ({"max_images": 1}, tokenized(0, 9, (4, 5)), "too_many_images", "at most max_images=1 images, got 2"),
        ({}, tokenized(0, 0), "no_tokens", "expected at least one token, got none: filter such samples"),
    ],
)
def test_a_sample_that_no_row_can_hold_is_bad_data_and_leaves_no_trace(
    fields: Any, sample: Any, reason: str, words: str
) -> None:
    pack = Pack(max_tokens=32, **fields)
    accumulator = pack.start(Rng(1))
    assert list(accumulator.push(tokenized(1, 8))) == []
    with pytest.raises(BadData, match=words) as caught:
        accumulator.push(sample)
    assert caught.value.reason == reason
    assert [segment.key for row in accumulator.flush() for segment in row["segments"]] == ["web/a.tar#1@0"]
    assert pack.drops == frozenset()
    assert reason in Pack(max_tokens=32, overflow="drop").drops


def conversation() -> dict[str, Any]:
    """Three turns of 10 tokens with one image each, whose runs start at the second token of the turn."""
    return tokenized(0, 31, (4, 8, 16), axes=3) | {
        "turn_ends": np.array([10, 20, 30]),
        "image_starts": np.array([1, 11, 21]),
    }


@pytest.mark.parametrize(
    ("fields", "tokens", "images"),
    [
        ({"max_tokens": 30}, 30, 3),
        ({"max_tokens": 29}, 20, 2),
        ({"max_tokens": 10}, 10, 1),
        ({"max_tokens": 64, "max_images": 2}, 20, 2),
        ({"max_tokens": 64, "max_patches": 11}, 10, 1),
    ],
)
def test_truncate_turns_cuts_at_the_last_turn_that_fits(fields: Any, tokens: int, images: int) -> None:
    sample = conversation()
    (row,) = run(Pack(overflow="truncate_turns", **fields), [sample])
    assert row["segments"] == (("web/a.tar#0@0", 0, tokens, 0, images),)
    assert row["images"] == sample["images"][:images]
    assert (row["input_ids"][:tokens] == sample["input_ids"][:tokens]).all()
    assert (row["position_ids"][:, :tokens] == sample["position_ids"][:, :tokens]).all()
    assert len(sample["input_ids"]) == 31
    assert len(sample["images"]) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"turn_ends": None}, "needs the field 'turn_ends', which tokenize_chat writes"),
        ({"image_starts": None}, "needs the field 'image_starts', which tokenize_chat writes"),
    ],
)
def test_truncate_turns_needs_the_borders(change: Any, words: str) -> None:
    sample = {field: value for field, value in (conversation() | change).items() if value is not None}
    with pytest.raises(RecipeError, match=words):
        run(Pack(max_tokens=24, overflow="truncate_turns"), [sample])


def test_truncate_turns_never_cuts_elsewhere() -> None:
    pack = Pack(max_tokens=24, overflow="truncate_turns")
    sample = conversation() | {"turn_ends": np.array([25, 31])}
    with pytest.raises(BadData, match="max_tokens=24 tokens, got 31: it has no turn border that fits") as caught:
        run(pack, [sample])
    assert caught.value.reason in pack.drops


def test_image_starts_must_match_the_images() -> None:
    sample = conversation() | {"image_starts": np.array([1])}
    with pytest.raises(RecipeError, match="one entry of image_starts for each image, got 1 for 3 images"):
        run(Pack(max_tokens=24, overflow="truncate_turns"), [sample])


@pytest.mark.parametrize("axes", [0, 3])
def test_blank_has_the_shapes_and_types_of_a_row(axes: int) -> None:
    pack = Pack(max_tokens=32, pad_id=5)
    (row,) = run(pack, [tokenized(0, 20, axes=axes)])
    blank = pack.blank({} if not axes else {"position_ids": np.zeros((3, 0), dtype=np.int64)})
    assert {k: (v.shape, v.dtype) for k, v in row.items() if isinstance(v, np.ndarray)} == {
        k: (v.shape, v.dtype) for k, v in blank.items() if isinstance(v, np.ndarray)
    }
    assert set(blank) == set(row)
    assert blank["segments"] == ()
    assert blank["images"] == []
    check_row(blank, {}, length=32, pad_id=5)


def test_text_beside_m_rope_samples_gets_the_same_position_on_each_axis() -> None:
    (row,) = run(Pack(max_tokens=16), [tokenized(0, 5), tokenized(1, 4, axes=3)])
    assert row["position_ids"].shape == (3, 16)
    assert (row["position_ids"][:, :5] == np.arange(5) * 2).all()


def test_positions_default_to_counting() -> None:
    sample = {"input_ids": np.arange(4), "labels": np.arange(4)}
    (row,) = run(Pack(max_tokens=6), [sample])
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 0, 1]
    assert sample["labels"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (
            {"text": "a"},
            "pack needs input_ids, but the sample has only text: put tokenize_chat or tokenize_text before",
        ),
        ({"input_ids": np.arange(3)}, "pack needs labels, but the sample has only input_ids"),
        (tokenized(0, 3) | {"labels": np.arange(2)}, r"expected as many labels as input_ids \(3\), got 2"),
        (tokenized(0, 3) | {"position_ids": np.arange(2)}, r"position_ids of shape \(3,\) or \(3, 3\), got \(2,\)"),
        (tokenized(0, 3) | {"input_ids": np.zeros((1, 3))}, r"input_ids of shape \(tokens,\), got \(1, 3\)"),
        (tokenized(0, 3) | {"images": [b"raw"]}, "max_patches needs images with a plan, got bytes: put probe_images"),
    ],
)
def test_samples_of_the_wrong_form_are_refused(sample: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        run(Pack(max_tokens=16, max_patches=16), [sample])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"algorithm": "next_fit"}, "expected algorithm among knapsack, first_fit, best_fit, wrap, got 'next_fit'"),
        ({"overflow": "keep"}, "expected overflow among error, drop, truncate_turns, got 'keep'"),
        ({"max_tokens": 0}, "expected max_tokens of at least 1, got 0"),
        ({"lookahead": 1}, "expected lookahead of at least 2, got 1"),
        ({"num_bins": 0}, "expected num_bins of at least 1, got 0"),
        ({"max_images": 0}, "expected max_images of at least 1, got 0: leave it out for no limit"),
        ({"max_patches": 9, "algorithm": "wrap"}, "'wrap' is for text without images: leave out max_patches"),
    ],
)
def test_wrong_configurations_are_refused(fields: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Pack(**({"max_tokens": 32} | fields))


def test_it_is_found_by_its_name_and_says_what_it_holds() -> None:
    assert registry.load("operators", "pack") is Pack
    assert Pack(max_tokens=8).name == "pack"
    assert Pack(max_tokens=8, lookahead=32).holds() == 32
    assert Pack(max_tokens=8, algorithm="best_fit", num_bins=4).holds() == 32


def realistic(count: int, longest: int, text_only: float) -> list[Item]:
    """Lengths like those of talk about photos: lognormal text, images of 200 to 1,300 tokens (4 patches each)."""
    rng = np.random.default_rng(5)
    items: list[Item] = []
    while len(items) < count:
        text = int(np.exp(rng.normal(np.log(250), 0.9))) + 8
        images = 0 if rng.random() < text_only else int(rng.choice([1, 2, 3], p=[0.75, 0.2, 0.05]))
        tokens = int(rng.integers(200, 1301, images).sum())
        if text + tokens <= longest:
            items.append(Item(text + tokens, 4 * tokens, images, len(items)))
    return items


def fill(pack: Pack, items: list[Item], flush_every: int = 2048) -> float:
    """The share of tokens in the rows, measured through the operator, with a flush every 2,048 samples."""
    rows = 0
    for start in range(0, len(items), flush_every):
        accumulator = pack.start(Rng(start))
        for item in items[start : start + flush_every]:
            each = item.patches // max(1, item.images)
            own = (item.patches - each * (item.images - 1), *[each] * (item.images - 1)) if item.images else ()
            rows += len(list(accumulator.push(tokenized(item.payload, item.tokens, own))))
        rows += len(list(accumulator.flush()))
    return sum(item.tokens for item in items) / (rows * pack.max_tokens)


@pytest.mark.parametrize("text_only", [0.1, 0.5])
def test_knapsack_fills_99_percent(text_only: float) -> None:
    items = realistic(4096, 4096, text_only)
    filled = {algorithm: fill(Pack(max_tokens=4096, algorithm=algorithm), items) for algorithm in WHOLE}
    assert filled["knapsack"] >= 0.99
    assert filled["knapsack"] > filled["best_fit"] > filled["first_fit"]


@pytest.mark.parametrize(("max_tokens", "slack"), [(4096, 1.2), (8192, 1.1)])
def test_knapsack_fills_98_5_percent_with_two_budgets(max_tokens: int, slack: float) -> None:
    items = realistic(4096, 4096, text_only=0.5)
    share = sum(item.patches for item in items) / sum(item.tokens for item in items)
    max_patches = int(slack * share * max_tokens)
    items = [item for item in items if item.patches <= max_patches]
    assert fill(Pack(max_tokens=max_tokens, max_patches=max_patches), items) >= 0.985


def as_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return tokenized(sample["n"], sample["n"] % 29 + 1) | {"__key__": sample["__key__"]}


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_it_resumes_exactly_from_every_step(algorithm: Algorithm) -> None:
    source = zvl.Mixture({"a": zvl.from_rows([{"n": n} for n in range(90)])}, seed=3)
    pipeline = zvl.Pipeline(source, lanes=2, flush_every=30).map(as_tokens)
    check_resume(pipeline.pack(max_tokens=32, lookahead=8, algorithm=algorithm).batch(2), steps=8)
