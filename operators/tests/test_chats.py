"""Chats: LLaVA's and ShareGPT's turns, OpenAI's messages, data: URLs."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.conversations import SHOW, A, B, C, llava, message, read, refused, text, turn, url
from zvl.errors import BadData
from zvl.image import Image, ImageInfo, ImagePlan, ImageRef
from zvl_operators.to_messages import ToMessages


def test_llava() -> None:
    row = llava(
        ("system", "Be brief."),
        ("human", "<image>\nWhat is it?"),
        ("gpt", "A quokka."),
        ("human", "And what are <image> and <image> of?"),
        ("gpt", "Domes."),
        images=[A, B, C],
        id="7",
        __key__="k",
    )
    assert read(row) == {
        "id": "7",
        "__key__": "k",
        "images": [A, B, C],
        "messages": [
            turn("system", "Be brief."),
            turn("user", SHOW, "What is it?"),
            turn("assistant", "A quokka."),
            turn("user", "And what are", SHOW, "and", SHOW, "of?"),
            turn("assistant", "Domes."),
        ],
    }


def test_one_image_in_a_column_of_its_own_and_a_row_without() -> None:
    assert read(llava(("human", "<image>"), ("gpt", "A."), image=A)) == {
        "messages": [turn("user", SHOW), turn("assistant", "A.")],
        "images": [A],
    }
    assert read(llava(("human", "Hi"), ("gpt", "A."), image=None)) == {
        "messages": [turn("user", "Hi"), turn("assistant", "A.")],
        "images": [],
    }


def test_further_speakers_have_the_roles_that_the_recipe_says() -> None:
    row = llava(("human", "Weather?"), ("function_call", "{}"), ("observation", "Rain."), ("gpt", "It rains."))
    roles = {"observation": "tool", "function_call": "assistant"}
    assert read(row, roles=roles)["messages"] == [
        turn("user", "Weather?"),
        turn("assistant", "{}"),
        turn("tool", "Rain."),
        turn("assistant", "It rains."),
    ]
    assert ToMessages(roles=roles) == ToMessages(roles=[("function_call", "assistant"), ("observation", "tool")])
    assert read(llava(("human", "Hi")), roles={"human": "customer"})["messages"] == [turn("customer", "Hi")]


def test_parts_may_number_their_images_in_order() -> None:
    parts = [{"type": "image", "index": 0, "text": None}, {"type": "text", "text": "Q", "index": None}]
    row = message([*parts, {"type": "image", "image": C}, {"type": "image", "index": 1}], images=[A, B])
    assert read(row) == {"messages": [turn("user", SHOW, "Q", SHOW, SHOW)], "images": [A, C, B]}


class Nowhere:
    """A dataset whose pictures must not be read."""

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        raise AssertionError(f"read {wanted}")


PICTURE = ImageRef(Nowhere(), 0, 7, 0, 1234, ImageInfo("png", 56, 28, orientation=6))
OTHER = ImageRef(Nowhere(), 0, 7, 1, 999, bad=BadData("format", "no picture"))


@pytest.mark.parametrize(
    "row",
    [
        llava(("human", "<image>\nand\n<image>"), ("gpt", "A."), img=[PICTURE, OTHER]),
        message([SHOW, text("and"), {"type": "image_url", "image_url": {"url": "b.png"}}], img=[PICTURE, OTHER]),
        {"question": "Q", "answer": "A.", "img": [PICTURE, OTHER]},
        {"caption": "A.", "img": [PICTURE, OTHER]},
        {"texts": [None, "and", None], "img": [PICTURE, OTHER]},
        {"texts": [{"user": "Q", "assistant": "A."}], "img": [PICTURE, OTHER]},
    ],
)
def test_pictures_that_are_not_read_yet(row: dict[str, Any]) -> None:
    """No schema reads them, and headers from an index reach the plan."""
    result = ToMessages(fields={"images": "img"})(row)
    assert result["images"] == [PICTURE, OTHER]
    assert all(one is other for one, other in zip(result["images"], row["img"], strict=True))
    named = ToMessages()({"images" if name == "img" else name: value for name, value in row.items()})
    assert named == result


def test_a_picture_that_is_not_read_yet_in_an_error() -> None:
    assert refused({"texts": ["a"], "images": [PICTURE]}).endswith(
        "got both, str 'a' and a picture of 1234 bytes (read as schema 'interleaved')"
    )


def test_white_space_around_marks_can_stay() -> None:
    row = llava(("human", " <image>\nWhat? "), ("gpt", " A. "), image=A)
    assert read(row)["messages"] == [turn("user", SHOW, "What? "), turn("assistant", " A. ")]
    assert read(row, strip=False)["messages"][0] == turn("user", " ", SHOW, "\nWhat? ")


def test_another_mark_or_none() -> None:
    row = llava(("human", "[img] <image>?"), ("gpt", "A."), image=A)
    assert read(row, image_mark="[img]")["messages"][0] == turn("user", SHOW, "<image>?")
    row = llava(("human", "The tag <image> in HTML?"), ("gpt", "A."))
    assert read(row, image_mark="")["messages"][0] == turn("user", "The tag <image> in HTML?")


def test_turns_without_images_may_be_strings() -> None:
    row = llava(("system", "S"), ("human", "<image>Q"), ("gpt", "A."), image=A)
    assert read(row, content="string")["messages"] == [
        {"role": "system", "content": "S"},
        turn("user", SHOW, "Q"),
        {"role": "assistant", "content": "A."},
    ]


def test_turns_may_be_json() -> None:
    turns = llava(("human", "Hi"), ("gpt", "Ä."))["conversations"]
    assert read({"conversations": json.dumps(turns)})["messages"] == [turn("user", "Hi"), turn("assistant", "Ä.")]
    assert refused({"conversations": "[{"}).startswith("json: the column 'conversations': expected JSON, ")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            llava(("human", "<image><image>"), ("gpt", "A."), image=A),
            "image_count: expected one image for each '<image>' and image part, got 2 of them and 1 images in the "
            "column 'image'; on_error = \"drop\" leaves such rows out (read as schema 'conversations')",
        ),
        (
            llava(("human", "Hi"), ("gpt", "A."), images=[A]),
            "image_count: expected one image for each '<image>' and image part, got 0 of them and 1 images in the "
            "column 'images'; say what else stands for an image with image_mark = \"...\" (read as schema "
            "'conversations')",
        ),
        (
            llava(("human", "<image>"), ("gpt", "A."), img=A),
            "image_count: expected one image for each '<image>' and image part, got 1 of them and 0 images (the row "
            'has conversations, img); name the column with fields = { images = "..." }, or say image_mark = "" if '
            "it is mere text (read as schema 'conversations')",
        ),
        (
            llava(("human", "Hi"), ("gpt", "See <image>."), images=[A, B]),
            "image_count: expected one image for each '<image>' and image part, got 1 of them and 2 images in the "
            "column 'images'; on_error = \"drop\" leaves such rows out (read as schema 'conversations')",
        ),
        (
            llava(("human", "Hi"), ("tool", "A.")),
            "schema: conversations[1].from: expected 'human', 'user', 'gpt', 'assistant' or 'system', got str 'tool'; "
            "say what it is with roles = { tool = \"...\" } (read as schema 'conversations')",
        ),
        (
            {"conversations": [{"role": "user", "content": "Hi"}]},
            "schema: conversations[0].from: expected 'human', 'user', 'gpt', 'assistant' or 'system', got None; such "
            "turns are read with fields = { messages = \"conversations\" } (read as schema 'conversations')",
        ),
        (
            {"conversations": [{"from": ["human"], "value": "Hi"}]},
            "schema: conversations[0].from: expected 'human', 'user', 'gpt', 'assistant' or 'system', got a list of 1 "
            "(read as schema 'conversations')",
        ),
        (
            {"conversations": [{"from": "human", "value": None}]},
            "schema: conversations[0].value: expected a string, got None (read as schema 'conversations')",
        ),
        (
            {"conversations": ["Hi"]},
            "schema: conversations[0]: expected a dict, got str 'Hi' (read as schema 'conversations')",
        ),
        (
            {"conversations": []},
            "schema: conversations: expected a list of at least one turn, got an empty list (read as schema "
            "'conversations')",
        ),
        (
            llava(("human", "<image>"), ("gpt", "A."), image="coco/1.jpg"),
            "schema: image: expected the bytes of an image or a data: URL, got str 'coco/1.jpg'; paths are read by "
            "datasets, from the column 'images', and nothing is fetched from URLs (read as schema 'conversations')",
        ),
        (
            llava(("human", "<image>"), ("gpt", "A."), images=[{"bytes": None, "path": "coco/1.jpg"}]),
            "schema: images[0]: expected the bytes of an image or a data: URL, got a dict with bytes, path without "
            "bytes, only str 'coco/1.jpg': store the pictures in the rows (read as schema 'conversations')",
        ),
        (
            llava(("human", "<image><image>"), ("gpt", "A."), images=[A, None]),
            "schema: images[1]: expected the bytes of an image or a data: URL, got None (read as schema "
            "'conversations')",
        ),
    ],
)
def test_malformed_conversations(row: dict[str, Any], message: str) -> None:
    assert refused(row) == message


def test_images_that_are_probed_already() -> None:
    image = Image(A, ImageInfo("png", 1, 1), ImagePlan(1, 1, 1, 1, 1, ()))
    assert "; to_messages goes before probe_images" in refused(llava(("human", "<image>"), image=image))


@given(st.lists(st.lists(st.sampled_from(["<image>", "a", " ", "\n", "<", "é"]), max_size=6), min_size=1, max_size=4))
def test_marks_become_parts_at_their_places(turns: list[list[str]]) -> None:
    values = ["".join(pieces) for pieces in turns]
    count = sum(value.count("<image>") for value in values)
    images = [bytes([i]) for i in range(count)]
    result = ToMessages(strip=False)(llava(*[("human", value) for value in values], images=images))
    written = ["".join(part.get("text", "<image>") for part in m["content"]) for m in result["messages"]]
    assert written == values
    assert sum(part == SHOW for m in result["messages"] for part in m["content"]) == count
    assert result["images"] == images


def test_openai() -> None:
    row = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Compare", "image_url": None},
                    {"type": "image_url", "image_url": {"url": "https://host/a.jpg", "detail": "low"}, "text": None},
                    {"type": "image_url", "image_url": url(B)},
                    {"type": "image_url", "image_url": {"url": "a/c.jpg"}},
                ],
            },
            {"role": "assistant", "content": "Alike.", "name": "x", "refusal": None},
        ],
        "images": [A, C],
    }
    assert read(row) == {
        "images": [A, B, C],
        "messages": [
            turn("system", "Be brief."),
            turn("user", "Compare", SHOW, SHOW, SHOW),
            {**turn("assistant", "Alike."), "name": "x"},
        ],
    }


def test_images_inside_the_parts() -> None:
    parts = [{"type": "image", "image": A}, {"type": "image", "image": {"bytes": B, "path": None}}, SHOW]
    row = {"messages": [{"role": "user", "content": parts}], "images": [C]}
    assert read(row) == {"messages": [turn("user", SHOW, SHOW, SHOW)], "images": [A, B, C]}


def test_marks_in_messages_count_where_there_are_no_parts() -> None:
    marked = {"role": "user", "content": "<image>What?"}
    assert read({"messages": [marked], "images": [A]})["messages"] == [turn("user", SHOW, "What?")]
    in_parts = {"role": "user", "content": [text("<image>What?"), text("And?")]}
    assert read({"messages": [in_parts], "images": [A]})["messages"] == [turn("user", SHOW, "What?", "And?")]
    both = [turn("user", SHOW, "What?"), {"role": "assistant", "content": "The tag <image>."}]
    assert read({"messages": both, "images": [A]})["messages"][1] == turn("assistant", "The tag <image>.")


def test_messages_keep_what_tools_need() -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    row = {"messages": [turn("user", "Q"), {"role": "assistant", "content": None, "tool_calls": calls}]}
    assert read(row)["messages"][1] == {"role": "assistant", "content": None, "tool_calls": calls}


def test_text_parts_may_become_strings() -> None:
    row = {"messages": [turn("user", "a", "b"), turn("user", SHOW, "c")], "images": [A]}
    assert read(row, content="string")["messages"] == [{"role": "user", "content": "ab"}, turn("user", SHOW, "c")]


@pytest.mark.parametrize(
    ("row", "wording"),
    [
        (
            message([{"type": "image_url", "image_url": {"url": "https://host/a.jpg"}}]),
            "image_count: expected one image for each '<image>' and image part, got 1 of them and 0 images (the row "
            "has messages); str 'https://host/a.jpg' stands for the next image of that column, since nothing is "
            "fetched: store the images in the rows (read as schema 'messages')",
        ),
        (
            message([{"type": "image_url", "image_url": {"uri": "a"}}], images=[A]),
            "schema: messages[0].content[0].image_url.url: expected the bytes of an image or a data: URL, got None "
            "(read as schema 'messages')",
        ),
        (
            message([{"type": "image", "image": 5}]),
            "schema: messages[0].content[0].image: expected the bytes of an image or a data: URL, got int 5 "
            "(read as schema 'messages')",
        ),
        (
            message([{"type": "image", "index": 1}, {"type": "image", "index": 0}], images=[A, B]),
            "schema: messages[0].content[0].index: expected 0, since images come in order, got int 1 "
            "(read as schema 'messages')",
        ),
        (
            message([text("a"), {"type": "video", "video": "v.mp4"}]),
            "schema: messages[0].content[1].type: expected 'text', 'image' or 'image_url', got str 'video' "
            "(read as schema 'messages')",
        ),
        (
            message(["a"]),
            "schema: messages[0].content[0].type: expected 'text', 'image' or 'image_url', got str 'a' "
            "(read as schema 'messages')",
        ),
        (
            message([{"type": "text"}]),
            "schema: messages[0].content[0].text: expected a string, got None (read as schema 'messages')",
        ),
        (
            message(7),
            "schema: messages[0].content: expected a string or a list of parts, got int 7 (read as schema 'messages')",
        ),
        (
            {"messages": [{"from": "human", "value": "Hi"}]},
            "schema: messages[0].role: expected a string, got None; such turns are read with fields = { "
            "conversations = \"messages\" } (read as schema 'messages')",
        ),
        (
            {"messages": {"role": "user"}},
            "schema: messages: expected a list of at least one turn, got a dict with role (read as schema 'messages')",
        ),
        (
            message([{"type": "image_url", "image_url": "data:image/png;base64,a?"}]),
            "data_url: messages[0].content[0].image_url: expected base64 in str 'data:image/png;base64,a?': "
            "Only base64 data is allowed",
        ),
        (
            message([{"type": "image_url", "image_url": "data:image/png"}]),
            "data_url: messages[0].content[0].image_url: expected data:TYPE;base64,..., got no comma in str "
            "'data:image/png'",
        ),
        (
            message([{"type": "image_url", "image_url": "data:image/png;base64,"}]),
            "data_url: messages[0].content[0].image_url: expected the bytes of an image, got none in str "
            "'data:image/png;base64,'",
        ),
    ],
)
def test_malformed_messages(row: dict[str, Any], wording: str) -> None:
    assert refused(row) == wording


@given(st.binary(min_size=1, max_size=40), st.booleans())
def test_data_urls_give_their_bytes(data: bytes, broken_lines: bool) -> None:
    encoded = base64.b64encode(data).decode()
    if broken_lines:
        encoded = "\n".join(encoded[i : i + 4] for i in range(0, len(encoded), 4)).replace("=", "%3D")
    (image,) = ToMessages()(message([{"type": "image_url", "image_url": f"DATA:image/png;BASE64,{encoded}"}]))["images"]
    assert image == data
    percent = "data:," + "".join(f"%{byte:02x}" for byte in data)
    assert ToMessages()(message([{"type": "image", "image": percent}]))["images"] == [data]


def test_a_data_url_may_stand_in_the_images_column() -> None:
    assert read(llava(("human", "<image>"), images=[url(A)]))["images"] == [A]


def test_half_a_surrogate_in_a_data_url_is_bad_data() -> None:
    assert refused(message([{"type": "image", "image": "data:;base64,\ud800"}])).startswith("data_url: ")
