"""Broken files as they are found, headers that lie, guards, and all of them in one stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage.corpus import LIARS, SMALL, asset_files, changing_frames, encode, png_sized, sized
from damage.mutations import mutated
from PIL import Image

import zvl
from reference.image_files import noise_png, png_chunk, sample_images
from zvl.digest import batch_digest, step_digest
from zvl.errors import BadData
from zvl.images.header import probe
from zvl.images.pixels import codec_named, decode

CODECS = tuple(zvl.registry.catalogue("codecs"))


def outcome(data: bytes) -> str:
    """ "pixels" or the reason of the refusal; every codec that reads the format must agree."""
    try:
        info = probe(data)
    except BadData as error:
        return error.reason
    found = set()
    for codec in CODECS:
        if info.format in codec_named(codec).formats:
            try:
                found.add(("pixels", decode(data, info, codec).tobytes()))
            except BadData as error:
                found.add((error.reason, b""))
    (one,) = found
    return one[0]


REFUSED = {
    "sigal/tests/sample/pictures/.venv/lib64/fake.png": "empty",
    "sigal/tests/sample/pictures/nonmedia_files/dummy.pdf": "format",
    "sorl-thumbnail/tests/data/broken.jpeg": "decode",
    "piexif/tests/images/notjpeg.jpg": "empty",
    "plone.namedfile/plone/namedfile/tests/file.pdf": "format",
    "plone.namedfile/plone/namedfile/tests/image.svg": "format",
    "plone.namedfile/plone/namedfile/tests/image_large_header.svg": "format",
    "plone.scale/plone/scale/tests/data/logo.svg": "format",
    "plone.scale/plone/scale/tests/data/logo_no_width_height.svg": "format",
}


def test_every_file_of_the_assets_is_read_or_refused_for_a_known_reason(assets: Callable[[str], Path]) -> None:
    files = asset_files(assets)
    assert len(files) > 90
    found = {name: outcome(data) for name, data in files.items()}
    assert {name: reason for name, reason in found.items() if reason != "pixels"} == REFUSED


@pytest.mark.parametrize("size", [(87, 122), (174, 61), (200, 150), (30, 20), (87, 60), (86, 61)])
@pytest.mark.parametrize("name", LIARS)
def test_a_header_that_lies_gives_the_size_it_claims_or_bad_data(name: str, size: tuple[int, int]) -> None:
    data = sized(name, *size)
    try:
        info = probe(data)
    except BadData as error:
        assert error.reason == "header"  # noqa: PT017
        return
    for codec in CODECS:
        if info.format not in codec_named(codec).formats:
            continue
        try:
            pixels = decode(data, info, codec)
        except BadData as error:
            assert error.reason in ("decode", "size")  # noqa: PT017
        else:
            assert pixels.shape == (info.size[1], info.size[0], 3)
    outcome(data)  # codecs agree


def test_claims_of_more_pixels_than_there_are_are_refused() -> None:
    """But AVIF's: its standard lets a container claim another size, and libavif stretches the picture to it."""
    outcomes = {name: outcome(sized(name, 200, 150)) for name in (*LIARS, "jpeg restarts", "jpeg gray progressive")}
    assert [name for name, found in outcomes.items() if found == "pixels"] == ["avif"]


@pytest.mark.parametrize("name", changing_frames())
def test_only_the_first_frame_counts(name: str) -> None:
    data = changing_frames()[name]
    kind = name.split()[0]
    info = probe(data)
    assert info.size == (87, 61)
    first = np.asarray(Image.open(BytesIO(data)).convert("RGB"))
    assert first.shape == (61, 87, 3)
    np.testing.assert_array_equal(decode(data, info), first)
    if kind == "gif":
        assert probe(data).size != (200, 150)


