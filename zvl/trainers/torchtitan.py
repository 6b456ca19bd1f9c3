"""zvl in TorchTitan (written for 0.3.0): a data loader for its Trainer, and its Trainer with checks at the start.

A configuration of TorchTitan's takes both by their `Config`::

    from zvl.trainers.torchtitan import DataLoader, Trainer

    def my_run() -> Trainer.Config:
        return Trainer.Config(
            dataloader=DataLoader.Config(recipe="recipes/web.toml"),
            training=TrainingConfig(seq_len=4096, local_batch_size=1, global_batch_size=32, steps=10_000),
            ...
        )

`seq_len` is `pack`'s `max_tokens`, `local_batch_size` is `batch`'s `size`, and `global_batch_size` is `lanes` times
`batches_per_step` times that. The state is in TorchTitan's checkpoints, lane by lane, so a run may go on with another
data-parallel degree. `DataLoader` works with TorchTitan's own Trainer too; then nobody checks that a step takes whole
rounds and that the state was loaded, and pixels are normalised on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.trainer import Trainer as TorchTitanTrainer

from zvl.distributed import LaneCheckpoint
from zvl.errors import RecipeError
from zvl.model_inputs import text_positions
from zvl.recipe import load_recipe
from zvl.trainers._checks import check_accumulation, check_trained, check_vocabulary
from zvl.trainers._rows import Rows, check_tokenizers

if TYPE_CHECKING:
    from zvl.protocols import Layout

__all__ = ["DataLoader", "Trainer", "inputs_and_labels", "patches_by_image"]

IGNORE = -100
GRID = "image_grid_thw"

Inputs = dict[str, Any]


class DataLoader(BaseDataLoader):  # type: ignore[misc]
    """A rank's batches of a recipe, one for each of TorchTitan's microbatches, as `(inputs, labels)`.

    See `inputs_and_labels` for what these hold. Each `iter()` begins anew, the first one where the loaded state says.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        recipe: str = ""
        """The recipe's TOML file."""
        runner: str = "threads"
        """Where operators run: "threads", "processes" or "inline"."""
        workers: int | None = None
        """Its size; None: the CPUs of this process."""
        prefetch: int | None = None
        """Batches ahead of the trainer; None: as many as keep the workers busy."""
        quarantine: str | None = None
        """File for bad samples, one a rank."""
        max_steps: int | None = None
        """The run ends before this step of the data. Finite data need it where other ranks than data-parallel ones
        exist."""
        accept: str = ""
        """ "pixels": a difference in decoded pixels between a state and this machine passes with a warning."""
        infinite: bool = True
        """Written by TorchTitan's validator and not read: the recipe's `passes` say when data end."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        if not config.recipe:
            raise RecipeError("expected dataloader.recipe, the path of a recipe, got none")
        self.config = config
        self.pipeline = load_recipe(config.recipe)
        self.rows = Rows.of(self.pipeline, "TorchTitan")
        self.rows.check(seq_len=seq_len, local_batch_size=local_batch_size)
        self.dp_rank, self.dp_size = dp_rank, dp_world_size
        self._layout = _grid_layout(self.rows)
        self._special = _special_tokens(self.rows, tokenizer) if self._layout else None
        if self._layout and dp_world_size > 1 and not self.rows.dummy_image:
            raise RecipeError(
                "on a rank whose batch has no image the vision tower would not run, and the other ranks would wait for "
                "it: give pack dummy_image = true and processor = true"
            )
        if self.rows.processor is not None and (ids := _ids(tokenizer)) is not None:
            check_tokenizers(self.rows.processor.tokenizer.get_vocab(), ids)
        self.normalise = True
        """Whether pixels leave normalised; False: as uint8, for `patches_by_image` on the device."""
        self._fresh = True
        self._loader = self._open()

    def _open(self) -> Any:
        config = self.config
        return self.pipeline.loader(
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            runner=config.runner,
            workers=config.workers,
            prefetch=config.prefetch,
            quarantine=config.quarantine and own_ledger(Path(config.quarantine), self.dp_size),
            max_steps=config.max_steps,
        )

    def __iter__(self) -> Iterator[tuple[Inputs, torch.Tensor]]:
        if not self._fresh:
            self.close()
            self._loader = self._open()
        self._fresh = False
        for batch in self._loader:
            inputs, labels = inputs_and_labels(batch, self._special)
            if self._layout is not None and self.normalise and "pixel_values" in inputs:
                inputs |= patches_by_image(self._layout, inputs)
            yield inputs, labels

    def check_trained(self, steps: int) -> None:
        """Refuse data that stand before a model which has been trained for so many steps."""
        where = 'take "dataloader" out of checkpoint.exclude_from_loading'
        check_trained(self._loader.state_dict(), steps, where)

    def state_dict(self) -> dict[str, str]:
        """This rank's lanes, an entry for each, after the batch last given."""
        return LaneCheckpoint(self._loader).state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on behind a state of this rank's lanes, saved by whichever ranks. StateError if it does not fit."""
        LaneCheckpoint(_Accepting(self._loader, self.config.accept)).load_state_dict(state_dict)

    def close(self) -> None:
        """End the loader's threads."""
        self._loader.close()


