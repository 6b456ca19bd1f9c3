import json
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import vortex

from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats.vortex import Vortex

NAMES = ["0.vortex", "1.vortex", "2.vortex"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


def _write(file: Path, columns: dict[str, Any]) -> str:
    file.parent.mkdir(exist_ok=True)
    vortex.io.write(pa.table(columns).to_reader(), str(file))
    return str(file)


def _simple(folder: Path) -> str:
    for shard, name in enumerate(NAMES):
        _write(folder / name, {"n": [10 * shard + row for row in range(10)]})
    return str(folder)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_rows_come_in_the_order_asked(tmp_path: Path, cache_bytes: int) -> None:
    dataset = open_dataset(_simple(tmp_path / "d"), cache_bytes=cache_bytes)
    assert isinstance(dataset, Vortex)
    assert list(dataset.shards) == NAMES
    assert dataset.shard_rows.tolist() == [10, 10, 10]
    assert dataset.read(1, [7, 3, 9, 3, 0]) == [{"n": n} for n in (17, 13, 19, 13, 10)]
    assert dataset.read(1, []) == []
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: dataset.read(i % 3, [i % 10]), range(60)))
    assert found == [[{"n": 10 * (i % 3) + i % 10}] for i in range(60)]
    twin = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    assert twin.read(2, [1]) == dataset.read(2, [1]) == [{"n": 21}]
    for row in (-1, 10):
        with pytest.raises(IndexError, match=rf"expected a row in 0\.\.9, got {row}"):
            dataset.read(0, [row])


def test_columns_become_fields(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "hé"}]}]
    (tmp_path / "beside.png").write_bytes(b"P")
    images = [{"bytes": b"J", "path": None}, {"bytes": None, "path": "beside.png"}, {"bytes": None, "path": "gone.png"}]
    columns = {
        "messages": [json.dumps(chat), "[", "[]"],
        "image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        "vector": [[0.5, 1.0], None, []],
    }
    first, second, third = Vortex(_write(tmp_path / "d.vortex", columns)).read(0, range(3))
    assert first == {"messages": chat, "images": [b"J"], "vector": [0.5, 1.0]}
    for row, reason in ((second, "json"), (third, "missing")):
        assert isinstance(row, BadData)
        assert row.reason == reason
    assert str(second).startswith(f"json: {tmp_path}/d.vortex row 1, field 'messages': ")
    (row,) = Vortex(_write(tmp_path / "e.vortex", {"messages": [chat], "images": [[b"1", b"2"]]})).read(0, [0])
    plain = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hé"}]}]
    assert row == {"messages": plain, "images": [b"1", b"2"]}


@pytest.mark.parametrize("damage", ["cut", "halved", "empty", "zeros", "longer"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = _simple(tmp_path / "d")
    file = Path(path, "1.vortex")
    data = file.read_bytes()
    new = {"cut": data[:-5], "halved": data[: len(data) // 2], "empty": b"", "zeros": bytes(len(data))}
    file.write_bytes(new.get(damage, data + b"x"))
    with pytest.raises(StorageError, match=r"/1\.vortex: cannot be read as a Vortex file: [^\n]+; copy the file anew$"):
        Vortex(path)
    assert not list(tmp_path.glob("cache/index/*summary*"))


def test_a_file_without_columns_is_refused(tmp_path: Path) -> None:
    vortex.io.write(vortex.array([1, 2, 3]), str(tmp_path / "d.vortex"))
    with pytest.raises(StorageError, match=r"d\.vortex: expected a table with columns, got an array of i64"):
        Vortex(str(tmp_path))


@pytest.mark.parametrize("before", [True, False])
def test_a_file_that_changes_is_named(tmp_path: Path, before: bool) -> None:
    """Also where all its segments lie in the cache."""
    path = _simple(tmp_path / "d")
    dataset = Vortex(path)
    if before:
        dataset.read(0, [0])
    file = Path(path, NAMES[0])
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(StorageError, match=r"0\.vortex changed while in use"):
        dataset.read(0, [0])


def test_damage_behind_a_good_footer_is_named(tmp_path: Path) -> None:
    """Read by an index that was made before the damage, as the time of change is put back."""
    text = [f"row {i} " + "x" * (i % 7) for i in range(3000)]
    file = Path(_write(tmp_path / "d.vortex", {"text": text}))
    assert Vortex(str(file)).read(0, [2999]) == [{"text": text[2999]}]
    dataset = Vortex(str(file))
    data = file.read_bytes()
    with file.open("r+b") as opened:
        opened.write(b"\xff" * (len(data) // 2))
    dataset._shards.versions[0] = file.stat().st_mtime_ns
    with pytest.raises(StorageError, match=r"d\.vortex: cannot be read as a Vortex file: [^\n]+; copy the file anew$"):
        dataset.read(0, range(3000))


def test_what_cannot_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Vortex.sniff(str(tmp_path))
    path = _simple(tmp_path / "d")
    assert Vortex.sniff(path)
    assert Vortex.sniff(path + "/*.vortex")
    with pytest.raises(RecipeError, match=r"expected cache_bytes of at least 0, got -1"):
        Vortex(path, cache_bytes=-1)
    monkeypatch.setitem(sys.modules, "vortex", None)
    with pytest.raises(
        RecipeError, match=r"the format vortex needs vortex, which is not .*: pip install zvl\[vortex\]"
    ):
        open_dataset(path)


def test_the_fingerprint_knows_no_root(tmp_path: Path) -> None:
    path = _simple(tmp_path / "d")
    copy = Vortex(str(shutil.copytree(path, tmp_path / "copy")), on_error="drop")
    assert copy.fingerprint() == Vortex(path).fingerprint()
    sizes = [Path(path, name).stat().st_size for name in NAMES]
    shards = [[name, size, 10] for name, size in zip(NAMES, sizes, strict=True)]
    assert copy.fingerprint() == {"format": "vortex", "shards": shards}
    assert copy.row_bytes == sum(sizes) // 30
    assert copy.on_error == "drop"


def test_a_file_without_rows_opens(tmp_path: Path) -> None:
    dataset = Vortex(_write(tmp_path / "d.vortex", {"n": pa.array([], pa.int64())}))
    assert dataset.shard_rows.tolist() == [0]
    assert dataset.read(0, []) == []
