"""`zvl.testing.check_operator`: every built-in operator passes, and every planted fault is found by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_accumulators import GoodPairs
from bad_operators import FAULTS, GoodParts, NoResult, WritesArray

import zvl
import zvl.testing.operators
from reference.image_files import encode, photo
from zvl import registry
from zvl.errors import RecipeError
from zvl.operator import Accumulate, Operator
from zvl.pipeline import make_operator
from zvl.processor import Processor
from zvl.testing import CheckFailed, check_operator
from zvl.testing._run import run
from zvl_demo.tokenizer import small_tokenizer


def tokens(number: int) -> dict[str, Any]:
    ids = np.arange(3 + number % 5, dtype=np.int64) + number
    return {"__key__": f"d/rows#{number}@0", "input_ids": ids, "labels": ids.copy()}


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
SAMPLES = [tokens(number) for number in range(13)]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what other checks must find: no other process, which takes a second each time, and little patience with
    operators that drop everything."""
    monkeypatch.setattr(zvl.testing.operators, "run_elsewhere", run)
    monkeypatch.setattr("zvl.planning._patience", lambda pipeline: 50)


@pytest.mark.parametrize(
    "kind", [kind for kind in FAULTS if FAULTS[kind] != "processes"], ids=lambda kind: kind.__name__
)
def test_a_fault_is_found_by_its_name(kind: type[Operator], here: None) -> None:
    import torch  # the check looks after PyTorch's generator where it was imported before

    assert torch.get_num_threads()
    with pytest.raises(CheckFailed) as caught:
        check_operator(kind(), SAMPLES)
    assert FAULTS[kind] in caught.value.report.failed


@pytest.mark.parametrize(
    "kind", [kind for kind in FAULTS if FAULTS[kind] == "processes"], ids=lambda kind: kind.__name__
)
def test_what_differs_between_processes_is_found(kind: type[Operator]) -> None:
    with pytest.raises(CheckFailed) as caught:
        check_operator(kind(), SAMPLES)
    assert "processes" in caught.value.report.failed


def test_the_report_says_what_differs_on_which_sample(here: None) -> None:
    with pytest.raises(CheckFailed) as caught:
        check_operator(WritesArray(), SAMPLES)
    report = caught.value.report
    assert report.failed == {"input_unchanged": "sample 'd/rows#0@0' was changed: ['labels'][0]: 0, then -100"}
    assert str(report) == str(caught.value)
    assert str(report).startswith("WritesArray fails 1 of 14 checks:\n  input_unchanged: sample 'd/rows#0@0' was")
    with pytest.raises(CheckFailed, match=r"expected a sample \(a dict\), got NoneType"):
        check_operator(NoResult(), SAMPLES)


def test_no_samples_are_an_error() -> None:
    with pytest.raises(RecipeError, match="expected at least one sample"):
        check_operator(GoodPairs(), [])


def test_a_sound_accumulator_passes() -> None:
    assert str(check_operator(GoodPairs(), SAMPLES)) == "GoodPairs passes 19 checks"


def rows() -> Iterator[dict[str, Any]]:
    """Chats with no, one or two pictures, and one whose picture is broken."""
    for number in range(9):
        images = [encode(photo(57 + 4 * number, 61), "PNG" if number % 2 else "JPEG") for _ in range(number % 3)]
        marks = [{"type": "image"} for _ in images]
        yield {
            "messages": [
                {"role": "user", "content": [*marks, {"type": "text", "text": "What is it? " * (1 + number % 4)}]},
                {"role": "assistant", "content": [{"type": "text", "text": f"A photo, number {number}."}]},
            ],
            "text": "Some text. " * (1 + number % 5),
            "images": images,
        }
    yield {"messages": [{"role": "user", "content": [{"type": "image"}]}], "text": "", "images": [b"no picture"]}


def passed(operator: Operator, samples: list[Any]) -> list[Any]:
    """What an operator makes of samples, without what it refuses."""
    found = run(operator, samples)
    kept = [
        item for result in found.results if not isinstance(result, Exception) for item in result if item is not None
    ]
    return [{"__key__": f"made#{place}@0", **item} for place, item in enumerate(kept)]


@pytest.fixture(scope="module")
def stages(qwen_tokenizer: Any) -> dict[str, tuple[Operator, list[Any]]]:
    """Every built-in operator with samples as they reach its place."""
    processor = Processor(
        "qwen2_5_vl", small_tokenizer(qwen_tokenizer.parent), chat_template=CHATML, max_pixels=56 * 56
    )
    read = [{"__key__": f"d/rows#{place}@0", **row} for place, row in enumerate(rows())]
    probe = make_operator("probe_images", processor, on_error="drop")
    chat = make_operator("tokenize_chat", processor)
    probed = passed(probe, read)
    tokenized = passed(chat, probed)
    pack = make_operator("pack", max_tokens=256, lookahead=4)
    packed = passed(pack, tokenized)
    batch = make_operator("batch", size=2)
    boxes = [sample | {"boxes": [[[1, 2, 30, 40]] for _ in sample["images"]]} for sample in probed]
    plain = [{"__key__": s["__key__"], "question": "What?", "answer": s["text"]} for s in read]
    return {
        "probe_images": (probe, read),
        "to_messages": (make_operator("to_messages"), plain),
        "filter_images": (make_operator("filter_images", min_side=60), probed),
        "place_boxes": (make_operator("place_boxes", processor=processor, scale=1000), boxes),
        "tokenize_chat": (chat, probed),
        "tokenize_text": (make_operator("tokenize_text", processor, max_tokens=6), read),
        "shuffle": (make_operator("shuffle", size=4), tokenized),
        "balance": (make_operator("balance", window=4, by="patches"), tokenized),
        "pack": (pack, tokenized),
        "batch": (batch, packed),
        "patchify": (make_operator("patchify", processor), passed(batch, packed)),
        "decode_images": (make_operator("decode_images"), probed),
    }


@pytest.mark.parametrize("name", sorted(registry.catalogue("operators")))
def test_a_built_in_operator_passes(name: str, stages: dict[str, tuple[Operator, list[Any]]]) -> None:
    operator, samples = stages[name]
    report = check_operator(operator, samples)
    assert len(report.checks) == (19 if isinstance(operator, Accumulate) else 14) + _splits(operator)


def _splits(operator: Operator) -> bool:
    many = isinstance(operator, zvl.Map) and type(operator).many is not zvl.Map.many
    return many or isinstance(operator, zvl.SplitMap)


def test_the_page_names_every_check(here: None) -> None:
    page = (Path(__file__).parent.parent / "docs/write-an-operator.md").read_text()
    names = [
        name
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    pure, accumulate = check_operator(GoodParts(), SAMPLES), check_operator(GoodPairs(), SAMPLES)
    assert sorted({check.name for report in (pure, accumulate) for check in report.checks}) == sorted(names)
    assert set(FAULTS.values()) == set(names) - {"resume"}, "what breaks a resume breaks another check first"
