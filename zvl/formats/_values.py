"""Single values as MDS and LitData store them: from bytes to what a sample holds."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.formats._fields import decode_text
from zvl.formats._nested import read_nested
from zvl.formats._rows import parse_json

__all__ = ["LITDATA_PICTURES", "MDS_PICTURES", "Decode", "litdata_decoder", "mds_decoder"]

Decode = Callable[[bytes, str], Any]
"""(bytes, where) to a value; raises BadData."""

SCALARS = (
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)
MDS_DTYPES = dict(
    zip((8, 16, 32, 64, 9, 17, 33, 65, 18, 34, 66), SCALARS, strict=True)
)  # the numbers MDS gives to element types: bits, plus 1 for signed, 2 for float
LIT_ARRAYS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
)
LIT_TENSORS = (
    *("float32", "float32", "float64", "float64", "complex64", "complex64", "complex128", "complex128"),
    *("float16", "float16", "bfloat16", "uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "bool"),
    "uint16",
)  # torch knows several types by two names, and LitData counts both


@lru_cache(maxsize=256)
def mds_decoder(encoding: str) -> Decode:
    """The decoder of an MDS column; RecipeError for an encoding that is unknown."""
    head, _, tail = encoding.partition(":")
    if head in MDS and not tail:
        return MDS[head]
    if head in SCALARS and not tail:
        return _scalar(head)
    dtype, _, shape = tail.partition(":")
    if head == "ndarray" and (not dtype or dtype in SCALARS):
        sides = tuple(int(side) for side in shape.split(",")) if shape else None
        return lambda data, where: _guard(lambda: _mds_array(data, dtype, sides), encoding, where)
    raise RecipeError(f"no decoder for the MDS encoding {encoding!r}; known are: {', '.join(sorted([*MDS, *SCALARS]))}")


@lru_cache(maxsize=256)
def litdata_decoder(kind: str) -> Decode:
    """The decoder of a LitData leaf, by its name in `data_format`; RecipeError for one that is unknown."""
    head, _, tail = kind.partition(":")
    if head in LITDATA:
        return LITDATA[head]
    if head in ("no_header_numpy", "no_header_tensor") and tail.isdigit():
        dtypes = LIT_ARRAYS if head == "no_header_numpy" else LIT_TENSORS
        dtype = _numbered(dtypes, int(tail), kind)
        return lambda data, where: _guard(lambda: np.frombuffer(data, dtype), kind, where)
    raise RecipeError(f"no decoder for LitData's {kind!r}; known are: {', '.join(sorted(LITDATA))}")


def _guard(make: Callable[[], Any], kind: str, where: str) -> Any:
    """What `make` returns; BadData("format") where the bytes do not fit their kind."""
    try:
        return make()
    except (
        ValueError,
        IndexError,
        struct.error,
        InvalidOperation,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise BadData("format", f"{where}: cannot be read as {kind}: {error}") from None


def _raw(data: bytes, where: str) -> bytes:
    return data


def _scalar(dtype: str) -> Decode:
    little = np.dtype(dtype).newbyteorder("<")

    def decode(data: bytes, where: str) -> Any:
        if len(data) != little.itemsize:
            raise BadData("format", f"{where}: expected {little.itemsize} bytes of {dtype}, got {len(data)}")
        return np.frombuffer(data, little)[0].item()

    return decode


def _from_text(kind: str, parse: Callable[[str], Any]) -> Decode:
    return lambda data, where: _guard(lambda: parse(decode_text(data, where)), kind, where)


def _mds_array(data: bytes, dtype: str, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """[type: 1 byte] [number of sides << 2 | size code: 1 byte, sides] values, without what the encoding fixes."""
    start = 0
    if not dtype:
        start = 1
        if data[0] not in MDS_DTYPES:
            raise ValueError(f"unknown element type {data[0]}")
        dtype = MDS_DTYPES[data[0]]
    if shape is None:
        count, code = divmod(data[start], 4)
        sides = np.frombuffer(data, f"<u{1 << code}", count, start + 1)
        shape, start = tuple(sides.tolist()), start + 1 + sides.nbytes
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=start).reshape(shape)


def _lit_array(order: str, dtypes: tuple[str, ...]) -> Decode:
    """The number of the element type, that of the sides, the sides, all uint32; then values."""

    def read(data: bytes) -> npt.NDArray[Any]:
        number, count = np.frombuffer(data, f"{order}u4", 2).tolist()
        shape = np.frombuffer(data, f"{order}u4", count, 8).tolist()
        dtype = _numbered(dtypes, number, "array")
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        return np.frombuffer(data, dtype, offset=8 + 4 * count).reshape(shape)

    return lambda data, where: _guard(lambda: read(data), "an array", where)


def _numbered(dtypes: tuple[str, ...], number: int, kind: str) -> np.dtype[Any]:
    if number >= len(dtypes) or dtypes[number] == "bfloat16":
        raise RecipeError(f"LitData's {kind} with element type number {number} has no NumPy type")
    return np.dtype(dtypes[number]).newbyteorder("<")


def _list_of(one: Decode, skip: int) -> Decode:
    """`skip` unused bytes, the number of elements, their sizes (all uint32), the elements."""

    def split(data: bytes) -> list[bytes]:
        count = int(np.frombuffer(data, "<u4", 1, skip)[0])
        start = skip + 4 * (count + 1)
        sizes = np.frombuffer(data, "<u4", count, skip + 4).tolist()
        if start + sum(sizes) != len(data):
            raise ValueError(f"its elements take {start + sum(sizes)} bytes, it has {len(data)}")
        parts = []
        for size in sizes:
            parts.append(data[start : start + size])
            start += size
        return parts

    def decode(data: bytes, where: str) -> list[Any]:
        parts = _guard(lambda: split(data), "a list", where)
        return [one(part, f"{where}, element {i}") for i, part in enumerate(parts)]

    return decode


def _png(data: bytes, where: str) -> bytes:
    """A picture stored as width, height, length of the mode's name (uint32), name, pixels: as a PNG file."""
    return _guard(lambda: _make_png(data), "a raw picture", where)  # type: ignore[no-any-return]


