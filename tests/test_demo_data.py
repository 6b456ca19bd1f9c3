"""zvl_demo.data, photos, pictures and conversations: what the shards hold, and that the answers are true."""

import hashlib
import io
import json
import re
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zvl.errors import StorageError
from zvl.hashing import Rng
from zvl_demo import data as module
from zvl_demo.conversations import make_conversation
from zvl_demo.data import SAMPLES, SHARDS, demo_data
from zvl_demo.folder import cache_folder
from zvl_demo.photos import PHOTOS, open_photo
from zvl_demo.pictures import make_picture

Samples = dict[str, dict[str, bytes]]


def read_shards(folder: Path) -> Samples:
    samples: Samples = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, field = member.name.partition(".")
                content = tar.extractfile(member)
                assert content is not None
                samples.setdefault(key, {})[field] = content.read()
    return samples


@pytest.fixture(scope="module")
def samples(demo_shards: Path) -> Samples:
    return read_shards(demo_shards)


def messages_of(sample: dict[str, bytes]) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(sample["json"])["messages"]
    return loaded


def image_parts(messages: list[dict[str, Any]]) -> int:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return sum(part["type"] == "image" for part in parts)


def test_the_shards_hold_what_the_manifest_says(demo_shards: Path, samples: Samples) -> None:
    manifest = json.loads((demo_shards / "manifest.json").read_text())
    images = sum(len(sample) - 1 for sample in samples.values())
    assert manifest["samples"] == SAMPLES == len(samples)
    assert manifest["shards"] == SHARDS == len(list(demo_shards.glob("*.tar")))
    assert manifest["images"] == images
    assert sorted(samples) == [f"{row:06d}" for row in range(SAMPLES)]
    assert 40e6 < sum(path.stat().st_size for path in demo_shards.glob("*.tar")) < 65e6


