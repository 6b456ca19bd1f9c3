"""Restarting behind every batch."""

from __future__ import annotations

from zvl.digest import BatchDigest, batch_digest, first_difference
from zvl.pipeline import Pipeline

__all__ = ["check_resume"]


def check_resume(pipeline: Pipeline, *, steps: int, runner: str = "inline", workers: int = 1) -> None:
    """Deliver `steps` steps, then restart behind *every* batch and demand the same rest, byte for byte.

    Also demands that a state which is loaded and saved again is the same, and that a second restart, from a state
    saved by a restarted loader, is exact too. Raises AssertionError that names the first difference.
    """
    digests, states = _run(pipeline, None, steps, runner, workers)
    for place, state in enumerate(states):
        with pipeline.loader(runner=runner, workers=workers, max_steps=steps) as loader:
            loader.load_state_dict(state)
            if loader.state_dict() != state:
                raise AssertionError(f"the state after batch {place} changed by loading and saving it")
        again, states_again = _run(pipeline, state, steps, runner, workers)
        difference = first_difference(digests[place + 1 :], again)
        if difference:
            raise AssertionError(f"restarted after batch {place}: {difference}")
        if states_again != states[place + 1 :]:
            raise AssertionError(f"restarted after batch {place}: the states saved later differ")


def _run(
    pipeline: Pipeline, state: object, steps: int, runner: str, workers: int
) -> tuple[list[BatchDigest], list[dict[str, object]]]:
    with pipeline.loader(runner=runner, workers=workers, max_steps=steps) as loader:
        if state is not None:
            loader.load_state_dict(state)  # type: ignore[arg-type]
        pairs = [(batch_digest(batch), batch.state) for batch in loader]
    return [digest for digest, _ in pairs], [saved for _, saved in pairs]
