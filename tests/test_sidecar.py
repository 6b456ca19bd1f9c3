"""Sidecars: the same rows, batches and ledger with and without, for random rows; and what is refused."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from late_fetch import Counting, all_rows, check_late_fetch, check_rows, comparable, indexed, run
from PIL import Image as PilImage

import zvl
from zvl import sidecar
from zvl.errors import BadData, OperatorError, RecipeError, StorageError
from zvl.formats.folder import Folder
from zvl.formats.jsonl import Jsonl
from zvl.formats.webdataset import WebDataset
from zvl.image import ImageRef
from zvl.indexing import index_dataset
from zvl.sidecar import Indexed, Picture, find_sidecars, sidecar_path, with_index, write


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Any) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=20_000)


def picture(width: int, height: int, kind: str = "JPEG", **options: Any) -> bytes:
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 5) % 256
    out = io.BytesIO()
    PilImage.fromarray(np.repeat(ramp[..., None], 3, axis=2).astype(np.uint8)).save(out, kind, **options)
    return out.getvalue()


def turned(width: int, height: int) -> bytes:
    exif = PilImage.Exif()
    exif[0x0112] = 6
    return picture(width, height, exif=exif.tobytes())


GOOD = {
    "jpeg": picture(60, 40),
    "png": picture(33, 70, "PNG"),
    "webp": picture(50, 50, "WEBP"),
    "tiff": picture(40, 30, "TIFF"),
    "turned": turned(64, 32),
    "long header": picture(45, 45, comment=b"x" * 60_000, icc_profile=bytes(150_000)),
}
BAD = {
    "cut header": GOOD["jpeg"][:150],
    "cut pixels": GOOD["png"][:-60],
    "empty": b"",
    "no picture": b"never was a picture " * 4,
    "narrow": picture(1201, 3, "PNG"),
}
PICTURES = GOOD | BAD
NAMES = st.sampled_from(sorted(PICTURES))
FILES = st.one_of(NAMES, st.just("gone"))
ROWS = st.one_of(
    st.none(), st.just("broken"), st.lists(NAMES, max_size=1), st.lists(FILES, max_size=3), st.lists(NAMES, max_size=2)
)
"""A row's pictures by name; "gone" is a file that is not there, None no field, "broken" a row that is damaged."""

Row = list[str] | str | None


def write_tar(folder: Path, rows: Sequence[Row]) -> str:
    with tarfile.open(folder / "0.tar", "w") as tar:
        for number, row in enumerate(rows):
            names = row if isinstance(row, list) else []
            members = [(f"{i}.jpg", PICTURES.get(name, b"")) for i, name in enumerate(names)]
            value: Any = {"n": number}
            if "gone" in names:
                value["images"] = [f"{i}.jpg" if name in PICTURES else "gone.jpg" for i, name in enumerate(names)]
            elif number % 3 == 1 and names:
                value = {"images": ["0.jpg", "0.jpg"], "n": number}  # named, in another order than theirs
            data = b"{" if row == "broken" else json.dumps(value).encode()
            members += [("json", data), ("txt", b"a text"), ("cls", b"7")]
            if row == "broken" and number % 2:
                members.append(("0.JPG", b"twice"))
                members.append(("0.jpg", b"twice"))
            for extension, content in members:
                info = tarfile.TarInfo(f"row{number:03d}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return str(folder / "0.tar")


def write_pictures(folder: Path) -> None:
    (folder / "i").mkdir()
    for name, data in PICTURES.items():
        (folder / "i" / name).write_bytes(data)


def write_jsonl(folder: Path, rows: Sequence[Row], column: str = "images", name: str = "0.jsonl") -> str:
    write_pictures(folder)
    lines = []
    for number, row in enumerate(rows):
        paths = [f"i/{name}" for name in row] if isinstance(row, list) else None
        line: dict[str, Any] = {"n": number, column: paths, "last": None}
        if column == "image" and paths and len(paths) == 1:
            line[column] = paths[0]
        if paths is None and number % 2:
            del line[column]
        lines.append("{" if row == "broken" else json.dumps(line))
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder)


