"""TorchTitan's Qwen3.5 on the CPU, with zvl's batches: FOLDER; prints what `test_torchtitan.py` looks at, as JSON.

In `FOLDER` stand recipe.toml, whose pictures need no resize, the pictures, and text.toml.
"""

# ruff: noqa: E402  TorchTitan is prepared before it is imported

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference.torchtitan_cpu import install

install()

import numpy as np
import torch
import torch.distributed as distributed
from PIL import Image
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import HuggingFaceTokenizer, MultiModalTokenizer
from torchtitan.components.validate import Validator
from torchtitan.hf_datasets.multimodal.mm_collator import MultiModalCollator
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.qwen3_5 import QWEN3_5_SPECIAL_TOKENS

from reference.torchtitan_rank import LENGTH, ROWS, Recorder, config
from zvl.errors import ZvlError
from zvl.trainers.torchtitan import DataLoader, Trainer, own_ledger

FOLDER = Path(sys.argv[1])


def tokenizer() -> Any:
    return MultiModalTokenizer.Config(**QWEN3_5_SPECIAL_TOKENS).build(tokenizer_path=str(FOLDER / "tokenizer"))


def loader(recipe: str = "recipe.toml", **changes: Any) -> DataLoader:
    arguments: dict[str, Any] = {
        "dp_world_size": 1,
        "dp_rank": 0,
        "tokenizer": tokenizer(),
        "seq_len": LENGTH,
        "local_batch_size": ROWS,
    }
    return DataLoader.Config(recipe=str(FOLDER / recipe), runner="inline").build(**(arguments | changes))


def collated(batch: Any) -> tuple[dict[str, Any], torch.Tensor]:
    """The same samples through TorchTitan's own collator: pictures from their files, positions by its own count."""
    samples = []
    for row, segments in enumerate(batch.segments):
        names = [segment.key.split("#")[1].split("@")[0] for segment in segments]
        borders = [*(segment.start for segment in segments), segments[-1].stop, LENGTH]
        counted = torch.cat([torch.arange(stop - start) for start, stop in pairwise(borders)])
        more = torch.zeros(1, dtype=torch.int64)
        samples.append(
            {
                "input_ids": torch.cat([batch["input_ids"][row], more]),
                "labels": torch.cat([batch["labels"][row], more - 100]),
                "positions": torch.cat([counted, more]),
                "pixel_values": [normalised(FOLDER / f"{name}.png") for name in names],
            }
        )
    collator = MultiModalCollator(
        batch_size=ROWS,
        seq_len=LENGTH,
        max_images_per_batch=100,
        patch_size=16,
        temporal_patch_size=2,
        spatial_merge_size=2,
        tokenizer=tokenizer(),
        build_mrope_positions=True,
    )
    return collator(samples)


def normalised(path: Path) -> torch.Tensor:
    """A picture as TorchTitan's datasets hand it to the collator, (1, H, W, 3)."""
    return torch.from_numpy(np.asarray(Image.open(path)).astype(np.float32) / 255 - 0.5)[None] / 0.5


def compare() -> dict[str, Any]:
    """How far the inputs are from those of TorchTitan's collator, by name, over three batches."""
    found: dict[str, Any] = {"images": 0, "names": [], "special": True, "difference": {}}
    data = loader()
    batches = iter(data.pipeline.loader(runner="inline"))
    for (inputs, labels), batch, _ in zip(data, batches, range(3), strict=False):
        theirs, their_labels = collated(batch)
        given = {name: value for name, value in theirs.items() if value is not None}
        found["names"].append([sorted(inputs), sorted(given)])
        found["special"] &= inputs.pop("special_tokens") == given.pop("special_tokens")
        found["images"] += len(inputs["grid_thw"])
        for name, one, other in [("labels", labels, their_labels), *((n, inputs[n], given[n]) for n in sorted(inputs))]:
            same = one.shape == other.shape and one.dtype == other.dtype
            far = float((one - other).abs().max()) if same else str([one.shape, one.dtype, other.shape, other.dtype])
            found["difference"].setdefault(name, []).append(far)
    data.close()
    return found


