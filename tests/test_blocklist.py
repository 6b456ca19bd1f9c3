"""Block lists: what a line means, how a list may change, and what a run makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zvl
from zvl.blocklist import BlockList, append_keys, names
from zvl.digest import BatchDigest, batch_digest, first_difference
from zvl.elements import Dropped, Failed
from zvl.errors import BadData, OperatorError, RecipeError, StateError, StorageError
from zvl.masking import run_leniently
from zvl.nodes import Node
from zvl.testing import check_resume

SHARD = "data/rows"
LANES = 4
STEPS = 24


def rows(count: int = 160) -> list[dict[str, Any]]:
    made = []
    for row in range(count):
        tokens = np.full(2 + row * 7 % 9, row + 1, dtype=np.int64)
        made.append({"input_ids": tokens, "labels": tokens.copy()})
    return made


def pipeline(blocked: Path | None, *, flush_every: int = 20) -> zvl.Pipeline:
    source = zvl.Mixture(zvl.from_rows(rows()), chunk_rows=8, seed=5)
    made = zvl.Pipeline(source, lanes=LANES, flush_every=flush_every, blocked=blocked)
    return made.shuffle(6).pack(16, lookahead=5).batch(2)


def write(path: Path, *row_numbers: int | str) -> Path:
    path.write_text("".join(f"{SHARD}#{row}\n" for row in row_numbers))
    return path


Run = tuple[list[zvl.Batch], list[dict[str, Any]]]


def run(made: zvl.Pipeline, first: Any, stop: int, dp_size: int = 1, runner: str = "inline") -> Run:
    """All ranks up to step `stop`, in lane order within a step, and the ranks' last states."""
    batches: list[zvl.Batch] = []
    states = []
    for rank in range(dp_size):
        with made.loader(dp_rank=rank, dp_size=dp_size, max_steps=stop, runner=runner, workers=2) as loader:
            if first is not None:
                loader.load_state_dict(first)
            batches += list(loader)
            states.append(loader.state_dict())
    return sorted(batches, key=lambda batch: (batch.step, batch.lane)), states


def digests(batches: Sequence[zvl.Batch]) -> list[BatchDigest]:
    return [batch_digest(batch) for batch in batches]


def rows_in(batches: Sequence[zvl.Batch]) -> set[int]:
    return {int(key.partition("#")[2].partition("@")[0]) for batch in batches for row in batch.keys for key in row}


@pytest.mark.parametrize(
    ("lines", "key", "since"),
    [
        (["web/a.tar#3"], "web/a.tar#3@0", 1),
        (["web/a.tar#3"], "web/a.tar#3@7", 1),
        (["web/a.tar#3"], "web/a.tar#3@0/2", 1),
        (["web/a.tar#3@1"], "web/a.tar#3@1", 1),
        (["web/a.tar#3@1"], "web/a.tar#3@0", 0),
        (["web/a.tar#3"], "web/a.tar#33@0", 0),
        (["web/a.tar#3"], "docs/a.tar#3@0", 0),
        (["", "# bad photos", "  web/a.tar#3  "], "web/a.tar#3@0", 3),
        (["web/a.tar#3@1", "web/a.tar#3"], "web/a.tar#3@1", 1),
        (["web/a.tar#3@1", "web/a.tar#3"], "web/a.tar#3@2", 2),
        (["web/b/a#1@x.tar#3"], "web/b/a#1@x.tar#3@2", 1),
        (["web/a.tar#3"], "pack:0/1/2", 0),
    ],
)
def test_what_a_line_blocks(lines: list[str], key: str, since: int) -> None:
    blocks = BlockList(lines)
    assert blocks.since(key) == since
    assert names(blocks.newer(0), key) == bool(since)
    assert not names(blocks.newer(blocks.version), key)


@pytest.mark.parametrize("line", ["web", "web/a.tar", "web/a.tar#x", "web/a.tar#3@", "a.tar#3", "web/a.tar#3@1/0"])
def test_a_line_that_names_no_row_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text(f"web/a.tar#1\n{line}\n")
    with pytest.raises(RecipeError, match=r"list, line 2: expected a row's key, dataset/shard#row, or .* got '"):
        BlockList.read(path)
    with pytest.raises(RecipeError, match="the new line: expected a row's key"):
        append_keys(tmp_path / "other", [line])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"blocked: expected a text file .* an empty file blocks nothing"):
        pipeline(tmp_path / "none").loader()


