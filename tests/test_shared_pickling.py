"""What travels by name, and errors from another process."""

from __future__ import annotations

import numpy as np
import pytest

from zvl.errors import BadData, OperatorError, ZvlError
from zvl.image import Image, ImageInfo, ImagePlan
from zvl.shared.pickling import RemoteCause, dumps, heavy_leaves, loads


def nothing(name: object) -> object:
    raise AssertionError(name)


def test_known_objects_travel_as_names() -> None:
    heavy = b"x" * 100_000
    data = dumps({"a": heavy, "b": [heavy, b"other"]}, {id(heavy): "heavy"})
    assert len(data) < 200
    got = loads(data, {"heavy": heavy}.__getitem__)
    assert got["a"] is heavy
    assert got["b"][0] is heavy
    assert got["b"][1] == b"other"


def test_leaves_come_in_the_same_order_on_both_sides() -> None:
    plan = ImagePlan(1, 1, 1, 28, 28, (1, 2, 2))
    images = [Image(bytes([n]) * 2000, ImageInfo("jpeg", 28, 28), plan) for n in range(3)]
    group = [{"images": images, "ids": np.arange(1000), "text": "x" * 5000}, ({"raw": b"r" * 1024, "small": b"s"},)]
    leaves = list(heavy_leaves(group))
    assert [type(leaf) for leaf in leaves] == [bytes, bytes, bytes, np.ndarray, bytes]
    twin = list(heavy_leaves(loads(dumps(group), nothing)))
    assert all(
        np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8))
        for a, b in zip(leaves, twin, strict=True)
    )


def test_errors_keep_class_message_fields_and_cause() -> None:
    def fail() -> None:
        try:
            raise KeyError("no such turn")
        except KeyError as error:
            raise OperatorError("tokenize", "web/a#3@0", "KeyError: 'no such turn'") from error

    with pytest.raises(OperatorError) as caught:
        fail()
    got = loads(dumps([caught.value, BadData("decode", "cut short", "00ff")]), nothing)
    assert type(got[0]) is OperatorError
    assert str(got[0]) == str(caught.value)
    assert (got[0].operator, got[0].key) == ("tokenize", "web/a#3@0")
    assert isinstance(got[0].__cause__, RemoteCause)
    assert "test_shared_pickling.py" in str(got[0].__cause__)
    assert "KeyError: 'no such turn'" in str(got[0].__cause__)
    assert (got[1].reason, got[1].sha256) == ("decode", "00ff")
    assert got[1].__cause__ is None
    assert isinstance(got[1], ZvlError)
