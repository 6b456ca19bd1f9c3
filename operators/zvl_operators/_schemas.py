"""The schemas of conversations that `to_messages` reads, each a function from a row to a chat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zvl.errors import BadData
from zvl_operators._chats import Chat, Part, Row, Style, is_data_url, names_of, shown, text_part

__all__ = ["COLUMNS", "FIELDS", "ROLES", "SCHEMAS", "choose"]

FIELDS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "conversations": ("conversations",),
    "exchanges": ("exchanges",),
    "interleaved": ("texts",),
    "vqa": ("question", "answer"),
    "caption": ("caption",),
    "text": ("text",),
}
"""What each schema reads beside `images`, in the order in which "auto" tries them."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "conversations": ("conversations",),
    "exchanges": ("texts",),
    "texts": ("texts",),
    "question": ("question", "questions"),
    "answer": ("answer", "answers"),
    "caption": ("caption", "text"),
    "text": ("text",),
    "images": ("images", "image"),
}
"""Where each field stands unless the recipe says otherwise."""

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
PICTURES = ("image", "image_url")


def choose(row: Row) -> str:
    """The first schema of which the row has every field; `text` is a caption where there are images."""
    for schema, fields in FIELDS.items():
        if all(row.column(field) for field in fields) and _meant(row, schema):
            return schema
    raise BadData(
        "schema",
        f"expected the columns of one of the schemas {', '.join(FIELDS)}, got a row with {names_of(row.sample)}; "
        "name them with fields = { question = \"...\", ... }: the fields are "
        + ", ".join(COLUMNS),
    )  # fmt: skip


def _meant(row: Row, schema: str) -> bool:
    """Whether a column that two schemas share is for this one."""
    if schema == "exchanges":
        texts = row.sample[row.column("exchanges") or ""]
        return isinstance(texts, list | tuple) and any(isinstance(text, Mapping) for text in texts)
    return schema != "caption" or row.column("caption") != row.column("text") or bool(row.stored())


def read_messages(row: Row, style: Style) -> Chat:
    """OpenAI's and Hugging Face's chat form. Marks in texts count only in chats that have no image parts."""
    turns = row.turns("messages")
    chat = Chat(row, style)
    marked = not any(_is_picture(part) for turn in turns for part in _parts(turn.get("content")))
    for index, turn in enumerate(turns):
        advice = f'; such turns are read with fields = {{ conversations = "{row.column("messages")}" }}'
        role = row.text("messages", f"[{index}].role", turn.get("role"), advice=advice if "from" in turn else "")
        others = {key: value for key, value in turn.items() if key not in ("role", "content") and value is not None}
        content = turn.get("content")
        if content is None:
            chat.messages.append({"role": role, "content": None, **others})
        elif isinstance(content, str):
            chat.add(role, chat.split(content) if marked else content, others)
        else:
            chat.add(role, _content(chat, content, f"[{index}].content", marked), others)
    return chat


def _content(chat: Chat, content: Any, path: str, marked: bool) -> list[Part]:
    if not isinstance(content, list | tuple):
        raise chat.row.unfit("messages", path, "a string or a list of parts", content)
    parts: list[Part] = []
    for index, part in enumerate(content):
        place = f"{path}[{index}]"
        if _is_picture(part):
            parts.append(_picture(chat, part, place))
        elif isinstance(part, Mapping) and part.get("type") == "text":
            text = chat.row.text("messages", f"{place}.text", part.get("text"))
            split = chat.split(text) if marked else text
            parts += [text_part(split)] if isinstance(split, str) else split
        else:
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise chat.row.unfit("messages", f"{place}.type", "'text', 'image' or 'image_url'", kind)
    return parts


def _picture(chat: Chat, part: Mapping[str, Any], place: str) -> Part:
    """An image part: bytes and data: URLs are images themselves; a path, a URL or nothing is the row's next."""
    index = part.get("index")
    if index is not None and (type(index) is not int or index != chat.shown_own):
        raise chat.row.unfit("messages", f"{place}.index", f"{chat.shown_own}, since images come in order", index)
    key = next((key for key in (*PICTURES, "url", "path") if part.get(key) is not None), "")
    source = part.get(key)
    path = f"{place}.{key}"
    if key == "image_url" and isinstance(source, Mapping):
        source, path = source.get("url"), f"{path}.url"
    if isinstance(source, str) and not is_data_url(source):
        chat.reference = chat.reference or source
        return chat.show()
    if source is None and not key:
        return chat.show()
    return chat.show(chat.row.image("messages", path, source))


def _parts(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list | tuple) else []


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in PICTURES


def read_conversations(row: Row, style: Style) -> Chat:
    """LLaVA's and ShareGPT's turns of `from` and `value`, with marks where images stand."""
    turns = row.turns("conversations")
    chat = Chat(row, style)
    for index, turn in enumerate(turns):
        speaker = turn.get("from")
        if not isinstance(speaker, str) or speaker not in style.roles:
            raise row.unfit("conversations", f"[{index}].from", _listed(style.roles), speaker, _about(row, turn))
        value = row.text("conversations", f"[{index}].value", turn.get("value"))
        chat.add(style.roles[speaker], chat.split(value))
    return chat


def _about(row: Row, turn: Mapping[str, Any]) -> str:
    """What to do about a turn whose speaker is unknown."""
    if isinstance(turn.get("role"), str):
        return f'; such turns are read with fields = {{ messages = "{row.column("conversations")}" }}'
    speaker = turn.get("from")
    return f'; say what it is with roles = {{ {speaker[:40]} = "..." }}' if isinstance(speaker, str) else ""


