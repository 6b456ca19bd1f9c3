"""`Mixture`: several datasets in given shares, each shuffled and passed over as often as asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar, get_args

from zvl.errors import RecipeError
from zvl.mixture.cursor import MixtureCursor
from zvl.mixture.order import DatasetOrder, Shuffle
from zvl.mixture.policy import Forever, Once, Passes, PassPolicy
from zvl.protocols import Dataset

__all__ = ["Mixture"]

T = TypeVar("T")


class Mixture:
    """The built-in `WorkSource`: a weighted mixture of datasets.

    Args:
        datasets: by name, in the order of `Pointer.dataset`; or one dataset, which is then named "data". Names are
            part of samples' keys and of the order.
        weights: share of each dataset in the samples, in any unit; equal if not given.
        passes: `Once()`, `Passes(n)` or `Forever()`, for all or by name; Forever() where not given. A dataset that
            is exhausted on a lane leaves that lane's mixture, and the others share its part by their weights. A
            dataset without rows is exhausted from the start; with Forever() it is an error.
        shuffle: "chunks", "shards", "rows" or "none" (see `zvl.mixture.order`), for all or by name; "chunks"
            where not given.
        chunk_rows: most rows in a chunk, the unit of reading and of shuffling. Larger chunks read faster and mix
            less: neighbours of a shard follow each other in a lane.
        seed: 0..2**64-1; another seed gives other orders.

    All row counts are read when it is made, no row ever is. What cannot work raises RecipeError.
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset] | Dataset,
        *,
        weights: Mapping[str, float] | None = None,
        passes: Mapping[str, PassPolicy] | PassPolicy | None = None,
        shuffle: Mapping[str, Shuffle] | Shuffle = "chunks",
        chunk_rows: int = 64,
        seed: int = 0,
    ) -> None:
        named = dict(datasets) if isinstance(datasets, Mapping) else {"data": datasets}
        _check_datasets(named)
        _check_whole("chunk_rows", chunk_rows, 1, 2**40)
        _check_whole("seed", seed, 0, 2**64 - 1)
        self.seed = seed
        self.chunk_rows = chunk_rows
        self.weights = _check_weights(weights, list(named))
        self.passes: dict[str, PassPolicy] = _by_name("passes", passes, list(named), Forever())
        self.shuffle: dict[str, Shuffle] = _by_name("shuffle", shuffle, list(named), "chunks")
        self._datasets = named
        _check_policies(self.passes, self.shuffle)
        self._orders = self._make_orders()

    def _make_orders(self) -> list[DatasetOrder]:
        orders = []
        for name, dataset in self._datasets.items():
            order = DatasetOrder(name, dataset.shard_rows, self.shuffle[name], self.chunk_rows, self.seed)
            if order.table.total == 0 and self.passes[name].limit is None:
                raise RecipeError(
                    f"Mixture: expected rows in {name!r}, which is passed over forever, got none in its "
                    f"{len(order.table.rows)} shards; check its path, or leave it out"
                )
            orders.append(order)
        return orders

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the datasets, in the order of `Pointer.dataset`."""
        return tuple(self._datasets)

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets, in the order of `Pointer.dataset`."""
        return tuple(self._datasets.values())

    @property
    def finite(self) -> bool:
        """Whether every lane ends: no dataset has Forever()."""
        return all(policy.limit is not None for policy in self.passes.values())

    def lane(self, lane: int, lanes: int) -> MixtureCursor:
        """A cursor at the beginning of lane `lane` of `lanes`."""
        if not 0 <= lane < lanes:
            raise RecipeError(f"Mixture: expected a lane in 0..{lanes - 1}, got {lane}")
        limits = [self.passes[name].limit for name in self._datasets]
        weights = [Fraction(self.weights[name]) for name in self._datasets]
        return MixtureCursor(self._orders, limits, weights, self.seed, lane, lanes)

    def fingerprint(self) -> dict[str, Any]:
        """JSON that names everything that determines the order. Asks every dataset, which may be slow."""
        return {
            "source": "mixture",
            "seed": self.seed,
            "chunk_rows": self.chunk_rows,
            "datasets": [
                {
                    "name": name,
                    "weight": float(self.weights[name]),
                    "passes": self.passes[name].limit or "forever",
                    "shuffle": self.shuffle[name],
                    "data": dataset.fingerprint(),
                }
                for name, dataset in self._datasets.items()
            ],
        }

    def describe_dataset(self, place: int) -> str:
        """One dataset's part in a few words, for `explain()`: its share of the samples, passes, order."""
        name = self.names[place]
        share = self.weights[name] / sum(self.weights.values())
        limit = self.passes[name].limit
        passes = "forever" if limit is None else "once" if limit == 1 else f"{limit} passes"
        return f"{share:.1%} of samples, {passes}, shuffle={self.shuffle[name]}"

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_orders"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._orders = self._make_orders()


def _check_datasets(datasets: Mapping[str, Dataset]) -> None:
    if not datasets:
        raise RecipeError("Mixture: expected one dataset or more, got none")
    for name, dataset in datasets.items():
        if not isinstance(name, str) or not name or set(name) & set("/#@"):
            raise RecipeError(
                f'Mixture: expected a dataset name that is not empty and has no "/", "#" or "@", got {name!r}: '
                "names are part of keys like web/shard.tar#345@1"
            )
        if not hasattr(dataset, "shard_rows"):
            raise RecipeError(
                f"Mixture: expected a dataset for {name!r}, got {type(dataset).__name__}; "
                "zvl.open_dataset(path) makes one"
            )


def _check_whole(what: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise RecipeError(f"Mixture: expected {what} as a whole number in {least}..{most}, got {value!r}")


def _check_weights(weights: Mapping[str, float] | None, names: list[str]) -> dict[str, float]:
    if weights is None:
        return dict.fromkeys(names, 1.0 / len(names))
    if not isinstance(weights, Mapping) or set(weights) != set(names):
        got = _quoted(weights) if isinstance(weights, Mapping) else repr(weights)
        raise RecipeError(f"Mixture: expected weights for {_quoted(names)}, got {got}")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise RecipeError(
                f"Mixture: expected the weight of {name!r} as a number above 0, got {weight!r}; "
                "to leave a dataset out, remove it from the mixture"
            )
    return {name: weights[name] for name in names}


def _by_name(what: str, value: Mapping[str, T] | T | None, names: list[str], default: T) -> dict[str, T]:
    """One value for all names, or the mapping's and the default for names that it lacks."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, default if value is None else value)
    if unknown := [name for name in value if name not in names]:
        raise RecipeError(f"Mixture: expected {what} for names among {_quoted(names)}, got {_quoted(unknown)}")
    return {name: value.get(name, default) for name in names}


def _check_policies(passes: Mapping[str, PassPolicy], shuffle: Mapping[str, Shuffle]) -> None:
    for name, policy in passes.items():
        if not isinstance(policy, Once | Passes | Forever):
            raise RecipeError(f"Mixture: expected passes of {name!r} as Once(), Passes(n) or Forever(), got {policy!r}")
    words = get_args(Shuffle)
    for name, word in shuffle.items():
        if word not in words:
            raise RecipeError(f"Mixture: expected shuffle of {name!r} as one of {_quoted(words)}, got {word!r}")


def _quoted(names: Any) -> str:
    return ", ".join(map(repr, names)) or "nothing"
