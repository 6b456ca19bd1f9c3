import numpy as np
import pytest

from reference.example import example, field, varint
from zvl.errors import BadData
from zvl.formats._example import parse_example

# What TensorFlow's own tutorial on TFRecord shows as a serialised Example.
FROM_TENSORFLOW = (
    b"\nR\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01\x04"
    b"\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04[\xd3|?"
)


def test_a_record_of_tensorflow() -> None:
    features = parse_example(FROM_TENSORFLOW, "here")
    assert list(features) == ["feature2", "feature1", "feature0", "feature3"]
    assert features["feature2"] == [b"goat"]
    assert (features["feature1"].tolist(), features["feature0"].tolist()) == ([4], [0])
    assert features["feature3"].dtype == np.float32
    assert features["feature3"].tolist() == [np.float32(0.9876)]
    assert parse_example(b"", "here") == {}


@pytest.mark.parametrize("packed", [True, False])
def test_numbers_of_every_length(packed: bool) -> None:
    numbers = [0, 1, -1, 127, 128, 300, 2**31, 2**63 - 1, -(2**63)] + [1 << shift for shift in range(63)]
    features = parse_example(example({"i": numbers, "f": [0.5, -2.0], "é": [b"", b"x"]}, packed), "here")
    assert features["i"].dtype == np.int64
    assert features["i"].tolist() == numbers
    assert features["f"].tolist() == [0.5, -2.0]
    assert features["é"] == [b"", b"x"]
    assert parse_example(example({"none": []}), "here") == {"none": []}
    unset = parse_example(field(1, field(1, field(1, b"unset"))), "here")
    assert unset == {"unset": []}


def test_packed_numbers_in_parts_are_one_array() -> None:
    parts = field(3, field(1, varint(1)) + field(1, varint(-5) + varint(700)))
    (value,) = parse_example(field(1, field(1, field(1, b"n") + field(2, parts))), "here").values()
    assert value.tolist() == [1, -5, 700]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FROM_TENSORFLOW[:-3], r"82 bytes announced, 79 left"),
        (b"\x0a", r"a number is cut"),
        (b"\x0a" + b"\xff" * 11, r"a number of more than ten bytes"),
        (b"\x08\x05", r"a number where a message or bytes belong"),
        (b"\x0b", r"wire type 3 at byte 1"),
        (example({"i": [300]}).replace(b"\xac\x02", b"\xac\x82"), r"a number is cut"),
        (
            field(1, field(1, field(1, b"n") + field(2, field(3, field(1, b"\x80" * 11 + b"\x01"))))),
            r"more than ten by",
        ),
        (field(1, field(1, field(1, b"n") + field(2, field(2, field(1, b"abc"))))), r"buffer size must be a multiple"),
        (field(1, field(1, field(1, b"\xff"))), r"invalid start byte"),
    ],
)
def test_what_is_no_example_is_bad_data(data: bytes, message: str) -> None:
    with pytest.raises(BadData, match=rf"^format: f row 3: expected a tf\.train\.Example: .*{message}"):
        parse_example(data, "f row 3")