def train() -> dict[str, Any]:
    """Two steps of Qwen3.5 with vision tower, hybrid attention and M-RoPE, by zvl's Trainer; where the loss reached."""
    given = config("qwen3_5", FOLDER, "images", 2)
    given.training.global_batch_size = 2 * ROWS
    given.model_spec.model.vision_encoder.num_layers = 1
    trainer = Recorder(given)
    names = ("vision_encoder.patch_embed.weight", "tok_embeddings.weight")
    before = {name: value.clone() for name, value in trainer.model_parts[0].named_parameters() if name in names}
    trainer.train()
    after = dict(trainer.model_parts[0].named_parameters())
    moved = {name: float((after[name] - before[name]).detach().abs().max()) for name in names}
    trainer.close()
    return {"seen": trainer.seen, "dtypes": trainer.dtypes, "moved": moved}


def validate() -> list[float]:
    """The loss of each validation: all of a finite recipe, behind each of two steps, without training between."""
    finite = Validator.Config(
        enable=True,
        freq=1,
        steps=-1,
        dataloader=DataLoader.Config(recipe=str(FOLDER / "finite.toml"), runner="inline"),
    )
    found: list[float] = []

    def change(given: Trainer.Config) -> None:
        given.validator, given.training.steps = finite, 2
        given.optimizer = default_adamw(lr=0.0)

    trainer = changed(change)
    trainer.metrics_processor.log_validation = lambda loss, step: found.append(loss)
    trainer.train()
    trainer.close()
    return found


def refusals() -> dict[str, str]:
    """What is said of what does not fit."""
    text = HuggingFaceTokenizer.Config().build(tokenizer_path=str(FOLDER / "tokenizer"))
    other = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda with_added_tokens: {"!": 0}))
    tries: dict[str, Any] = {
        "none": lambda: DataLoader.Config().build(
            dp_world_size=1, dp_rank=0, tokenizer=text, seq_len=LENGTH, local_batch_size=ROWS
        ),
        "length": lambda: loader(seq_len=LENGTH * 2),
        "rows": lambda: loader(local_batch_size=ROWS + 1),
        "lanes": lambda: loader("text.toml", dp_world_size=3, dp_rank=1),
        "tower": lambda: loader("no_dummy.toml", dp_world_size=2),
        "tokens": lambda: loader(tokenizer=text),
        "tokenizer": lambda: loader("text.toml", tokenizer=other),
        "round": lambda: changed(lambda given: setattr(given.training, "global_batch_size", ROWS * 2)),
        "vocabulary": lambda: changed(shrink),
        "mask": lambda: changed(unmask),
        "unloaded": unloaded,
    }
    said = {}
    for name, attempt in tries.items():
        try:
            attempt()
        except ZvlError as error:
            said[name] = str(error)
    return said


def changed(change: Any, model: str = "llama3", recipe: str = "text.toml") -> Trainer:
    given = config(model, FOLDER, "changed", 1)
    given.dataloader.recipe = str(FOLDER / recipe)
    change(given)
    return Recorder(given)


def shrink(given: Trainer.Config) -> None:
    model = given.model_spec.model
    model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = 512


def unmask(given: Trainer.Config) -> None:
    for layer in given.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()


def unloaded() -> None:
    """A checkpoint of which all is loaded but the data."""
    trainer = changed(lambda given: setattr(given.checkpoint, "enable", False))
    trainer.step = 2
    trainer.batch_generator(trainer.dataloader)


def main() -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = "0"
    distributed.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=0, world_size=1)
    found = {"compared": compare(), "trained": train(), "validated": validate(), "refused": refusals()}
    found["ledgers"] = [str(own_ledger(Path("out/ledger.jsonl"), dp_size)) for dp_size in (1, 2)]
    distributed.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
