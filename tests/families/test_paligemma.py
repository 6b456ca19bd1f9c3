"""PaliGemma and PaliGemma 2 against transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from reference.chats import CHATS, count_images, turn
from reference.family import Forward, Pair
from reference.pictures import cut
from reference.samples import packed, planned, stacked, to_pillow
from reference.two_way import NO_FLASH, TwoWayTests
from zvl.errors import RecipeError
from zvl.layouts.paligemma import PaliGemma
from zvl.protocols import Pixels

TEMPLATE = """
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- set place = namespace(last=-1) -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{%- set place.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if place.last < 0 -%}{{ bos_token }}{%- endif -%}
{%- for part in message.content -%}
{{ part.text if part.type == 'text' else '<image>' }}
{%- if loop.index0 == place.last -%}{{ bos_token }}{%- endif -%}
{%- endfor -%}
{{ '\n' }}
{%- else -%}
{%- for part in message.content -%}{{ part.text }}{%- endfor -%}{{ eos_token }}
{%- endif -%}
{%- endfor -%}"""

WINDOW = 6


# The family's processor calls numpy.array on torch tensors, which torch answers the old way.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
class TestPaliGemma(TwoWayTests):
    """The family's processor wants an image, and knows one question and one answer: no other chats here."""

    layout = "paligemma"
    tiny_settings: ClassVar[Mapping[str, Any]] = {"image_size": 28, "image_seq_length": 4}
    image_processors = ("SiglipImageProcessor", "SiglipImageProcessorPil")
    image_tokens = ("<image>", "<bos>")
    template = TEMPLATE
    model_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<image>"}
    not_applicable: ClassVar[Mapping[str, str]] = NO_FLASH
    chats: ClassVar[Mapping[str, Sequence[Any]]] = {
        **{name: chat for name, chat in CHATS.items() if name not in ("no image", "several turns")},
        "breaks on both sides of the border": [turn("user", None, "What?\n\n"), turn("assistant", "\n\nA photo. ")],
        "text between images": [turn("user", "a\n", None, "\nb ", None, " c"), turn("assistant", "  Two.")],
    }
    blocks = "the tokens of a prefix"
    tiny_shapes: ClassVar[Sequence[tuple[int, int]]] = ((97, 61), (150, 43), (56, 120), (20, 30))

    def image_settings(self, layout: Any) -> dict[str, Any]:
        return {
            "size": {"height": layout.image_size, "width": layout.image_size},
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
        }

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import PaliGemmaProcessor

        tokenizer.bos_token = "<bos>"
        image_processor.image_seq_length = layout.image_seq_length
        return PaliGemmaProcessor(image_processor, tokenizer, chat_template=template)

    def whole(self, pair: Pair, chat: Sequence[Any], images: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        """The processor's output for a question and its answer, labels included."""
        question, answer = chat
        text = "".join("<image>" if part["type"] == "image" else part["text"] for part in question["content"])
        suffix = "".join(part["text"] for part in answer["content"])
        out = pair.theirs(text=[text], images=[to_pillow(images)], suffix=[suffix], return_tensors="pt")
        return dict(out)

    def process(self, pair: Pair, chat: Sequence[Any], images: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.whole(pair, chat, images).items() if name != "labels"}

    def test_labels(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """The answer and its end are learnt, as the processor labels them."""
        pair = self.pair(qwen_tokenizer, self.make_layout(self.settings))
        for name, chat in self.chats.items():
            images = self.chat_images(photos, count_images(chat), 1)
            ours = planned(pair.ours, name, chat, images)
            assert ours["labels"].tolist() == self.whole(pair, chat, images)["labels"][0].tolist(), name

    def test_position_ids(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """Positions are those that the model counts by itself, also inside a pack."""
        forward = self.forward(qwen_tokenizer, photos)
        model = self.tiny_model(forward, "sdpa")
        seen: list[list[int]] = []

        def record(module: Any, arguments: Any, given: dict[str, Any]) -> None:
            seen.append(given["position_ids"][0].tolist())

        handle = model.model.language_model.register_forward_pre_hook(record, with_kwargs=True)
        self.alone(forward, "sdpa")
        handle.remove()
        assert [sample["position_ids"].tolist() for sample in forward.samples] == seen
        (row,) = packed(forward.samples, sum(len(sample["input_ids"]) for sample in forward.samples))
        assert row["position_ids"].tolist() == [place for places in seen for place in places]

    def make_forward(self, folder: Path, photos: Mapping[str, bytes]) -> Forward:
        """The processor refuses samples without images: here with one, one and two."""
        pair = self.pair(folder, self.make_layout(self.tiny_settings or self.settings))
        cuts = [cut(photos[name], *size) for name, size in zip(sorted(photos), self.tiny_shapes, strict=False)]
        one, two, three = self.tiny_chats()
        contents = [(one, cuts[:1]), (two, cuts[1:2]), (three, cuts[2:])]
        samples = [planned(pair.ours, f"s{n}", chat, images) for n, (chat, images) in enumerate(contents)]
        theirs = [self.process(pair, chat, images) for chat, images in contents]
        ids = np.unique(np.concatenate([*(sample["input_ids"] for sample in samples), [pair.ours.image_token_id]]))
        return Forward(pair, samples, theirs, torch.from_numpy(np.concatenate([[-1], ids])))

    def tiny_chats(self) -> Sequence[Sequence[Any]]:
        return (
            [turn("user", None, "Two and two?"), turn("assistant", "Four, it says here, in large letters.")],
            [turn("user", "See\n", None, "\nthis."), turn("assistant", "\nA photo.")],
            [turn("user", None, " beside ", None), turn("assistant", "Two.")],
        )

    text: ClassVar[Mapping[str, Any]] = {"model_type": "gemma"}

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

        vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        vision |= {"image_size": layout.image_size, "patch_size": layout.patch_size, "projection_dim": 32}
        text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        text |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": vocabulary, "bos_token_id": 0}
        config = PaliGemmaConfig(
            text_config=text | {"eos_token_id": 1} | dict(self.text),
            vision_config=vision | {"model_type": "siglip_vision_model", "vision_use_head": False},
            projection_dim=32,
            **tokens,
            attn_implementation=attention,
        )
        return PaliGemmaForConditionalGeneration(config)


class TestPaliGemma2(TestPaliGemma):
    """Layers with a window, shorter than the samples, among those of the decoder."""

    settings: ClassVar[Mapping[str, Any]] = {"image_size": 448, "image_seq_length": 1024, "sliding_window": 4096}
    tiny_settings: ClassVar[Mapping[str, Any]] = {**TestPaliGemma.tiny_settings, "sliding_window": WINDOW}
    text: ClassVar[Mapping[str, Any]] = {
        "model_type": "gemma2",
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }

    def tiny_model(self, forward: Forward, attention: str) -> Any:
        """Gemma 2 knows "eager" alone of those that run on the CPU."""
        return super().tiny_model(forward, "eager")

    @pytest.mark.parametrize("attention", ["eager"])
    @pytest.mark.parametrize("isolation", ["positions"])
    def test_packed_forward(
        self, qwen_tokenizer: Path, photos: dict[str, bytes], isolation: Any, attention: str
    ) -> None:
        super().test_packed_forward(qwen_tokenizer, photos, isolation, attention)

    def test_one_mask_for_all_layers_is_refused(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        forward = self.forward(qwen_tokenizer, photos)
        batch = stacked(forward.pair.ours, packed(forward.samples, 200))
        longest = max(len(sample["input_ids"]) for sample in forward.samples)
        with pytest.raises(
            RecipeError, match=f"samples of up to sliding_window=6 tokens, got one of {longest}: the mo"
        ):
            forward.pair.ours.model_inputs(batch, isolation="mask")
        short = PaliGemma(image_size=28, image_seq_length=4, sliding_window=longest)
        inputs = type(forward.pair.ours)(short, forward.pair.ours.tokenizer).model_inputs(batch, isolation="mask")
        assert inputs["attention_mask"].shape == (1, 1, 200, 200)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(
        RecipeError, match="expected one token for each patch of the vision tower, 1024 for image_size=4"
    ):
        PaliGemma(image_size=448)
    with pytest.raises(RecipeError, match="layout field sliding_window: expected None or at least 1, got 0"):
        PaliGemma(sliding_window=0)
