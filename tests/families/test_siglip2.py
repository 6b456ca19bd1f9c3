"""SigLIP 2 (NaFlex) against transformers. An encoder: what is about tokens cannot exist."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from reference.chats import turn
from reference.family import LEAK, LOGITS, PIXELS, FamilyTests
from reference.llava import TEMPLATE
from reference.parts import load_tokenizer, randomised
from reference.pictures import cut, png
from reference.samples import differences, planned, stacked, to_pillow
from zvl.batch import Batch
from zvl.errors import BadData, RecipeError
from zvl.layouts.siglip2 import Siglip2, patch_grid
from zvl.processor import Processor, ResizeName
from zvl.protocols import Pixels
from zvl_operators.probe_images import ProbeImages
from zvl_operators.tokenize_text import TokenizeText

SHAPES = ((97, 61), (150, 43), (56, 120))


class TestSiglip2(FamilyTests):
    layout = "siglip2"
    tiny_settings: ClassVar[Mapping[str, Any]] = {"max_num_patches": 20, "patch_size": 4}
    image_processors = ("Siglip2ImageProcessor", "Siglip2ImageProcessorPil")
    template = ""
    not_applicable: ClassVar[Mapping[str, str]] = {
        "input_ids": "an encoder: no token stands for an image",
        "position_ids": "an encoder: its text tower counts on by one, without images",
        "flash attention": "images are rows of their own, kept apart by no borders and no positions",
    }

    def image_settings(self, layout: Any) -> dict[str, Any]:
        filters = {"bilinear": 2, "lanczos": 1}
        return {
            "max_num_patches": layout.max_num_patches,
            "patch_size": layout.patch_size,
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
            "resample": filters[layout.resample],
        }

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Siglip2Processor

        processor = Siglip2Processor(image_processor, tokenizer)
        # The class overrides the image processor's settings by its own; as if given with each call:
        processor.images_kwargs = {name: getattr(layout, name) for name in ("max_num_patches", "patch_size")}
        return processor

    def test_model_inputs(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """A batch of images gives the model what the Hugging Face processor gives it."""
        layout = self.make_layout(self.settings)
        tokenizer = load_tokenizer(qwen_tokenizer, ())
        backends: Sequence[ResizeName] = ("torch", "pillow")
        for resize in backends:
            ours = Processor(layout, tokenizer, resize=resize)
            theirs = self.hf_processor(layout, self.image_processor(layout, resize), tokenizer, "")
            for count in (1, 2, 5):
                images = self.chat_images(photos, count, count)
                expected = dict(theirs(images=to_pillow(images), return_tensors="pt"))
                found = ours.model_inputs(image_batch(ours, images))
                assert differences(found, expected, PIXELS) == [], (resize, count)
            assert ours.model_inputs(image_batch(ours, [], rows=2)) == {}

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_packed_forward(self, qwen_tokenizer: Path, photos: dict[str, bytes], attention: str) -> None:  # type: ignore[override]
        """Features and pooled outputs of images of one batch are those of each alone, as transformers processes it."""
        inputs, alone = self.batch_and_alone(qwen_tokenizer, photos, attention)
        model = self.encoder(attention)
        with torch.no_grad():
            out = model(**inputs)
        assert inputs["pixel_values"].shape == (3, 20, 48)
        for number, one in enumerate(alone):
            count = int(inputs["spatial_shapes"][number].prod())
            apart = (out.last_hidden_state[number, :count] - one.last_hidden_state[0, :count]).abs().max()
            assert max(float(apart), float((out.pooler_output[number] - one.pooler_output[0]).abs().max())) < LOGITS

    def test_a_leak_would_be_seen(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """Guards the test above: without the mask, and with another image's shape, the outcome is another."""
        inputs, alone = self.batch_and_alone(qwen_tokenizer, photos, "sdpa")
        assert not bool(inputs["pixel_attention_mask"].all())
        changes = (
            {"pixel_attention_mask": torch.ones_like(inputs["pixel_attention_mask"])},
            {"spatial_shapes": inputs["spatial_shapes"].roll(1, dims=0)},
        )
        for change in changes:
            with torch.no_grad():
                out = self.encoder("sdpa")(**inputs | change)
            pooled = torch.cat([one.pooler_output for one in alone])
            assert float((out.pooler_output - pooled).abs().max()) > LEAK

    def encoder(self, attention: str) -> Any:
        from transformers import Siglip2VisionConfig, Siglip2VisionModel

        tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = Siglip2VisionConfig(**tower, patch_size=4, num_patches=16, attn_implementation=attention)
        return randomised(Siglip2VisionModel(config).to(torch.float64).eval())

    def batch_and_alone(
        self, folder: Path, photos: Mapping[str, bytes], attention: str
    ) -> tuple[dict[str, torch.Tensor], list[Any]]:
        """zvl's inputs of three images, and what the model makes of each as transformers processes it."""
        layout = self.make_layout(self.tiny_settings or {})
        processor = Processor(layout, load_tokenizer(folder, ()))
        images = [cut(photos[name], *size) for name, size in zip(sorted(photos), SHAPES, strict=False)]
        inputs = processor.model_inputs(image_batch(processor, images), dtype=torch.float64)
        reference, model = self.image_processor(layout, "torch"), self.encoder(attention)
        alone = []
        for image in to_pillow(images):
            theirs = dict(reference(images=[image], return_tensors="pt"))
            with torch.no_grad():
                alone.append(model(**theirs | {"pixel_values": theirs["pixel_values"].double()}))
        return inputs, alone


