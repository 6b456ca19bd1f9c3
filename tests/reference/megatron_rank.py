"""Four ranks of `test_megatron.py` under gloo: FOLDER; prints what each of them saw, as JSON.

megatron-core's own groups are made anew for each way to share the four among tensor, pipeline, data and context
parallelism. Every rank hashes the batches that it got, in Megatron's form, and trains a small GPTModel on them. Its
layers ask for CUDA's random state, for dropout, which is 0 here: `on_cpu` answers.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that Transformer Engine and Apex are not there
    import torch
    import torch.distributed as distributed
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.rerun_state_machine import RerunDataIterator
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.transformer_config import TransformerConfig

import zvl
from zvl.errors import RecipeError, StateError
from zvl.trainers.megatron import TrainData, get_batch, provider, train_data

RANKS, LANES, ROWS, LENGTH = 4, 4, 2, 32
STEPS, STOP = 4, 2
BORDERS = ("cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


def pipeline(multiple: int = 4) -> zvl.Pipeline:
    """Text in rows of 32 tokens; endless."""
    rows = [
        {"input_ids": torch.arange(3 + n % 17).numpy() + n, "labels": torch.arange(3 + n % 17).numpy() + n}
        for n in range(90)
    ]
    source = zvl.Mixture(zvl.from_rows(rows), chunk_rows=4, seed=5)
    packed = zvl.Pipeline(source, lanes=LANES, flush_every=32).pack(
        max_tokens=LENGTH, segment_multiple=multiple, lookahead=8
    )
    return packed.batch(ROWS)


def digest(batch: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name in ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen", "segment_ids"):
        found.update(f"{name} {batch[name].dtype} {tuple(batch[name].shape)}".encode() + batch[name].numpy().tobytes())
    return found.hexdigest()


def begin(**sizes: int) -> int:
    """Share the ranks out; the data-parallel size."""
    parallel_state.initialize_model_parallel(**sizes)
    return int(parallel_state.get_data_parallel_world_size())


def on_cpu() -> None:
    """Let megatron-core's layers do without CUDA."""
    random._CUDA_RNG_STATE_TRACKER = type("NoDropout", (), {"fork": lambda self, name="": nullcontext()})()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    torch.cuda.current_device = lambda: "cpu"


def small_model() -> Any:
    """One layer, the same on every rank but for its tensor-parallel part."""
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
    )
    torch.manual_seed(0)
    return GPTModel(config, get_gpt_layer_local_spec(), vocab_size=128, max_sequence_length=LENGTH)


