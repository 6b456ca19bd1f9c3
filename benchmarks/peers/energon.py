"""Megatron Energon over the tar files, in worker processes; a packing buffer of 64 samples, cut into rows best fit.

Its stages allow planning from headers in front of the packer and decoding behind it, where the chosen samples are put
together.
"""

from __future__ import annotations

import glob
import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from megatron.energon import (
    Cooker,
    Sample,
    TaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from peers import Column, Count, Stream, Task
from peers._kernels import join
from peers._maker import KEPT, Padded, prepare
from zvl_demo.folder import cache_folder

__all__ = ["prepare", "ready", "start"]

BUFFER = 64


@dataclass
class Tokens(Sample):
    fields: Any


@stateless
def cook(sample: dict[str, Any]) -> Tokens:
    """A row of the tar: compressed images and messages."""
    images = [value for name, value in sorted(sample.items()) if name.endswith((".jpg", ".png"))]
    text = sample["json"]
    messages = (json.loads(text) if isinstance(text, bytes | str) else text)["messages"]
    return Tokens(**basic_sample_keys(sample), fields={"messages": messages, "images": images})


def length(sample: Tokens) -> int:
    return len(sample.fields["input_ids"])


def best_fit(samples: Sequence[Tokens]) -> list[list[Tokens]]:
    """The longest first, each into the fullest row that takes it."""
    rows: list[list[Tokens]] = []
    left: list[int] = []
    for sample in sorted(samples, key=length, reverse=True):
        fitting = [n for n, room in enumerate(left) if room >= length(sample)]
        if fitting:
            row = min(fitting, key=left.__getitem__)
        else:
            row = len(rows)
            rows.append([])
            left.append(KEPT["max_tokens"])
        rows[row].append(sample)
        left[row] -= length(sample)
    return rows


class Packs(TaskEncoder[Any, Any, Any, Any]):
    decoder = None
    cookers = [Cooker(cook)]  # noqa: RUF012

    def select_samples_to_pack(self, samples: Any) -> Any:
        return best_fit(samples)

    @stateless
    def pack_selected_samples(self, samples: Any) -> Any:
        fields = [sample.fields for sample in samples]
        made = {name: np.concatenate([one[name] for one in fields]) for name in fields[0] if name in PACKED}
        made["segments"] = np.array([len(one["input_ids"]) for one in fields])
        return Tokens.derive_from(samples[0], fields=made | self.pixels(fields))

    def pixels(self, fields: Any) -> dict[str, Any]:
        return join(fields)

    @stateless
    def batch(self, samples: Any) -> Any:
        """One row, padded."""
        made = samples[0].fields
        size = len(made["input_ids"])
        for name in PACKED:
            if name in made:
                padding = np.zeros((KEPT["max_tokens"] - size, *made[name].shape[1:]), made[name].dtype)
                made[name] = np.concatenate([made[name], padding])
        return made


PACKED = ("input_ids", "labels", "position_ids")


class Early(Packs):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return Tokens.derive_from(sample, fields=KEPT["maker"].encode(sample.fields))


class Late(Packs):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return Tokens.derive_from(sample, fields=KEPT["maker"].plan(sample.fields))

    def pixels(self, fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = KEPT["maker"].pixels([image for one in fields for image in one["images"]])
        return made


class EnergonStream(Padded):
    def count(self, batch: Any) -> Count:
        grid, segments = batch["image_grid_thw"], batch["segments"]
        return Count(len(grid), int(segments.sum()), len(batch["input_ids"]), int(grid.prod(-1).sum()), len(segments))

    def save(self) -> Any:
        return self.loader.save_state_rank()


def prepared(shards: str) -> Path:
    """A folder that Energon has prepared, once, with links to the shards."""
    files = [Path(name) for name in sorted(glob.glob(shards))]
    folder = cache_folder(None) / "energon" / files[0].parent.name
    if not (folder / ".nv-meta" / "dataset.yaml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            link = folder / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file.resolve())
        command = [str(Path(sys.executable).with_name("energon")), "prepare", str(folder), "--non-interactive"]
        command += ["--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset", "--num-workers", "1", "--no-progress"]
        subprocess.run([*command, "--force-overwrite"], check=True, stdout=subprocess.DEVNULL)
    return folder


def described(task: Task) -> Path:
    """What `get_train_dataset` opens: the folder, or a blend of several."""
    folders = {name: prepared(shards) for name, shards in task.shards.items()}
    if len(folders) == 1:
        return next(iter(folders.values()))
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    for name, folder in folders.items():
        lines += [f"      - path: {folder}", f"        weight: {task.weights[name]}"]
    target = cache_folder(None) / "energon" / f"{task.name}.yaml"
    target.write_text("\n".join(lines) + "\n")
    return target


def ready(task: Task) -> None:
    """Prepare the folders, once."""
    described(task)


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    KEPT["max_tokens"] = task.max_tokens
    data = get_train_dataset(
        described(task),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=setting["workers"]),
        task_encoder=Late() if setting.get("decode") == "after pack" else Early(),
        batch_size=1,
        packing_buffer_size=BUFFER,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
    )
    loader = get_savable_loader(data)
    if state is not None:
        loader.restore_state_rank(pickle.loads(pickle.dumps(state)))
    return EnergonStream(loader)