def write_csv(folder: Path, rows: Sequence[Row]) -> str:
    write_pictures(folder)
    lines = ["file_name,n"]
    for number, row in enumerate(rows):
        name = f"i/{row[0]}" if isinstance(row, list) and row else ""
        lines.append("one,too,many" if row == "broken" else f"{name},{number}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return str(folder)


def write_beside(folder: Path, rows: Sequence[Row]) -> str:
    (folder / "first.jpg").write_bytes(GOOD["jpeg"])  # a folder without any would be none of this format
    for number, row in enumerate(rows):
        for place, name in enumerate(row if isinstance(row, list) else []):
            (folder / f"{number}-{place}.png").write_bytes(PICTURES.get(name, b"?"))
        (folder / f"{number}-0.json").write_text("{" if number % 5 == 4 else json.dumps({"images": 1, "n": number}))
    return str(folder)


WRITERS: dict[str, tuple[Callable[[str], Any], Callable[[Path, Sequence[Row]], str]]] = {
    "webdataset": (WebDataset, write_tar),
    "jsonl": (Jsonl, write_jsonl),
    "jsonl image": (Jsonl, functools.partial(write_jsonl, column="image")),
    "folder": (Folder, write_beside),
    "folder csv": (Folder, write_csv),
    "folder file_names": (Folder, functools.partial(write_jsonl, column="file_names", name="metadata.jsonl")),
    "folder images": (Folder, functools.partial(write_jsonl, column="images", name="metadata.jsonl")),
    "folder image": (Folder, functools.partial(write_jsonl, column="image_file_names", name="metadata.jsonl")),
}


@pytest.mark.parametrize("name", sorted(WRITERS))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROWS, min_size=1, max_size=12))
def test_rows_and_batches_are_the_same(name: str, rows: list[Row], processor: zvl.Processor, tmp_path: Path) -> None:
    opener, writer = WRITERS[name]
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        (Path(folder) / "d").mkdir()
        path = writer(Path(folder) / "d", rows)
        check_late_fetch(lambda: opener(path), name.split()[0], Path(folder), processor)


ALL: list[Row] = [*([name] for name in sorted(PICTURES)), None, "broken", ["gone"], [], ["jpeg", "png"], "broken"]


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_each_kind_of_row_at_once(name: str, processor: zvl.Processor, tmp_path: Path) -> None:
    opener, writer = WRITERS[name]
    (tmp_path / "d").mkdir()
    path = writer(tmp_path / "d", ALL)
    report = check_late_fetch(lambda: opener(path), name.split()[0], tmp_path, processor)
    assert report.images >= len(PICTURES)
    assert report.bad >= 3
    assert report.whole >= 1


def test_rows_in_memory(processor: zvl.Processor, tmp_path: Path) -> None:
    write_pictures(tmp_path)
    rows: list[Any] = []
    for number, row in enumerate(ALL):
        names = [name for name in row if name != "gone"] if isinstance(row, list) else []
        rows.append({"images": [PICTURES[name] if number % 2 else f"i/{name}" for name in names], "n": number})
    rows += [{"image": "i/png", "n": 0}, {"image": None}, {"image": 7}, {"image": ["i/png", tmp_path / "i" / "jpeg"]}]
    rows += [{"images": None}, {"images": [7]}, {"images": ["i/gone"]}, {}]

    def opened() -> Any:
        return zvl.from_rows(rows, image_root=tmp_path)

    assert opened().read(0, [len(ALL)]) == [{"n": 0, "images": [GOOD["png"]]}]
    check_late_fetch(opened, "rows", tmp_path, processor)


