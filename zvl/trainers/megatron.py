"""zvl in Megatron-LM and on megatron-core (written for 0.16): batches in Megatron's form on the ranks that load.

In a training script of Megatron-LM, with ``--dataloader-type external --dataloader-save FOLDER``::

    from zvl.trainers.megatron import get_batch, provider

    def forward_step(data_iterator, model):
        batch = get_batch(data_iterator, device="cuda")          # None on pipeline stages between first and last
        ...

    pretrain(provider("recipes/web.toml", settings), model_provider, ModelType.encoder_or_decoder, forward_step)

where `settings()` gives `train_data`'s arguments from Megatron's own (see there). Megatron saves the state with each of
its checkpoints by `save_state()`; the provider loads that of the iteration that Megatron has loaded, on any
data-parallel size. A loop of one's own on megatron-core calls `TrainData.save(folder, iteration)` itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zvl.errors import RecipeError, StateError
from zvl.model_inputs import text_positions
from zvl.pipeline import Pipeline
from zvl.recipe import load_recipe
from zvl.trainers._checks import check_accumulation, check_vocabulary, data_step
from zvl.trainers._rows import Rows

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams

__all__ = ["TrainData", "get_batch", "in_megatron_form", "loads_data", "packed_seq_params", "provider", "train_data"]

STATE = "dataloader_state_dict"
FILE = "train_dataloader_dprank"
ROW_FIELDS = ("tokens", "labels", "loss_mask", "position_ids")


def loads_data() -> bool:
    """If this rank reads data: the first of its tensor-parallel group, in the first or the last pipeline stage."""
    from megatron.core import parallel_state

    if parallel_state.get_tensor_model_parallel_rank() != 0:
        return False
    return bool(parallel_state.is_pipeline_first_stage() or parallel_state.is_pipeline_last_stage())


def train_data(
    recipe: str | os.PathLike[str] | Pipeline,
    *,
    seq_length: int,
    micro_batch_size: int,
    num_microbatches: int,
    vocab_size: int | None = None,
    iteration: int = 0,
    load: str | os.PathLike[str] | None = None,
    accept: str = "",
    **loader_options: Any,
) -> TrainData | None:
    """This rank's data, behind `iteration` steps; None on ranks that load none.

    - `recipe`: its file, or the pipeline.
    - `seq_length`, `micro_batch_size`, `num_microbatches`, `vocab_size` (padded): Megatron's. They must be `pack`'s
      `max_tokens`, `batch`'s `size`, and a rank's batches in a step, ``lanes / data-parallel size * batches_per_step``.
    - `iteration`: what the model has been trained for; `load`: the folder of the data's states.
    - `accept`: as in `Loader.load_state_dict`. Further arguments are those of `Pipeline.loader`.

    RecipeError and StateError say what does not fit. All ranks call it after `initialize_model_parallel`.
    """
    from megatron.core import parallel_state

    pipeline = recipe if isinstance(recipe, Pipeline) else load_recipe(recipe)
    dp_rank = parallel_state.get_data_parallel_rank()
    dp_size = parallel_state.get_data_parallel_world_size()
    rows = Rows.of(pipeline, "Megatron")
    rows.check(seq_length=seq_length, micro_batch_size=micro_batch_size)
    check_accumulation(pipeline, dp_size, num_microbatches, "num_microbatches")
    if rows.processor is not None:
        check_vocabulary(rows.processor, vocab_size)
    parts = 2 * parallel_state.get_context_parallel_world_size()
    if parts > 2 and rows.multiple % parts:
        raise RecipeError(
            f"context parallelism of {parts // 2} cuts each sample into {parts} parts, got "
            f"pack(segment_multiple={rows.multiple}): set segment_multiple={parts}"
        )
    if iteration and load is None:
        raise StateError(
            f"the model has been trained for {iteration} iterations, and nothing says where the state of the data is: "
            "give load, the folder of --dataloader-save"
        )
    if not loads_data():
        return None
    loader_options = {"reducer": _any} | loader_options
    data = TrainData(pipeline.loader(dp_rank=dp_rank, dp_size=dp_size, **loader_options), dp_rank)
    if iteration:
        assert load is not None
        data.load(load, iteration, accept=accept)
    return data


def provider(
    recipe: str | os.PathLike[str] | Pipeline, settings: Callable[[], dict[str, Any]]
) -> Callable[..., tuple[TrainData | None, None, None]]:
    """What Megatron's `pretrain` takes as `train_valid_test_dataset_provider`. `settings()`, called when Megatron has
    read its arguments and checkpoint, gives the arguments of `train_data`::

        def settings():
            args = get_args()
            return dict(seq_length=args.seq_length, micro_batch_size=args.micro_batch_size, iteration=args.iteration,
                        num_microbatches=get_num_microbatches(), vocab_size=args.padded_vocab_size,
                        load=args.dataloader_save)
    """

    def build(train_val_test_num_samples: Any, vp_stage: int | None = None) -> tuple[TrainData | None, None, None]:
        return train_data(recipe, **settings()), None, None

    build.is_distributed = True  # type: ignore[attr-defined]
    return build


class TrainData:
    """An iterator of a rank's batches in Megatron's form, with the state behind the last one given.

    Megatron takes as many batches an iteration as it accumulates, none ahead.
    """

    def __init__(self, loader: Any, dp_rank: int) -> None:
        self._loader = loader
        self._dp_rank = dp_rank
        self._skipped = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        return in_megatron_form(next(self._loader))

    def skip(self, steps: int) -> None:
        """Jump over steps, as `Loader.skip`. The state knows, and loads at the model's iteration all the same."""
        self._loader.skip(steps)
        self._skipped += steps

    def save_state(self) -> dict[str, Any]:
        """This rank's state; Megatron calls it at each checkpoint."""
        return {"state": self._loader.state_dict(), "skipped": self._skipped}

    def save(self, folder: str | os.PathLike[str], iteration: int) -> Path:
        """Write this rank's state where Megatron would, for the model's `iteration`; refuses another step's."""
        import torch

        state = self.save_state()
        _check_iteration(state, iteration, "the state of the data")
        path = Path(folder) / f"iter_{iteration:07d}" / "mp_rank_00" / f"{FILE}{self._dp_rank:03d}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        torch.save({"iteration": iteration, STATE: state}, part)
        part.replace(path)
        return path

    def load(self, folder: str | os.PathLike[str], iteration: int, *, accept: str = "") -> None:
        """Go on behind the states that all ranks saved at the model's `iteration`, however many they were."""
        import torch

        where = Path(folder) / f"iter_{iteration:07d}"
        found = sorted(where.rglob(f"{FILE}*.pt"))
        if not found:
            raise StateError(
                f"the model is at iteration {iteration}, and {where} has no {FILE}000.pt: the state of the data was "
                "not saved (--dataloader-save), or lies elsewhere"
            )
        states = [torch.load(path, weights_only=True)[STATE] for path in found]
        for path, state in zip(found, states, strict=True):
            _check_iteration(state, iteration, str(path))
        self._skipped = states[0]["skipped"]
        self._loader.load_state_dict([state["state"] for state in states], accept=accept)

    def close(self) -> None:
        """End the loader's threads."""
        self._loader.close()


