from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zvl.errors import BadData, RecipeError
from zvl.hashing import Rng
from zvl.image import Image, ImageInfo, ImagePlan
from zvl.operator import check_operator_class
from zvl.processor import Processor
from zvl_operators.pack import Pack
from zvl_operators.tokenize_chat import TokenizeChat

PAD = "<|image_pad|>"
ANSWER = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]


@dataclass(frozen=True, kw_only=True)
class RowBreaks:
    """A layout with text positions whose images are rows of tokens, each with its end."""

    expand: str = "ids"
    newline: str = "<|vision_pad|>"

    image_token: ClassVar[str] = PAD
    row_shape: ClassVar[tuple[int, ...]] = (3,)

    def plan(self, width: int, height: int) -> ImagePlan:
        return ImagePlan(width * height, width * height, width * height, width, height, (height, width))

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        return [(PAD, plan.width), (self.newline, 1)] * plan.height

    def position_ids(self, input_ids: Any, plans: Sequence[ImagePlan], image_token_id: int) -> Any:
        return np.arange(len(input_ids))


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> Processor:
    return Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=200_000)


@pytest.fixture(scope="module")
def marked(qwen_tokenizer: Path) -> Processor:
    template = qwen_tokenizer / "chat_template_training.jinja"
    return Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=200_000, chat_template=template)


def image(processor: Processor, width: int = 100, height: int = 60) -> Image:
    info = ImageInfo("jpeg", width, height)
    return Image(b"", info, processor.layout.plan(*info.size))


def sample(messages: Any, images: Sequence[Image] = ()) -> dict[str, Any]:
    return {"__key__": "a#1@0", "messages": messages, "images": list(images)}


def decoded(processor: Processor, result: dict[str, Any]) -> str:
    return str(processor.tokenizer.decode(result["labels"][result["labels"] != -100]))


def by_transformers(processor: Processor, messages: Any, images: Sequence[Image]) -> list[int]:
    """As the family's Hugging Face processor does it: placeholders expanded in the text, then encoded."""
    pieces = processor.tokenizer.apply_chat_template(messages, tokenize=False).split(PAD)
    runs = [PAD * picture.plan.tokens for picture in images]
    text = pieces[0] + "".join(run + piece for run, piece in zip(runs, pieces[1:], strict=True))
    ids: list[int] = processor.tokenizer(text)["input_ids"]
    return ids


def test_a_known_chat(processor: Processor) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A quokka."},
    ]
    picture = image(processor, 100, 60)
    result = TokenizeChat(processor=processor)({**sample(messages, [picture]), "id": 7})
    assert processor.tokenizer.decode(result["input_ids"]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
        f"{PAD * 8}<|vision_end|>What is it?<|im_end|>\n<|im_start|>assistant\nA quokka.<|im_end|>\n"
    )
    assert decoded(processor, result) == "A quokka.<|im_end|>"
    assert {name: type(value).__name__ for name, value in result.items()} == {
        "__key__": "str",
        "images": "list",
        "id": "int",
        "input_ids": "ndarray",
        "labels": "ndarray",
        "position_ids": "ndarray",
        "turn_ends": "ndarray",
        "image_starts": "ndarray",
    }
    assert result["images"] == [picture]
    assert result["input_ids"].dtype == result["labels"].dtype == result["position_ids"].dtype == np.int64
    assert result["position_ids"].shape == (3, len(result["input_ids"]))
    carried = result["labels"] != -100
    assert np.array_equal(result["labels"][carried], result["input_ids"][carried])


def test_a_chat_can_be_cut_behind_each_turn(processor: Processor) -> None:
    ask = [{"type": "image"}, {"type": "text", "text": "And this?"}]
    turn = [{"role": "user", "content": ask}, {"role": "assistant", "content": "A quokka."}]
    pictures = [image(processor, 100, 60), image(processor, 300, 40), image(processor, 60, 60)]
    whole = TokenizeChat(processor=processor)(sample(turn * 3, pictures))
    assert len(whole["turn_ends"]) == 3
    for place, (end, start) in enumerate(zip(whole["turn_ends"], whole["image_starts"], strict=True)):
        assert decoded(processor, {"labels": whole["labels"][:end]}) == "A quokka.<|im_end|>" * (place + 1)
        run = whole["input_ids"][start : start + pictures[place].plan.tokens]
        assert (run == processor.image_token_id).all()
        assert whole["input_ids"][start - 1] != processor.image_token_id
    limit = int(whole["turn_ends"][1])
    accumulator = Pack(max_tokens=limit, overflow="truncate_turns").start(Rng(0))
    (row,) = [*accumulator.push(whole), *accumulator.flush()]
    assert row["segments"] == ((whole["__key__"], 0, limit, 0, 2),)
    assert row["input_ids"].tolist() == whole["input_ids"][:limit].tolist()