def test_conversations_fit_their_pictures(samples: Samples) -> None:
    turns: Counter[int] = Counter()
    words = []
    for sample in samples.values():
        messages = messages_of(sample)
        fields = [field for field in sample if field != "json"]
        assert [int(field.split(".")[0]) for field in fields] == list(range(len(fields)))
        assert 1 <= len(fields) <= 3
        assert image_parts(messages) == len(fields)
        roles = [message["role"] for message in messages if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        turns[len(roles) // 2] += 1
        words.append(sum(len(str(message["content"]).split()) for message in messages))
    assert set(turns) == {1, 2, 3, 4}
    assert min(words) < 25
    assert max(words) > 300


def test_pictures_have_the_sizes_of_the_web(samples: Samples) -> None:
    pixels, formats = [], Counter[str | None]()
    for sample in samples.values():
        for field, content in sample.items():
            if field != "json":
                with Image.open(io.BytesIO(content)) as image:
                    image.load()
                    assert image.mode == "RGB"
                    assert image.format == {"jpg": "JPEG", "png": "PNG"}[field.split(".")[1]]
                    assert min(image.size) >= 375
                    pixels.append(image.width * image.height)
                    formats[image.format] += 1
    assert 200_000 < np.median(pixels) < 400_000
    assert max(pixels) > 3_000_000
    assert 5 <= formats["PNG"] <= 40


def test_webdataset_groups_the_same_samples(demo_shards: Path, samples: Samples) -> None:
    from webdataset.tariterators import group_by_keys, tar_file_expander

    read = {}
    for path in sorted(demo_shards.glob("*.tar")):
        with path.open("rb") as stream:
            for row in group_by_keys(tar_file_expander([{"url": path.name, "stream": stream}])):
                read[row["__key__"]] = {field: value for field, value in row.items() if not field.startswith("__")}
    assert read == samples


def pixels_of(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image)


def size_of(content: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(content)) as image:
        return image.size


def exchanges(sample: dict[str, bytes]) -> Iterator[tuple[bytes, str]]:
    """The picture that a question names, and the answer."""
    stored = [content for field, content in sample.items() if field != "json"]
    for question, answer in pairwise(messages_of(sample)):
        if answer["role"] == "assistant":
            named = re.search(r"picture (\d)", str(question["content"]))
            yield stored[int(named[1]) - 1 if named else 0], answer["content"]


def test_answers_about_size_and_light_are_true_of_the_stored_pixels(samples: Samples) -> None:
    checked: Counter[str] = Counter()
    for content, said in (pair for sample in samples.values() for pair in exchanges(sample)):
        if size := re.match(r"(?:It has )?(\d+) (?:by|columns and) (\d+)", said):
            assert (int(size[1]), int(size[2])) == size_of(content), said
            checked["size"] += 1
        if light := re.search(r": (\d+) on a scale", said):
            assert abs(int(light[1]) - (pixels_of(content) @ (0.299, 0.587, 0.114)).mean()) < 1.5, said
            checked["light"] += 1
    assert checked["size"] > 100
    assert checked["light"] > 100


def test_answers_about_place_name_a_window_of_that_size(samples: Samples) -> None:
    place = re.compile(r"a picture of (\d+) by (\d+) pixels: columns (\d+) to (\d+), rows (\d+) to (\d+)")
    found = 0
    for sample in samples.values():
        known = [size_of(content) for field, content in sample.items() if field != "json"]
        for match in place.finditer(sample["json"].decode()):
            width, height, left, right, top, bottom = map(int, match.groups())
            assert (right - left + 1, bottom - top + 1) in known
            assert 0 <= left <= right < width
            assert 0 <= top <= bottom < height
            found += 1
    assert found > 100


def test_the_window_is_where_the_answer_says(assets: Any) -> None:
    photo = open_photo(PHOTOS[0], assets("imgaug").parent)
    picture = make_picture([photo], Rng(5))
    edges = re.findall(r"(\d+) to (\d+)", picture.detail)
    left, right, top, bottom = (int(edge) for pair in edges for edge in pair)
    cut = np.asarray(photo.image)[top : bottom + 1, left : right + 1].astype(int)
    assert np.abs(cut - pixels_of(picture.data)).mean() < 6


def test_captions_come_from_the_package(assets: Any) -> None:
    cache = assets("sigal").parent
    captions = {photo.name: open_photo(photo, cache).caption for photo in PHOTOS if photo.package == "sigal"}
    assert captions["KeckObservatory20071020.jpg"] == "By SiOwl [CC BY 3.0] from Wikimedia Commons"
    assert captions["11.jpg"].startswith("This is a funny description of this image With a nice list")
    assert captions["Hubble Interacting Galaxy NGC 5257.jpg"].startswith("By NASA, ESA, the Hubble Heritage")
    assert captions["1.jpg"] == ""
    assert not any("cc-by-nc" in photo.path for photo in PHOTOS)


def test_the_same_call_makes_the_same_conversation(assets: Any) -> None:
    photos = [open_photo(PHOTOS[0], assets("imgaug").parent)]
    texts = set()
    for seed in (1, 1, 2):
        rng = Rng(seed)
        texts.add(json.dumps(make_conversation([make_picture(photos, rng)], rng)))
    assert len(texts) == 2


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten samples in two shards."""
    monkeypatch.setattr(module, "SAMPLES", 10)
    monkeypatch.setattr(module, "SHARDS", 2)


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())]


@pytest.mark.usefixtures("small")
def test_two_runs_write_the_same_bytes_and_report_progress(tmp_path: Path, demo_shards: Path) -> None:
    steps: list[tuple[int, int]] = []
    first = demo_data(tmp_path / "a", cache=demo_shards.parent, progress=lambda done, of: steps.append((done, of)))
    second = demo_data(tmp_path / "b", cache=demo_shards.parent)
    assert steps == [(done, 10) for done in range(1, 11)]
    assert digests(first) == digests(second)
    assert [path.name for path in sorted(first.iterdir())] == ["demo-000000.tar", "demo-000001.tar", "manifest.json"]
    everything = read_shards(demo_shards)
    assert read_shards(first) == {key: everything[key] for key in list(everything)[:10]}


@pytest.mark.usefixtures("small")
def test_complete_data_is_kept_and_older_data_written_anew(
    tmp_path: Path, demo_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = demo_data(tmp_path / "demo", cache=demo_shards.parent)
    before = digests(folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, "open_photo", None)
        assert demo_data(folder, cache=demo_shards.parent) == folder
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    demo_data(folder, cache=demo_shards.parent)
    assert digests(folder)[:2] == before[:2]
    assert digests(folder)[2] != before[2]


def test_a_strangers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.tar").write_text("precious")
    with pytest.raises(StorageError, match=r"expected .* to be absent or written by demo_data, got something without"):
        demo_data(tmp_path)
    assert (tmp_path / "mine.tar").read_text() == "precious"


def test_the_recipe_names_the_folders_that_the_demo_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parents[1] / "examples/demo.toml"
    recipe = tomllib.loads(path.read_text())
    monkeypatch.delenv("ZVL_CACHE", raising=False)
    cache = path.parents[1] / cache_folder()
    assert (path.parent / recipe["dataset"][0]["path"]).resolve() == cache / "demo/*.tar"
    assert (path.parent / recipe["processor"]["tokenizer"]).resolve() == cache / "qwen2_5_vl"
    assert (recipe["lanes"], recipe["flush_every"]) == (8, 2048)