def _listed(names: Iterable[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}"


def read_vqa(row: Row, style: Style) -> Chat:
    """Questions and answers. Without any mark the images stand before the first question."""
    questions, answers = row.take("question"), row.take("answer")
    if isinstance(questions, list | tuple):
        if not questions:
            raise row.unfit("question", "", "a string or a list of at least one", questions)
        if not isinstance(answers, list | tuple) or len(answers) != len(questions):
            raise row.unfit("answer", "", f"a list of {len(questions)}, one answer for each question", answers)
        places = [f"[{i}]" for i in range(len(questions))]
    else:
        questions, answers, places = [questions], [answers], [""]
    texts = [row.text("question", place, question) for place, question in zip(places, questions, strict=True)]
    said = [_answer(row, style, answer, place) for answer, place in zip(answers, places, strict=True)]
    return _asked(row, style, texts, said)


def _asked(row: Row, style: Style, questions: Sequence[str], answers: Sequence[str]) -> Chat:
    """Two turns for each question. Without any mark the images stand before the first."""
    chat = Chat(row, style)
    marked = bool(style.image_mark) and any(style.image_mark in question for question in questions)
    for index, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        content = chat.split(question) if marked else question
        if index == 0 and not marked and chat.stored:
            content = [*(chat.show() for _ in chat.stored), text_part(question)]
        chat.add("user", content)
        chat.add("assistant", answer)
    return chat


def read_exchanges(row: Row, style: Style) -> Chat:
    """The Cauldron's and FineVision's dicts of `user` and `assistant`, images as in `vqa`. Other keys are left out."""
    turns = row.turns("exchanges")
    questions, answers = (
        [row.text("exchanges", f"[{i}].{key}", turn.get(key)) for i, turn in enumerate(turns)]
        for key in ("user", "assistant")
    )
    return _asked(row, style, questions, answers)


def _answer(row: Row, style: Style, answer: Any, place: str) -> str:
    """One answer; of several, what the recipe says."""
    if not isinstance(answer, list | tuple):
        value = answer.get("answer") if isinstance(answer, Mapping) else answer
        advice = "; make it a text with a map" if isinstance(value, int | float) else ""
        return row.text("answer", place, value, advice=advice)
    if not answer:
        raise row.unfit("answer", place, "at least one answer", answer)
    texts = [_answer(row, style, one, f"{place}[{i}]") for i, one in enumerate(answer)]
    if len(set(texts)) > 1 and style.several_answers == "refuse":
        advice = '; say which counts with several_answers = "first" or "most_common"'
        raise row.unfit("answer", place, "one answer to one question", answer, advice)
    return texts[0] if style.several_answers == "first" else Counter(texts).most_common(1)[0][0]


def read_caption(row: Row, style: Style) -> Chat:
    """The user shows the images, with the prompt behind them; the caption is the answer. Marks are mere text."""
    advice = "; one row has one caption: choose it with a map"
    caption = row.text("caption", "", row.take("caption"), advice=advice)
    chat = Chat(row, style)
    if not chat.stored:
        wanted = row.column("images")
        got = f"an empty column {wanted!r}" if wanted else f"a row with {names_of(row.sample)}"
        raise BadData("image_count", f"expected at least one image, got {got} (read as schema 'caption')")
    prompt = [text_part(style.prompt)] if style.prompt else []
    chat.add("user", [*(chat.show() for _ in chat.stored), *prompt])
    chat.add("assistant", caption)
    return chat


def read_interleaved(row: Row, style: Style) -> Chat:
    """A document as one turn of the assistant: lists of texts and images, None in one where the other stands."""
    texts = row.take("texts")
    if not isinstance(texts, list | tuple) or not texts:
        raise row.unfit("texts", "", "a list of strings and None", texts)
    chat = Chat(row, style)
    images = _beside(row, texts, chat.stored)
    parts: list[Part] = []
    for index, (text, (_, image)) in enumerate(zip(texts, images, strict=True)):
        if (text is None) == (image is None):
            got = "neither" if text is None else f"both, {shown(text)} and {shown(image)}"
            raise BadData(
                "schema",
                f"{row.column('texts')}[{index}] and {row.column('images') or 'images'}[{index}]: expected one of "
                f"them, None in the other, got {got} (read as schema 'interleaved')",
            )
        parts.append(chat.show() if text is None else text_part(row.text("texts", f"[{index}]", text)))
    chat.stored = [(path, image) for path, image in images if image is not None]
    chat.add("assistant", parts)
    return chat


def _beside(row: Row, texts: Any, images: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The images at the places of the texts; a list without gaps fills the gaps of the texts."""
    if len(images) == len(texts):
        return images
    gaps = [index for index, text in enumerate(texts) if text is None]
    if len(images) != len(gaps) or any(image is None for _, image in images):
        raise BadData(
            "image_count",
            f"{row.column('images') or 'images'}: expected {len(texts)} entries beside {row.column('texts')}, or the "
            f"{len(gaps)} images that stand where it has None, got {len(images)} (read as schema 'interleaved')",
        )
    places: list[tuple[str, Any]] = [("", None)] * len(texts)
    for index, image in zip(gaps, images, strict=True):
        places[index] = image
    return places


def read_text(row: Row, style: Style) -> Chat:
    """A text as one turn of the assistant. Marks are mere text."""
    text = row.text("text", "", row.take("text"))
    chat = Chat(row, style)
    chat.add("assistant", text)
    return chat


SCHEMAS: dict[str, Callable[[Row, Style], Chat]] = {
    "messages": read_messages,
    "conversations": read_conversations,
    "exchanges": read_exchanges,
    "interleaved": read_interleaved,
    "vqa": read_vqa,
    "caption": read_caption,
    "text": read_text,
}
