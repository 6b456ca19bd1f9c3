from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zvl.chat import ChatTemplate, check_messages
from zvl.errors import BadData, RecipeError
from zvl.processor import Processor

PLAIN, MARKED = "chat_template.jinja", "chat_template_training.jinja"
KEEPS_NO_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MESSY = st.text(
    st.one_of(st.sampled_from(" \n\r\t<|>é́中🙂a1'\u200d\u00a0"), st.characters(exclude_categories=["Cs"])), max_size=12
) | st.sampled_from(["<|im_end|>", "<|im_start|>assistant\n", "\n\n", " ", "", "<|im_end|>\n", "<tool_call>"])
PARTS = st.lists(
    st.just({"type": "image"}) | MESSY.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3
)
CHATS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": MESSY | PARTS}),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> Processor:
    return Processor("qwen2_5_vl", qwen_tokenizer)


@pytest.fixture(scope="module", params=[PLAIN, MARKED])
def template(request: pytest.FixtureRequest, processor: Processor, qwen_tokenizer: Path) -> ChatTemplate:
    return ChatTemplate((qwen_tokenizer / request.param).read_text(), processor.text.variables)


def source_of(template: ChatTemplate, folder: Path) -> str:
    return (folder / (MARKED if template.marks_loss else PLAIN)).read_text()


def learnt(template: ChatTemplate, chat: list[dict[str, Any]], **options: Any) -> list[str]:
    text, spans = template.render_for(chat, options.get("train_on", "assistant"))
    return [text[start:stop] for start, stop in spans]


CHAT = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
    {"role": "assistant", "content": " A quokka. \n"},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
]


def test_the_learnt_characters_run_from_behind_the_header_through_the_end_of_turn(
    processor: Processor,
) -> None:
    assert learnt(processor.chat, CHAT) == [" A quokka. \n<|im_end|>", "Yes.<|im_end|>"]
    assert learnt(processor.chat, CHAT, train_on="last") == ["Yes.<|im_end|>"]
    assert learnt(processor.chat, CHAT, train_on="all") == [processor.chat.render(CHAT)]


def test_a_template_with_generation_marks_decides_itself(processor: Processor, qwen_tokenizer: Path) -> None:
    template = ChatTemplate((qwen_tokenizer / MARKED).read_text(), processor.text.variables)
    assert learnt(template, CHAT) == [" A quokka. \n<|im_end|>\n", "Yes.<|im_end|>\n"]
    assert learnt(template, CHAT, train_on="last") == ["Yes.<|im_end|>\n"]


def test_a_chat_without_an_assistant_has_nothing_to_learn(template: ChatTemplate) -> None:
    assert learnt(template, CHAT[:1]) == []


def test_a_chat_may_begin_with_the_assistant(processor: Processor) -> None:
    assert learnt(processor.chat, CHAT[1:]) == [" A quokka. \n<|im_end|>", "Yes.<|im_end|>"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chat=CHATS)
def test_rendering_is_that_of_transformers(
    template: ChatTemplate, processor: Processor, qwen_tokenizer: Path, chat: list[dict[str, Any]]
) -> None:
    theirs = processor.tokenizer.apply_chat_template(
        chat, chat_template=source_of(template, qwen_tokenizer), tokenize=False
    )
    assert template.render(chat) == theirs
    assert template.render_for(chat, "assistant").text == theirs


@pytest.mark.parametrize("extra", [{"name": None}, {"reasoning": "because"}, {"tool_calls": [{"name": "f"}]}])
def test_rendering_with_more_fields_is_that_of_transformers(processor: Processor, extra: dict[str, Any]) -> None:
    source = "{% for m in messages %}{{ m | tojson(sort_keys=true) }}{{ eos_token }}{% endfor %}"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **extra}]
    ours = ChatTemplate(source, processor.text.variables).render_for(chat, "all").text
    assert ours == processor.tokenizer.apply_chat_template(chat, chat_template=source, tokenize=False)