def tar_of(folder: Path, name: str, pictures: Sequence[bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / name, "w") as tar:
        for number, data in enumerate(pictures):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return folder / name


def test_open_dataset_finds_the_sidecar(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tar_of(tmp_path / "d", f"{name}.tar", [GOOD["jpeg"]] * 3)
    path = str(tmp_path / "d")
    plain = zvl.open_dataset(path)
    assert isinstance(plain, WebDataset)
    index_dataset(plain, "webdataset", str(tmp_path / "cache" / "index"), skip=frozenset(["b.tar"]))
    late = zvl.open_dataset(path)
    assert isinstance(late, Indexed)
    assert late.late is True
    assert [[type(image) for image in row["images"]] for row in late.read(0, [0, 2])] == [[ImageRef]] * 2  # type: ignore
    assert late.read(1, [0]) == plain.read(1, [0])
    assert late.row_bytes == plain.row_bytes
    assert isinstance(zvl.open_dataset(path, index=False), WebDataset)
    index_dataset(plain, "webdataset", str(tmp_path / "mine"))
    full = zvl.open_dataset(path, index=tmp_path / "mine")
    assert isinstance(full, Indexed)
    assert 300 <= full.row_bytes < plain.row_bytes
    copy = pickle.loads(pickle.dumps(full))
    assert [comparable(row) for row in plain.read(1, [1])] == all_rows(copy)[4:5]
    copy.close()
    assert all_rows(copy) == all_rows(plain)


def test_a_named_folder_must_hold_something(tmp_path: Path) -> None:
    path = str(tar_of(tmp_path / "d", "a.tar", [GOOD["jpeg"]]))
    with pytest.raises(RecipeError, match=r"holds nothing for this dataset: make it with zvl index PATH --out .*none"):
        zvl.open_dataset(path, index=tmp_path / "none")


def test_a_format_that_cannot_fetch_late_says_so(tmp_path: Path) -> None:
    class Whole:
        shards = ("a",)

    with pytest.raises(RecipeError, match="the format whole reads whole rows only, so late fetch is not possible"):
        index_dataset(Whole(), "whole", str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"index='i': the format whole reads whole rows .*; leave index out"):
        with_index(Whole(), "whole", "i")  # type: ignore[arg-type]
    assert isinstance(with_index(Whole(), "whole", None), Whole)  # type: ignore[arg-type]


def test_a_shard_that_changed_is_refused(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "d", "a.tar", [GOOD["jpeg"]] * 3)
    folder = str(tmp_path / "cache" / "index")
    index_dataset(WebDataset(str(path)), "webdataset", folder)
    tar_of(tmp_path / "d", "a.tar", [GOOD["png"]] * 30)
    with pytest.raises(StorageError) as caught:
        zvl.open_dataset(path)
    told = str(caught.value)
    assert f"does not fit the shard {path}: it was made for size 10240 where" in told
    assert "version " in told
    assert "rows 3 where 30 is" in told
    assert "run again: zvl index PATH (or open the dataset with index=False)" in told
    report = index_dataset(WebDataset(str(path)), "webdataset", folder)
    assert (report.rows, report.kept) == (30, 0)
    assert isinstance(zvl.open_dataset(path), Indexed)
    assert sum(name.endswith(".parquet") for name in os.listdir(folder)) == 1  # the stale one is gone


def test_a_sidecar_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar_of(tmp_path / "d", "a.tar", [GOOD["jpeg"]])
    index_dataset(WebDataset(str(path)), "webdataset", str(tmp_path / "i"))
    monkeypatch.setattr(sidecar, "VERSION", sidecar.VERSION + 1)
    with pytest.raises(StorageError, match=r"made for sidecar 1 where 2 is; run again: zvl index"):
        zvl.open_dataset(path, index=tmp_path / "i")


def test_a_damaged_sidecar_is_refused(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "d", "a.tar", [GOOD["jpeg"]])
    late = indexed(WebDataset(str(path)), "webdataset", tmp_path / "i")
    (file,) = (tmp_path / "i").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"the sidecar .* is damaged .*: delete it, and run: zvl index PATH"):
        late.read(0, [0])
    file.unlink()
    with pytest.raises(StorageError, match=r"cannot read the sidecar .*No such file"):
        late.read(0, [0])


def test_a_sidecar_with_pictures_that_the_row_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "none here"}\n')
    plain = Jsonl(str(tmp_path / "a.jsonl"))
    path = sidecar_path(str(tmp_path / "i"), "jsonl", plain.stamp(0))
    write(path, "jsonl", plain.stamp(0), "a.jsonl", 1, [Picture(0, 0, 9, "jpeg", 5, 5, 1)])
    with pytest.raises(StorageError, match=r"names 1 images of row 0 of .*a\.jsonl, which has no images: .*delete it"):
        Indexed(plain, "jsonl", [path]).read(0, [0])


def test_options_that_decide_pictures_have_sidecars_of_their_own(tmp_path: Path) -> None:
    for root, name in (("x", "jpeg"), ("y", "png")):
        (tmp_path / root).mkdir()
        (tmp_path / root / "a").write_bytes(GOOD[name])
    (tmp_path / "d.jsonl").write_text('{"image": "a"}\n')
    x, y = (Jsonl(str(tmp_path / "d.jsonl"), image_root=str(tmp_path / root)) for root in "xy")
    late = indexed(x, "jsonl", tmp_path / "i")
    assert find_sidecars(y, "jsonl", str(tmp_path / "i")) == ([""], {})
    check_rows(x, late)
    check_rows(y, indexed(y, "jsonl", tmp_path / "i"))
    assert x.fingerprint() == y.fingerprint()