def losses(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """The loss of each token, (B, S), 0 where none is taken."""
    found: torch.Tensor = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
    return found * batch["loss_mask"]


def leak(model: Any, batch: dict[str, Any]) -> float:
    """How much the losses behind a row's first sample change when that sample does; the first sample's must."""
    first = batch["segment_ids"] == 1
    other = batch | {"tokens": torch.where(first, 127 - batch["tokens"], batch["tokens"])}
    with torch.no_grad():
        change = (losses(model, other) - losses(model, batch)).abs()
    assert change[first].max() > 1e-3
    assert change[~first].numel()
    return float(change[~first].max())


def train(model: Any, batches: list[dict[str, Any]]) -> float:
    """One optimizer step; the step's loss, over the data-parallel ranks."""
    total = sum((losses(model, batch).sum() for batch in batches), torch.zeros(()))
    sums = torch.stack([total.detach(), sum(batch["loss_mask"].sum() for batch in batches)])
    group = parallel_state.get_data_parallel_group()
    distributed.all_reduce(sums, group=group)
    (total / sums[1]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad, group=group)
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    return float(sums[0] / sums[1])


def run(folder: Path, steps: range, save: bool = False, **sizes: int) -> dict[str, Any]:
    """Take the batches of those steps; the hashes, by step, and who this rank is."""
    dp_size = begin(**sizes)
    per_step = LANES // dp_size
    data = train_data(
        pipeline(),
        seq_length=LENGTH,
        micro_batch_size=ROWS,
        num_microbatches=per_step,
        iteration=steps.start,
        load=folder,
        runner="inline",
    )
    seen: dict[int, list[str]] = {}
    found: dict[str, Any] = {"losses": []}
    model = None if parallel_state.get_pipeline_model_parallel_world_size() > 1 else small_model()
    for step in steps:
        batches = [batch for _ in range(per_step) if (batch := get_batch(data, packed=False)) is not None]
        seen[step] = [digest(batch) for batch in batches]
        if model is not None:
            found["losses"].append(train(model, batches))
            found["leak"] = leak(model, batches[0])
    written = None
    if save and data is not None:
        written = str(data.save(folder, steps.stop).relative_to(folder))
    distributed.barrier()
    rank = {
        "dp": parallel_state.get_data_parallel_rank(),
        "tp": parallel_state.get_tensor_model_parallel_rank(),
        "pp": parallel_state.get_pipeline_model_parallel_rank(),
    }
    end(data)
    parallel_state.destroy_model_parallel()
    return found | {"rank": rank, "loads": data is not None, "seen": seen, "written": written}


def end(data: TrainData | None) -> None:
    if data is not None:
        data.close()


def context_parallel() -> dict[str, Any]:
    """What a rank has of a batch that is cut for context parallelism, beside the whole batch."""
    begin(tensor_model_parallel_size=2, context_parallel_size=2)
    sizes = {"seq_length": LENGTH, "micro_batch_size": ROWS, "num_microbatches": LANES}
    said = ""
    try:
        train_data(pipeline(2), **sizes)
    except RecipeError as error:
        said = str(error)
    data, whole = train_data(pipeline(4), **sizes), train_data(pipeline(4), **sizes)
    part = get_batch(data, packed=False)
    found = {"cp": parallel_state.get_context_parallel_rank(), "said": said}
    found |= {name: part[name].tolist() for name in ("tokens", "position_ids", "loss_mask")}
    found["mask"] = list(part["attention_mask"].shape)
    if whole is not None:
        found["whole"] = next(whole)["tokens"].tolist()
        whole.close()
    distributed.barrier()
    end(data)
    parallel_state.destroy_model_parallel()
    return found


def packed() -> dict[str, Any]:
    """A batch laid end to end, from what Megatron's `pretrain` gets, after a jump; and the state behind it."""
    begin(tensor_model_parallel_size=2)
    build = provider(pipeline(), lambda: {"seq_length": LENGTH, "micro_batch_size": ROWS, "num_microbatches": 2})
    data, valid, test = build([100, 10, 10])
    assert build.is_distributed
    assert valid is test is None
    if data is not None:
        data.skip(2)
    iterator = None if data is None else RerunDataIterator(data)  # as Megatron's training wraps it
    rows = get_batch(iterator, packed=False)
    batch = get_batch(iterator)
    params = batch["packed_seq_params"]
    found = {
        "tp": parallel_state.get_tensor_model_parallel_rank(),
        "first": digest(rows),
        "shapes": {name: list(batch[name].shape) for name in ("tokens", "labels", "loss_mask", "position_ids")},
        "segments": batch["segment_ids"].flatten().tolist(),
        "borders": params.cu_seqlens_q.tolist(),
        "same": all(params.cu_seqlens_q.equal(getattr(params, name)) for name in BORDERS),
        "rest": [params.qkv_format, str(params.cu_seqlens_q.dtype), params.max_seqlen_q, params.max_seqlen_kv],
        "mask": batch["attention_mask"],
    }
    if iterator is not None:
        found["skipped"] = iterator.iterable.save_state()["skipped"]
    distributed.barrier()
    end(data)
    parallel_state.destroy_model_parallel()
    return found


def refusals(folder: Path) -> dict[str, str]:
    """What is said of configurations and states that do not fit."""
    begin(tensor_model_parallel_size=2)
    good: dict[str, Any] = {"seq_length": LENGTH, "micro_batch_size": ROWS, "num_microbatches": 2, "runner": "inline"}
    wrong: dict[str, dict[str, Any]] = {
        "length": {"seq_length": 64},
        "rows": {"micro_batch_size": 1},
        "round": {"num_microbatches": 3},
        "unloaded": {"iteration": 2},
        "missing": {"iteration": 3, "load": folder},
        "other": {"iteration": 7, "load": folder},
    }
    said = {}
    for name, fields in wrong.items():
        try:
            end(train_data(pipeline(), **(good | fields)))
        except (RecipeError, StateError) as error:
            said[name] = str(error)
    data = train_data(pipeline(), **good)
    if data is not None:
        try:
            data.save(folder / "nowhere", 1)
        except StateError as error:
            said["save"] = str(error)
    distributed.barrier()
    end(data)
    parallel_state.destroy_model_parallel()
    return said


def rank(number: int, folder: Path, results: Any) -> None:
    torch.set_num_threads(1)
    on_cpu()
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=number, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    saved = folder / "saved"
    found: dict[str, Any] = {
        "tp4": run(saved, range(STEPS), tensor_model_parallel_size=4),
        "tp2": run(saved, range(STOP), save=True, tensor_model_parallel_size=2),
        "tp1": run(saved, range(STOP, STEPS), tensor_model_parallel_size=1),
        "tp4, later": run(saved, range(STOP, STEPS), tensor_model_parallel_size=4),
        "pp4": run(saved, range(STOP), pipeline_model_parallel_size=4),
    }
    if number == 0:
        (saved / "iter_0000007").mkdir()
        (saved / "iter_0000007" / "train_dataloader_dprank000.pt").write_bytes(
            next(saved.rglob("*dprank000.pt")).read_bytes()
        )
    distributed.barrier()
    found["cp"] = context_parallel()
    found["packed"] = packed()
    found["refused"] = refusals(saved)
    results.put((number, found))
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    folder = Path(sys.argv[1])
    context = multiprocessing.get_context("fork")  # the imports take longer than the rest
    results = context.Queue()
    ranks = [context.Process(target=rank, args=(number, folder, results), daemon=True) for number in range(RANKS)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join()
    print(json.dumps([found[number] for number in range(RANKS)]))


if __name__ == "__main__":
    main()