def test_appending(tmp_path: Path) -> None:
    path = tmp_path / "deep/list"
    assert append_keys(path, ["web/a#1", "web/a#2", "web/a#1"]) == 2
    path.write_text(path.read_text() + "# by hand, no line end")
    assert append_keys(path, ["web/a#2", "web/a#3@1"]) == 1
    assert path.read_text() == "web/a#1\nweb/a#2\n# by hand, no line end\nweb/a#3@1\n"
    assert append_keys(path, ["web/a#2"]) == 0


def test_blocked_rows_are_dropped_and_counted_and_keep_their_positions(tmp_path: Path) -> None:
    with pipeline(None).loader(runner="inline", max_steps=STEPS) as loader:
        assert 17 in rows_in(list(loader))
        plain = loader.state_dict()["state"]
    with pipeline(write(tmp_path / "list", 17, 18, "19@0")).loader(runner="inline", max_steps=2 * STEPS) as loader:
        batches = list(loader)
        assert not {17, 18} & rows_in(batches)
        keys = [key for batch in batches for row in batch.keys for key in row]
        assert f"{SHARD}#19@0" not in keys
        assert f"{SHARD}#19@1" in keys
        dropped = loader.stats()["dropped"]
        assert dropped.keys() == {"read:blocked"}
        assert dropped["read:blocked"] >= 5
        state = loader.state_dict()["state"]
    assert plain.keys() == state.keys()
    assert all(batch.masked == [] for batch in batches)


def test_a_list_is_no_part_of_the_fingerprint(tmp_path: Path) -> None:
    assert pipeline(None).identity() == pipeline(write(tmp_path / "list", 1)).identity()


def test_a_run_with_a_list_resumes_from_every_step(tmp_path: Path) -> None:
    check_resume(pipeline(write(tmp_path / "list", *range(3, 40, 5)), flush_every=12), steps=9)


@pytest.mark.parametrize("dp_size", [1, 2, 4])
@pytest.mark.parametrize("stopped_at", [3, 4, 11])
def test_a_list_that_grows(tmp_path: Path, stopped_at: int, dp_size: int) -> None:
    """Until a lane's next mark no pack moves; the new rows are masked. Behind it they are gone. On all ranks alike."""
    old, new = write(tmp_path / "old", 5, 6), write(tmp_path / "new", 5, 6, *range(20, 90))
    whole, _ = run(pipeline(old), None, STEPS)
    _, states = run(pipeline(old), None, stopped_at, dp_size=2)
    after, _ = run(pipeline(new), states, STEPS, dp_size, "threads")
    reference, _ = run(pipeline(new), states, STEPS)
    assert first_difference(digests(reference), digests(after)) is None
    before = {(batch.step, batch.lane): batch for batch in whole}
    versions = [batch.state["state"][str(batch.lane)]["blocked"] for batch in after]
    assert set(versions) == {2, 72}
    masked = 0
    for batch, version in zip(after, versions, strict=True):
        if version == 72:
            assert batch.masked == []
            assert not rows_in([batch]) & set(range(20, 90))
            continue
        same = before[batch.step, batch.lane]
        assert batch.keys == same.keys
        labels = same["labels"].clone()
        for row, segments in enumerate(same.segments):
            for segment in segments:
                if 20 <= int(segment.key.partition("#")[2].partition("@")[0]) < 90:
                    labels[row, segment.start : segment.stop] = -100
                    assert (segment.key, "blocked", "") in batch.masked
                    masked += 1
        assert batch["labels"].equal(labels)
        assert batch["num_loss_tokens"] == (labels != -100).sum()
        assert all(batch[name].equal(same[name]) for name in ("input_ids", "segment_ids", "cu_seqlens", "position_ids"))
    assert masked == sum(len(batch.masked) for batch in after) > 0


