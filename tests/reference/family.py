"""The tests that every model family must pass, against Hugging Face's own classes. A family is one subclass.

How to use it, in tests/families/test_NAME.py::

    from reference.family import FamilyTests

    class TestGemma3(FamilyTests):
        layout = "gemma3"                                   # the registered name
        settings = {"pan_and_scan": False}                  # layout fields for the pixel and id tests
        tiny_settings = {...}                               # the same for the tiny model; default: settings
        image_processors = ("Gemma3ImageProcessor", "Gemma3ImageProcessorPil")     # torchvision's, Pillow's
        image_tokens = ("<start_of_image>", ...)            # special tokens added to the Qwen tokenizer
        template = "gemma3.jinja"                           # a file of trl's chat_templates, or Jinja text
        model_tokens = {"image_token_id": "<image_soft_token>"}                    # config field -> token
        not_applicable = {"position_ids": "one axis, counts on by one"}            # cell -> reason; see CELLS
        def image_settings(self, layout): ...               # layout object -> arguments of the image processor classes
        def hf_processor(self, layout, image_processor, tokenizer, template): ...  # built by hand, no hub
        def model(self, layout, vocabulary, tokens, attention): ...                # tiny ...ForConditionalGeneration

More than one configuration of a family: more subclasses. Also to override where needed: `chats`, `max_aspect`,
`hf_images` (nested lists), `left_out` (outputs of the processor that the model does not take), `tiny_shapes`.
tests/families/test_table.py holds that every registered layout has every cell of CELLS.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch

from reference.chats import CHATS, count_images, turn
from reference.flash import as_flash_model, serve_flash
from reference.parts import load_tokenizer, randomised, template_text
from reference.pictures import cut, pictures
from reference.samples import differences, packed, planned, stacked, to_pillow
from reference.torchvision_cpu import default_image_processor
from zvl import registry
from zvl.images import pixels as kernels
from zvl.operator import Sample
from zvl.processor import Isolation, Processor, ResizeName
from zvl.protocols import Layout, Pixels
from zvl_demo.tokenizer import small_tokenizer
from zvl_operators.probe_images import plan_image

__all__ = ["CELLS", "FamilyTests", "Pair"]

CELLS: Mapping[str, str] = {
    "pixels, default backend": "test_pixels_of_the_default_backend",
    "pixels, Pillow backend": "test_pixels_of_the_pillow_backend",
    "grids": "test_grids",
    "input_ids": "test_input_ids",
    "position_ids": "test_position_ids",
    "model_inputs": "test_model_inputs",
    "packed forward": "test_packed_forward",
    "flash attention": "test_packed_forward_of_flash_attention",
    "leaks are seen": "test_a_leak_would_be_seen",
}
"""What must hold for a family, and the test that shows it."""

PIXELS = 1e-6
"""Bound on normalised pixels. A step of uint8 is above 0.01 there, so within it the bytes are equal."""
LOGITS = 1e-5
"""Bound on logits. Weights are float64, but the models' norms and rotations run in float32; logits are of order 1."""
LEAK = 1e-3
"""What a sample that sees its neighbour changes at least."""
TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "mm_token_type_ids"})
"""What a Hugging Face processor gives that is no pixel and no geometry."""
OUR_TEXT_INPUTS = frozenset({"input_ids", "labels", "position_ids", "attention_mask", "use_cache"})


class Pair(NamedTuple):
    """The same processor twice."""

    ours: Processor
    theirs: Any