def test_a_null_in_a_part_counts_as_missing(template: ChatTemplate) -> None:
    part = {"type": "text", "text": "a", "image": None}
    assert check_messages([{"role": "user", "content": [part]}]) == 0
    assert "<|image_pad|>" not in template.render([{"role": "user", "content": [part]}])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chat=CHATS)
def test_turns_from_the_outline_are_those_of_the_prefixes(processor: Processor, chat: list[dict[str, Any]]) -> None:
    text, spans = processor.chat.render_for(chat, "assistant")
    # A field that this template does not read takes the chat off the outline's path.
    assert processor.chat.render_for([{**message, "id": 1} for message in chat], "assistant") == (text, spans)
    turns = [message for message in chat if message["role"] == "assistant"]
    assert len(spans) == len(turns)
    for (start, stop), turn in zip(spans, turns, strict=True):
        parts = [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]
        words = [part.get("text", "<|vision_start|><|image_pad|><|vision_end|>") for part in parts]
        assert text[start:stop] == "".join(words) + "<|im_end|>"


def test_a_template_that_trims_content_is_followed_past_the_outline(processor: Processor) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    source += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    chat = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "\n b "}]
    assert learnt(ChatTemplate(source, {}), chat) == ["b<|im_end|>"]


def test_a_template_that_leaves_out_a_text_is_refused() -> None:
    source = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %}|{% endfor %}"
    template = ChatTemplate(source, {})
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert template.render_for(parts, "all").text == "user:hello|"
    with pytest.raises(BadData) as error:
        template.render_for([*parts, {"role": "user", "content": "hello"}], "all")
    assert str(error.value) == (
        "template: expected every text of the chat in its rendering, got none of str 'hello': the template leaves out "
        "contents of that form or role (a string where it wants a list of parts, or the reverse)"
    )
    assert template.render_for([{"role": "user", "content": ""}], "all").text == "user:|"


def test_turns_that_render_otherwise_in_the_whole_are_refused_with_the_place() -> None:
    chat = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "<think>easy</think>2"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes"},
    ]
    template = ChatTemplate(KEEPS_NO_THOUGHTS, {})
    with pytest.raises(BadData) as error:
        template.render_for(chat, "assistant")
    assert str(error.value) == (
        "template: the rendering of messages[:2] is no beginning of the whole chat's, so the turns cannot be told "
        "apart: at character 56, behind 'im_start|>assistant\\n', expected '<think>easy</think>2', "
        "got '2<|im_end|>\\n<|im_sta'; use a template with {% generation %} marks, or train_on='all'"
    )
    assert learnt(template, chat, train_on="last") == ["yes<|im_end|>"]


def test_a_template_that_fails_names_its_reason() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(BadData, match=r"template: the chat template failed on this chat: .*: roles must alternate"):
        template.render(CHAT)


def test_a_first_turn_without_a_header_is_refused() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    with pytest.raises(BadData, match=r"the chat begins with the assistant, and the template does not write"):
        template.render_for([{"role": "assistant", "content": "a"}], "assistant")


def test_a_template_that_reads_the_clock_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"reads the clock \(strftime_now\), so two runs would differ"):
        ChatTemplate("{{ strftime_now('%Y') }}", {})


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (None, "expected a list of at least one message, got NoneType"),
        ([], "expected a list of at least one message, got an empty list"),
        ("hi", "expected a list of at least one message, got str"),
        (["hi"], "messages[0]: expected a dict with a role, got str 'hi'"),
        ([{"content": "a"}], "messages[0]: expected a dict with a role, got dict {'content': 'a'}"),
        ([{"role": "user", "content": 3}], "messages[0].content: expected a string or a list, got int 3"),
        (
            [{"role": "user", "content": ["a"]}],
            "messages[0].content[0]: expected a dict with a type, got str 'a'",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text: expected a string, got NoneType None",
        ),
        (
            [{"role": "user", "content": [{"type": "video"}]}],
            "messages[0].content[0]: expected the type 'text' or 'image', got 'video'",
        ),
    ],
)
def test_messages_that_are_no_chat_are_refused_with_the_place(messages: Any, sentence: str) -> None:
    with pytest.raises(BadData) as error:
        check_messages(messages)
    assert str(error.value) == f"messages: {sentence}"
