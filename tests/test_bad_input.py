"""Bad input of every kind, through the whole loader: a clear error, or the stated policy with its count and record."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zvl
from zvl.checkpoint import VERSION

RUNNERS = pytest.mark.parametrize("runner", ["inline", "threads"])


@pytest.fixture(autouse=True)
def _index_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=100_000)


def jpeg(width: int = 64, height: int = 48) -> bytes:
    pixels = np.add.outer(np.arange(height), np.arange(width)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def chat(images: int = 1) -> list[dict[str, Any]]:
    question = [{"type": "image"}] * images + [{"type": "text", "text": "What is it?"}]
    return [{"role": "user", "content": question}, {"role": "assistant", "content": "A gradient."}]


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "a.jpg").write_bytes(jpeg())
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def good(count: int) -> list[dict[str, Any]]:
    return [{"messages": chat(), "images": ["a.jpg"]} for _ in range(count)]


def training(dataset: Any, processor: zvl.Processor, on_error: str = "raise", **pack: Any) -> zvl.Pipeline:
    source = zvl.Mixture(dataset, passes=zvl.Once(), shuffle="none")
    return (
        zvl.Pipeline(source, lanes=1, flush_every=4)
        .probe_images(processor, on_error=on_error)
        .tokenize_chat(processor, on_error=on_error)
        .pack(**({"max_tokens": 96} | pack))
        .batch(1)
        .patchify(processor)
    )


def keys(loader: Any) -> list[str]:
    return [key for batch in loader for row in batch.keys for key in row]


def ledger(path: Path) -> list[tuple[str, str, str]]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [(entry["key"], entry["operator"], entry["reason"]) for entry in entries]


@dataclasses.dataclass(frozen=True)
class Case:
    """A bad row, who finds it, its reason, and what the error says."""

    row: dict[str, Any]
    operator: str
    reason: str
    wording: str


CASES = {
    "missing image file": Case(
        {"messages": chat(), "images": ["gone.jpg"]},
        "read",
        "missing",
        r"rows.jsonl line 3 .*no image file at .*gone.jpg",
    ),
    "no messages": Case({"text": "x"}, "tokenize_chat", "messages", "expected a list of at least one message, got"),
    "more parts than images": Case(
        {"messages": chat(2), "images": ["a.jpg"]},
        "tokenize_chat",
        "image_count",
        "expected one image for each image part, got 2 parts and 1 images",
    ),
    "more images than parts": Case(
        {"messages": chat(0), "images": ["a.jpg"]},
        "tokenize_chat",
        "image_count",
        "expected one image for each image part, got 0 parts and 1 images",
    ),
    "no image": Case({"messages": chat(), "images": ["rows.jsonl"]}, "probe_images", "", "image 0: "),
}


@RUNNERS
@pytest.mark.parametrize("name", CASES)
def test_a_bad_row_stops_the_run_with_its_key_and_the_reason(
    name: str, runner: str, processor: zvl.Processor, tmp_path: Path
) -> None:
    case = CASES[name]
    path = jsonl(tmp_path, [*good(2), case.row, *good(2)])
    with (
        training(zvl.open_dataset(path), processor).loader(runner=runner, workers=2) as loader,
        pytest.raises(zvl.OperatorError, match=case.wording) as caught,
    ):
        keys(loader)
    assert (caught.value.operator, caught.value.key) == (case.operator, "data/rows.jsonl#2@0")
    assert case.reason in caught.value.detail


@RUNNERS
@pytest.mark.parametrize("name", CASES)
def test_a_bad_row_is_dropped_counted_and_written_down_once(
    name: str, runner: str, processor: zvl.Processor, tmp_path: Path
) -> None:
    """Also where the run is stopped and gone on with behind every batch, from states before the record too."""
    case = CASES[name]
    path = jsonl(tmp_path, [*good(2), case.row, *good(4), case.row])
    pipeline = training(zvl.open_dataset(path, on_error="drop"), processor, on_error="drop")
    quarantine = tmp_path / "out" / "ledger.jsonl"
    with pipeline.loader(runner=runner, quarantine=quarantine) as loader:
        states = [loader.state_dict()]
        got = []
        for batch in loader:
            got += [key for row in batch.keys for key in row]
            states.append(batch.state)
        dropped = loader.stats()["dropped"]
    assert got == [f"data/rows.jsonl#{row}@0" for row in (0, 1, 3, 4, 5, 6)]
    assert list(dropped.values()) == [2]
    ((counted, _),) = dropped.items()
    assert counted.startswith(f"{case.operator}:{case.reason}")
    written = ledger(quarantine)
    assert [key for key, _, _ in written] == ["data/rows.jsonl#2@0", "data/rows.jsonl#7@0"]
    for state in states:
        with pipeline.loader(runner=runner, quarantine=quarantine) as loader:
            loader.load_state_dict(state)
            keys(loader)
    assert ledger(quarantine) == written


@RUNNERS
def test_a_sample_longer_than_a_row(runner: str, processor: zvl.Processor, tmp_path: Path) -> None:
    long = {"messages": [*chat(0), {"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "?"}]}
    dataset = zvl.open_dataset(jsonl(tmp_path, [*good(1), long, *good(1)]))
    with (
        training(dataset, processor).loader(runner=runner) as loader,
        pytest.raises(zvl.OperatorError, match=r"'pack' .*#1@0': too_long: expected at most max_tokens=96 tokens, got"),
    ):
        keys(loader)
    quarantine = tmp_path / "ledger.jsonl"
    with training(dataset, processor, overflow="drop").loader(runner=runner, quarantine=quarantine) as loader:
        assert keys(loader) == ["data/rows.jsonl#0@0", "data/rows.jsonl#2@0"]
        assert loader.stats()["dropped"] == {"pack:too_long": 1}
    assert ledger(quarantine) == [("data/rows.jsonl#1@0", "pack", "too_long")]


def test_a_template_that_leaves_the_assistant_out(
    processor: zvl.Processor, qwen_tokenizer: Path, tmp_path: Path
) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
    deaf = zvl.Processor("qwen2_5_vl", qwen_tokenizer, chat_template=template)
    dataset = zvl.open_dataset(
        jsonl(
            tmp_path,
            [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A gradient."}]}],
        )
    )
    with (
        training(dataset, deaf).loader(runner="inline") as loader,
        pytest.raises(zvl.OperatorError, match=r"'tokenize_chat' .*template: .*the template leaves"),
    ):
        keys(loader)


def test_a_chat_without_an_assistant_turn_carries_no_loss(processor: zvl.Processor, tmp_path: Path) -> None:
    dataset = zvl.open_dataset(jsonl(tmp_path, [{"messages": chat(0)[:1]}, *good(1)]))
    with training(dataset, processor).loader(runner="inline") as loader:
        assert len(keys(loader)) == 2
    source = zvl.Mixture(dataset, passes=zvl.Once(), shuffle="none")
    pipeline = (
        zvl.Pipeline(source, lanes=1).probe_images(processor).tokenize_chat(processor, no_loss="drop").pack(96).batch(1)
    )
    with pipeline.loader(runner="inline") as loader:
        assert keys(loader) == ["data/rows.jsonl#1@0"]
        assert loader.stats()["dropped"] == {"tokenize_chat:no_loss": 1}


def shard(path: Path, rows: int) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for row in range(rows):
            for suffix, data in (("jpg", jpeg()), ("json", json.dumps({"messages": chat()}).encode())):
                member = tarfile.TarInfo(f"{row:04}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def test_a_truncated_tar_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", 8)
    os.truncate(path, 5000)
    with pytest.raises(zvl.StorageError, match=r"a\.tar.* is cut|a\.tar.*cut"):
        zvl.open_dataset(path)


@RUNNERS
def test_a_tar_that_changes_under_its_index_stops_the_run(
    runner: str, processor: zvl.Processor, tmp_path: Path
) -> None:
    path = shard(tmp_path / "a.tar", 8)
    dataset = zvl.open_dataset(path, on_error="drop")
    shard(path, 9)
    with (
        training(dataset, processor, on_error="drop").loader(runner=runner) as loader,
        pytest.raises(zvl.StorageError, match=r"a\.tar changed while in use: .*open the dataset anew"),
    ):
        next(loader)


def plain(lanes: int = 4, size: int = 2, seed: int = 0, **settings: Any) -> zvl.Pipeline:
    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(40)]), seed=seed)
    return zvl.Pipeline(source, lanes=lanes, **settings).shuffle(4).batch(size)


def test_lanes_that_ranks_cannot_share() -> None:
    with pytest.raises(
        zvl.RecipeError, match=r"^6 lanes cannot be shared by dp_size=4 ranks: sizes that work are 1, 2, 3, 6$"
    ):
        plain(lanes=6).loader(dp_size=4)
    with pytest.raises(zvl.RecipeError, match=r"^expected dp_rank in 0\.\.1 for dp_size=2, got 2$"):
        plain().loader(dp_rank=2, dp_size=2)
    with pytest.raises(zvl.RecipeError, match="expected dp_size of at least 1, got 0"):
        plain().loader(dp_size=0)


def test_arguments_of_a_loader_are_checked_when_it_is_made() -> None:
    with pytest.raises(zvl.RecipeError, match="one of inline, threads, processes, ray, got 'thread'"):
        plain().loader(runner="thread")
    with pytest.raises(zvl.RecipeError, match="expected workers to be a whole number of at least 1, got 0"):
        plain().loader(workers=0)


def states(pipeline: zvl.Pipeline, ranks: int, batches: int = 4) -> list[dict[str, Any]]:
    saved = []
    for rank in range(ranks):
        with pipeline.loader(dp_rank=rank, dp_size=ranks, runner="inline") as loader:
            for _ in range(batches):
                next(loader)
            saved.append(loader.state_dict())
    return saved


def refused(pipeline: zvl.Pipeline, state: Any, wording: str, **ranks: int) -> None:
    with pipeline.loader(runner="inline", **ranks) as loader, pytest.raises(zvl.StateError, match=wording):  # type: ignore[arg-type]
        loader.load_state_dict(state)


def test_states_whose_lanes_overlap_are_missing_or_lie_in_other_steps() -> None:
    first, second = states(plain(), 2)
    refused(plain(), [first, second, second], r"lane 2 is in two of the 3 states: pass each rank's state once")
    refused(plain(), [first], r"no state holds lane 2 \(2 of 4 lanes are missing\): pass the states of all ranks")
    refused(plain(), [], "expected a state or a list of states, got an empty list")
    (later,) = states(plain(), 2, batches=8)[1:]
    refused(plain(), [first, later], r"lane 2 .* lane 0 .*not saved at the same step")
    with plain().loader(dp_rank=1, dp_size=2, runner="inline") as loader:
        loader.load_state_dict(second)
        assert loader.state_dict() == second


def test_states_of_another_pipeline_are_refused_with_what_differs() -> None:
    (state,) = states(plain(), 1)
    refused(plain(lanes=8), state, "the number of lanes differs: the state has 4, this pipeline")
    refused(plain(flush_every=9), state, "the flush_every differs")
    refused(plain(batches_per_step=2), state, "the batches_per_step differs")
    refused(plain(seed=1), state, "the source differs")
    refused(plain(size=3), state, r"operator 1 \(batch\) differs")
    refused(plain().map(dict), state, "2 operators, this pipeline has 3")
    refused(
        plain(),
        state | {"version": VERSION + 1},
        f"the state has version {VERSION + 1}, this zvl reads version {VERSION}",
    )
    refused(plain(), state | {"pixels": "x"}, 'pass accept="pixels" to go on all the same')
    refused(plain(), {"model": 1}, "expected a dict from state_dict")
    refused(plain(), state | {"state": {"0": {"clean": None}}}, "it was not written by state_dict")


def test_a_state_comes_before_the_first_batch() -> None:
    (state,) = states(plain(), 1)
    with plain().loader(runner="inline") as loader:
        next(loader)
        with pytest.raises(zvl.StateError, match="load_state_dict comes before the first batch: make a new loader"):
            loader.load_state_dict(state)


def test_data_that_changed_in_silence_is_found_by_the_count_of_batches() -> None:
    """The same names and sizes, but fewer samples pass than were delivered."""
    keep = {"limit": 40}
    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(40)]), passes=zvl.Once())
    pipeline = zvl.Pipeline(source, lanes=1).filter(lambda sample: sample["n"] < keep["limit"]).batch(2)
    (state,) = states(pipeline, 1, batches=10)
    keep["limit"] = 6
    with pipeline.loader(runner="inline") as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            zvl.StateError,
            match=r"lane 0: the state says that 10 batches of its interval were delivered, but .* holds 3",
        ):
            next(loader)


def test_names_and_fields_that_do_not_exist() -> None:
    pipeline = plain()
    with pytest.raises(AttributeError, match="no operator is named 'pakc'; did you mean 'pack'"):
        pipeline.pakc(max_tokens=8)
    with pytest.raises(zvl.RecipeError, match="pack has no field 'max_token'; did you mean 'max_tokens'"):
        pipeline.pack(max_token=8)
    with pytest.raises(zvl.RecipeError, match="pack needs its field 'max_tokens'"):
        pipeline.pack()
    with pytest.raises(zvl.RecipeError, match="pack got its field 'max_tokens' twice"):
        pipeline.pack(8, max_tokens=8)
    with pytest.raises(zvl.RecipeError, match="shuffle is an Accumulate and runs in order: leave parallelism out"):
        pipeline.shuffle(4, parallelism=2)
    with pytest.raises(zvl.RecipeError, match="expected lanes to be an integer of at least 1, got 0"):
        plain(lanes=0)
    with pytest.raises(zvl.RecipeError, match="got the class Shuffle: call it with its fields"):
        pipeline.apply(zvl.registry.load("operators", "shuffle"))