def gigapixel(side: int) -> bytes:
    """A gray PNG of `side` x `side` zeros, made of one compressed megabyte again and again."""
    row = side + 1  # and its filter
    rows = max(1, (1 << 20) // row)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(row * rows)) + packer.flush(zlib.Z_FULL_FLUSH)
    rest = zlib.compressobj(9, zlib.DEFLATED, -15)
    end = rest.compress(bytes(row * (side % rows))) + rest.flush()
    checksum = ((row * side) % 65521) << 16 | 1
    body = b"\x78\xda" + block * (side // rows) + end + checksum.to_bytes(4, "big")
    header = side.to_bytes(4, "big") * 2 + bytes((8, 0, 0, 0, 0))
    chunks = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def test_the_gigapixel_file_is_a_real_one() -> None:
    data = gigapixel(1700)  # more rows than a block has
    np.testing.assert_array_equal(decode(data, probe(data)), np.zeros((1700, 1700, 3), np.uint8))
    assert 0.9e6 < len(gigapixel(32_768)) < 1.3e6


HOSTILE = {
    "60,000 x 60,000 png": (png_sized(noise_png(8, 2), 60_000, 60_000), "pixel_bomb: expected at most 178,956,970 pix"),
    "60,000 x 60,000 jpeg": (
        sized("jpeg", 60_000, 60_000),
        "pixel_bomb: expected at most 178,956,970 pixels, got 60000",
    ),
    "60,000 x 60,000 bmp": (sized("bmp", 60_000, 60_000), "pixel_bomb: expected at most 178,956,970 pixels, got 60000"),
    "60,000 x 60,000 gif": (sized("gif", 60_000, 60_000), "pixel_bomb: expected at most 178,956,970 pixels, got 60000"),
    "60,000 x 60,000 tiff": (
        sized("tiff", 60_000, 60_000),
        "pixel_bomb: expected at most 178,956,970 pixels, got 6000",
    ),
    "60,000 x 60,000 jpeg2000": (sized("jpeg2000", 60_000, 60_000), "pixel_bomb: expected at most 178,956,970 pixels,"),
    "1 x 10,000 strip": (
        encode(Image.new("RGB", (1, 10_000)), "PNG"),
        "aspect: expected a longest side of at most 200",
    ),
    "empty": (b"", "empty: expected an image, got an empty file"),
    "0 x 0 png": (png_sized(noise_png(8, 2), 0, 0), "zero_size: expected sides of at least 1 pixel, got png of 0x0"),
    "0 x 0 gif": (sized("gif", 0, 0), "zero_size: expected sides of at least 1 pixel, got gif of 0x0"),
    "gigapixel png": (
        gigapixel(32_768),
        "pixel_bomb: expected at most 178,956,970 pixels, got 32768x32768 = 1,073,741,",
    ),
}

MEASURE = """
import json, resource, sys, time, tracemalloc
from pathlib import Path
from zvl.errors import BadData
from zvl.images.header import probe
from reference.image_files import sample_images

for data in sample_images().values():  # Pillow and its plugins are loaded
    probe(data)
found = []
for path in sys.argv[1:]:
    data = Path(path).read_bytes()
    times = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(5):
        start = time.process_time()
        try:
            probe(data)
            sentence = "accepted"
        except BadData as error:
            sentence = str(error)
        times.append(time.process_time() - start)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    tracemalloc.start()
    try:
        probe(data)
    except BadData:
        pass
    found.append([sentence, min(times), resident * 1024, tracemalloc.get_traced_memory()[1]])
    tracemalloc.stop()
print(json.dumps(found))
"""


def test_hostile_headers_are_refused_at_no_cost(tmp_path: Path) -> None:
    paths = []
    for number, (data, _) in enumerate(HOSTILE.values()):
        (tmp_path / str(number)).write_bytes(data)
        paths.append(str(tmp_path / str(number)))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", MEASURE, *paths]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    for (name, (_, expected)), (sentence, seconds, resident, traced) in zip(
        HOSTILE.items(), json.loads(done.stdout), strict=True
    ):
        assert sentence.startswith(expected), name
        assert seconds < 0.005, name
        assert resident < 10_000_000, name
        assert traced < 10_000_000, name


def test_up_to_200_to_1_is_legal() -> None:
    for size in ((1, 200), (200, 1), (3, 600)):
        data = encode(Image.new("RGB", size), "PNG")
        assert decode(data, probe(data)).shape == (size[1], size[0], 3)
    with pytest.raises(BadData, match="aspect: expected a longest side of at most 200 times"):
        probe(encode(Image.new("RGB", (201, 1)), "PNG"))


BAD_ROWS, GOOD_ROWS = 150, 60


def rows_of_all_kinds(folder: Callable[[str], Path]) -> list[dict[str, Any]]:
    """One picture a row: every small file of the assets, every liar, mutated and whole samples."""
    samples = list(sample_images().values())
    pictures = [data for data in asset_files(folder).values() if len(data) < SMALL]
    pictures += [sized(name, *size) for name in LIARS for size in ((200, 150), (60, 40))]
    pictures += [mutated(samples, seed) for seed in range(BAD_ROWS)] + samples[:GOOD_ROWS]
    pictures += [data for data, _ in HOSTILE.values()]
    question = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    return [
        {
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": f"Number {number}."}],
            "images": [data],
        }
        for number, data in enumerate(pictures)
    ]


def stream(rows: list[dict[str, Any]], tokenizer: Path, ledger: Path, ranks: int, steps: int | None) -> Any:
    """(digest of each step, keys with pixels, keys that were masked, ledger entries)."""
    processor = zvl.Processor(layout="qwen2_5_vl", tokenizer=tokenizer, max_pixels=100_352)
    source = zvl.Mixture({"rows": zvl.from_rows(rows)}, passes={"rows": zvl.Passes(1)}, chunk_rows=8, seed=3)
    pipeline = (
        zvl.Pipeline(source, lanes=4, flush_every=64)
        .probe_images(processor, on_error="drop")
        .tokenize_chat(processor)
        .pack(max_tokens=512)
        .batch(1)
        .patchify(processor, on_error="mask")
    )
    digests: dict[int, list[Any]] = {}
    shown: set[str] = set()
    masked: set[str] = set()
    for rank in range(ranks):
        options = {"dp_rank": rank, "dp_size": ranks, "max_steps": steps}
        with pipeline.loader(**options, workers=2, quarantine=ledger) as loader:
            for batch in loader:
                digests.setdefault(batch.step, []).append(batch_digest(batch))
                masked |= {case[0] for case in batch.masked}
                shown |= {key for row in batch.keys for key in row}
    entries = [json.loads(line) for path in ledger.parent.iterdir() for line in path.read_text().splitlines()]
    steps_in_order = [step_digest(digests[step]) for step in sorted(digests)]
    return steps_in_order, shown - masked, masked, entries


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_one_stream_of_them_all_is_the_same_on_every_rank_count(
    assets: Callable[[str], Path], qwen_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    rows = rows_of_all_kinds(assets)
    found = {}
    steps = None
    for ranks in (1, 2, 4):
        folder = tmp_path / f"dp{ranks}"
        folder.mkdir()
        found[ranks] = stream(rows, qwen_tokenizer, folder / "ledger.jsonl", ranks, steps)
        steps = len(found[1][0])
    digests, good, masked, entries = found[1]
    assert found[2][0] == found[4][0] == digests
    # No file without pixels or a ledger entry, and none with both.
    noted = {entry["key"] for entry in entries}
    assert len(noted) == len(entries)
    assert masked < noted
    assert not good & noted
    assert len(good) + len(noted) == len(rows)
    assert len(good) > GOOD_ROWS
    assert len(noted - masked) > 30
    assert len(masked) > 60
    for ranks in (2, 4):
        assert found[ranks][1:3] == (good, masked)
        assert sorted(entry["key"] for entry in found[ranks][3]) == sorted(noted)
