"""Captions, questions with answers, interleaved documents, texts."""

from __future__ import annotations

from typing import Any

import pytest

from reference.conversations import SHOW, A, B, read, refused, turn


def test_captions() -> None:
    assert read({"image": A, "caption": "A quokka <image>.", "url": "u"}) == {
        "url": "u",
        "images": [A],
        "messages": [turn("user", SHOW), turn("assistant", "A quokka <image>.")],
    }
    result = read({"images": [A, B], "text": "Two."}, prompt="Describe them.")
    assert result["messages"] == [turn("user", SHOW, SHOW, "Describe them."), turn("assistant", "Two.")]


def test_a_caption_beside_a_text_that_stays() -> None:
    assert read({"image": A, "caption": "c", "text": "t"})["text"] == "t"


@pytest.mark.parametrize(
    ("row", "wording"),
    [
        (
            {"caption": "c", "images": []},
            "image_count: expected at least one image, got an empty column 'images' (read as schema 'caption')",
        ),
        (
            {"caption": "c", "img": A},
            "image_count: expected at least one image, got a row with caption, img (read as schema 'caption')",
        ),
        (
            {"caption": ["c", "d"], "image": A},
            "schema: caption: expected a string, got a list of 2; one row has one caption: choose it with a map "
            "(read as schema 'caption')",
        ),
    ],
)
def test_malformed_captions(row: dict[str, Any], wording: str) -> None:
    assert refused(row) == wording


def test_one_question() -> None:
    row = {"question": "What?", "answer": "A.", "image": A, "question_id": 3}
    assert read(row) == {
        "question_id": 3,
        "images": [A],
        "messages": [turn("user", SHOW, "What?"), turn("assistant", "A.")],
    }


def test_several_questions_are_turns() -> None:
    row = {"questions": ["What?", "Where?"], "answers": ["A.", "B."], "images": [A, B]}
    assert read(row)["messages"] == [
        turn("user", SHOW, SHOW, "What?"),
        turn("assistant", "A."),
        turn("user", "Where?"),
        turn("assistant", "B."),
    ]


def test_questions_with_marks_and_without_images() -> None:
    row = {"question": ["Hi", "In <image>?"], "answer": ["A.", "<image> B."], "images": [A]}
    messages = read(row)["messages"]
    assert messages[0] == turn("user", "Hi")
    assert messages[2:] == [turn("user", "In", SHOW, "?"), turn("assistant", "<image> B.")]
    assert read({"question": "Q", "answer": "A."})["messages"][0] == turn("user", "Q")


def test_several_answers_to_one_question() -> None:
    row = {"question": "Q", "answers": ["no", "yes", "yes", "maybe", "maybe"], "image": A}
    assert read(row, several_answers="first")["messages"][1] == turn("assistant", "no")
    assert read(row, several_answers="most_common")["messages"][1] == turn("assistant", "yes")
    assert refused(row) == (
        "schema: answers: expected one answer to one question, got a list of 5; say which counts with "
        'several_answers = "first" or "most_common" (read as schema \'vqa\')'
    )
    alike = {"question": "Q", "answers": [{"answer": "yes", "answer_id": i} for i in range(3)], "image": A}
    assert read(alike)["messages"][1] == turn("assistant", "yes")
    lists = {"question": ["P", "Q"], "answer": [["no"], ["yes", "yes"]]}
    assert [m["content"][0]["text"] for m in read(lists)["messages"]] == ["P", "no", "Q", "yes"]


@pytest.mark.parametrize(
    ("row", "wording"),
    [
        ({"question": [], "answer": []}, "question: expected a string or a list of at least one, got an empty list"),
        ({"question": ["a", "b"], "answer": ["c"]},
         "answer: expected a list of 2, one answer for each question, got a list of 1"),
        ({"question": ["a"], "answer": "c"}, "answer: expected a list of 1, one answer for each question, got str 'c'"),
        ({"question": 5, "answer": "c"}, "question: expected a string, got int 5"),
        ({"question": ["a", None], "answer": ["b", "c"]}, "question[1]: expected a string, got None"),
        ({"question": ["a", "b"], "answer": ["b", {"text": "c"}]}, "answer[1]: expected a string, got None"),
        ({"question": "a", "answers": []}, "answers: expected at least one answer, got an empty list"),
        ({"question": "a", "answers": ["b", 5]}, "answers[1]: expected a string, got int 5; make it a text with a map"),
    ],
)  # fmt: skip
def test_malformed_questions(row: dict[str, Any], wording: str) -> None:
    assert refused(row) == f"schema: {wording} (read as schema 'vqa')"


