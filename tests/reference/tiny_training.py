"""A pipeline of pictures and a model of random weights, small enough that a training step takes milliseconds."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from isolation_pipelines import Tokens
from PIL import Image

import zvl
from zvl.batch import Batch
from zvl.digest import batch_digest
from zvl_demo.tokenizer import qwen_tokenizer, small_tokenizer

__all__ = [
    "LANES",
    "TOKENS",
    "digests",
    "expected",
    "pipeline",
    "processor",
    "run_ranks",
    "tiny_model",
    "toy_inputs",
    "toy_model",
    "toy_pipeline",
]

LANES = 4
TOKENS = 160
RANKS = Path(__file__).parent / "trainer_ranks.py"
CACHE = Path(os.environ.get("ZVL_CACHE") or Path(__file__).parents[2] / ".cache/zvl")


@functools.cache
def processor() -> zvl.Processor:
    template = qwen_tokenizer(CACHE) / "chat_template.jinja"
    return zvl.Processor("qwen2_5_vl", small_tokenizer(CACHE), chat_template=template, max_pixels=12_544)


@functools.cache
def rows() -> list[dict[str, Any]]:
    """Every third without a picture; answers of different lengths, so that tokens weigh differently by batch."""
    found = []
    for number in range(60):
        user: list[dict[str, str]] = [{"type": "text", "text": f"What is number {number}?"}]
        row: dict[str, Any] = {}
        if number % 3:
            pixels = np.random.default_rng(number).integers(0, 256, (56 + number, 84, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "jpeg")
            row["images"] = [file.getvalue()]
            user.insert(0, {"type": "image"})
        said = [{"type": "text", "text": "so " * (1 + number % 11)}]
        row["messages"] = [{"role": "user", "content": user}, {"role": "assistant", "content": said}]
        found.append(row)
    return found


def pipeline(
    *, finite: bool = False, lanes: int = LANES, batches_per_step: int = 1, max_tokens: int = TOKENS
) -> zvl.Pipeline:
    """Packed rows of `TOKENS` tokens; lanes of a finite one end at different steps."""
    passes = zvl.Once() if finite else zvl.Forever()
    source = zvl.Mixture(zvl.from_rows(rows()), passes=passes, chunk_rows=2, seed=5)
    return (
        zvl.Pipeline(source, lanes=lanes, flush_every=8, batches_per_step=batches_per_step)
        .probe_images(processor())
        .tokenize_chat(processor())
        .pack(max_tokens=max_tokens, algorithm="first_fit")
        .batch(1)
        .patchify(processor())
    )


def tiny_model(**text_settings: Any) -> Any:
    """A Qwen2.5-VL of random weights, float64, with the small tokenizer's vocabulary."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    token = processor().token_id
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(processor().tokenizer),
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "bos_token_id": None,
            "eos_token_id": token("<|im_end|>"),
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]},
            **text_settings,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "out_hidden_size": 16,
            "fullatt_block_indexes": [0],
        },
        image_token_id=processor().image_token_id,
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config).to(torch.float64)


def digests(batches: Iterable[Batch]) -> list[list[Any]]:
    """Step, lane and SHA-256 of each batch."""
    return [[batch.step, batch.lane, batch_digest(batch).sha256] for batch in batches]


@functools.cache
def expected(steps: int) -> list[list[Any]]:
    """The batches of an unbroken run without any trainer, in the order of steps and lanes."""
    with pipeline().loader(max_steps=steps) as loader:
        return digests(loader)


def run_ranks(scratch: Path, trainer: str, phases: Sequence[tuple[int, int]]) -> list[list[Any]]:
    """Train with 1 or 2 ranks until a step, then go on with others, and so on: ``phases=[(2, 1), (1, 3)]``.

    Two processes under gloo live through all phases, each phase a new trainer. Gives, by phase, what each rank told.
    """
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(RANKS), trainer, str(scratch), json.dumps(phases)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return [[rank[place] for rank in told if rank[place] is not None] for place in range(len(phases))]


def toy_pipeline(*, finite: bool = False, lanes: int = 2, batches_per_step: int = 2, rows: int = 60) -> zvl.Pipeline:
    """Numbers as tokens, in rows of 16; no picture and no processor."""
    source = zvl.Mixture(
        zvl.from_rows([{"n": n} for n in range(1, rows + 1)]),
        passes=zvl.Once() if finite else zvl.Forever(),
        chunk_rows=4,
        seed=5,
    )
    return (
        zvl.Pipeline(source, lanes=lanes, flush_every=16, batches_per_step=batches_per_step)
        .apply(Tokens())
        .pack(16, algorithm="first_fit")
        .batch(1)
    )


def toy_inputs(batch: Batch, device: Any = None, dtype: Any = None) -> dict[str, Any]:
    return {name: batch[name].to(device) for name in ("input_ids", "labels")}


def toy_model() -> Any:
    """A model that knows nothing of transformers: the loss it returns is the mean of a batch."""
    import torch

    class Toy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(80, 8)
            self.head = torch.nn.Linear(8, 80)

        def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
            logits = self.head(self.embed(input_ids))
            if labels is None:
                return {"logits": logits}
            return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    torch.manual_seed(0)
    return Toy()