def test_planning_reads_no_picture_and_each_is_fetched_once(tmp_path: Path, processor: zvl.Processor) -> None:
    path = str(tar_of(tmp_path / "d", "a.tar", list(GOOD.values()) * 3))
    counting = Counting(WebDataset(path))
    late = Indexed(counting, "webdataset", indexed(WebDataset(path), "webdataset", tmp_path / "i")._files)
    assert run(late, processor, tmp_path)[0] == run(WebDataset(path), processor, tmp_path)[0]
    assert counting.read_bytes == 0
    assert sorted(counting.fetched) == [(0, row, 0) for row in range(3 * len(GOOD))]


def test_a_bad_header_of_the_sidecar_has_the_ledger_line_of_the_file(tmp_path: Path) -> None:
    path = str(tar_of(tmp_path / "d", "a.tar", [BAD["cut header"], BAD["no picture"], BAD["empty"]]))
    late = indexed(WebDataset(path), "webdataset", tmp_path / "i")
    found: list[Any] = [row["images"][0] for row in late.read(0, [0, 1, 2])]  # type: ignore[index]
    assert [ref.bad.reason for ref in found] == ["header", "format", "empty"]
    assert all(ref.info is None and len(ref.bad.sha256) == 64 for ref in found)
    again = late.read(0, [0])[0]
    assert again["images"][0].bad is not found[0].bad  # type: ignore[index]  # raised twice, they would share a traceback


def swap(path: Path, data: bytes) -> None:
    """Put other bytes of the same length into a file, with its time of change kept."""
    before = path.stat()
    assert len(data) == before.st_size
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_pixels_that_disagree_with_the_planned_size_are_masked(tmp_path: Path, processor: zvl.Processor) -> None:
    wide, tall = picture(80, 40, "PNG"), picture(40, 80, "PNG")
    size = max(len(wide), len(tall))
    path = tar_of(tmp_path / "d", "a.tar", [GOOD["jpeg"], wide.ljust(size, b"\0"), GOOD["png"]])
    late = indexed(WebDataset(str(path)), "webdataset", tmp_path / "i")
    whole = path.read_bytes()
    assert whole.count(wide) == 1
    swap(path, whole.replace(wide.ljust(size, b"\0"), tall.ljust(size, b"\0")))
    source = zvl.Mixture(late, passes=zvl.Once(), shuffle="none")
    pipeline = zvl.Pipeline(source, lanes=1).probe_images(processor).batch(3)
    with pipeline.patchify(processor, on_error="mask").loader() as loader:
        (batch,) = loader
    assert [(key, reason) for key, reason, _ in batch.masked] == [("data/a.tar#1@0", "size")]
    with pipeline.patchify(processor).loader() as loader, pytest.raises(OperatorError, match=r"a\.tar#1@0.*40x80"):
        next(loader)


def test_a_picture_that_is_gone_at_fetch_time_is_missing(tmp_path: Path, processor: zvl.Processor) -> None:
    path = write_jsonl(tmp_path, [["jpeg"], ["png"]])
    late = indexed(Jsonl(path), "jsonl", tmp_path / "index")
    (tmp_path / "i" / "png").unlink()
    (gone,) = late.fetch(0, [(1, 0)])
    assert isinstance(gone, BadData)
    assert str(gone) == f"missing: {tmp_path}/0.jsonl line 2 (byte 45): no image file at {tmp_path}/i/png"


def test_a_folder_with_another_picture_has_a_stale_sidecar(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = write_beside(tmp_path / "d", [["png"]])
    indexed(Folder(path), "folder", tmp_path / "i")
    assert isinstance(with_index(Folder(path), "folder", tmp_path / "i"), Indexed)
    os.utime(tmp_path / "d" / "0-0.png", ns=(1, 1))
    with pytest.raises(StorageError, match=r"does not fit the shard .*made for version"):
        with_index(Folder(path), "folder", tmp_path / "i")


def test_an_error_of_the_folder_is_told(tmp_path: Path) -> None:
    path = str(tar_of(tmp_path / "d", "a.tar", [GOOD["jpeg"]]))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot list the folder of sidecars .*file"):
        zvl.open_dataset(path, index=tmp_path / "file")