class TestSiglip2Other(TestSiglip2):
    """Other patches, colours and filter."""

    settings: ClassVar[Mapping[str, Any]] = {
        "max_num_patches": 77,
        "patch_size": 14,
        "image_mean": (0.1, 0.2, 0.3),
        "image_std": (0.5, 0.6, 0.7),
        "resample": "lanczos",
    }


def image_batch(processor: Processor, images: Sequence[Pixels], rows: int = 1) -> Batch:
    """A batch of samples that hold images alone."""
    probe = ProbeImages(processor=processor)
    samples = [{"__key__": f"k{n}", "images": [png(image)]} for n, image in enumerate(images)]
    samples = samples or [{"__key__": f"k{n}", "images": []} for n in range(rows)]
    return stacked(processor, [probe(sample) for sample in samples])


def test_grids_equal_transformers() -> None:
    from transformers.models.siglip2 import image_processing_pil_siglip2 as theirs

    rng = random.Random(5)
    sizes = [(rng.randint(1, 60), rng.randint(1, 60)) for _ in range(200)]
    sizes += [(16 * rng.randint(1, 60), 16 * rng.randint(1, 60)) for _ in range(200)]
    sizes += [(rng.randint(1, 6000), rng.randint(1, 6000)) for _ in range(600)]
    sizes += [(1, 10_000), (50_000, 1), (30_000, 30_000)]
    for side, most in ((16, 256), (14, 1024), (16, 1), (4, 77)):
        for width, height in sizes:
            high, wide = theirs.get_image_size_for_max_num_patches(height, width, side, most)
            assert patch_grid(width, height, side, most) == (high // side, wide // side), (width, height)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_pixel_inputs_compile_without_a_break(dtype: Any, small_tokenizer: Path) -> None:
    layout = Siglip2(max_num_patches=9)
    processor = Processor(layout, load_tokenizer(small_tokenizer, ()))
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: layout.pixel_inputs(batch, "cpu", dtype), fullgraph=True, backend="eager")
    for sizes in ([(97, 61)], [(40, 50), (3, 200)]):
        batch = dict(image_batch(processor, [np.full((h, w, 3), 9, np.uint8) for w, h in sizes]))
        plain, traced = layout.pixel_inputs(batch, "cpu", dtype), compiled(batch)
        assert list(plain) == list(traced) == ["pixel_values", "pixel_attention_mask", "spatial_shapes"]
        assert all(torch.equal(plain[name], traced[name]) for name in plain)
        assert plain["pixel_values"].dtype == (dtype or torch.float32)


def test_texts_have_no_place_for_an_image(small_tokenizer: Path) -> None:
    processor = Processor("siglip2", load_tokenizer(small_tokenizer, ()), chat_template=TEMPLATE)
    sentence = "no token stands for an image in layout siglip2, which is an encoder's: leave tokenize_chat and token"
    with pytest.raises(RecipeError, match=sentence):
        planned(processor, "k", [turn("user", None), turn("assistant", "Yes.")], [np.zeros((9, 9, 3), np.uint8)])
    with pytest.raises(RecipeError, match=sentence):
        TokenizeText(processor=processor)({"__key__": "k", "text": "A caption."})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_num_patches": 0}, "layout field max_num_patches: expected at least 1, got 0"),
        ({"image_std": (1.0,)}, r"layout field image_std: expected 3 numbers, got \(1\.0,\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Siglip2(**settings)


def test_a_side_of_zero_is_bad_data() -> None:
    with pytest.raises(BadData, match="zero_size: expected sides of at least 1 pixel, got 0x5; drop such images"):
        Siglip2().plan(0, 5)
