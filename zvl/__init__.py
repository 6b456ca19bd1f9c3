"""zvl: deterministic, elastic data loading for vision-language training.

The same global batches whatever runs it: any number of ranks, workers or machines, before and after any restart.
Importing this package is cheap: torch, transformers and image libraries load at first use.
"""

from zvl import registry
from zvl.batch import Batch
from zvl.dataset import from_rows, open_dataset
from zvl.errors import (
    BadData,
    OperatorError,
    RecipeError,
    RegistryError,
    StateError,
    StorageError,
    ZvlError,
)
from zvl.hashing import Rng
from zvl.mixture import Forever, Mixture, Once, Passes
from zvl.operator import Accumulate, Accumulator, FilterMap, FlatMap, Map, RandomMap, Sample, SplitMap
from zvl.pipeline import Pipeline
from zvl.processor import Processor
from zvl.runlog import RunLog
from zvl.weigh import estimate_tokens

__all__ = [
    "Accumulate",
    "Accumulator",
    "BadData",
    "Batch",
    "FilterMap",
    "FlatMap",
    "Forever",
    "Map",
    "Mixture",
    "Once",
    "OperatorError",
    "Passes",
    "Pipeline",
    "Processor",
    "RandomMap",
    "RecipeError",
    "RegistryError",
    "Rng",
    "RunLog",
    "Sample",
    "SplitMap",
    "StateError",
    "StorageError",
    "ZvlError",
    "estimate_tokens",
    "from_rows",
    "open_dataset",
    "registry",
]
