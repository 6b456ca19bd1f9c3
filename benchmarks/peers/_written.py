"""What users of other loaders write: Pillow and the Hugging Face processor, float32 patches."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from zvl_demo.tokenizer import qwen_tokenizer

__all__ = ["Written"]

MAX_PIXELS = 1_003_520
TESTS = Path(__file__).parents[2] / "tests"


class Written:
    """A Qwen2.5-VL processor of transformers, with one of its two image backends. Pickles; built once a process."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def __getstate__(self) -> dict[str, Any]:
        return {"backend": self.backend}

    @cached_property
    def processor(self) -> Any:
        """The processor as `AutoProcessor` makes it, from the demo's tokenizer."""
        sys.path.append(str(TESTS))  # what lets the ordinary torchvision wheel import beside a CPU build of torch
        from reference.torchvision_cpu import FOLDER, install

        if str(FOLDER) in sys.path and "torchvision" not in sys.modules:
            sys.path.remove(str(FOLDER))  # a worker process that got this list has not had the rest of `install` yet
        install()
        import torch
        from transformers import AutoTokenizer, Qwen2_5_VLProcessor, Qwen2VLVideoProcessor

        torch.set_num_threads(1)  # as a DataLoader's workers have it; better than more with every loader here
        if self.backend == "pillow":
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil as Images
        else:
            from transformers import Qwen2VLImageProcessor as Images
        folder = qwen_tokenizer()
        return Qwen2_5_VLProcessor(
            Images(size={"shortest_edge": 3136, "longest_edge": MAX_PIXELS}),
            AutoTokenizer.from_pretrained(str(folder)),
            Qwen2VLVideoProcessor(),
            chat_template=(folder / "chat_template.jinja").read_text(),
        )

    def prepare(self) -> None:
        """Load it."""
        _ = self.processor

    def pictures(self, row: dict[str, Any]) -> list[Any]:
        """The row's images, decoded."""
        from PIL import Image

        return [Image.open(io.BytesIO(data)).convert("RGB") for data in row["images"]]

    def encode(self, row: dict[str, Any]) -> dict[str, Any]:
        """One row, for loaders that pack."""
        images = self.pictures(row)
        text = self.processor.apply_chat_template(row["messages"], tokenize=False)
        inputs = self.processor(text=[text], images=images or None, return_tensors="np")
        ids = np.asarray(inputs["input_ids"][0], np.int64)
        patches = inputs.get("pixel_values", np.zeros((0, 1176), np.float32))
        grid = inputs.get("image_grid_thw", np.zeros((0, 3), np.int64))
        return {"input_ids": ids, "labels": ids.copy(), "pixel_values": patches, "image_grid_thw": grid}

    def collate(self, samples: Sequence[tuple[list[dict[str, Any]], list[Any]]]) -> dict[str, Any]:
        """(messages, decoded images) of several rows, padded, as torch tensors."""
        texts = [self.processor.apply_chat_template(messages, tokenize=False) for messages, _ in samples]
        images = [image for _, found in samples for image in found]
        inputs = self.processor(text=texts, images=images or None, padding=True, return_tensors="pt")
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        return {**inputs, "labels": labels}
