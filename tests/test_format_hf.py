import io
import json
import os
import pickle
import random
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from services.hub import Hub
from services.server import Server

from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats.hf import Hf


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))
    datasets.disable_progress_bars()


def _save(folder: Path, rows: list[dict[str, Any]], features: Any = None, shards: int = 1) -> str:
    data = datasets.Dataset.from_list(rows, features=features)
    data.save_to_disk(str(folder), num_shards=shards)
    return str(folder)


def _numbers(folder: Path, rows: int = 10, shards: int = 1) -> str:
    return _save(folder, [{"i": i, "text": "x" * i} for i in range(rows)], shards=shards)


def _bytes_of(path: Path) -> bytes:
    (file,) = path.glob("data-*.arrow")
    return file.read_bytes()


def _replace(path: Path, table: pa.Table) -> None:
    """Another table in the place of the one that was saved."""
    (file,) = path.glob("data-*.arrow")
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def test_images_stay_undecoded_and_nulls_of_messages_go(tmp_path: Path) -> None:
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "hé"}]
    rows = [
        {"image": {"bytes": b"A", "path": "a.png"}, "messages": [{"role": "user", "content": parts}]},
        {"image": {"bytes": None, "path": "b.png"}, "messages": []},
        {"image": None, "messages": []},
        {"image": {"bytes": None, "path": "/no/such.png"}, "messages": []},
    ]
    content = [{"type": datasets.Value("string"), "text": datasets.Value("string")}]
    features = datasets.Features(
        {"image": datasets.Image(), "messages": [{"role": datasets.Value("string"), "content": content}]}
    )
    path = Path(_save(tmp_path / "d", rows[:1], features))
    (path / "b.png").write_bytes(b"B")
    _replace(path, pa.Table.from_pylist(rows, features.arrow_schema))  # save_to_disk itself embeds the files
    dataset = open_dataset(tmp_path / "d")
    assert isinstance(dataset, Hf)
    first, second, third, bad = dataset.read(0, range(4))
    assert first == {
        "images": [b"A"],
        "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hé"}]}],
    }
    assert second == {"images": [b"B"], "messages": []}
    assert third == {"images": [], "messages": []}
    assert isinstance(bad, BadData)
    assert bad.reason == "missing"
    assert "row 3: the image has no bytes and there is no file at its path /no/such.png" in bad.detail


def test_rows_come_in_the_order_asked_from_many_threads(tmp_path: Path) -> None:
    dataset = Hf(_numbers(tmp_path / "d", 3500, shards=3))
    assert dataset.shard_rows.tolist() == [1167, 1167, 1166]
    assert len(dataset._shards.table(0)["start"]) > 1, "several record batches"
    assert [row["i"] for row in dataset.read(1, [1166, 0, 1000, 999, 0])] == [2333, 1167, 2167, 2166, 1167]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: dataset.read(0, [i, i + 1]), range(0, 1160, 7)))
    assert found == [[{"i": k, "text": "x" * k} for k in (i, i + 1)] for i in range(0, 1160, 7)]
    assert dataset.read(0, []) == []
    dataset.close()
    assert dataset.read(2, [0])[0]["i"] == 2334


def test_a_file_without_a_descriptor_is_read_by_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Hf(_numbers(tmp_path / "d", 2500))
    expected = dataset.read(0, [0, 2400, 1000])
    monkeypatch.setattr("zvl.formats.hf.hasattr", lambda *_: False, raising=False)
    remote = Hf(str(tmp_path / "d"))
    assert remote.read(0, [0, 2400, 1000]) == expected
    assert remote._batches.held > 0
    assert remote._mapped.held == 0


def test_the_split_of_a_dict_is_named(tmp_path: Path) -> None:
    parts = {name: datasets.Dataset.from_list([{"name": name}]) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "two"))
    datasets.DatasetDict({"train": parts["train"]}).save_to_disk(str(tmp_path / "one"))
    dataset = open_dataset(tmp_path / "two", split="test")
    assert dataset.read(0, [0]) == [{"name": "test"}]
    assert open_dataset(tmp_path / "one").read(0, [0]) == [{"name": "train"}]
    with pytest.raises(RecipeError, match=r"two has the splits train, test: name one with split=\.\.\., got None"):
        open_dataset(tmp_path / "two")
    with pytest.raises(RecipeError, match=r"has no splits \(no dataset_dict\.json\): leave out split='test'"):
        open_dataset(tmp_path / "two" / "test", split="test")