def in_megatron_form(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A `zvl.Batch` as Megatron's models take it; nothing is cut for context parallelism yet.

    - `tokens`, int64 (B, S); `labels`, int64 (B, S): the id that follows each token, 0 where no loss is taken;
      `loss_mask`, float32 (B, S): 1 where it is.
    - `position_ids`: int64 (B, S), anew from 0 in each sample; (3, B, S) for M-RoPE.
    - `cu_seqlens`, int32 (samples + 1,): the samples' borders in the rows laid end to end, padding as one more sample
      of a row; `max_seqlen`, int32 (1,): the longest.
    - `segment_ids`, int32 (B, S), and pixels and geometry as they are in the batch.
    """
    import torch

    rest = {name: value for name, value in batch.items() if name not in ("input_ids", "labels", "position_ids")}
    following = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    positions = batch["position_ids"]
    return rest | {
        "tokens": batch["input_ids"],
        "labels": following.clamp(min=0),
        "loss_mask": (following != -100).float(),
        "position_ids": positions if positions.ndim == 3 else text_positions(batch["segment_ids"]),
        "max_seqlen": batch["cu_seqlens"].diff().max().reshape(1),
    }


def packed_seq_params(batch: Mapping[str, Any]) -> PackedSeqParams:
    """Megatron's borders of the samples, for attention on rows laid end to end ("thd").

    With `segment_multiple` a sample's filling counts as its own: it stands behind the sample and takes no loss, and
    causal attention never looks forward, so lengths with and without it are the same here.
    """
    from megatron.core.packed_seq_params import PackedSeqParams

    borders, longest = batch["cu_seqlens"], int(batch["max_seqlen"])
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=borders,
        cu_seqlens_kv=borders,
        cu_seqlens_q_padded=borders,
        cu_seqlens_kv_padded=borders,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def get_batch(data_iterator: Iterator[Any] | None, *, packed: bool = True, device: Any = None) -> dict[str, Any] | None:
    """The next batch on every rank of a tensor-parallel group, from its first rank; None between first and last stage.

    With `packed`, rows are laid end to end, (1, B·S), or (3, 1, B·S), and `packed_seq_params` is there,
    `attention_mask` None. Else `attention_mask` is bool (B, 1, S, S), True where a token must *not* be seen, as
    Megatron has it. With context parallelism the batch is this rank's part, and `packed` needs Transformer Engine.
    """
    from megatron.core import parallel_state
    from megatron.core.utils import get_batch_on_this_cp_rank, get_thd_batch_on_this_cp_rank

    from zvl.trainers.attention import attention_mask

    if not (parallel_state.is_pipeline_first_stage() or parallel_state.is_pipeline_last_stage()):
        return None
    first = parallel_state.get_tensor_model_parallel_rank() == 0
    assert not first or data_iterator is not None, "ranks that load have an iterator"
    batch = _shared(next(data_iterator) if data_iterator is not None and first else None, device)
    parts: dict[str, Any] = {name: batch[name] for name in ROW_FIELDS}
    cut = parallel_state.get_context_parallel_world_size() > 1
    axes: dict[str, Any] = {}
    if cut and batch["position_ids"].ndim == 3:
        if packed:
            raise RecipeError(
                "Megatron's M-RoPE cuts positions for context parallelism by rows, not by samples: use packed=False"
            )
        axes["position_ids"] = parts.pop("position_ids")  # which it cuts itself
    if packed:
        parts = {name: value.flatten(-2).unsqueeze(-2) for name, value in parts.items()}
        if cut:
            borders = batch["cu_seqlens"]
            parts, _ = get_thd_batch_on_this_cp_rank(parts, borders, borders, batch["max_seqlen"])
        return batch | parts | {"attention_mask": None, "packed_seq_params": packed_seq_params(batch)}
    parts["attention_mask"] = ~attention_mask(batch)
    own_part: dict[str, Any] = get_batch_on_this_cp_rank(parts)
    return batch | own_part | axes


def _shared(batch: dict[str, Any] | None, device: Any) -> dict[str, Any]:
    """The tensors of the first rank's batch on all ranks of the tensor-parallel group, on `device`."""
    import torch
    import torch.distributed as distributed
    from megatron.core import parallel_state

    group = parallel_state.get_tensor_model_parallel_group()
    tensors = {name: value for name, value in (batch or {}).items() if isinstance(value, torch.Tensor)}
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return {name: value.to(device) for name, value in tensors.items()}
    source = parallel_state.get_tensor_model_parallel_src_rank()
    shapes: list[Any] = [[(name, value.dtype, tuple(value.shape)) for name, value in tensors.items()]]
    distributed.broadcast_object_list(shapes, source, group=group)
    found = {}
    for name, dtype, shape in shapes[0]:
        value = tensors[name].to(device) if batch is not None else torch.empty(shape, dtype=dtype, device=device)
        distributed.broadcast(value.contiguous(), source, group=group)
        found[name] = value
    return found


def _any(flag: bool) -> bool:
    """Whether `flag` is true on any data-parallel rank."""
    import torch
    import torch.distributed as distributed
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group()
    value = torch.tensor(int(flag), device="cuda" if distributed.get_backend(group) == "nccl" else "cpu")
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX, group=group)
    return bool(value.item())


def _check_iteration(state: Mapping[str, Any], iteration: int, what: str) -> None:
    """Refuse a state of another step than the model's, those jumped over aside."""
    step = data_step(state["state"]) - state["skipped"]
    if step != iteration:
        raise StateError(
            f"{what} stands behind step {step}, the model at iteration {iteration}: save and load both together"
        )