class Forward(NamedTuple):
    """Three samples, alone as Hugging Face processes them and as ours, and the ids in a small vocabulary."""

    pair: Pair
    samples: Sequence[Sample]
    theirs: Sequence[Mapping[str, torch.Tensor]]
    vocabulary: torch.Tensor
    """Sorted ids; a token's place in it is its id for the tiny model."""

    def small(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids of the small vocabulary; what is not in it is padding, id 0."""
        place = torch.searchsorted(self.vocabulary, ids).clamp(max=len(self.vocabulary) - 1)
        return torch.where(self.vocabulary[place] == ids, place, 0)


class FamilyTests:
    """Base of the families' test classes; the module's docstring says what a subclass gives."""

    layout: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}
    tiny_settings: ClassVar[Mapping[str, Any] | None] = None
    image_processors: ClassVar[tuple[str, str]]
    image_tokens: ClassVar[Sequence[str]] = ()
    template: ClassVar[str]
    model_tokens: ClassVar[Mapping[str, str]] = {}
    not_applicable: ClassVar[Mapping[str, str]] = {}
    left_out: ClassVar[frozenset[str]] = frozenset()
    chats: ClassVar[Mapping[str, Sequence[Any]]] = CHATS
    max_aspect: ClassVar[int] = 200
    whole_vocabulary: ClassVar[bool] = False
    """All of Qwen's tokens, which take two seconds to load, instead of the first 2,048."""
    tiny_shapes: ClassVar[Sequence[tuple[int, int]]] = ((97, 61), (150, 43), (56, 120))
    """Width and height in pixels of the pictures that the tiny model sees."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for cell in cls.not_applicable:
            setattr(cls, CELLS[cell], None)

    # What a family gives.

    def image_settings(self, layout: Any) -> dict[str, Any]:
        """The arguments of the image processor classes that mean the same as the layout's fields."""
        raise NotImplementedError

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        """The family's Hugging Face processor, from its class."""
        raise NotImplementedError

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, Any], attention: str) -> Any:
        """A tiny model of the family; `tokens` are the config fields of `model_tokens` in its small vocabulary."""
        raise NotImplementedError

    def hf_images(self, images: Sequence[Any]) -> Any:
        """One sample's pictures as the image processor wants them."""
        return list(images)

    # What is made of it.

    def make_layout(self, settings: Mapping[str, Any]) -> Layout:
        """The layout with those fields."""
        made: Layout = registry.load("layouts", self.layout)(**settings)
        return made

    def image_processor(self, layout: Layout, resize: ResizeName) -> Any:
        """Hugging Face's image processor of that backend."""
        import transformers

        default, pillow = self.image_processors
        found = default_image_processor(default) if resize == "torch" else getattr(transformers, pillow)
        return found(**self.image_settings(layout))

    def pair(self, folder: Path, layout: Layout, resize: ResizeName = "torch") -> Pair:
        """zvl's processor and Hugging Face's, of one tokenizer and one template."""
        tokenizers = folder if self.whole_vocabulary else small_tokenizer(folder.parent)
        tokenizer = load_tokenizer(tokenizers, tuple(self.image_tokens))
        template = template_text(folder, self.template)
        theirs = self.hf_processor(layout, self.image_processor(layout, resize), tokenizer, template)
        return Pair(Processor(layout, tokenizer, chat_template=template, resize=resize), theirs)

    def process(self, pair: Pair, chat: Sequence[Any], images: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        """What the Hugging Face processor makes of one chat."""
        text = pair.theirs.apply_chat_template(list(chat), tokenize=False)
        given = self.hf_images(to_pillow(images)) if images else None
        out = pair.theirs(text=[text], images=given, return_tensors="pt")
        return {name: value for name, value in out.items() if name not in self.left_out}

    def our_pixels(self, layout: Layout, images: Sequence[Pixels], resize: ResizeName) -> dict[str, torch.Tensor]:
        """Pixels and geometry as zvl gives them to the model."""
        plans = [plan_image(layout, pixels.shape[1], pixels.shape[0], len(images)) for pixels in images]
        rows = np.empty((sum(plan.rows for plan in plans), *layout.row_shape), dtype=np.uint8)
        kernel = functools.partial(kernels.resize, backend=resize)
        first = 0
        for pixels, plan in zip(images, plans, strict=True):
            layout.write(pixels, plan, kernel, rows[first : first + plan.rows])
            first += plan.rows
        batch = {"pixel_values": torch.from_numpy(rows)}
        batch |= {name: torch.from_numpy(value) for name, value in layout.geometry(plans).items()}
        return layout.pixel_inputs(batch, None, None)

    def check_pixels(self, photos: Mapping[str, bytes], resize: ResizeName) -> None:
        """Every picture alone, then some of them in one call."""
        layout = self.make_layout(self.settings)
        reference = self.image_processor(layout, resize)
        cases = {name: [pixels] for name, pixels in pictures(photos, self.max_aspect).items()}
        cases["three at once"] = [cases[name][0] for name in ("web", "tiny", "portrait")]
        failed = {}
        for name, images in cases.items():
            theirs = dict(reference(images=self.hf_images(to_pillow(images)), return_tensors="pt"))
            theirs = {key: value for key, value in theirs.items() if key not in self.left_out}
            failed[name] = differences(self.our_pixels(layout, images, resize), theirs, PIXELS)
        assert {name: found for name, found in failed.items() if found} == {}

    def chat_images(self, photos: Mapping[str, bytes], count: int, seed: int) -> list[Pixels]:
        """Pictures of `count` different sizes."""
        rng = random.Random(seed)
        names = sorted(photos)
        return [cut(photos[rng.choice(names)], rng.randint(30, 500), rng.randint(30, 500)) for _ in range(count)]

    # The cells.

    def test_pixels_of_the_default_backend(self, photos: dict[str, bytes]) -> None:
        self.check_pixels(photos, "torch")

    def test_pixels_of_the_pillow_backend(self, photos: dict[str, bytes]) -> None:
        self.check_pixels(photos, "pillow")

    def test_grids(self) -> None:
        """Geometry alone, over many more sizes; and as many features as placeholders."""
        layout = self.make_layout(self.settings)
        reference = self.image_processor(layout, "pillow")
        rng = random.Random(11)
        sizes = [(rng.randint(1, 900), rng.randint(1, 900)) for _ in range(40)]
        sizes = [(w, h) for w, h in sizes if max(w, h) <= self.max_aspect * min(w, h)]
        failed = {}
        for width, height in sizes:
            images = [np.zeros((height, width, 3), np.uint8)]
            theirs = reference(images=self.hf_images(to_pillow(images)), return_tensors="pt")
            plan = layout.plan(width, height)
            geometry = layout.geometry([plan])
            assert layout.features({**geometry, "image_rows": np.array([plan.rows])}).tolist() == [plan.tokens]
            ours = {name: torch.from_numpy(value) for name, value in geometry.items()}
            failed[width, height] = differences(ours, {name: theirs[name] for name in ours}, 0)
        assert {size: found for size, found in failed.items() if found} == {}

    def test_input_ids(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        pair = self.pair(qwen_tokenizer, self.make_layout(self.settings))
        assert self.chats
        for number, (name, chat) in enumerate(self.chats.items()):
            images = self.chat_images(photos, count_images(chat), number)
            theirs = self.process(pair, chat, images)["input_ids"][0]
            ours = planned(pair.ours, name, chat, images)["input_ids"]
            assert ours.tolist() == theirs.tolist(), name

    def test_model_inputs(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """A batch of one unpacked sample gives the model what the Hugging Face processor gives it."""
        for resize in ("torch", "pillow"):
            pair = self.pair(qwen_tokenizer, self.make_layout(self.settings), resize)
            for number, (name, chat) in enumerate(self.chats.items()):
                images = self.chat_images(photos, count_images(chat), number)
                batch = stacked(pair.ours, [planned(pair.ours, name, chat, images)])
                ours = pair.ours.model_inputs(batch)
                theirs = self.process(pair, chat, images)
                assert torch.equal(ours["input_ids"], theirs["input_ids"]), name
                ours = {key: value for key, value in ours.items() if key not in OUR_TEXT_INPUTS}
                theirs = {key: value for key, value in theirs.items() if key not in TEXT_INPUTS}
                assert differences(ours, theirs, PIXELS) == [], (resize, name)

    def test_position_ids(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """Each sample's positions are those of the model's `get_rope_index`, alone and inside a pack."""
        forward = self.forward(qwen_tokenizer, photos)
        model = self.tiny_model(forward, "sdpa").model
        expected = {}
        for sample, theirs in zip(forward.samples, forward.theirs, strict=True):
            ids = forward.small(theirs["input_ids"])
            geometry = {name: value for name, value in theirs.items() if name not in TEXT_INPUTS | {"pixel_values"}}
            kinds = theirs["mm_token_type_ids"]
            positions, _ = model.get_rope_index(ids, mm_token_type_ids=kinds, **geometry)
            expected[sample["__key__"]] = positions[:, 0].tolist()
            assert sample["position_ids"].tolist() == expected[sample["__key__"]]
        (row,) = packed(forward.samples, sum(len(sample["input_ids"]) for sample in forward.samples) + 5)
        assert [segment.key for segment in row["segments"]] == list(expected)
        for segment in row["segments"]:
            assert row["position_ids"][:, segment.start : segment.stop].tolist() == expected[segment.key]

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    @pytest.mark.parametrize("isolation", ["positions", "mask", "varlen"])
    def test_packed_forward(
        self, qwen_tokenizer: Path, photos: dict[str, bytes], isolation: Isolation, attention: str
    ) -> None:
        """Logits of a packed batch are those of the samples alone, as Hugging Face processes them; one row and two."""
        forward = self.forward(qwen_tokenizer, photos)
        lengths = [len(sample["input_ids"]) for sample in forward.samples]
        for max_tokens, rows in ((sum(lengths) + 7, 1), (sum(lengths) - min(lengths) + 3, 2)):
            samples = [*forward.samples[1:], forward.samples[0]]
            batch = stacked(forward.pair.ours, packed(samples, max_tokens))
            assert batch["input_ids"].shape == (rows, max_tokens)
            inputs = forward.pair.ours.model_inputs(batch, dtype=torch.float64, isolation=isolation)
            assert self.worst(forward, batch, inputs, attention) < LOGITS

    def test_packed_forward_of_flash_attention(
        self, qwen_tokenizer: Path, photos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """isolation="varlen" where it matters: in transformers' flash path, kernels replaced."""
        forward = self.forward(qwen_tokenizer, photos)
        lengths = [len(sample["input_ids"]) for sample in forward.samples]
        calls = serve_flash(monkeypatch)
        for max_tokens in (sum(lengths) + 7, sum(lengths) - min(lengths) + 3):
            batch = stacked(forward.pair.ours, packed(forward.samples, max_tokens))
            inputs = forward.pair.ours.model_inputs(batch, dtype=torch.float64, isolation="varlen")
            assert self.worst(forward, batch, inputs, "flash") < LOGITS
        assert "varlen" in calls

    def test_a_leak_would_be_seen(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """Guards the test above: with positions that run on through the pack, the samples see each other."""
        forward = self.forward(qwen_tokenizer, photos)
        length = sum(len(sample["input_ids"]) for sample in forward.samples)
        batch = stacked(forward.pair.ours, packed(forward.samples, length))
        inputs = forward.pair.ours.model_inputs(batch, dtype=torch.float64)
        inputs["position_ids"] = torch.arange(length).expand_as(inputs["position_ids"])
        assert self.worst(forward, batch, inputs, "sdpa") > LEAK

    # The tiny model.

    def forward(self, folder: Path, photos: Mapping[str, bytes]) -> Forward:
        """Samples with no image, one and two, made once a class."""
        if "_forward" not in type(self).__dict__:
            type(self)._forward = self.make_forward(folder, photos)
        return type(self)._forward

    _forward: ClassVar[Forward]

    def make_forward(self, folder: Path, photos: Mapping[str, bytes]) -> Forward:
        pair = self.pair(folder, self.make_layout(self.settings if self.tiny_settings is None else self.tiny_settings))
        cuts = [cut(photos[name], *size) for name, size in zip(sorted(photos), self.tiny_shapes, strict=False)]
        contents = [(self.tiny_chats()[0], []), (self.tiny_chats()[1], cuts[:1]), (self.tiny_chats()[2], cuts[1:3])]
        samples = [planned(pair.ours, f"s{n}", chat, images) for n, (chat, images) in enumerate(contents)]
        theirs = [self.process(pair, chat, images) for chat, images in contents]
        special = [pair.ours.token_id(token) for token in self.model_tokens.values()]
        ids = np.unique(np.concatenate([*(sample["input_ids"] for sample in samples), special]))
        # Id -1 comes first: id 0 of the small vocabulary is padding, and no token's.
        return Forward(pair, samples, theirs, torch.from_numpy(np.concatenate([[-1], ids])))

    def tiny_chats(self) -> Sequence[Sequence[Any]]:
        """Chats with no image, one and two."""
        return (
            [turn("user", "Two and two?"), turn("assistant", "Four.")],
            [turn("user", "See\n", None, "\nthis."), turn("assistant", "A photo.")],
            [turn("user", None, " beside ", None), turn("assistant", "Two.")],
        )

    def tiny_model(self, forward: Forward, attention: str) -> Any:
        """The family's model with random weights in float64, the same for each attention."""
        cache = type(self).__dict__.get("_models")
        if cache is None:
            cache = type(self)._models = {}
        if attention not in cache:
            ours = forward.pair.ours
            tokens = {
                field: int(forward.small(torch.tensor(ours.token_id(token))))
                for field, token in self.model_tokens.items()
            }
            model = self.model(ours.layout, len(forward.vocabulary), tokens, attention).to(torch.float64).eval()
            cache[attention] = randomised(model)
        return cache[attention]

    _models: ClassVar[dict[str, Any]]

    def alone(self, forward: Forward, attention: str) -> dict[str, torch.Tensor]:
        """Key to logits (n, vocabulary) of each sample by itself, from Hugging Face's own inputs."""
        logits = {}
        for sample, theirs in zip(forward.samples, forward.theirs, strict=True):
            inputs = {k: v.double() if v.is_floating_point() else v for k, v in theirs.items()}
            inputs["input_ids"] = forward.small(inputs["input_ids"])
            with torch.no_grad():
                output = self.tiny_model(forward, attention)(**inputs, use_cache=False)
            logits[sample["__key__"]] = output.logits[0]
        return logits

    def worst(self, forward: Forward, batch: Any, inputs: dict[str, Any], attention: str) -> float:
        """The largest difference between the logits of a pack and those of its samples alone."""
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        inputs["input_ids"] = forward.small(inputs["input_ids"])
        reference = "sdpa" if attention == "flash" else attention
        model = self.tiny_model(forward, reference)
        with torch.no_grad():
            logits = (as_flash_model(model) if attention == "flash" else model)(**inputs).logits
        logits = logits.reshape(*batch["input_ids"].shape, -1)
        alone = self.alone(forward, reference)
        found = {
            segment.key: float((logits[row, segment.start : segment.stop] - alone[segment.key]).abs().max())
            for row, segments in enumerate(batch.segments)
            for segment in segments
        }
        assert found.keys() == alone.keys()
        return max(found.values())