@dataclass(frozen=True)
class _Accepting:
    """A loader whose states are loaded with `accept`."""

    loader: Any
    accept: str

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state, accept=self.accept)


class Trainer(TorchTitanTrainer):  # type: ignore[misc]
    """TorchTitan's Trainer with a zvl `DataLoader`: checks before the first step, and normalises on the device."""

    @dataclass(kw_only=True, slots=True)
    class Config(TorchTitanTrainer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not isinstance(self.dataloader, DataLoader):
            raise RecipeError(
                "expected zvl.trainers.torchtitan.DataLoader.Config as dataloader, got "
                f"{type(self.dataloader).__name__}'s: use it, or TorchTitan's own Trainer"
            )
        loader = self.dataloader
        batches = self.gradient_accumulation_steps * self.num_pipeline_parallel_microbatches
        setting = "global_batch_size / (data-parallel degree x rows of a batch)"
        check_accumulation(loader.pipeline, loader.dp_size, batches, setting)
        if loader.rows.processor is not None:
            check_vocabulary(loader.rows.processor, getattr(self.model_config, "vocab_size", None))
        attention = getattr(self.model_config, "first_attention", None)
        if isinstance(getattr(attention, "inner_attention", None), ScaledDotProductAttention.Config):
            raise RecipeError(
                "the model's ScaledDotProductAttention has no mask, so the samples of a row would see each other: "
                'choose attn_backend="flex" or "varlen"'
            )
        self.dataloader.normalise = False

    def batch_generator(self, data_iterable: Any) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """TorchTitan's, called after its checkpoint was loaded: the data must have come as far as the model."""
        if data_iterable is self.dataloader:
            self.dataloader.check_trained(self.step)
        batches: Iterator[tuple[Inputs, torch.Tensor]] = super().batch_generator(data_iterable)
        return batches

    def post_dataloading_process(self, input_dict: Inputs, labels: torch.Tensor) -> Any:
        """TorchTitan's, behind the scaling of pixels, which are on the device by now."""
        pixels = input_dict.get("pixel_values")
        if pixels is not None and pixels.dtype == torch.uint8:
            input_dict |= patches_by_image(self.dataloader._layout, input_dict)
        return super().post_dataloading_process(input_dict, labels)

    def close(self) -> None:
        if isinstance(getattr(self, "dataloader", None), DataLoader):
            self.dataloader.close()
        super().close()


def inputs_and_labels(
    batch: Mapping[str, Any], special_tokens: Mapping[str, int] | None = None
) -> tuple[Inputs, torch.Tensor]:
    """A `zvl.Batch` in TorchTitan's form.

    `labels`, int64 (B, S): the id that follows each token, -100 where no loss is taken. The inputs hold:

    - `input`, int64 (B, S): token ids.
    - `positions`, int64 (B, S): 0, 1, 2, ... anew in each sample and in the padding. TorchTitan's FlexAttention and
      varlen masks keep samples apart by them.
    - `special_tokens`, where given: ids by the names that its vision-language models ask for.
    - of a batch with images: `pixel_values`, uint8 as in the batch, `grid_thw`, int64 (images, 3), frames, rows and
      columns of patches, and `mrope_positions`, int64 (B, S, 3).
    """
    ids, labels = batch["input_ids"], batch["labels"]
    inputs: Inputs = {"input": ids, "positions": text_positions(batch["segment_ids"])}
    if special_tokens is not None:
        inputs["special_tokens"] = dict(special_tokens)
        if len(batch["pixel_values"]):
            inputs["pixel_values"] = batch["pixel_values"]
            inputs["grid_thw"] = batch[GRID]
            inputs["mrope_positions"] = batch["position_ids"].movedim(0, -1)
    # The first label of each sample is -100, so the last token of one predicts nothing of the next.
    return inputs, torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)


