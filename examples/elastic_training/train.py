"""One rank of a training run: ``torchrun --nproc-per-node 4 -m elastic_training.train --data zvl --steps 60 ...``.

Writes for every step the loss and the hashes of the global batch's rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as distributed

import zvl
from elastic_training.baseline import SamplerFeed
from elastic_training.model import MAX_TOKENS, ROWS_PER_STEP, SEED, make_model, make_processor
from zvl import trainers
from zvl.batch import Batch
from zvl.digest import batch_digest
from zvl_demo.folder import cache_folder

__all__ = ["Feed", "ZvlFeed", "main", "make_pipeline"]


class Feed(Protocol):
    """One rank's side of a loader."""

    def step(self) -> list[Batch]:
        """This rank's part of the next global batch."""

    def state(self) -> Any:
        """The state of all ranks after the last step; called by all."""

    def close(self) -> None: ...


def make_pipeline(folder: Path, processor: zvl.Processor) -> zvl.Pipeline:
    """The demo's conversations, packed; as many lanes as a global batch has rows."""
    source = zvl.Mixture({"photos": zvl.open_dataset(folder / "*.tar")}, chunk_rows=8, seed=SEED)
    return (
        zvl.Pipeline(source, lanes=ROWS_PER_STEP, flush_every=256)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=MAX_TOKENS)
        .batch(1)
        .patchify(processor)
    )


class ZvlFeed:
    """All that the training loop needs of zvl."""

    def __init__(self, folder: Path, processor: zvl.Processor, rank: int, ranks: int, state: Any = None) -> None:
        self._loader = make_pipeline(folder, processor).loader(dp_rank=rank, dp_size=ranks, workers=1)
        if state is not None:
            self._loader.load_state_dict(state)

    def step(self) -> list[Batch]:
        return [next(self._loader) for _ in self._loader.lanes]

    def own_state(self) -> Any:
        return self._loader.state_dict()

    def state(self) -> Any:
        return self._loader.global_state_dict()

    def close(self) -> None:
        self._loader.close()


def global_batch(batches: Iterable[Batch]) -> list[str]:
    """SHA-256 of all fields of each row of the global batch, in an order that no number of ranks changes.

    zvl's rows are in the order of their lanes. The baseline has none, so its rows are sorted: the sum over a batch
    does not depend on it.
    """
    found = [batch_digest(batch) for batch in batches]
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, [(digest.lane, digest.sha256) for digest in found])
    return [sha256 for _, sha256 in sorted(row for rows in gathered for row in rows)]


def train_step(model: Any, optimizer: torch.optim.Optimizer, processor: zvl.Processor, batches: list[Batch]) -> float:
    """One optimizer step; the loss is a sum over the tokens of all ranks, divided by their number."""
    tokens = torch.tensor(sum(int(batch["num_loss_tokens"]) for batch in batches))
    distributed.all_reduce(tokens)
    loss = torch.zeros(())
    optimizer.zero_grad(set_to_none=False)
    for batch in batches:
        inputs = processor.model_inputs(batch)
        del inputs["labels"]
        part = trainers.loss(model(**inputs).logits, batch, tokens)
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.detach()
    for total in (loss, *(parameter.grad for parameter in model.parameters())):
        distributed.all_reduce(total)
    optimizer.step()
    return float(loss)


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train from the beginning or from a checkpoint; the record of each step."""
    cache = cache_folder()
    processor = make_processor(cache)
    model = make_model(processor)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # a batch without images gives the vision tower none
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    first, state = 0, None
    if arguments.resume:
        saved = torch.load(arguments.resume, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first, state = saved["step"], saved["data"]
    feeds: dict[str, type[Feed]] = {"zvl": ZvlFeed, "baseline": SamplerFeed}
    make: Any = feeds[arguments.data]
    feed: Feed = make(cache / "demo", processor, distributed.get_rank(), distributed.get_world_size(), state)
    records = []
    for step in range(first, arguments.steps):
        batches = feed.step()
        rows = global_batch(batches)
        records.append({"step": step, "loss": train_step(model, optimizer, processor, batches), "rows": rows})
        if step + 1 == arguments.save_at:
            save(arguments.checkpoint, model, optimizer, step + 1, feed.state())
    feed.close()
    return records


def save(path: Path, model: Any, optimizer: torch.optim.Optimizer, step: int, state: Any) -> None:
    """One file for model, optimizer and data."""
    if distributed.get_rank() == 0:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "data": state}
        torch.save(content, path)


def main() -> None:
    """Run as a rank that torchrun started."""
    parser = argparse.ArgumentParser(description="One rank of a training run; start it with torchrun.")
    parser.add_argument("--data", choices=("zvl", "baseline"), required=True)
    parser.add_argument("--steps", type=int, required=True, help="stop before this global step")
    parser.add_argument("--record", type=Path, required=True, help="JSON to write")
    parser.add_argument("--save-at", type=int, default=-1, help="save after so many steps")
    parser.add_argument("--checkpoint", type=Path, help="where to save")
    parser.add_argument("--resume", type=Path, help="the checkpoint to go on from")
    parser.add_argument("--lr", type=float, default=3e-3)
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are split by threads: their number must not depend on the machine
    distributed.init_process_group("gloo")
    records = run(arguments)
    if distributed.get_rank() == 0:
        arguments.record.write_text(json.dumps(records))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
