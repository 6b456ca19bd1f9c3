from __future__ import annotations

import struct
import time
import tracemalloc
import warnings
import zlib
from io import BytesIO

import numpy as np
import pytest
from damage.mutations import with_checksums
from PIL import Image, ImageOps

from reference.image_files import photo, sample_images
from zvl.errors import BadData
from zvl.image import ImageInfo
from zvl.images.header import probe
from zvl.images.parsers import parser_for
from zvl.images.pixels import decode

# What Pillow says of damaged TIFF directories and EXIF blocks.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
FILES = sample_images()
PARSED = [name for name, data in FILES.items() if parser_for(data)]


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def upright(data: bytes) -> Image.Image:
    return ImageOps.exif_transpose(Image.open(BytesIO(data)))


def refusal(data: bytes, **limits: float) -> str:
    with pytest.raises(BadData) as caught:
        probe(data, **limits)  # type: ignore[arg-type]
    return str(caught.value)


def exif_block(order: str, entries: list[tuple[int, int, int]]) -> bytes:
    """A TIFF header and one directory of (tag, type, value)."""
    body = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 8)
    body += struct.pack(order + "H", len(entries))
    for tag, kind, value in entries:
        shape = {1: "Bxxx", 3: "Hxx", 4: "I"}[kind]
        body += struct.pack(order + "HHI" + shape, tag, kind, 1, value)
    return body + b"\0\0\0\0"


def jpeg_with(*segments: bytes) -> bytes:
    """A JPEG with more segments behind the start of image, as they stand."""
    data = FILES["jpeg"]
    return data[:2] + b"".join(segments) + data[2:]


def app1(body: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


@pytest.mark.parametrize("name", FILES)
def test_agrees_with_pillow(name: str) -> None:
    info = probe(FILES[name])
    assert info.size == upright(FILES[name]).size
    assert info.format == ("jpeg" if name == "mpo" else name.split()[0])


def test_agrees_with_pillow_on_photos(photos: dict[str, bytes]) -> None:
    for data in photos.values():
        assert probe(data).size == upright(data).size


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "JPEG2000", "MPO"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_as_pillow_writes_it(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description, so that the tag is not alone"
    exif[0x0112] = orientation
    data = encode(photo(), kind, exif=exif)
    assert probe(data).size == upright(data).size
    if kind in ("JPEG", "PNG", "WEBP", "AVIF", "MPO"):
        assert probe(data) == ImageInfo("jpeg" if kind == "MPO" else kind.lower(), 87, 61, orientation)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_orientation_in_both_byte_orders_and_all_integer_types(order: str, kind: int) -> None:
    block = exif_block(order, [(0x0100, 4, 9), (0x0112, kind, 6), (0x0131, 3, 2)])
    assert probe(jpeg_with(app1(b"Exif\0\0" + block))).orientation == 6


XMP = b'http://ns.adobe.com/xap/1.0/\0<rdf tiff:Orientation="8"/>'


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([app1(XMP)], 8),
        ([app1(b"Exif\0\0" + exif_block("<", [(0x0112, 3, 3)])), app1(XMP)], 3),
        ([app1(XMP), app1(b"Exif\0\0" + exif_block("<", [(0x0112, 3, 3)]))], 3),
        ([app1(b"Exif\0\0" + exif_block("<", [(0x0100, 4, 7)])), app1(XMP)], 8),
        ([app1(b"Exif\0\0" + exif_block(">", [(0x0112, 3, 0)])), app1(XMP)], 1),
        ([app1(b"Exif\0\0" + exif_block(">", [(0x0112, 3, 9)]))], 1),
        ([b"\xff\xff\xff", app1(XMP)], 8),
        ([b"\xff\xe1\x00\x02", app1(XMP)], 8),
    ],
    ids=["xmp", "exif first", "exif wins", "exif without it", "zero", "nine", "fill", "empty"],
)
def test_segments_of_jpeg(segments: list[bytes], expected: int) -> None:
    data = jpeg_with(*segments)
    assert probe(data) == ImageInfo("jpeg", 87, 61, expected)
    assert probe(data).size == upright(data).size


