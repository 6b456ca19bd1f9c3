"""The run log: what it says of a batch, how it goes on after restarts and crashes, what it refuses."""

from __future__ import annotations

import io
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import zvl
from zvl.batch import Batch, Segment
from zvl.differ.logs import read_log
from zvl.errors import StorageError, ZvlError
from zvl.runlog import RunLog, chained, record

LANES = 4


def pipeline(seed: int = 3) -> zvl.Pipeline:
    rows = [{"n": n, "words": [n] * (n % 3)} for n in range(64)]
    source = zvl.Mixture({"d": zvl.from_rows(rows)}, chunk_rows=4, seed=seed)
    return zvl.Pipeline(source, lanes=LANES, flush_every=16).shuffle(4).batch(2)


def run(path: Path, steps: int, *, rank: int = 0, ranks: int = 1, state: Any = None, of: Any = None) -> Any:
    """Log the run up to a step; the loader's state."""
    made = of or pipeline()
    with made.loader(runner="inline", dp_rank=rank, dp_size=ranks, max_steps=steps) as loader:
        if state is not None:
            loader.load_state_dict(state)
        with RunLog(path, made) as log:
            for batch in loader:
                log.write(batch)
        return loader.state_dict()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def batches(path: Path) -> list[dict[str, Any]]:
    return [line for line in lines(path) if "hash" in line]


