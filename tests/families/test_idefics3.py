"""Idefics 3 and SmolVLM against transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from reference.family import FamilyTests
from reference.llava import ONE_AXIS, TEMPLATE, TEXT, as_batch
from zvl.errors import BadData, RecipeError
from zvl.layouts.idefics3 import Idefics3
from zvl.layouts.smolvlm import SmolVLM

PLACES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
TOKENS = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *PLACES)
TINY = {"image_size": 28, "patch_size": 7, "image_seq_length": 4, "longest_edge": 84}


class TestIdefics3(FamilyTests):
    layout = "idefics3"
    tiny_settings: ClassVar[Mapping[str, Any]] = TINY
    image_processors = ("Idefics3ImageProcessor", "Idefics3ImageProcessorPil")
    image_tokens = TOKENS
    template = TEMPLATE
    model_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<image>"}
    not_applicable: ClassVar[Mapping[str, str]] = ONE_AXIS

    def image_settings(self, layout: Any) -> dict[str, Any]:
        filters = {"lanczos": 1, "bicubic": 3}
        return {
            "size": {"longest_edge": layout.longest_edge},
            "max_image_size": {"longest_edge": layout.image_size},
            "do_image_splitting": layout.do_image_splitting,
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
            "resample": filters[layout.resample],
        }

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Idefics3Processor

        length = layout.image_seq_length
        return Idefics3Processor(image_processor, tokenizer, image_seq_len=length, chat_template=template)

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import Idefics3Config, Idefics3ForConditionalGeneration

        return Idefics3ForConditionalGeneration(Idefics3Config(**config(layout, vocabulary, tokens, attention)))

    def test_grids(self) -> None:
        """Rows and columns of tiles over many sizes, and as many features as placeholders."""
        layout = self.make_layout(self.settings)
        reference = self.image_processor(layout, "pillow")
        rng = random.Random(11)
        sizes = [(rng.randint(1, 60), rng.randint(1, 60)) for _ in range(20)]
        sizes += [(rng.randint(1, 900), rng.randint(1, 900)) for _ in range(5)]
        for width, height in sizes:
            theirs = reference(images=Image.new("RGB", (width, height)), return_row_col_info=True)
            columns, rows = layout.plan(width, height).geometry
            expected = (theirs["cols"][0][0], theirs["rows"][0][0])
            assert ((columns, rows) if columns * rows > 1 else (0, 0)) == expected, (width, height)
            plan = layout.plan(width, height)
            assert plan.rows == len(theirs["pixel_values"][0])
            assert plan.tokens == sum(count for text, count in layout.placeholder(plan) if text == "<image>")
            assert layout.features({"image_rows": np.array([plan.rows])}).tolist() == [plan.tokens]


class TestIdefics3Whole(TestIdefics3):
    """One tile an image."""

    settings: ClassVar[Mapping[str, Any]] = {"do_image_splitting": False, "resample": "bicubic"}
    tiny_settings: ClassVar[Mapping[str, Any]] = TINY | {"do_image_splitting": False}


class TestSmolVLM(TestIdefics3):
    layout = "smolvlm"
    settings: ClassVar[Mapping[str, Any]] = {"longest_edge": 1024}
    image_processors = ("SmolVLMImageProcessor", "SmolVLMImageProcessorPil")

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import SmolVLMProcessor, SmolVLMVideoProcessor

        length = layout.image_seq_length
        video = SmolVLMVideoProcessor()
        return SmolVLMProcessor(image_processor, tokenizer, video, image_seq_len=length, chat_template=template)

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

        return SmolVLMForConditionalGeneration(SmolVLMConfig(**config(layout, vocabulary, tokens, attention)))


class TestSmolVLMOther(TestSmolVLM):
    """As in the first SmolVLM, whose tiles are no whole patches; more tiles than there are names for."""

    settings: ClassVar[Mapping[str, Any]] = {
        "image_size": 95,
        "patch_size": 14,
        "longest_edge": 740,
        "image_seq_length": 9,
        "image_mean": (0.1, 0.2, 0.31),
        "image_std": (0.5, 0.6, 0.7),
    }
    tiny_settings: ClassVar[Mapping[str, Any]] = TINY | {"image_size": 30}


def config(layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> dict[str, Any]:
    """The arguments of either family's tiny config."""
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": layout.image_size, "patch_size": layout.patch_size}
    text = TEXT | {"vocab_size": vocabulary}
    return {"text_config": text, "vision_config": vision, **tokens, "attn_implementation": attention}