def patches_by_image(layout: Layout, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """`pixel_values`, float32 (images, most patches of an image, channels · frames · height · width of a patch), each
    image's normalised patches and then zeros, where `inputs` are: on the device if they are there."""
    batch = {"pixel_values": inputs["pixel_values"], GRID: inputs["grid_thw"]}
    patches = layout.pixel_inputs(batch, inputs["pixel_values"].device, torch.float32)["pixel_values"]
    counts = inputs["grid_thw"].prod(-1).tolist()
    return {"pixel_values": torch.nn.utils.rnn.pad_sequence(list(patches.split(counts)), batch_first=True)}


def own_ledger(path: Path, dp_size: int) -> Path:
    """A ledger of this process alone, where several have the same data-parallel rank."""
    distributed = torch.distributed
    if not distributed.is_initialized() or distributed.get_world_size() == dp_size:
        return path
    return path.with_name(f"{path.stem}.process{distributed.get_rank()}{path.suffix}")


def _grid_layout(rows: Rows) -> Layout | None:
    """The layout of a recipe with images; RecipeError if TorchTitan's models do not take its patches."""
    if not rows.images or rows.processor is None:
        return None
    layout = rows.processor.layout
    if GRID not in layout.geometry(()):
        name = type(layout).__module__.rpartition(".")[2]
        raise RecipeError(
            f"TorchTitan's vision-language models take patches in grids and M-RoPE positions, as layout qwen3_vl makes "
            f"them for its Qwen3.5, got layout {name}: choose such a layout"
        )
    return layout


def _special_tokens(rows: Rows, tokenizer: Any) -> dict[str, int]:
    """Ids under the names of TorchTitan's MultiModalTokenizer; RecipeError if it is another, or has another image."""
    names = getattr(tokenizer, "TOKEN_FIELDS", None)
    if names is None:
        raise RecipeError(
            f"a recipe with images needs TorchTitan's MultiModalTokenizer, got {type(tokenizer).__name__}: "
            "set tokenizer=MultiModalTokenizer.Config(...)"
        )
    found = {f"{name}_id": int(getattr(tokenizer, f"{name}_id")) for name in names}
    assert rows.processor is not None
    if found["image_id"] != rows.processor.image_token_id:
        raise RecipeError(
            f"TorchTitan's tokenizer has the image token {found['image_id']}, the recipe's layout writes "
            f"{rows.processor.image_token_id}: use the same tokenizer and image token for both"
        )
    return found


def _ids(tokenizer: Any) -> dict[str, int] | None:
    """Token to id, of a tokenizer that wraps one of the `tokenizers` library."""
    inner: Any = getattr(tokenizer, "tokenizer", None)
    return inner.get_vocab(with_added_tokens=True) if hasattr(inner, "get_vocab") else None