def test_markers_without_a_length_are_stepped_over() -> None:
    assert probe(jpeg_with(b"\xff\x01\xff\xd0", app1(XMP))) == ImageInfo("jpeg", 87, 61, 8)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"II",
        b"II*\0",
        b"garbage that is long enough",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        exif_block("<", [(0x0112, 3, 6)])[:17],
        b"Exif\0\0" * 3,
    ],
)
def test_a_damaged_exif_block_means_upright(block: bytes) -> None:
    assert probe(jpeg_with(app1(b"Exif\0\0" + block))) == ImageInfo("jpeg", 87, 61)
    png = FILES["png"]
    chunk = b"eXIf" + block
    chunk = struct.pack(">I", len(block)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    assert probe(png[:33] + chunk + png[33:]) == ImageInfo("png", 87, 61)


@pytest.mark.parametrize("kind", ["WEBP", "AVIF", "PNG", "JPEG"])
@pytest.mark.parametrize(
    "damage", [(b"II", b"IX"), (b"*\0\x08\0\0\0", b"*\0\xff\xff\xff\xff"), (b"\x12\1\3\0", b"\x12\1\xee\xee")]
)
def test_damage_inside_a_real_exif_block_is_no_error(kind: str, damage: tuple[bytes, bytes]) -> None:
    exif = Image.Exif()
    exif.endian = "<"
    exif[0x010E] = "a description"
    if kind != "AVIF":  # whose own boxes have the orientation
        exif[0x0112] = 6
    block = exif.tobytes()
    assert damage[0] in block or kind == "AVIF"
    data = encode(photo(), kind, exif=block)
    start = data.index(block[6:])
    data = data[:start] + data[start : start + len(block)].replace(*damage, 1) + data[start + len(block) :]
    if kind == "PNG":
        data = with_checksums(data)
    info = probe(data)
    assert (info.size, info.orientation) == ((87, 61), 1)
    assert decode(data, info).shape == (61, 87, 3)


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_a_senseless_orientation_of_tiff_turns_nothing(orientation: int) -> None:
    data = encode(photo(), "TIFF", tiffinfo={0x0112: 6})
    assert probe(data).size == (61, 87)
    place = data.index(b"\x12\x01\x03\0\1\0\0\0") + 8
    data = data[:place] + bytes([orientation]) + data[place + 1 :]
    assert probe(data).size == (87, 61)
    assert decode(data, probe(data)).shape == (61, 87, 3)


@pytest.mark.parametrize("behind", [False, True])
def test_png_chunks(behind: bool) -> None:
    png = FILES["png"]
    place = len(png) - 12 if behind else 33
    profile = b"\nexif\n      30\n" + (b"Exif\0\0" + exif_block(">", [(0x0112, 3, 5)])).hex().encode() + b"\n"
    chunks = {
        b"eXIf": exif_block("<", [(0x0112, 3, 5)]),
        b"tEXt": b"Raw profile type exif\0" + profile,
        b"zTXt": b"Raw profile type exif\0\0" + zlib.compress(profile),
        b"iTXt": b"XML:com.adobe.xmp\0\0\0\0\0<tiff:Orientation>5</tiff:Orientation>",
    }
    for kind, body in chunks.items():
        chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        data = png[:place] + chunk + png[place:]
        assert probe(data).orientation == 5, kind
        assert probe(data).size == upright(data).size, kind


def test_gif_frame_larger_than_its_screen() -> None:
    data = bytearray(FILES["gif"])
    data[6:10] = struct.pack("<HH", 20, 30)
    assert probe(bytes(data)).size == Image.open(BytesIO(bytes(data))).size == (87, 61)


def test_bmp_from_the_top_and_from_os2() -> None:
    data = bytearray(FILES["bmp"])
    data[22:26] = struct.pack("<i", -61)
    assert probe(bytes(data)).size == Image.open(BytesIO(bytes(data))).size == (87, 61)
    os2 = b"BM" + struct.pack("<IHHI IHHHH", 26 + 12, 0, 0, 26, 12, 3, 1, 1, 24) + bytes(12)
    assert probe(os2).size == Image.open(BytesIO(os2)).size == (3, 1)


@pytest.mark.parametrize("name", PARSED)
def test_a_header_cut_anywhere_is_refused_or_read(name: str) -> None:
    data, whole = FILES[name], probe(FILES[name])
    for length in range(1, min(len(data), 700)):
        try:
            assert probe(data[:length]).size == whole.size
        except BadData as error:
            assert error.reason in ("header", "format")  # noqa: PT017


def bomb(name: str, width: int, height: int) -> bytes:
    """A file whose header claims a size."""
    data = bytearray(FILES[name])
    if name == "png":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif name == "jpeg":
        frame = data.index(b"\xff\xc0")
        data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    elif name == "bmp":
        data[18:26] = struct.pack("<ii", width, height)
    elif name == "tiff":
        # Pillow writes width and height as the first two entries, long, little-endian
        directory = int.from_bytes(data[4:8], "little")
        for entry, side in ((directory + 2, width), (directory + 14, height)):
            data[entry + 2 : entry + 4], data[entry + 8 : entry + 12] = b"\4\0", struct.pack("<I", side)
    return bytes(data)


REFUSALS = [
    (b"", "empty: expected an image, got an empty file"),
    (b"<html>not found", r"format: expected an image \(jpeg, png, .*\), got bytes that begin with b'<html>not found'"),
    (bomb("png", 0, 0), "zero_size: expected sides of at least 1 pixel, got png of 0x0"),
    (bomb("jpeg", 87, 0), "zero_size: expected sides of at least 1 pixel, got jpeg of 87x0"),
    (bomb("png", 1, 10_000), "aspect: expected a longest side of at most 200 times the shortest, got 1x10000: raise"),
    (
        bomb("png", 60_000, 60_000),
        "pixel_bomb: expected at most 178,956,970 pixels, got 60000x60000 = 3,600,000,000 in a file of",
    ),
    (bomb("jpeg", 60_000, 60_000), "pixel_bomb: expected at most 178,956,970 pixels, got 60000x60000"),
    (bomb("bmp", 60_000, 60_000), "pixel_bomb: expected at most 178,956,970 pixels, got 60000x60000"),
    (bomb("tiff", 60_000, 60_000), "pixel_bomb: expected at most 178,956,970 pixels, got 60000x60000"),
    (b"\xff\xd8\xff\xe0", "header: expected a whole jpeg header, got a file that ends inside it, after 4 bytes"),
    (b"\xff\xd8" + b"\xff" * 1_000_000, "header: damaged jpeg header: more than 4096 fill"),
    (b"\xff\xd8" + b"\xff\xe0\0\2" * 500_000, "header: damaged jpeg header: more than 4096 JPEG segments"),
    (b"\xff\xd8\xff\xe0\0\1", "header: damaged jpeg header: a JPEG segment gives its length as 1"),
    (b"\xff\xd8\xff\xd9\0\0", "header: damaged jpeg header: the JPEG scan begins before any frame"),
    (b"\xff\xd8\xff\0" + b"a" * 1_000_000, "header: damaged jpeg header"),
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIDAT", "header: damaged png header: a PNG must begin with the chunk IHDR"),
    (b"RIFF\0\0\0\0WEBPICCP" + bytes(20), "header: damaged webp header: expected the WebP chunk"),
    (b"GIF89a" + b"\1\0\1\0\0\0\0;", "header: damaged gif header: the GIF has no frame"),
    (b"GIF89a" + b"\1\0\1\0\0\0\0" + b"!\0\0" * 300_000, "header: damaged gif header: the GIF has no frame"),
    (b"GIF89a" + b"\1\0\1\0\0\0\0!\0" + b"\1a" * 300_000, "header: damaged gif header: the GIF has no frame"),
    (b"BM" + bytes(30), "header: damaged bmp header: no BMP header has 0 bytes"),
    (b"II*\0\x08\0\0\0", "header: damaged tiff header"),
]


@pytest.mark.parametrize(("data", "sentence"), REFUSALS, ids=range(len(REFUSALS)))
def test_each_refusal_has_its_sentence_and_costs_nothing(data: bytes, sentence: str) -> None:
    with pytest.raises(BadData, match="^" + sentence):
        probe(data)
    times = []
    for _ in range(5):
        start = time.thread_time()
        refusal(data)
        times.append(time.thread_time() - start)
    assert min(times) < 0.005
    tracemalloc.start()
    refusal(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_limits_are_arguments() -> None:
    assert probe(bomb("png", 1, 200)).size == (1, 200)
    assert probe(bomb("png", 1, 201), max_aspect=201).size == (1, 201)
    assert probe(bomb("png", 20_000, 20_000), max_source_pixels=400_000_000).size == (20_000, 20_000)
    assert "aspect: expected a longest side of at most 2 times" in refusal(bomb("png", 3, 1), max_aspect=2)
    assert "pixel_bomb: expected at most 10 pixels" in refusal(FILES["jpeg"], max_source_pixels=10)


def test_random_bytes_behind_every_signature_raise_nothing_else() -> None:
    generator = np.random.default_rng(7)
    for name in FILES:
        for _ in range(60):
            data = bytearray(FILES[name][:600])
            for place in generator.integers(0, len(data), 5):
                data[place] = generator.integers(256)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's, about the formats that it parses
                try:
                    assert min(probe(bytes(data)).size) > 0
                except BadData as error:
                    assert error.detail  # noqa: PT017
