from __future__ import annotations

from typing import Any

import pytest

from zvl.chat import ChatTemplate
from zvl.chat_outline import mark

CHAT = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
    {"role": "assistant", "content": "A quokka."},
    {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
    {"role": "assistant", "content": "Yes."},
]
END = "{% if add_generation_prompt %}<a>{% endif %}"
LOOP = "{% for m in messages %}<{{ m.role[0] }}>"
TEXT = "{% set c = m.content if m.content is string else m.content[-1].text %}"

PLAIN = {
    "written": TEXT + "{{ c }}",
    "joined": TEXT + "{{ 'says: ' + c + '!' }}",
    "counted": "{% set n = namespace(v=0) %}{% set n.v = n.v + 1 %}" + TEXT + "{{ n.v }}{{ c }}",
    "by kind": TEXT + "{% if m.content is not string and 'image' == m.content[0]['type'] %}I{% endif %}{{ c }}",
    "a name kept": TEXT + "{% set n = namespace(last='') %}{% set n.last = c %}{{ n.last }}",
}
LOOKS = {
    "a filter": TEXT + "{{ c | trim }}",
    "a filter of the chat": TEXT + "{{ m | tojson }}",
    "a method": TEXT + "{{ c.strip() }}",
    "a method of another string": TEXT + "{{ c }}{{ 'Yes.'.replace(c, 'No.') }}",
    "compared": TEXT + "{{ c if c != 'Yes.' else 'No.' }}",
    "compared with itself reversed": TEXT + "{{ 'No.' if 'Yes.' == c else c }}",
    "searched": TEXT + "{{ 'q' if 'quokka' in c else c }}",
    "searched for": TEXT + "{{ 'No.' if c in 'Yes. Or no.' else c }}",
    "among others": TEXT + "{{ 'No.' if c in ['Yes.'] else c }}",
    "empty or not": TEXT + "{{ c if c else 'nothing' }}",
    "its length": TEXT + "{{ c }}{{ c | length }}",
    "its first letter": TEXT + "{{ c }}{{ c[0] }}",
    "its letters": TEXT + "{{ c }}{% for letter in c %}{{ letter }}-{% endfor %}",
    "joined by ~": TEXT + "{{ c ~ '' }}",
    "captured": TEXT + "{% set d %}{{ c }}{% endset %}{{ d if d != 'Yes.' else 'No.' }}",
    "a macro": "{% macro w(t) %}{{ t }}{% endmacro %}" + LOOP + TEXT + "{{ 'No.' if w(c) == 'Yes.' else w(c) }}",
    "written by %": TEXT + "{{ '%5s' % c }}",
    "repeated": TEXT + "{{ c * 2 }}",
    "a test of values": TEXT + "{{ 'No.' if c is eq('Yes.') else c }}",
    "a global function": TEXT + "{{ raise_exception(c) if c == 'never' else c }}",
    "in a key": TEXT + "{{ {'Yes.': 'No.'}.get(c, c) }}",
}


def made(body: str) -> ChatTemplate:
    source = body if "macro" in body else LOOP + body
    return ChatTemplate(source + "<e>{% endfor %}" + END, {})


@pytest.mark.parametrize("name", PLAIN)
def test_a_template_that_only_writes_texts_is_not_rendered_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = made(PLAIN[name])
    expected = template.render(CHAT)
    template.render_for(CHAT, "all")
    others = [dict(message) for message in CHAT]
    others[1]["content"] = "{{ m }}<e>" + mark(0) + " é\n"
    rendered = template.render(others)
    monkeypatch.setattr(template, "_render", None)
    assert template.render_for(CHAT, "all").text == expected
    assert template.render_for(others, "all").text == rendered


@pytest.mark.parametrize("name", LOOKS)
def test_a_template_that_looks_at_texts_is_rendered_for_each_chat(name: str) -> None:
    """Also where a chat with marks for texts would not show that it looks."""
    template = made(LOOKS[name])
    rendered = 0
    render = template._render

    def counted(*args: Any) -> str:
        nonlocal rendered
        rendered += 1
        return render(*args)

    template._render = counted  # type: ignore[method-assign]
    assert template.render_for(CHAT, "all").text == template.render(CHAT)
    before = rendered
    assert template.render_for(CHAT, "all").text == template.render(CHAT)
    assert rendered == before + 2
