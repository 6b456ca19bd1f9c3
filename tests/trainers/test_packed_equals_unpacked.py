"""A packed row trains like its samples one by one: logits, loss and gradients, for every family with text.

Tiny models with random weights, in float64 all the way through (`reference.doubles`). Each sample alone is what the
family's Hugging Face processor makes of it, under the loss of the Hugging Face model. `pytest -rP` prints the table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from reference.doubles import Doubles
from reference.families import families
from reference.family import FamilyTests, Forward
from reference.flash import as_flash_model, serve_flash, with_attention
from reference.samples import packed, stacked
from zvl import trainers
from zvl.batch import Batch
from zvl.processor import Isolation
from zvl_demo.tokenizer import small_tokenizer

BOUND = 1e-10
"""On logits and loss, which are of order 1, and on gradients, relative to the largest entry of the same parameter.
Seen: 1e-14 on the first two, 3e-11 on gradients that would be 0 but for rounding, 1e-14 on all others."""
FAULT = 1e-6
"""What a mistake changes at least in each of the three, 10,000 bounds. Seen: 1e-3 and more, but for losses, in which
the tokens' changes may cancel: 4e-5."""
ENCODERS = {"siglip2"}
"""Layouts without text, so without packs."""

# GLM-4V's and PaliGemma's processors call numpy.array on torch tensors, which torch answers the old way.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

FAMILIES = {layout: classes[0] for layout, classes in families().items() if layout not in ENCODERS}
ASKED_FOR = {"qwen2_5_vl", "qwen3_vl", "smolvlm", "idefics3", "llava_next", "internvl", "gemma3", "pixtral"}
TWO_WAY = {"gemma3", "paligemma"}
"""Families without flash attention, which cannot look forward within a block."""


class Outcome(NamedTuple):
    """What training on some samples gives."""

    logits: Mapping[str, torch.Tensor]
    """Key of each sample to its logits (n, vocabulary)."""
    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor]
    """Name of each parameter that the loss reaches."""