TEXTS = st.text(
    st.one_of(st.sampled_from(" \n\r\t<|>é\u0301中🙂a1'\u200d"), st.characters(exclude_categories=["Cs"])), max_size=12
) | st.sampled_from(["<|im_end|>", "<|im_start|>assistant\n", "\n\n", " ", "", "<tool_call>", "<|image", "_pad|>"])
PARTS = st.lists(
    st.just({"type": "image"}) | TEXTS.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=4
)
CHATS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS | PARTS}),
    min_size=1,
    max_size=4,
).filter(lambda chat: PAD not in "".join(spelt(message) for message in chat))


def spelt(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "<|vision_start|>") for part in content)


def images_for(processor: Processor, chat: Any) -> list[Image]:
    parts = [part for message in chat if not isinstance(message["content"], str) for part in message["content"]]
    count = sum(part["type"] == "image" for part in parts)
    return [image(processor, 30 + 40 * index, 90) for index in range(count)]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(chats=st.lists(CHATS, min_size=1, max_size=3))
def test_ids_and_masks_of_messy_chats_are_those_of_transformers(
    processor: Processor, marked: Processor, chats: list[Any]
) -> None:
    for using in (processor, marked):
        group = [sample(chat, images_for(using, chat)) for chat in chats]
        for given_sample, result in zip(group, TokenizeChat(processor=using).many(group), strict=True):
            assert isinstance(result, dict)
            chat, images = given_sample["messages"], given_sample["images"]
            assert result["input_ids"].tolist() == by_transformers(using, chat, images)
            is_image = result["input_ids"] == using.image_token_id
            assert np.all(result["labels"][is_image] == -100)
            if using is marked:
                theirs = using.tokenizer.apply_chat_template(
                    chat, chat_template=using.chat_template, return_dict=True, return_assistant_tokens_mask=True
                )
                mask = [m for m, i in zip(theirs["assistant_masks"], theirs["input_ids"], strict=True) if i != 151655]
                assert (result["labels"][~is_image] != -100).tolist() == list(map(bool, mask))
            else:
                end = result["input_ids"] == using.token_id("<|im_end|>")
                turns = sum(message["role"] == "assistant" for message in chat)
                spelt_ends = sum(spelt(m).count("<|im_end|>") for m in chat if m["role"] == "assistant")
                assert np.count_nonzero(result["labels"][end] != -100) == turns + spelt_ends


def test_one_by_one_is_the_same_and_inputs_stay_as_they_were(processor: Processor) -> None:
    operator = TokenizeChat(processor=processor)
    group = [sample(ANSWER), sample([]), sample([{"role": "user", "content": "x"}])]
    results = operator.many(group)
    assert isinstance(results[1], BadData)
    assert group[0] == sample(ANSWER)
    for index in (0, 2):
        alone, together = operator(group[index]), results[index]
        assert isinstance(together, dict)
        for name in ("input_ids", "labels", "position_ids"):
            assert np.array_equal(alone[name], together[name])


def test_threads_share_one_operator(qwen_tokenizer: Path) -> None:
    chats = [sample([*ANSWER, {"role": "user", "content": f"{number}?"}]) for number in range(64)]
    operator = TokenizeChat(processor=Processor("qwen2_5_vl", qwen_tokenizer))
    with ThreadPoolExecutor(4) as pool:
        groups = list(pool.map(operator.many, [chats[start : start + 4] for start in range(0, 64, 4)]))
    for one, together in zip(chats, (result for group in groups for result in group), strict=True):
        assert isinstance(together, dict)
        assert np.array_equal(together["labels"], operator(one)["labels"])


def test_train_on(processor: Processor) -> None:
    chat = [*ANSWER, {"role": "user", "content": "?"}, {"role": "assistant", "content": "No."}]
    learnt = {
        train_on: decoded(processor, TokenizeChat(processor=processor, train_on=train_on)(sample(chat)))  # type: ignore[arg-type]
        for train_on in ("assistant", "last", "all")
    }
    assert learnt["assistant"] == "Yes.<|im_end|>No.<|im_end|>"
    assert learnt["last"] == "No.<|im_end|>"
    assert "<|im_start|>" + learnt["all"] == processor.chat.render(chat)


def test_placeholders_and_the_first_token_carry_no_loss(processor: Processor) -> None:
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hm"}]}]
    result = TokenizeChat(processor=processor, train_on="all")(sample(chat, [image(processor)]))
    silent = result["labels"] == -100
    assert np.array_equal(silent, (result["input_ids"] == processor.image_token_id) | (np.arange(len(silent)) == 0))


@pytest.mark.parametrize("expand", ["ids", "text"])
def test_separators_among_placeholders(qwen_tokenizer: Path, expand: str) -> None:
    processor = Processor(RowBreaks(expand=expand), qwen_tokenizer)
    chat = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, *ANSWER]
    chat[1] = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "b"}]}
    operator = TokenizeChat(processor=processor)
    result = operator(sample(chat, [image(processor, 2, 2), image(processor, 1, 1)]))
    row = f"{PAD}<|vision_pad|>"
    text = processor.tokenizer.decode(result["input_ids"])
    assert f"a<|vision_start|>{PAD}{row}{PAD}{row}<|vision_end|>" in text
    assert f"user\n<|vision_start|>{row}<|vision_end|>b" in text
    assert decoded(processor, result) == "a<|vision_start|><|vision_end|><|im_end|>Yes.<|im_end|>"
    assert result["position_ids"].tolist() == list(range(len(result["input_ids"])))


