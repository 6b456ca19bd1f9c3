"""Conversations about pictures that are true because they say only what was measured or known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zvl.hashing import Rng
from zvl_demo.pictures import Picture, colour_name, luma

__all__ = ["make_conversation"]

Answer = Callable[[Picture, str, Rng], tuple[str, str]]
"""(picture, what to call it, rng) to (question, answer)."""

SYSTEM = (
    "You describe pictures. Say only what can be measured or is written with the picture.",
    "You are a careful assistant for photographs. Answer briefly unless asked for detail.",
    "You help people who cannot see the picture. Be exact, and give numbers where you have them.",
)

BRIGHTNESS = ((64, "very dark"), (112, "rather dark"), (160, "of medium brightness"), (208, "bright"))


def make_conversation(pictures: Sequence[Picture], rng: Rng) -> list[dict[str, Any]]:
    """One to four turns in Hugging Face's form; the `image` parts stand in the order of `pictures`.

    The pictures come all at once or one a turn; lengths go from a few words to several hundred.
    """
    turns = 1 + rng.integer(4)
    at_once = rng.integer(10) < 7
    messages: list[dict[str, Any]] = []
    if rng.integer(5) == 0:
        messages.append({"role": "system", "content": SYSTEM[rng.integer(len(SYSTEM))]})
    shown, asked = 0, set()
    for turn in range(turns):
        stop = len(pictures) if at_once or turn == turns - 1 else min(len(pictures), turn + 1)
        choices = [key for key in questions(stop) if key not in asked]
        key = choices[rng.integer(len(choices))]
        asked.add(key)
        question, answer = ask(key, pictures[:stop], len(pictures) > 1, rng)
        messages.append({"role": "user", "content": user_content(question, stop - shown, rng)})
        messages.append({"role": "assistant", "content": answer})
        shown = stop
    return messages


def questions(pictures: int) -> list[tuple[int, int]]:
    """What can be asked of so many pictures: (question, picture), picture -1 for all of them."""
    single = [(number, picture) for picture in range(pictures) for number in range(len(QUESTIONS))]
    return single + [(0, -1)] * (pictures > 1)


def ask(key: tuple[int, int], pictures: Sequence[Picture], several: bool, rng: Rng) -> tuple[str, str]:
    """The question and the answer of one key."""
    number, index = key
    if index < 0:
        return compare(pictures)
    return QUESTIONS[number](pictures[index], f"picture {index + 1}" if several else "the picture", rng)


def user_content(question: str, images: int, rng: Rng) -> str | list[dict[str, str]]:
    """A user's message: plain text, or image parts before the text, sometimes behind it."""
    if not images:
        return question
    text = {"type": "text", "text": question}
    parts = [{"type": "image"} for _ in range(images)]
    return [text, *parts] if rng.integer(4) == 0 else [*parts, text]


def pick(rng: Rng, *phrases: str) -> str:
    """One of several ways to say the same."""
    return phrases[rng.integer(len(phrases))]


def brightness_word(mean: float) -> str:
    """How bright a mean luma of 0 to 255 looks.

    >>> brightness_word(20.0), brightness_word(250.0)
    ('very dark', 'very bright')
    """
    return next((word for limit, word in BRIGHTNESS if mean < limit), "very bright")


def ask_subject(picture: Picture, name: str, rng: Rng) -> tuple[str, str]:
    """What was photographed."""
    question = pick(rng, f"What does {name} show?", f"Describe {name} in one sentence.", f"What is seen in {name}?")
    if rng.integer(3):
        return question, f"It is {picture.subject}."
    return question, f"It is {picture.subject}, and mostly {picture.colour}. {picture.detail}"


def ask_size(picture: Picture, name: str, rng: Rng) -> tuple[str, str]:
    """Width and height."""
    width, height = picture.width, picture.height
    if rng.integer(2):
        return f"Size of {name}?", f"{width} by {height}."
    shape = "wider than tall" if width > height else "taller than wide" if height > width else "square"
    question = f"How large is {name}, and which way does it lie?"
    return question, f"It has {width} columns and {height} rows of pixels, {width * height} in all. It is {shape}."


def ask_place(picture: Picture, name: str, rng: Rng) -> tuple[str, str]:
    """Where the pixels come from."""
    question = pick(rng, f"Where does {name} come from?", f"Which part of which file is {name}?")
    return question, f"From {picture.source}. {picture.detail}"


def ask_light(picture: Picture, name: str, rng: Rng) -> tuple[str, str]:
    """Mean brightness."""
    mean = picture.brightness
    question = pick(rng, f"Is {name} bright or dark?", f"How bright is {name} on average?")
    return question, f"It is {brightness_word(mean)}: {mean:.0f} on a scale from 0 to 255."


def ask_colour(picture: Picture, name: str, rng: Rng) -> tuple[str, str]:
    """The commonest colour."""
    question = pick(rng, f"Which colour is commonest in {name}?", f"Name the main colour of {name}. One word.")
    return question, picture.colour.capitalize() + "."


def ask_caption(picture: Picture, name: str, rng: Rng) -> tuple[str, str]:
    """The caption in the package."""
    question = pick(rng, f"Is there a caption to {name}?", f"Whom should I credit for {name}?")
    if picture.caption:
        return question, f"With it comes this text: {picture.caption}"
    return question, f"No text comes with it. The pixels are from {picture.source}."


def ask_regions(picture: Picture, name: str, rng: Rng) -> tuple[str, str]:
    """Colour and brightness cell by cell: the long answers."""
    rows, columns = ((2, 2), (3, 4), (6, 4), (6, 8), (8, 12))[rng.integer(5)]
    question = (
        f"Go through {name} in a grid of {rows} rows and {columns} columns. Give colour and brightness of each cell."
    )
    lines = [f"{picture.width} by {picture.height} pixels, showing {picture.subject}."]
    for row in range(rows):
        cells = [picture.cell(row, column, rows, columns) for column in range(columns)]
        texts = [f"{colour_name(cell.mean(axis=(0, 1)))}, {luma(cell):.0f}" for cell in cells]
        lines.append(f"Row {row + 1}: " + "; ".join(texts) + ".")
    return question, "\n".join(lines)


def compare(pictures: Sequence[Picture]) -> tuple[str, str]:
    """All pictures side by side."""
    brightest = max(range(len(pictures)), key=lambda index: pictures[index].brightness)
    largest = max(range(len(pictures)), key=lambda index: pictures[index].width * pictures[index].height)
    lines = [
        f"{index}. {item.subject.capitalize()}, {item.width} by {item.height}, mostly {item.colour}, "
        f"{brightness_word(item.brightness)}."
        for index, item in enumerate(pictures, 1)
    ]
    question = f"Compare the {len(pictures)} pictures. Which is the brightest, which the largest?"
    verdict = f"Picture {brightest + 1} is the brightest, picture {largest + 1} the largest."
    return question, "\n".join([*lines, verdict])


QUESTIONS: tuple[Answer, ...] = (*(ask_subject, ask_size, ask_place, ask_light, ask_colour, ask_caption, ask_regions),)
