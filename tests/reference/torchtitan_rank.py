"""Two ranks of `test_torchtitan.py`: MODEL FOLDER; train, stop and go on; print what each trained on, as JSON.

In `FOLDER` stands recipe.toml. Process 0 first trains alone without a break, then both train and stop, process 0 goes
on alone from their checkpoint, and both go on from the checkpoint of the unbroken run. All by TorchTitan's own Trainer,
FSDP and checkpoints; see `torchtitan_cpu` for what stands in for a GPU.
"""

# ruff: noqa: E402  TorchTitan is prepared before it is imported

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference.torchtitan_cpu import install

install()

import torch
import torch.distributed as distributed
import torchtitan.models.llama3.config_registry as llama3
import torchtitan.models.qwen3_5.config_registry as qwen3_5
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor

from zvl.trainers.torchtitan import DataLoader, Trainer

PATIENCE = timedelta(seconds=120)
STEPS, STOP = 4, 2
ROWS, LENGTH, GLOBAL_ROWS, VOCABULARY = 2, 64, 8, 2304


class Recorder(Trainer):
    """Keeps the hash of every batch that is trained on."""

    def __init__(self, config: Trainer.Config) -> None:
        super().__init__(config)
        self.seen: list[list[Any]] = []
        self.dtypes: list[str] = []
        for module in self.model_parts[0].modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM

    @torch.no_grad()
    def _record(self, inputs: dict[str, Any], labels: torch.Tensor) -> None:
        digest = hashlib.sha256()
        for name, value in sorted({**inputs, "labels": labels}.items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() if name != "special_tokens" else b"")
            digest.update(value.numpy().tobytes() if name != "special_tokens" else json.dumps(value).encode())
        self.seen.append([self.step, digest.hexdigest()])

    def forward_backward_step(self, *, input_dict: Any, labels: Any, global_valid_tokens: Any) -> Any:
        self._record(input_dict, labels)
        self.dtypes += [str(input_dict["pixel_values"].dtype)] if "pixel_values" in input_dict else []
        return super().forward_backward_step(
            input_dict=input_dict, labels=labels, global_valid_tokens=global_valid_tokens
        )


def config(model: str, folder: Path, dump: str, steps: int) -> Trainer.Config:
    given = {"llama3": llama3.llama3_debugmodel, "qwen3_5": qwen3_5.qwen35_debugmodel}[model]()
    spec = given.model_spec
    spec.model.layers = spec.model.layers[2:4]  # of Qwen3.5, one with linear and one with full attention
    spec.model.vocab_size = spec.model.tok_embeddings.num_embeddings = spec.model.lm_head.out_features = VOCABULARY
    given.training.local_batch_size, given.training.global_batch_size = ROWS, GLOBAL_ROWS
    given.training.seq_len, given.training.steps = LENGTH, steps
    given.training.disable_cuda_graphs = True
    given.training.mixed_precision_param = "float32"
    given.parallelism.spmd_backend = "partial_dtensor"  # the other one needs a later torch for FSDP
    given.lr_scheduler.warmup_steps = 0
    given.validator.enable = False
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path=str(folder / "tokenizer"),
        dump_folder=str(folder / dump),
        tokenizer=given.tokenizer,
        dataloader=DataLoader.Config(recipe=str(folder / "recipe.toml"), runner="inline"),
        optimizer=given.optimizer,
        lr_scheduler=given.lr_scheduler,
        training=given.training,
        parallelism=given.parallelism,
        checkpoint=CheckpointManager.Config(
            enable=True, interval=STOP, last_save_model_only=False, initial_load_model_only=False
        ),
        activation_checkpoint=None,
        metrics=MetricsProcessor.Config(log_freq=1),
        validator=given.validator,
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
    )


def train(model: str, folder: Path, dump: str, steps: int, rank: int, ranks: int, load_step: int = -1) -> list[Any]:
    """The hashes of what this rank trains on, up to `steps`."""
    store = folder / f"store-{dump}-{steps}-{ranks}-{load_step}"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=PATIENCE)
    chosen = config(model, folder, dump, steps)
    chosen.checkpoint.load_step = load_step
    trainer = Recorder(chosen)
    try:
        trainer.train()
    finally:
        trainer.close()
        distributed.barrier()
        distributed.destroy_process_group()
    return list(trainer.seen)


def rank(number: int, model: str, folder: Path, results: Any) -> None:
    os.environ["LOCAL_RANK"] = str(number)
    torch.set_num_threads(1)
    found = {}
    if number == 0:
        found["unbroken"] = train(model, folder, "one", STEPS, 0, 1)
    found["two, before"] = train(model, folder, "two", STOP, number, 2)
    if number == 0:
        found["one, after two"] = train(model, folder, "two", STEPS, 0, 1)
    found["two, after one"] = train(model, folder, "one", STEPS, number, 2, load_step=STOP)
    results.put((number, found))


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    context = multiprocessing.get_context("fork")  # the imports take longer than the rest
    results = context.Queue()
    ranks = [context.Process(target=rank, args=(number, model, folder, results), daemon=True) for number in (0, 1)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=200) for _ in ranks)
    for process in ranks:
        process.join()
    print(json.dumps([found[number] for number in (0, 1)]))


if __name__ == "__main__":
    main()