def test_sizes_equal_transformers() -> None:
    """Those of both resizes. `get_number_of_image_patches` is no reference: with a long side that is no whole number
    of tiles it differs from what its own class does (5.24)."""
    from transformers.models.idefics3 import image_processing_pil_idefics3 as theirs

    class Sizes(theirs.Idefics3ImageProcessorPil):  # type: ignore[misc]
        def resize(self, image: Any, size: Any, **kwargs: Any) -> Any:
            return size

    reference = Sizes()
    rng = random.Random(7)
    sizes = [(rng.randint(1, 60), rng.randint(1, 60)) for _ in range(1000)]
    sizes += [(rng.randint(1, 6000), rng.randint(1, 6000)) for _ in range(1000)]
    sizes += [(1, 10_000), (20_000, 1), (4096, 4096)]
    for longest, side in ((364, 364), (1456, 364), (1000, 364), (2048, 512), (300, 512), (6000, 512)):
        layout = Idefics3(longest_edge=longest, image_size=side)
        for width, height in sizes:
            high, wide = theirs.get_resize_output_image_size(np.empty((height, width)), longest)
            assert layout._first_size(width, height) == (wide, high), (width, height)
            stretched = reference.resize_for_vision_encoder(np.empty((3, high, wide), np.uint8), side)
            columns, rows = layout.plan(width, height).geometry
            assert (columns * side, rows * side) == (stretched.width, stretched.height), (width, height)


def test_the_planned_size_is_that_of_the_largest_resize() -> None:
    """It bounds how small a JPEG may be decoded."""
    whole = Idefics3(do_image_splitting=False).plan(3000, 500)
    assert (whole.rows, whole.width, whole.height, whole.patches) == (1, 1456, 364, 676)
    split = Idefics3().plan(3000, 500)
    assert (split.rows, split.width, split.height, split.patches) == (5, 1456, 364, 5 * 676)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_pixel_inputs_compile_without_a_break(dtype: Any) -> None:
    layout = SmolVLM(**TINY)  # type: ignore[arg-type]
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: layout.pixel_inputs(batch, "cpu", dtype), fullgraph=True, backend="eager")
    for sizes in ([(97, 61)], [(40, 50), (3, 200)]):
        batch = as_batch(layout, sizes)
        plain, traced = layout.pixel_inputs(batch, "cpu", dtype), compiled(batch)
        assert list(plain) == list(traced) == ["pixel_values", "pixel_attention_mask"]
        assert all(torch.equal(plain[name], traced[name]) for name in plain)
        assert plain["pixel_values"].dtype == (dtype or torch.float32)


def test_no_images() -> None:
    layout = Idefics3()
    assert layout.pixel_inputs(as_batch(layout, []), None, None) == {}
    assert layout.geometry([]) == {}
    assert layout.features({"image_rows": np.zeros(0, np.int64)}).tolist() == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"longest_edge": 0}, "layout field longest_edge: expected at least 1, got 0"),
        ({"image_size": 13}, "layout field patch_size: expected at most image_size=13, got 14"),
        ({"image_std": (1.0,)}, r"layout field image_std: expected 3 numbers, got \(1\.0,\)"),
        ({"image_mean": (0.0, 0.2, 1.0)}, r"image_mean: expected no colour of whole bytes, .* the model drops such"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Idefics3(**settings)


def test_a_side_of_zero_is_bad_data() -> None:
    with pytest.raises(BadData, match="zero_size: expected sides of at least 1 pixel, got 0x5; drop such images"):
        SmolVLM().plan(0, 5)