class Case:
    """One family's tiny model, its samples, and what it gives for them one by one."""

    def __init__(self, tests: FamilyTests, folder: Path, photos: Mapping[str, bytes]) -> None:
        self.tests = tests
        self.forward: Forward = tests.forward(folder, photos)
        self.processor = self.forward.pair.ours
        self.lengths = [len(sample["input_ids"]) for sample in self.forward.samples]
        self.total = sum(int((sample["labels"] != -100).sum()) for sample in self.forward.samples)
        self.model: Callable[[str], Any] = functools.partial(tests.tiny_model, self.forward)

    def batch(self, rows: int) -> Batch:
        """The samples in one row, the last first and padding behind, or in two."""
        max_tokens = sum(self.lengths) + 7 if rows == 1 else sum(self.lengths) - min(self.lengths) + 3
        made = packed([*self.forward.samples[1:], self.forward.samples[0]], max_tokens)
        assert len(made) == rows
        return stacked(self.processor, made)

    def inputs(self, batch: Batch, isolation: Isolation = "positions") -> dict[str, Any]:
        """zvl's arguments for the model, without labels."""
        inputs = self.processor.model_inputs(batch, dtype=torch.float64, isolation=isolation)
        inputs["input_ids"] = self.forward.small(inputs["input_ids"])
        return {name: value for name, value in inputs.items() if name != "labels"}

    def small_labels(self, labels: torch.Tensor) -> torch.Tensor:
        return torch.where(labels == -100, -100, self.forward.small(labels))

    @functools.cached_property
    def alone(self) -> Outcome:
        """Sample by sample, Hugging Face's processing, masks and loss; gradients add up."""
        model = self.model("sdpa").train()
        model.zero_grad(set_to_none=True)
        logits, total = {}, torch.zeros((), dtype=torch.float64)
        for sample, theirs in zip(self.forward.samples, self.forward.theirs, strict=True):
            inputs = self.theirs(sample, theirs)
            labels = self.small_labels(torch.from_numpy(sample["labels"]))[None]
            with Doubles():
                output = model(**inputs, labels=labels, use_cache=False, num_items_in_batch=self.total)
                output.loss.backward()
            logits[sample["__key__"]] = output.logits[0].detach()
            total += output.loss.detach()
        return Outcome(logits, total, gradients(model))

    def theirs(self, sample: Any, theirs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the Hugging Face processor makes of a sample. Normalising in another order differs by 1e-7, which would
        hide everything behind it, so the pixels are replaced by zvl's, once they are known to agree."""
        inputs = {name: value.double() if value.is_floating_point() else value for name, value in theirs.items()}
        inputs["input_ids"] = self.forward.small(inputs["input_ids"])
        if "pixel_values" in inputs:
            ours = self.inputs(stacked(self.processor, [sample]))["pixel_values"]
            assert float((ours - inputs["pixel_values"]).abs().max()) < 1e-6
            inputs["pixel_values"] = ours
        return inputs

    def trained(self, model: Any, batch: Batch, inputs: Mapping[str, Any]) -> Outcome:
        """The model on a packed batch, under zvl's loss."""
        model.train().zero_grad(set_to_none=True)
        with Doubles():
            found = model(**inputs).logits
            loss = trainers.loss(found, {"labels": self.small_labels(batch["labels"])}, batch["num_loss_tokens"])
            loss.backward()  # type: ignore[no-untyped-call]
        return Outcome(self.by_sample(batch, found.detach()), loss.detach(), gradients(model))

    def by_sample(self, batch: Batch, logits: torch.Tensor) -> dict[str, torch.Tensor]:
        """The logits of a batch cut into its samples'."""
        logits = logits.reshape(*batch["input_ids"].shape, -1)
        return {
            segment.key: logits[row, segment.start : segment.stop]
            for row, segments in enumerate(batch.segments)
            for segment in segments
        }


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Those of the last backward passes; the model has none afterwards."""
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def worst_of(found: Outcome, alone: Outcome) -> tuple[float, float, float]:
    """The largest difference of logits, of the loss, and of gradients relative to the parameter's largest."""
    assert found.logits.keys() == alone.logits.keys()
    assert found.gradients.keys() == alone.gradients.keys()
    assert len(found.gradients) > 40
    logits = max(float((found.logits[key] - alone.logits[key]).abs().max()) for key in alone.logits)
    # What is smaller than this is rounding, of a gradient that is 0: of a key's bias, say, which softmax cancels.
    least = 1e-6 * max(float(value.abs().max()) for value in alone.gradients.values())
    relative = [
        float((found.gradients[name] - value).abs().max()) / max(float(value.abs().max()), least)
        for name, value in alone.gradients.items()
    ]
    return logits, abs(float(found.loss - alone.loss)), max(relative)


CASES: dict[str, Case] = {}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """So small are these models that a second thread only waits, on a busy machine long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def case(layout: str, qwen_tokenizer: Path, photos: dict[str, bytes]) -> Case:
    """Made once a family."""
    if layout not in CASES:
        CASES[layout] = Case(FAMILIES[layout](), small_tokenizer(qwen_tokenizer.parent), photos)
    return CASES[layout]


def masks(case: Case, batch: Batch, make: Callable[..., Any]) -> Any:
    """What `make` (attention_mask, flex_block_mask) gives for the model; for Gemma 3 also that of its local layers."""
    full = make(batch, case.processor)
    if case.tests.layout != "gemma3":
        return full
    local = make(batch, case.processor, window=case.processor.layout.sliding_window)  # type: ignore[attr-defined]
    return {"full_attention": full, "sliding_attention": local}


added = functools.partial(trainers.attention_mask, dtype=torch.float64)
each_family = pytest.mark.parametrize("layout", sorted(FAMILIES))


@each_family
@pytest.mark.parametrize("mode", ["positions", "mask", "bool mask", "added mask, eager"])
def test_packed_equals_unpacked(mode: str, layout: str, case: Case) -> None:
    for rows in (1, 2):
        batch = case.batch(rows)
        assert int(batch["num_loss_tokens"]) == case.total
        inputs = case.inputs(batch, "mask" if mode == "mask" else "positions")
        if mode == "bool mask":
            inputs["attention_mask"] = masks(case, batch, trainers.attention_mask)
        if mode == "added mask, eager":
            inputs["attention_mask"] = masks(case, batch, added)
        model = case.model("eager" if mode.endswith("eager") else "sdpa")
        found = worst_of(case.trained(model, batch, inputs), case.alone)
        print(f"{layout:15} {mode:18} {rows} rows: logits {found[0]:.0e} loss {found[1]:.0e} gradients {found[2]:.0e}")
        assert max(found) < BOUND


@pytest.mark.parametrize("layout", sorted(FAMILIES.keys() - TWO_WAY))
def test_packed_equals_unpacked_with_flash_attention(layout: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' own dispatch with borders, the kernels written out in plain torch: this machine has no others."""
    calls = serve_flash(monkeypatch)
    model = as_flash_model(case.model("sdpa"))
    for rows in (1, 2):
        batch = case.batch(rows)
        assert max(worst_of(case.trained(model, batch, case.inputs(batch, "varlen")), case.alone)) < BOUND
    assert "varlen" in calls


# It is not compiled here, which takes minutes; transformers would do so at the first call.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@each_family
def test_packed_equals_unpacked_with_flex_attention(layout: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits alone: on the CPU FlexAttention has no backward."""
    from transformers.integrations import flex_attention as integration

    monkeypatch.setattr(integration, "WrappedFlexAttention", lambda training: lambda: flex_attention)
    model = with_attention(case.model("sdpa"), "flex_attention", ("language_model", "text_model"))
    for rows in (1, 2):
        batch = case.batch(rows)
        inputs = case.inputs(batch) | {"attention_mask": masks(case, batch, trainers.flex_block_mask)}
        with torch.no_grad(), Doubles():
            logits = case.by_sample(batch, model(**inputs).logits)
        worst = max(float((logits[key] - value).abs().max()) for key, value in case.alone.logits.items())
        assert worst < BOUND


@each_family
def test_the_models_own_loss_is_the_same(layout: str, case: Case) -> None:
    batch = case.batch(1)
    labels = case.small_labels(batch["labels"])
    inputs = case.inputs(batch)
    with torch.no_grad(), Doubles():
        output = case.model("sdpa")(**inputs, labels=labels, num_items_in_batch=batch["num_loss_tokens"])
    assert abs(float(output.loss - case.alone.loss)) < BOUND


# What would be wrong, as small as it can be: the tests above see each in logits, loss and gradients.


def aim(batch: Batch) -> tuple[int, int, int]:
    """In the first row's second sample: the token that predicts the first with loss; the end of the sample before."""
    before, segment = batch.segments[0][:2]
    answers = (batch["labels"][0, segment.start : segment.stop] != -100).nonzero()
    return 0, segment.start + int(answers[0]) - 1, before.stop - 1


def one_position_off(case: Case, batch: Batch, inputs: dict[str, Any]) -> None:
    row, token, _ = aim(batch)
    positions = inputs["position_ids"].clone()
    positions[..., row, token] += 1
    inputs["position_ids"] = positions


def one_token_of_the_neighbour(case: Case, batch: Batch, inputs: dict[str, Any]) -> None:
    row, token, neighbour = aim(batch)
    found = inputs["attention_mask"]
    for mask in found.values() if isinstance(found, dict) else (found,):
        assert mask[row, 0, token, neighbour] == -torch.inf
        mask[row, 0, token, neighbour] = 0.0


def one_token_forgotten(case: Case, batch: Batch, inputs: dict[str, Any]) -> None:
    row, token, _ = aim(batch)
    found = inputs["attention_mask"]
    for mask in found.values() if isinstance(found, dict) else (found,):
        assert mask[row, 0, token, token - 1] == 0.0
        mask[row, 0, token, token - 1] = -torch.inf


def causal_over_the_row(case: Case, batch: Batch, inputs: dict[str, Any]) -> None:
    one = torch.where(batch["segment_ids"] > 0, 1, 0)
    inputs["attention_mask"] = added({"segment_ids": one})


def blocks_left_out(case: Case, batch: Batch, inputs: dict[str, Any]) -> None:
    inputs["attention_mask"] = added(batch)


FAULTS = [one_position_off, one_token_of_the_neighbour, one_token_forgotten, causal_over_the_row]


@pytest.mark.parametrize(
    ("layout", "fault"),
    [(layout, fault) for layout in sorted(FAMILIES) for fault in FAULTS]
    + [(layout, blocks_left_out) for layout in sorted(TWO_WAY)],
)
def test_a_mistake_would_be_seen(layout: str, fault: Callable[..., None], case: Case) -> None:
    batch = case.batch(1)
    inputs = case.inputs(batch) | {"attention_mask": masks(case, batch, added)}
    fault(case, batch, inputs)
    found = worst_of(case.trained(case.model("sdpa"), batch, inputs), case.alone)
    print(f"{layout:15} {fault.__name__:28}: logits {found[0]:.0e} loss {found[1]:.0e} gradients {found[2]:.0e}")
    assert min(found) > FAULT


def test_no_family_is_left_out() -> None:
    from zvl import registry

    assert FAMILIES.keys() == set(registry.catalogue("layouts")) - ENCODERS
    assert FAMILIES.keys() >= ASKED_FOR
    assert all(not registry.load("layouts", layout).image_token for layout in ENCODERS)


def test_the_page_has_a_row_for_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| \d", page, flags=re.MULTILINE) == sorted(FAMILIES)