def test_files_that_datasets_puts_beside_are_no_shards(tmp_path: Path) -> None:
    path = Path(_numbers(tmp_path / "d"))
    (path / "cache-0123.arrow").write_bytes(b"not one of the saved files")
    assert Hf(str(path)).shards == ("data-00000-of-00001.arrow",)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda data: data[:-100],
            r"arrow ends inside a message: expected \d+ bytes from byte \d+ on, the fi",
        ),
        (lambda data: b"", r"arrow: expected an Arrow stream, found no schema; copy the file anew"),
        (lambda data: bytes(len(data)), r"expected an Arrow stream's message at byte 0, got 0000000000000000; copy"),
        (lambda data: data[:8] + b"\xff" * 64 + data[72:], r"arrow: a damaged message at byte 0|got a message of kind"),
        (lambda data: data + b"\xff\xff\xff\xff\x10", r"expected an Arrow stream's message at byte \d+, got the end"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    path = Path(_numbers(tmp_path / "d", 1500))
    (file,) = path.glob("data-*.arrow")
    data = file.read_bytes().removesuffix(b"\xff\xff\xff\xff\0\0\0\0")
    file.write_bytes(damage(data))
    with pytest.raises(StorageError, match=message):
        Hf(str(path))


@pytest.mark.parametrize("seed", range(40))
def test_damage_of_any_byte_is_an_error_or_unseen(tmp_path: Path, seed: int) -> None:
    """pyarrow reads a batch without a look at its offsets: unchecked ones would end the process."""
    path = Path(_numbers(tmp_path / "d", 60))
    (file,) = path.glob("data-*.arrow")
    data = bytearray(file.read_bytes())
    rng = random.Random(seed)
    for _ in range(3):
        data[rng.randrange(len(data))] ^= rng.randint(1, 255)
    file.write_bytes(data)
    with suppress(StorageError):
        dataset = Hf(str(path))
        assert len(dataset.read(0, range(int(dataset.shard_rows[0])))) == dataset.shard_rows[0]


def test_an_offset_that_points_outside_is_found(tmp_path: Path) -> None:
    path = Path(_numbers(tmp_path / "d", 60))
    (file,) = path.glob("data-*.arrow")
    offsets = np.cumsum([0, *range(60)]).astype("<i4").tobytes()
    wrong = bytearray(offsets)
    wrong[40:44] = b"\xff\xff\xff\x7f"
    data = file.read_bytes()
    assert data.count(offsets) == 1
    file.write_bytes(data.replace(offsets, wrong))
    with pytest.raises(StorageError, match=r"arrow: cannot be read as Arrow: .*offset"):
        Hf(str(path)).read(0, range(60))


def test_a_row_count_that_cannot_be_is_found(tmp_path: Path) -> None:
    path = Path(_numbers(tmp_path / "d", 60))
    (file,) = path.glob("data-*.arrow")
    data = file.read_bytes()
    count = (60).to_bytes(8, "little")
    file.write_bytes(data.replace(count, (1 << 50).to_bytes(8, "little")))
    with pytest.raises(StorageError, match=r"a damaged message at byte \d+: 1125899906842624 rows in \d+ bytes"):
        Hf(str(path))


def test_dictionaries_are_refused(tmp_path: Path) -> None:
    path = Path(_numbers(tmp_path / "d"))
    _replace(path, pa.table({"x": pa.array(["a", "b"]).dictionary_encode()}))
    with pytest.raises(StorageError, match=r"got dictionaries, which zvl does not read at byte \d+"):
        Hf(str(path))


def test_what_save_to_disk_did_not_write_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"expected a folder that save_to_disk wrote, found no state\.json in it"):
        Hf(str(tmp_path))
    path = Path(_numbers(tmp_path / "d"))
    state = json.loads((path / "state.json").read_text())
    for text, error, message in (
        ("{", StorageError, r"state\.json: expected JSON"),
        ("{}", StorageError, r"expected a list of files under '_data_files'"),
        (json.dumps({**state, "_indices_files": [1]}), RecipeError, "kept indices beside the rows: save it anew"),
        (
            json.dumps({"_data_files": [{"filename": "x.arrow"}]}),
            StorageError,
            r"no x\.arrow lies in the folder|x\.arrow",
        ),
        (
            json.dumps({"_data_files": [*state["_data_files"], {"filename": "x.arrow"}]}),
            StorageError,
            r"state\.json lists x\.arrow, which is not there",
        ),
    ):
        (path / "state.json").write_text(text)
        with pytest.raises(error, match=message):
            Hf(str(path))


def test_a_file_changed_while_in_use_is_an_error(tmp_path: Path) -> None:
    path = Path(_numbers(tmp_path / "d"))
    dataset = Hf(str(path))
    dataset.read(0, [0])
    (file,) = path.glob("data-*.arrow")
    os.truncate(file, 100)
    with pytest.raises(StorageError, match=r"arrow changed while in use"):
        dataset.read(0, [9])


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _numbers(tmp_path / "d")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecipeError, match=r"hf needs pyarrow, which is not installed: pip install zvl\[hf\]"):
        open_dataset(path)


def test_a_pickle_reads_on_and_the_fingerprint_knows_no_root(tmp_path: Path) -> None:
    dataset = Hf(_numbers(tmp_path / "d"), on_error="drop")
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.read(0, [3, 1]) == dataset.read(0, [3, 1])
    assert twin.on_error == "drop"
    copy = Hf(str(shutil.copytree(tmp_path / "d", tmp_path / "other")))
    size = len(_bytes_of(tmp_path / "d"))
    assert copy.fingerprint() == dataset.fingerprint()
    assert copy.fingerprint() == {"format": "hf", "shards": [["data-00000-of-00001.arrow", size, 10]]}
    assert copy.row_bytes == size // 10
    with pytest.raises(IndexError, match=r"expected a row in 0\.\.9, got 10"):
        copy.read(0, [10])


def test_an_id_of_the_hub_opens_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b"], "n": [1, 2]}), file)
    hub = Hub("org/name")
    hub.push({f"data/{split}-00000-of-00001.parquet": file.getvalue() for split in ("train", "test")})
    with Server(hub) as server:
        hub.port = server.port
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for path, format in (("org/name", "hf"), ("hf://datasets/org/name", None)):
            dataset: Any = open_dataset(path, format, split="test", columns=["text"])
            assert dataset.read(0, [1, 0]) == [{"text": "b"}, {"text": "a"}]
            assert dataset.fingerprint()["format"] == "parquet"
            dataset.close()
        with pytest.raises(RecipeError, match=r"org/name has the splits test, train: name one with split=\.\.\."):
            open_dataset("org/name", format="hf")
    with pytest.raises(RecipeError, match=r"config and columns are for datasets of the hub; '.*' is a folder"):
        open_dataset(tmp_path, format="hf", config="en")
