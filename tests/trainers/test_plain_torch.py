"""A loader is an iterator with a state, which is all that torch and torchdata ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch.utils.data as torch_data
from torchdata.nodes import IterableWrapper, Prefetcher
from torchdata.nodes import Loader as NodeLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from reference.tiny_training import digests, toy_pipeline
from zvl.batch import Batch
from zvl.errors import RecipeError
from zvl.loader import Loader

STEPS, PER_STEP = 6, 4


def expected() -> list[list[Any]]:
    with toy_pipeline().loader(max_steps=STEPS) as loader:
        return digests(loader)


class Stream(torch_data.IterableDataset[Batch]):
    """The five lines that torch.utils.data asks for, and StatefulDataLoader's two besides. For `num_workers=0`."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


def test_a_torch_data_loader_hands_batches_on_as_they_are() -> None:
    with toy_pipeline().loader(max_steps=STEPS) as loader:
        batches = list(torch_data.DataLoader(Stream(loader), batch_size=None))
    assert digests(batches) == expected()
    with toy_pipeline().loader() as loader:
        loader.load_state_dict(batches[6].state)
        assert digests(islice(loader, 5)) == expected()[7:12]


# torchdata 0.11 calls it; torch 2.13 does nothing there.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated, please do not call:UserWarning")
@pytest.mark.parametrize("stop", [1, 5, 8])
def test_a_stateful_data_loader_goes_on(stop: int) -> None:
    with toy_pipeline().loader() as loader:
        data = StatefulDataLoader(Stream(loader), batch_size=None)
        first = digests(islice(data, stop))
        state = data.state_dict()
    with toy_pipeline().loader(max_steps=STEPS) as loader:
        data = StatefulDataLoader(Stream(loader), batch_size=None)
        data.load_state_dict(state)
        assert first + digests(data) == expected()


@pytest.mark.parametrize("stop", [1, 5, 8])
def test_torchdata_nodes_go_on(stop: int) -> None:
    with toy_pipeline().loader() as loader:
        nodes = NodeLoader(IterableWrapper(loader))
        first = digests(islice(nodes, stop))
        state = nodes.state_dict()
    with toy_pipeline().loader(max_steps=STEPS) as loader:
        nodes = NodeLoader(IterableWrapper(loader), restart_on_stop_iteration=False)
        nodes.load_state_dict(state)
        assert first + digests(nodes) == expected()


def test_behind_a_prefetcher_the_state_of_the_batch_counts() -> None:
    with toy_pipeline().loader() as loader:
        nodes = NodeLoader(Prefetcher(IterableWrapper(loader), prefetch_factor=4))
        batches = list(islice(nodes, 5))
        del nodes
    with toy_pipeline().loader(max_steps=STEPS) as loader:
        loader.load_state_dict(batches[-1].state)
        assert digests(batches) + digests(loader) == expected()


def through_nodes(ranks: int, stop: int, states: Sequence[dict[str, Any]]) -> tuple[list[Any], list[dict[str, Any]]]:
    """All ranks' batches until step `stop` through torchdata, and their states as a checkpoint of it holds them."""
    got, saved = [], []
    for rank in range(ranks):
        with toy_pipeline().loader(dp_rank=rank, dp_size=ranks, max_steps=stop) as loader:
            if states:
                loader.load_state_dict(states)
            nodes = NodeLoader(IterableWrapper(loader), restart_on_stop_iteration=False)
            got += digests(nodes)
            saved.append(nodes.state_dict()["root"]["iterable"])
    return got, saved


def test_the_states_of_some_ranks_go_on_with_others() -> None:
    first, states = through_nodes(2, 2, [])
    second, states = through_nodes(1, 3, states)
    third, _ = through_nodes(2, STEPS, states)
    assert len(first) == 2 * PER_STEP
    assert sorted(first + second + third) == sorted(expected())


@pytest.mark.parametrize("workers", [1, 2])
def test_several_workers_of_a_torch_dataloader_are_refused(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(torch_data, "get_worker_info", lambda: SimpleNamespace(id=0, num_workers=workers))
    with toy_pipeline().loader(runner="inline") as loader:
        if workers == 1:
            next(loader)
            return
        with pytest.raises(RecipeError, match="one of 2 workers of a torch DataLoader"):
            next(loader)