def test_a_second_restart_in_the_same_interval_is_exact(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old", 5), write(tmp_path / "new", 5, *range(20, 90))
    _, states = run(pipeline(old), None, 3)
    once, _ = run(pipeline(new), states, STEPS)
    for stop in range(4, 12):
        _, again = run(pipeline(new), states, stop)
        rest, _ = run(pipeline(new), again, STEPS, dp_size=2)
        assert first_difference(digests(once)[(stop - 3) * LANES :], digests(rest)) is None


def test_a_list_can_come_in_the_middle_of_a_run(tmp_path: Path) -> None:
    _, states = run(pipeline(None), None, 3)
    after, _ = run(pipeline(write(tmp_path / "new", *range(20, 90))), states, STEPS)
    assert any(batch.masked for batch in after)
    assert after[-1].state["state"]["3"]["blocked"] == 70


@pytest.mark.parametrize(
    ("lines", "wording"),
    [
        ((5,), r"with a block list of 2 lines, but .*list has 1: lines may only be added"),
        (
            (5, 7),
            r"the first 2 lines of .*list are not those that the state was saved with: lines may only be added at",
        ),
        ((6, 5, 7), r"the first 2 lines of .*list are not those"),
        (None, r"of 2 lines, but this pipeline, which has no block list, has 0"),
    ],
)
def test_a_list_may_only_grow(tmp_path: Path, lines: Any, wording: str) -> None:
    path = write(tmp_path / "list", 5, 6)
    _, states = run(pipeline(path), None, 3)
    changed = None if lines is None else write(path, *lines)
    with pytest.raises(StateError, match=wording), pipeline(changed).loader() as loader:
        loader.load_state_dict(states)


def test_the_state_is_small_and_returns(tmp_path: Path) -> None:
    path = write(tmp_path / "list", *range(100))
    _, (state,) = run(pipeline(path), None, 9)
    with pipeline(path).loader() as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    assert all(len(json.dumps(lane)) <= 128 + 24 for lane in state["state"].values())
    assert len(json.dumps({**state, "state": {}})) <= 512
    _, (plain,) = run(pipeline(None), None, 2)
    assert "blocked" not in plain
    assert all("blocked" not in lane for lane in plain["state"].values())


def test_a_new_loader_saves_the_version_that_it_will_use(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old", 5), write(tmp_path / "new", 5, *range(20, 90))
    with pipeline(old).loader() as loader:
        state = loader.state_dict()
    assert {lane["blocked"] for lane in state["state"].values()} == {1}
    after, _ = run(pipeline(new), state, STEPS)
    plain, _ = run(pipeline(old), None, STEPS)
    assert after[0].keys == plain[0].keys
    assert any(batch.masked for batch in after)


def refuse_33(sample: zvl.Sample) -> zvl.Sample:
    if sample["input_ids"][0] == 34:
        raise ValueError("by hand")
    return sample


def bad_33(sample: zvl.Sample) -> zvl.Sample:
    if sample["input_ids"][0] == 34:
        raise BadData("hand", "by hand")
    return sample


@pytest.mark.parametrize("function", [refuse_33, bad_33])
@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_a_row_that_stops_the_plan_can_be_blocked_at_once(tmp_path: Path, function: Any, runner: str) -> None:
    """The plan never got past it, so it is dropped; the rest of the interval goes on."""

    def failing(blocked: Path | None) -> zvl.Pipeline:
        source = zvl.Mixture(zvl.from_rows(rows(60)), passes=zvl.Once(), shuffle="none")
        return zvl.Pipeline(source, lanes=1, blocked=blocked).map(function).pack(16, lookahead=5).batch(1)

    with failing(None).loader(runner=runner, workers=2) as loader:
        before = []
        with pytest.raises(OperatorError, match="by hand") as caught:
            before.extend(iter(loader))  # what came before the error is in `before`
        state = loader.state_dict()
    assert caught.value.key == f"{SHARD}#33@0"
    path = tmp_path / "list"
    append_keys(path, [f"{SHARD}#33"])
    with failing(path).loader(runner=runner, workers=2) as loader:
        loader.load_state_dict(state)
        after = list(loader)
        assert loader.stats()["dropped"] == {"read:blocked": 1}
    assert before
    assert rows_in(before) | rows_in(after) == set(range(60)) - {33}
    assert sum(len(row) for batch in [*before, *after] for row in batch.keys) == 59


def test_a_row_that_pack_refuses_can_be_blocked_at_once(tmp_path: Path) -> None:
    data = rows(40)
    data[20] = {"input_ids": np.arange(50), "labels": np.arange(50)}
    source = zvl.Mixture(zvl.from_rows(data), passes=zvl.Once(), shuffle="none")
    with zvl.Pipeline(source, lanes=1).pack(16).batch(1).loader() as loader:
        state = loader.state_dict()
        with pytest.raises(OperatorError, match="too_long"):
            list(loader)
    path = write(tmp_path / "list", 20)
    with zvl.Pipeline(source, lanes=1, blocked=path).pack(16).batch(1).loader() as loader:
        loader.load_state_dict(state)
        assert rows_in(list(loader)) == set(range(40)) - {20}


def test_samples_without_batches_are_masked_too(tmp_path: Path) -> None:
    source = zvl.Mixture(zvl.from_rows(rows(6)), passes=zvl.Once(), shuffle="none")
    with zvl.Pipeline(source, lanes=1).loader(runner="inline") as loader:
        state = loader.state_dict()
    path = write(tmp_path / "list", 2)
    with zvl.Pipeline(source, lanes=1, blocked=path).loader(runner="inline") as loader:
        loader.load_state_dict(state)
        batches = list(loader)
    assert [batch.masked for batch in batches] == [[], [], [(f"{SHARD}#2@0", "blocked", "")], [], [], []]
    assert [bool((batch["labels"] == -100).all()) for batch in batches] == [False, False, True, False, False, False]


@dataclass(frozen=True, kw_only=True)
class Count(zvl.FlatMap):
    """Four children; the third of a row that is 34 fails."""

    error: type[Exception]

    def __call__(self, sample: zvl.Sample) -> Iterator[zvl.Sample]:
        for number in range(4):
            if number == 2 and sample["x"] == 34:
                raise self.error("by hand")
            yield {"x": sample["x"]}


def leniently(error: type[Exception]) -> list[Any]:
    nodes = Node.bind([Count(error=error)], 0)
    samples: list[Any] = [{"__key__": f"{SHARD}#{x}@0", "x": x} for x in (33, 34, 35)]
    return run_leniently({f"{SHARD}#34"}, nodes, samples)[0]


def test_a_row_that_fails_goes_with_all_its_children() -> None:
    output = leniently(ValueError)
    found = [element["__key__"] if isinstance(element, dict) else element for element in output]
    blocked = Dropped("read", f"{SHARD}#34@0", "blocked", "ValueError: by hand", bad=False)
    first, last = ([f"{SHARD}#{x}@0/{child}" for child in range(4)] for x in (33, 35))
    assert found == [*first, blocked, *last]


def test_storage_that_fails_is_never_skipped() -> None:
    *_, last = leniently(StorageError)
    assert isinstance(last, Failed)
    assert isinstance(last.error, StorageError)


def test_lanes_may_hold_different_versions(tmp_path: Path) -> None:
    """Grown twice within an interval: lanes that have passed their mark between hold the version of between."""
    lists = [write(tmp_path / str(n), *range(10, stop)) for n, stop in enumerate((12, 40, 70))]
    _, first = run(pipeline(lists[0]), None, 3)
    for between in range(4, 9):
        _, second = run(pipeline(lists[1]), first, between, dp_size=2)
        whole, _ = run(pipeline(lists[2]), second, STEPS)
        split, _ = run(pipeline(lists[2]), second, STEPS, dp_size=4, runner="threads")
        assert first_difference(digests(whole), digests(split)) is None
        versions = [{lane["blocked"] for lane in batch.state["state"].values()} for batch in whole]
        if {2, 30} <= set().union(*versions):
            break
    else:
        pytest.fail("no stop at which lanes differ")
    assert versions[-1] == {60}