def test_a_header_and_a_chained_line_for_each_batch(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl", 3)
    header, *rest = lines(tmp_path / "a.jsonl")
    assert (header["zvl"], header["log"]) == (version("zvl"), 1)
    assert (header["rank"], header["ranks"], header["lanes"]) == (0, 1, LANES)
    assert header["start"] == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert header["recipe"]["source"]["seed"] == 3
    assert [operator["name"] for operator in header["recipe"]["operators"]] == ["shuffle", "batch"]
    assert header["operators"] == list(pipeline().identity().operators)
    assert [(line["step"], line["lane"], line["batch"]) for line in rest] == [
        (step, lane, step) for step in range(3) for lane in range(LANES)
    ]
    for lane in range(LANES):
        chain = ""
        for line in rest[lane::LANES]:
            chain = chained(chain, line["hash"])
            assert line["chain"] == chain


def test_the_same_run_gives_the_same_lines_on_any_ranks(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl", 5)
    for rank in range(2):
        run(tmp_path / f"b.rank{rank}.jsonl", 5, rank=rank, ranks=2)
    parted = batches(tmp_path / "b.rank0.jsonl") + batches(tmp_path / "b.rank1.jsonl")
    assert sorted(parted, key=lambda line: (line["step"], line["lane"])) == batches(tmp_path / "a.jsonl")
    assert lines(tmp_path / "b.rank1.jsonl")[0]["start"] == {"2": 0, "3": 0}
    assert lines(tmp_path / "b.rank1.jsonl")[0]["rank"] == 1


def test_the_chain_goes_on_after_a_restart_on_other_ranks(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl", 8)
    states = [run(tmp_path / f"b.rank{rank}.jsonl", 4, rank=rank, ranks=4) for rank in range(4)]
    for rank in range(2):
        run(tmp_path / f"b.rank{rank}.jsonl", 8, rank=rank, ranks=2, state=states)
    headers = [line for line in lines(tmp_path / "b.rank0.jsonl") if "log" in line]
    assert [header["start"] for header in headers] == [{"0": 0}, {"0": 4, "1": 4}]
    parted = [line for rank in range(4) for line in batches(tmp_path / f"b.rank{rank}.jsonl")]
    assert sorted(parted, key=lambda line: (line["step"], line["lane"])) == batches(tmp_path / "a.jsonl")


def test_a_restart_repeats_what_was_logged_behind_its_state(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    state = run(path, 3)
    run(path, 6, state=state)
    run(path, 8, state=state)
    assert [line["step"] for line in batches(path)[::LANES]] == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    assert batches(path)[3 * LANES : 6 * LANES] == batches(path)[6 * LANES : 9 * LANES]
    log = read_log(path)
    assert len(log.places) == 8 * LANES
    assert log.repeated is None


def test_a_repeat_with_another_hash_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run(path, 3)
    run(path, 3, of=pipeline(seed=4))
    repeated = read_log(path).repeated
    assert repeated is not None
    assert (repeated.step, repeated.lane) == (0, 0)
    assert f"{path}:{1 + 3 * LANES + 2} repeats it after a restart, and has another hash" in repeated.how


def test_a_state_in_the_middle_of_a_step(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "a.jsonl"
    run(whole, 2)
    made = pipeline()
    with made.loader(runner="inline") as loader, RunLog(path, made) as log:
        taken = [next(loader) for _ in range(LANES + 1)]
        for batch in taken:
            log.write(batch)
    run(path, 2, state=taken[-1].state)
    assert batches(path) == batches(whole)
    assert [line for line in lines(path) if "log" in line][1]["start"] == {"0": 2, "1": 1, "2": 1, "3": 1}


def test_without_the_batches_before_the_chain_begins_anew(tmp_path: Path) -> None:
    state = run(tmp_path / "a.jsonl", 3)
    run(tmp_path / "b.jsonl", 5, state=state)
    first = batches(tmp_path / "b.jsonl")[0]
    assert first["batch"] == 3
    assert first["chain"] == chained("", first["hash"])
    assert len(read_log(tmp_path / "b.jsonl").places) == 2 * LANES


def test_a_line_that_was_cut_short_is_taken_off(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.jsonl", tmp_path / "whole.jsonl"
    state = run(path, 3)
    run(whole, 6)
    before = path.read_bytes()
    for torn in (b'{"step":3,"lane":0,"bat', b'{"log":' + b" " * 200_000):
        path.write_bytes(before + torn)
        assert len(read_log(path).places) == 3 * LANES
        run(path, 6, state=state)
        assert batches(path) == batches(whole)
    path.write_bytes(b'{"zv')  # killed while it wrote the header
    run(path, 6)
    assert path.read_bytes() == whole.read_bytes()


def test_a_line_that_is_missing_or_changed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run(path, 3)
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join(text[:6] + text[7:]))
    with pytest.raises(ZvlError, match=r"a.jsonl:10: expected batch 1 of lane 1, got batch 2: lines are missing"):
        read_log(path)
    path.write_text("".join(text).replace(batches_hash(text[5]), "0" * 16))
    with pytest.raises(ZvlError, match=r"a.jsonl:6: the chain of lane 0 is broken: this line or the one before was ch"):
        read_log(path)
    path.write_text("".join(text[:2]) + "nonsense\n")
    with pytest.raises(ZvlError, match=r"a.jsonl:3: expected a line that `zvl run --log` or zvl.RunLog wrote, got"):
        read_log(path)
    path.write_text(text[0].replace('"log":1', '"log":9'))
    with pytest.raises(ZvlError, match=r"the log has form 9, this zvl reads form 1"):
        read_log(path)
    path.write_text(text[0])
    with pytest.raises(ZvlError, match=r"expected a log with at least one batch, got none"):
        read_log(path)


def batches_hash(line: str) -> str:
    return str(json.loads(line)["hash"])


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"cannot write the log to .*a.jsonl: Is a directory"):
        run(tmp_path / "a.jsonl", 1)


def packed(**changes: Any) -> Batch:
    """Two rows of three samples, two images with two and one rows of pixels."""
    ids = np.arange(16, dtype=np.int64).reshape(2, 8)
    sample = {
        "input_ids": ids,
        "labels": ids.copy(),
        "position_ids": np.stack([ids, ids, ids]),
        "pixel_values": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "image_rows": [2, 1],
        "segments": [
            (Segment("a#0@0", 0, 4, 0, 1), Segment("a#1@0", 4, 6, 1, 1)),
            (Segment("a#2@0", 0, 8, 1, 2),),
        ],
        "image_grid_thw": np.ones((2, 3), np.int64),
    }
    return Batch.from_sample(sample | changes, step=0, lane=0)


def test_a_record_names_every_sample_and_image() -> None:
    found = record(packed())
    assert found["parts"] == ["input_ids", "labels"]
    assert sorted(found["fields"]) == [
        "(forms)", "image_grid_thw", "input_ids", "labels", "num_loss_tokens", "pixel_values", "position_ids",
    ]  # fmt: skip
    (first, second), (third,) = found["rows"]
    assert [(one[0], one[1]) for one in (first, second, third)] == [("a#0@0", 4), ("a#1@0", 2), ("a#2@0", 8)]
    assert [len(hash) for hash in first[2].split()] == [8, 8]
    assert [one[3].partition(":")[0] for one in (first, second, third)] == ["2", "", "1"]


@pytest.mark.parametrize(
    ("field", "place", "touched"),
    [
        ("input_ids", (0, 5), {"a#1@0"}),
        ("labels", (1, 0), {"a#2@0"}),
        ("position_ids", (2, 0, 3), set()),
        ("pixel_values", (2, 3), {"a#2@0"}),
        ("pixel_values", (0, 0), {"a#0@0"}),
        ("input_ids", (0, 7), set()),  # padding
        ("image_grid_thw", (1, 1), set()),
    ],
)
def test_one_changed_number_changes_the_hashes_that_it_is_part_of(
    field: str, place: tuple[int, ...], touched: set[str]
) -> None:
    changed = packed()
    changed[field] = changed[field].clone()
    changed[field][place] += 1
    old, new = record(packed()), record(changed)
    assert old != new
    assert {name for name in old["fields"] if old["fields"][name] != new["fields"][name]} == {field}
    samples = [
        (one, other)
        for row, rows in zip(old["rows"], new["rows"], strict=True)
        for one, other in zip(row, rows, strict=True)
    ]
    assert {one[0] for one, other in samples if one != other} == touched


def test_keys_masks_types_and_shapes_count() -> None:
    base = packed()
    others = [
        packed(segments=[base.segments[0], (Segment("a#9@0", 0, 8, 1, 2),)]),
        packed(masked=[("a#2@0", "decode", "")]),
        packed(image_grid_thw=np.ones((2, 3), np.int32)),
        packed(image_grid_thw=np.ones((3, 2), np.int64)),
        packed(pixel_values=np.arange(12, dtype=np.uint8).reshape(3, 2, 2)),
        packed(image_rows=[1, 2]),
        packed(image_rows=[]),
        packed(more=[1]),
    ]
    found = [json.dumps(record(batch)) for batch in (base, *others)]
    assert len(set(found)) == len(found)
    assert json.dumps(record(packed())) == found[0]


def test_fields_that_are_no_tokens_are_hashed_row_by_row() -> None:
    rows = [(Segment("a#0@0", 0, 0, 0, 0),), (Segment("a#1@0", 0, 0, 0, 0),)]
    batch = Batch.from_sample({"n": np.arange(2), "words": ["x", "y"], "segments": rows}, step=0, lane=0)
    other = Batch.from_sample({"n": np.arange(2), "words": ["x", "z"], "segments": rows}, step=0, lane=0)
    old, new = record(batch), record(other)
    assert old["parts"] == ["n", "words"]
    assert old["rows"][0] == new["rows"][0]
    assert old["rows"][1][0][2].split()[0] == new["rows"][1][0][2].split()[0]
    assert old["rows"][1][0][2].split()[1] != new["rows"][1][0][2].split()[1]


def test_writing_leaves_the_batch_alone(tmp_path: Path) -> None:
    made = pipeline()
    with made.loader(runner="inline", max_steps=1) as loader, zvl.RunLog(tmp_path / "a.jsonl") as log:
        for batch in loader:
            before = {name: torch.clone(value) if hasattr(value, "clone") else value for name, value in batch.items()}
            log.write(batch)
            assert list(batch) == list(before)
            assert all(torch.equal(batch[name], value) for name, value in before.items() if hasattr(value, "clone"))
    assert lines(tmp_path / "a.jsonl")[0]["recipe"] is None


def test_steps_that_are_skipped_are_a_gap(tmp_path: Path) -> None:
    run(tmp_path / "whole.jsonl", 6)
    made = pipeline()
    with made.loader(runner="inline", max_steps=6) as loader, RunLog(tmp_path / "a.jsonl", made) as log:
        for batch in loader:
            log.write(batch)
            if batch.step == 1 and batch.lane == LANES - 1:
                loader.skip(2)
    assert [line["start"]["0"] for line in lines(tmp_path / "a.jsonl") if "log" in line] == [0, 4]
    whole = {(line["lane"], line["batch"]): line["hash"] for line in batches(tmp_path / "whole.jsonl")}
    found = {(line["lane"], line["batch"]): line["hash"] for line in batches(tmp_path / "a.jsonl")}
    assert found == {place: hash for place, hash in whole.items() if place[1] not in (2, 3)}
    assert len(read_log(tmp_path / "a.jsonl").places) == len(found)


@pytest.fixture(scope="module")
def with_pictures(small_qwen: Path) -> zvl.Pipeline:
    """Six rows with a picture each; two of them cannot be decoded."""
    rows = []
    for number in range(6):
        file = io.BytesIO()
        noise = np.random.default_rng(number).integers(0, 255, (56, 84, 3)).astype(np.uint8)
        Image.fromarray(noise).save(file, "JPEG")
        data = file.getvalue()
        asked = [{"type": "image"}, {"type": "text", "text": f"picture {number}"}]
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": "noise"}]
        rows.append({"messages": messages, "images": [data if number % 3 else data[: len(data) // 2]]})
    processor = zvl.Processor("qwen2_5_vl", small_qwen)
    return (
        zvl.Pipeline(zvl.Mixture({"d": zvl.from_rows(rows)}, seed=1), lanes=2, flush_every=8)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=128)
        .batch(2)
        .patchify(processor, on_error="mask")
    )


@pytest.mark.parametrize(
    "how", [{"runner": "inline"}, {"runner": "threads"}, {"runner": "processes"}, {"isolate": True}]
)
def test_hashes_of_workers_are_those_of_the_pixels(with_pictures: zvl.Pipeline, how: dict[str, Any]) -> None:
    masked = 0
    with with_pictures.loader(workers=1, max_steps=3, hash_images=True, **how) as loader:
        for batch in loader:
            masked += len(batch.masked)
            assert "hash_images" not in batch
            assert len(batch.image_hashes) == len(batch.image_rows) > 0
            found = record(batch)
            batch.image_hashes = []
            assert record(batch) == found
    assert masked > 0


def test_hashes_are_not_taken_where_pixels_may_change_later(with_pictures: zvl.Pipeline) -> None:
    for made in (with_pictures, with_pictures.map(darken)):
        hashes = []
        for ask in (True, False):
            with made.loader(runner="inline", max_steps=1, hash_images=ask) as loader:
                found = list(loader)
                hashes.append([record(batch) for batch in found])
                assert all(bool(batch.image_hashes) is (ask and made is with_pictures) for batch in found)
        assert hashes[0] == hashes[1]


def darken(sample: zvl.Sample) -> zvl.Sample:
    return sample | {"pixel_values": sample["pixel_values"] // 2}