def _make_png(data: bytes) -> bytes:
    from PIL import Image

    width, height, length = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + length].decode("ascii")
    if mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"):
        raise ValueError(f"the mode {mode!r} has no place in a PNG file")
    image = Image.frombytes(mode, (width, height), data[12 + length :])
    if mode in ("P", "CMYK", "YCbCr"):  # MDS and LitData store no palette: indices are grey then, as when shown
        image = Image.frombytes("L", image.size, image.tobytes()) if mode == "P" else image.convert("RGB")
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def _lit_json(data: bytes, where: str) -> Any:
    """Older versions of the library wrote JSON text, which begins above the tags."""
    if data[:1] and data[0] < 0x20:
        return _guard(lambda: read_nested(data), "a list or dict", where)
    return parse_json(data, where)


def _bool(data: bytes, where: str) -> bool:
    return bool(_scalar("uint8")(data, where))


MDS: dict[str, Decode] = {
    "bytes": _raw,
    "str": decode_text,
    "int": _scalar("int64"),
    "str_int": _from_text("a whole number", int),
    "str_float": _from_text("a number", float),
    "str_decimal": _from_text("a number", Decimal),
    "json": parse_json,
    "jpeg": _raw,
    "png": _raw,
    "pil": _png,
    "jpeg_array": _list_of(_raw, 0),
    "jpegarray": _list_of(_raw, 0),
    "list[jpeg]": _list_of(_raw, 4),
    "list[png]": _list_of(_raw, 4),
    "list[pil]": _list_of(_png, 4),
    "pkl": _raw,
}

LITDATA: dict[str, Decode] = {
    "str": decode_text,
    "text": decode_text,
    "bool": _bool,
    "int": _scalar("int64"),
    "float": _scalar("float64"),
    "bytes": _raw,
    "jpeg": _raw,
    "jpeg_array": _list_of(_raw, 0),
    "image": _raw,
    "pil": _png,
    "file": _raw,
    "video": _raw,
    "audio": _raw,
    "tifffile": _raw,
    "pdf": _raw,
    "numpy": _lit_array("<", LIT_ARRAYS),
    "tensor": _lit_array(">", LIT_TENSORS),
    "json": _lit_json,
    "pickle": _raw,
}


def _pictures(table: dict[str, Decode]) -> frozenset[str]:
    return frozenset(
        kind for kind, decode in table.items() if decode is _raw or any(word in kind for word in ("jpeg", "png", "pil"))
    )


MDS_PICTURES, LITDATA_PICTURES = _pictures(MDS), _pictures(LITDATA)
"""Kinds whose values are bytes, or lists of bytes."""
