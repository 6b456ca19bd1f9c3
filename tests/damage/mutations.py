"""Seeded damage: bytes flipped, cut, grown and spliced."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence

PNG = b"\x89PNG\r\n\x1a\n"


def mutated(files: Sequence[bytes], seed: int) -> bytes:
    """File number `seed` (they take turns), damaged in one to three ways that `seed` chooses."""
    chance = random.Random(seed)
    data = files[seed % len(files)]
    for _ in range(chance.randint(1, 3)):
        data = chance.choice(KINDS)(data, files, chance)
    if data.startswith(PNG) and chance.random() < 0.7:
        data = with_checksums(data)
    return data


def flipped(data: bytes, files: Sequence[bytes], chance: random.Random) -> bytes:
    """One to eight bytes changed, half the time in the first 300, where headers are."""
    damaged = bytearray(data)
    reach = min(len(data), 300) if chance.random() < 0.5 else len(data)
    for _ in range(chance.randint(1, 8) if reach else 0):
        place = chance.randrange(reach)
        damaged[place] = chance.choice((damaged[place] ^ 1 << chance.randrange(8), chance.randrange(256), 0, 255))
    return bytes(damaged)


def cut(data: bytes, files: Sequence[bytes], chance: random.Random) -> bytes:
    """The end, or a piece in the middle, is gone."""
    start = chance.randint(0, len(data))
    return data[:start] if chance.random() < 0.5 else data[:start] + data[start + chance.randint(1, 400) :]


def grown(data: bytes, files: Sequence[bytes], chance: random.Random) -> bytes:
    """Rubbish, or a piece of the file once more, at some place."""
    place, length = chance.randint(0, len(data)), chance.randint(1, 400)
    start = chance.randint(0, len(data))
    piece = chance.randbytes(length) if chance.random() < 0.5 else data[start : start + length]
    return data[:place] + piece + data[place:]


def spliced(data: bytes, files: Sequence[bytes], chance: random.Random) -> bytes:
    """The beginning of one file and the end of another, half the time of the same kind."""
    kin = [other for other in files if other[:3] == data[:3]] if chance.random() < 0.5 else files
    other = chance.choice(kin or files)
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


KINDS: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (flipped, flipped, cut, grown, spliced)


def with_checksums(png: bytes) -> bytes:
    """A damaged PNG with checksums that fit, so that more of it is read."""
    repaired, place = bytearray(png), 8
    while place + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, place)
        end = place + 8 + length
        if end + 4 > len(png):
            break
        repaired[end : end + 4] = struct.pack(">I", zlib.crc32(png[place + 4 : end]))
        place = end + 4
    return bytes(repaired)