def test_marks_in_questions_and_images_must_agree() -> None:
    row = {"question": "<image>Q<image>", "answer": "A.", "image": A}
    assert "got 2 of them and 1 images in the column 'image'" in refused(row)


def test_exchanges() -> None:
    """The Cauldron's form; FineVision's rows have further columns."""
    texts = [{"user": "What?", "assistant": "A.", "source": "x"}, {"user": "Where?", "assistant": "B.", "source": "x"}]
    assert read({"texts": texts, "images": [A, B], "relevance_min": 4}) == {
        "relevance_min": 4,
        "images": [A, B],
        "messages": [
            turn("user", SHOW, SHOW, "What?"),
            turn("assistant", "A."),
            turn("user", "Where?"),
            turn("assistant", "B."),
        ],
    }
    assert read({"texts": texts[1:]})["messages"] == [turn("user", "Where?"), turn("assistant", "B.")]
    marked = [{"user": "Hi", "assistant": "A."}, {"user": "<image>\nWhat?", "assistant": "B."}]
    assert read({"qa": marked, "images": [A]}, fields={"exchanges": "qa"})["messages"][2] == turn("user", SHOW, "What?")


@pytest.mark.parametrize(
    ("texts", "wording"),
    [
        ([{"user": "Q"}], "texts[0].assistant: expected a string, got None"),
        ([{"user": "Q", "assistant": "A."}, "B."], "texts[1]: expected a dict, got str 'B.'"),
        ([{"user": ["Q"], "assistant": "A."}], "texts[0].user: expected a string, got a list of 1"),
    ],
)
def test_malformed_exchanges(texts: list[Any], wording: str) -> None:
    assert refused({"texts": texts}) == f"schema: {wording} (read as schema 'exchanges')"


def test_interleaved() -> None:
    row = {"texts": [None, "One.", None, "Two <image>."], "images": [A, None, B, None], "meta": 1}
    assert read(row) == {
        "meta": 1,
        "images": [A, B],
        "messages": [turn("assistant", SHOW, "One.", SHOW, "Two <image>.")],
    }


def test_interleaved_images_without_gaps() -> None:
    row = {"texts": [None, "One.", None], "images": [A, B]}
    assert read(row)["images"] == [A, B]
    assert read({"texts": ["One.", "Two."]}) == {"images": [], "messages": [turn("assistant", "One.", "Two.")]}


@pytest.mark.parametrize(
    ("row", "wording"),
    [
        ({"texts": ["a", None], "images": [A, None]},
         "schema: texts[0] and images[0]: expected one of them, None in the other, got both, str 'a' and 5 bytes"),
        ({"texts": ["a", None], "images": [None, None]},
         "schema: texts[1] and images[1]: expected one of them, None in the other, got neither"),
        ({"texts": ["a", None], "images": [None, A, B]},
         "image_count: images: expected 2 entries beside texts, or the 1 images that stand where it has None, got 3"),
        ({"texts": ["a", None]},
         "image_count: images: expected 2 entries beside texts, or the 1 images that stand where it has None, got 0"),
        ({"texts": "a"}, "schema: texts: expected a list of strings and None, got str 'a'"),
        ({"texts": []}, "schema: texts: expected a list of strings and None, got an empty list"),
        ({"texts": ["a", 5], "images": [None, None]}, "schema: texts[1]: expected a string, got int 5"),
        ({"texts": ["a", None], "images": [None, "https://host/a.jpg"]},
         "schema: images[1]: expected the bytes of an image or a data: URL, got str 'https://host/a.jpg'; paths are "
         "read by datasets, from the column 'images', and nothing is fetched from URLs"),
    ],
)  # fmt: skip
def test_malformed_documents(row: dict[str, Any], wording: str) -> None:
    assert refused(row) == f"{wording} (read as schema 'interleaved')"


def test_text() -> None:
    assert read({"text": "One <image>.", "n": 1}) == {
        "n": 1,
        "images": [],
        "messages": [turn("assistant", "One <image>.")],
    }
    assert refused({"text": 5}) == "schema: text: expected a string, got int 5 (read as schema 'text')"
    assert "got 0 of them and 1 images" in refused({"text": "a", "image": A}, schema="text")