def test_text_expansion_merges_across_the_border_as_in_one_text(qwen_tokenizer: Path) -> None:
    processor = Processor(RowBreaks(expand="text", newline="\n\n"), qwen_tokenizer)
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text if p.text is defined else '<|image_pad|>' }}"
    source += "{% endfor %}{% endfor %}"
    processor = Processor(processor.layout, qwen_tokenizer, chat_template=source)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "\nb"}, {"type": "image"}]}]
    operator = TokenizeChat(processor=processor, train_on="all")
    result = operator(sample(chat, [image(processor, 1, 1), image(processor, 2, 1)]))
    assert result["input_ids"].tolist() == processor.tokenizer(f"{PAD}\n\n\nb{PAD}{PAD}\n\n")["input_ids"]
    assert decoded(processor, result) == "b"


def test_no_loss_is_kept_or_dropped_by_its_own_reason(processor: Processor) -> None:
    chat = sample([{"role": "user", "content": "Hi"}])
    keep, drop = TokenizeChat(processor=processor), TokenizeChat(processor=processor, no_loss="drop")
    assert np.all(keep(chat)["labels"] == -100)
    assert (keep.drops, drop.drops) == (frozenset(), frozenset({"no_loss"}))
    with pytest.raises(BadData) as error:
        drop(chat)
    assert error.value.reason == "no_loss"
    assert error.value.detail == "expected a token that carries loss (train_on='assistant'), got none of 17"
    assert np.any(drop(sample(ANSWER))["labels"] != -100)


IMAGE_CHAT = [{"role": "user", "content": [{"type": "image"}]}]
SPELT_CHAT = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": f"why {PAD}?"}]}]


@pytest.mark.parametrize(
    ("messages", "images", "sentence"),
    [
        (None, 0, "messages: expected a list of at least one message, got NoneType"),
        ([], 0, "messages: expected a list of at least one message, got an empty list"),
        (IMAGE_CHAT, 0, "image_count: expected one image for each image part, got 1 parts and 0 images"),
        (IMAGE_CHAT, 2, "image_count: expected one image for each image part, got 1 parts and 2 images"),
        (
            SPELT_CHAT,
            1,
            "image_count: expected '<|image_pad|>' once for each of 1 images, got it 2 times: the text spells the "
            "token out, and it would be taken for an image; change the text, or drop the sample",
        ),
    ],
)
@pytest.mark.parametrize("expand", ["layout", "text"])
def test_bad_data(
    processor: Processor, qwen_tokenizer: Path, messages: Any, images: int, sentence: str, expand: str
) -> None:
    using = processor if expand == "layout" else Processor(RowBreaks(expand="text"), qwen_tokenizer)
    bad = sample(messages, [image(using)] * images)
    with pytest.raises(BadData) as error:
        TokenizeChat(processor=using)(bad)
    assert str(error.value) == sentence


def test_a_template_that_forgets_images(qwen_tokenizer: Path) -> None:
    processor = Processor("qwen2_5_vl", qwen_tokenizer, chat_template="{{ messages[0].role }}")
    with pytest.raises(BadData, match=r"got it 0 times: the chat template does not place every image"):
        TokenizeChat(processor=processor)(sample(IMAGE_CHAT, [image(processor)]))


def test_images_must_have_been_probed(processor: Processor) -> None:
    with pytest.raises(RecipeError, match=r"got bytes: put probe_images before it"):
        TokenizeChat(processor=processor)({**sample(IMAGE_CHAT), "images": [b"jpeg"]})


def test_choices_are_checked(processor: Processor) -> None:
    with pytest.raises(RecipeError, match="tokenize_chat: train_on: expected one of assistant, last, all, got 'user'"):
        TokenizeChat(processor=processor, train_on="user")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="tokenize_chat: no_loss: expected one of keep, drop, got 'skip'"):
        TokenizeChat(processor=processor, no_loss="skip")  # type: ignore[arg-type]


def test_it_is_a_value_with_a_name(processor: Processor) -> None:
    operator = TokenizeChat(processor=processor, on_error="drop")
    assert check_operator_class(operator).name == "tokenize_chat"
    operator(sample(ANSWER))
    again = pickle.loads(pickle.dumps(operator))
    assert again == operator
    assert np.array_equal(again(sample(ANSWER))["input_ids"], operator(sample(ANSWER))["input_ids"])


def test_the_blank_has_no_tokens(processor: Processor) -> None:
    blank = TokenizeChat(processor=processor).blank({})
    assert blank["images"] == []
    assert blank["input_ids"].shape == blank["labels"].shape == (0,)
    assert blank["position_ids"].shape == (3, 0)
    assert {value.dtype.name for name, value in blank.items() if name != "images"} == {"int64"}
