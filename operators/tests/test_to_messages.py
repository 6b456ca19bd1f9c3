"""The choice of schema and columns, configuration, any row at all, and rows of several schemas through the loader."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage

import zvl
from reference.conversations import SHOW, A, llava, message, read, refused, text, turn, url
from zvl.chat import check_messages
from zvl.errors import BadData, OperatorError, RecipeError
from zvl.fingerprint import digest
from zvl.recipe import load_recipe
from zvl_operators._schemas import FIELDS
from zvl_operators.to_messages import ToMessages

DOCS = Path(__file__).parents[2] / "docs/conversations.md"


@pytest.mark.parametrize(
    ("columns", "roles"),
    [
        ({"messages", "conversations", "texts", "question", "answer", "caption", "text", "images"}, "messages"),
        ({"conversations", "texts", "question", "answer", "caption", "text"}, "conversations"),
        ({"texts", "question", "answer", "caption", "text", "images"}, "interleaved"),
        ({"question", "answer", "caption", "text", "images"}, "vqa"),
        ({"question", "caption", "text", "images"}, "caption"),
        ({"text", "images", "question"}, "caption"),
        ({"text", "question"}, "text"),
    ],
)
def test_auto_takes_the_first_schema_whose_fields_are_there(columns: set[str], roles: str) -> None:
    row = {
        "messages": [turn("user", SHOW, "messages")],
        "conversations": [{"from": "human", "value": "conversations"}],
        "texts": [None, "interleaved"],
        "question": "Q",
        "answer": "vqa",
        "caption": "caption",
        "text": "caption" if "images" in columns else "text",
        "images": [A],
    }
    # Tables have every column in every row.
    result = ToMessages()({name: value if name in columns else None for name, value in row.items()})
    assert result["messages"][-1]["content"][-1]["text"] == roles


def test_a_row_of_no_schema() -> None:
    assert refused({"id": 1, "img": A, "text": None}) == (
        "schema: expected the columns of one of the schemas messages, conversations, exchanges, interleaved, vqa, "
        'caption, text, got a row with id, img; name them with fields = { question = "...", ... }: the fields are '
        "messages, conversations, exchanges, texts, question, answer, caption, text, images"
    )


@pytest.mark.parametrize("schema", ["", *(name for name in FIELDS if name != "text")])
def test_the_row_of_an_error_is_named_by_its_key(schema: str, processor: zvl.Processor) -> None:
    """Whatever the schema: key of the row, place in it, what was seen."""
    rows: dict[str, tuple[dict[str, Any], str]] = {
        "": ({"x": 1}, "got a row with .*x"),
        "messages": (message(5), r"messages\[0\].content: .* got int 5"),
        "conversations": (llava(("human", "a"), ("x", "b")), r"conversations\[1\].from: .* got str 'x'"),
        "exchanges": ({"texts": [{"user": 5}]}, r"texts\[0\].user: .* got int 5"),
        "interleaved": ({"texts": ["a", 5]}, r"texts\[1\]: .* got int 5"),
        "vqa": ({"question": "a", "answer": {}}, r"answer: .* got None"),
        "caption": ({"caption": "a", "images": []}, "got an empty column 'images'"),
    }
    good = {"text": "a"}
    row, wording = rows[schema]
    with pytest.raises(OperatorError, match=rf"'to_messages' failed on sample 'data/rows#1@0': \w+: .*{wording}"):
        batches(training([good, row, good], processor, ToMessages()))


def test_a_schema_that_lacks_a_field() -> None:
    assert refused({"question": "Q", "reply": "A."}, schema="vqa") == (
        "schema: answer: expected the column 'answer' or 'answers', got a row with question, reply; name the column "
        "with fields = { answer = \"...\" } (read as schema 'vqa')"
    )


def test_fields_name_columns_and_errors_say_them() -> None:
    fields = {"images": "img", "question": "q", "answer": ["best", "a"]}
    row = {"q": "Q", "a": "A.", "best": None, "img": A, "question": "kept", "images": 5}
    assert read(row, fields=fields) == {
        "question": "kept",
        "images": [A],
        "messages": [turn("user", SHOW, "Q"), turn("assistant", "A.")],
    }
    assert refused({"q": "Q", "best": 5, "img": A}, fields=fields).startswith("schema: best: expected a string, got")


def test_a_chat_in_another_column() -> None:
    row = {"conversations": [turn("user", "Hi")]}
    assert read(row, fields={"messages": "conversations"}) == {"images": [], "messages": [turn("user", "Hi")]}


@pytest.mark.parametrize(
    ("fields", "wording"),
    [
        ({"schema": "llava"}, "to_messages: schema: expected one of auto, messages, conversations, exchanges, inter"),
        ({"content": "list"}, "to_messages: content: expected one of parts, string, got 'list'"),
        ({"several_answers": "all"}, "to_messages: several_answers: expected one of refuse, first, most_common"),
        ({"fields": {"image": "img"}}, "to_messages: fields: unknown field 'image'; did you mean 'images'?"),
        (
            {"schema": "vqa", "fields": {"caption": "c"}},
            "to_messages: fields: unknown field 'caption' for the schema 'vqa'; known are: question, answer, images",
        ),
        ({"fields": {"images": ""}}, "to_messages: fields: images: expected the name of a column, got ''"),
        ({"fields": "img"}, "to_messages: fields: expected a dict of field and column, got 'img'"),
        ({"fields": {"images": []}}, "to_messages: fields: images: expected the name of a column, got []"),
        ({"roles": "tool"}, "to_messages: roles: expected a dict of speaker and role, got 'tool'"),
        ({"roles": {"tool": ""}}, "to_messages: roles: expected a dict of speaker and role, got {'tool': ''}"),
    ],
)
def test_wrong_configuration(fields: dict[str, Any], wording: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(wording)):
        ToMessages(**fields)


def test_fields_are_plain_values() -> None:
    one = ToMessages(fields={"images": "img", "answer": "a"})
    other = ToMessages(fields={"answer": ["a"], "images": "img"})
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.replace(one, strip=False).fields == one.fields
    assert digest(one) == digest(other) != digest(ToMessages(fields={"images": "img"}))
    assert one.name == "to_messages"


def test_blank() -> None:
    assert ToMessages().blank({"x": 1}) == {"x": 1, "messages": [], "images": []}


KEYS = st.sampled_from(
    ["from", "value", "role", "content", "type", "text", "image", "image_url", "url", "answer", "self"]
)
LEAVES = st.one_of(
    st.none(),
    st.integers(),
    st.binary(max_size=3),
    st.sampled_from(
        ["human", "gpt", "user", "image", "image_url", "text", "<image>", "data:,a", "data:;base64,Y", "x.png"]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


GOOD: list[dict[str, Any]] = [
    llava(("human", "<image>Q"), ("gpt", "A."), images=[A]),
    {**message([text("Q"), {"type": "image_url", "image_url": {"url": url(A)}}, SHOW]), "image": A},
    {"texts": [None, "a"], "images": [A, None]},
    {"texts": [{"user": "Q", "assistant": "a", "source": "s"}], "images": [A]},
    {"question": ["P", "Q"], "answers": ["a", ["b", "c"]], "image": A},
    {"caption": "c", "images": [A, url(A)], "text": "t"},
    {"text": "t"},
]


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """`value` with at most one thing in it replaced by another, or left out."""
    if draw(st.integers(0, 3)) == 0:
        return draw(VALUES)
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        without = {name: item for name, item in value.items() if name != key}
        return without if draw(st.booleans()) else {**without, draw(KEYS | st.just(key)): draw(damaged(value[key]))}
    if isinstance(value, list) and value:
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(damaged(value[place])), *value[place + draw(st.integers(0, 1)) :]]
    return value


def row_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"text": value}


@given(st.sampled_from(GOOD).flatmap(damaged).map(row_of))
def test_any_row_becomes_a_chat_or_bad_data(row: dict[str, Any]) -> None:
    before = copy.deepcopy(row)
    reason = ""
    result: dict[str, Any] = {"messages": [turn("user")], "images": []}
    try:
        result = ToMessages(several_answers="first")(row)
    except BadData as error:
        reason = error.reason
    assert reason in ("", "schema", "image_count", "data_url", "json")
    assert check_messages(result["messages"]) == len(result["images"])
    assert all(isinstance(image, bytes) for image in result["images"])
    assert row == before


def png(level: int) -> bytes:
    file = io.BytesIO()
    PilImage.fromarray(np.full((56, 56, 3), level, np.uint8)).save(file, "PNG")
    return file.getvalue()


def batches(pipeline: zvl.Pipeline) -> list[dict[str, Any]]:
    with pipeline.loader(runner="inline") as loader:
        return [dict(batch) for batch in loader]


def training(rows: list[dict[str, Any]], processor: zvl.Processor, convert: ToMessages | None) -> zvl.Pipeline:
    pipeline = zvl.Pipeline(zvl.Mixture(zvl.from_rows(rows), passes=zvl.Once(), shuffle="none"), lanes=1)
    pipeline = pipeline if convert is None else pipeline.apply(convert)
    return pipeline.probe_images(processor).tokenize_chat(processor).pack(max_tokens=64).batch(1).patchify(processor)


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=100_000)


def test_batches_equal_those_of_rows_in_the_chat_form(processor: zvl.Processor) -> None:
    """A mixture of three schemas, and the same chats written by hand."""
    rows: list[dict[str, Any]] = [
        llava(("human", "<image>\nWhat is it?"), ("gpt", "A square."), image=png(10)),
        {"question": "Which shade?", "answer": "Grey.", "image": png(90)},
        message([{"type": "image_url", "image_url": {"url": url(png(200))}}, text("Dark?")]),
    ]
    rows[2]["messages"].append({"role": "assistant", "content": "No."})
    by_hand = [
        {"messages": [turn("user", SHOW, asked), turn("assistant", said)], "images": [png(level)]}
        for asked, said, level in (
            ("What is it?", "A square.", 10), ("Which shade?", "Grey.", 90), ("Dark?", "No.", 200)
        )
    ]  # fmt: skip
    got = batches(training(rows, processor, ToMessages()))
    expected = batches(training(by_hand, processor, None))
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        for name in ("input_ids", "labels", "position_ids", "pixel_values", "image_grid_thw"):
            np.testing.assert_array_equal(one[name], other[name])
    learnt = np.concatenate([batch["labels"].ravel() for batch in got])
    assert str(processor.tokenizer.decode(learnt[learnt != -100])).split("<|im_end|>")[:3] == [
        "A square.",
        "Grey.",
        "No.",
    ]


def test_on_error_drops_and_counts_or_names_the_row(processor: zvl.Processor) -> None:
    good = llava(("human", "<image>"), ("gpt", "A."), image=png(10))
    rows = [good, llava(("human", "<image>"), ("gpt", "A.")), good]
    with training(rows, processor, ToMessages(on_error="drop")).loader(runner="inline") as loader:
        assert sum(len(batch.keys) for batch in loader) > 0
        assert loader.stats()["dropped"] == {"to_messages:image_count": 1}
    with pytest.raises(zvl.errors.OperatorError, match=r"operator 'to_messages' failed on sample 'data/rows#1@0': ima"):
        batches(training(rows, processor, ToMessages()))


def test_the_recipe_of_the_manual(tmp_path: Path, qwen_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    recipe, boxes = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    recipe = recipe.replace('[[operator]]\nuse = "tokenize_chat"', f'{boxes}\n[[operator]]\nuse = "tokenize_chat"')
    (tmp_path / "tokenizer").symlink_to(qwen_tokenizer)
    (tmp_path / "vqa.jsonl").write_text(
        json.dumps({"images": ["a.png"], "q": "Which shade?", "a": ["Grey.", "Dark.", "Grey."]}) + "\n"
    )
    asked = llava(("human", "<image>\nIt?"), ("gpt", "At {box:0}."), images=["a.png"], boxes=[[[14, 7, 28, 56]]])
    (tmp_path / "llava.jsonl").write_text(json.dumps(asked))
    (tmp_path / "a.png").write_bytes(png(90))
    (tmp_path / "recipe.toml").write_text(recipe)
    pipeline = load_recipe(tmp_path / "recipe.toml")
    assert pipeline.operators[0].operator == ToMessages(
        fields={"question": "q", "answer": "a"}, several_answers="most_common"
    )
    (batch,) = batches(pipeline)
    assert len(batch["image_grid_thw"]) == 2
    learnt = [int(label) for label in batch["labels"].ravel() if label != -100]
    assert "At [14, 7, 28, 55]." in pipeline.operators[1].operator.processor.tokenizer.decode(learnt)  # type: ignore[attr-defined]
