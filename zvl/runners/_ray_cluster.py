"""The Ray cluster that this process works with: one that it is connected to, or one that is started for it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from importlib.util import find_spec
from typing import Any

from zvl.budget import node_cpus
from zvl.errors import RecipeError, ZvlError, isolate

__all__ = ["Session", "address_of_cluster", "check_ray", "cluster_cpus"]

_lock = threading.Lock()
_users = 0
"""Sessions that use a Ray which zvl has started."""


def check_ray() -> None:
    """RecipeError where Ray is not installed; does not import it."""
    if find_spec("ray") is None:
        raise RecipeError('runner="ray" needs the package ray, which is not installed: pip install zvl[ray]')


def address_of_cluster() -> dict[str, str]:
    """Environment with which a child process finds the cluster that this process is connected to."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {}
    return {"RAY_ADDRESS": str(ray.get_runtime_context().gcs_address)}


def cluster_cpus() -> int | None:
    """CPUs of the cluster that this process is connected to; None if to none."""
    ray = sys.modules.get("ray")
    return None if ray is None or not ray.is_initialized() else int(ray.cluster_resources().get("CPU", 0))


class Session:
    """Ray, connected, as `ray`. If it was not, `close` disconnects it again once no other session needs it."""

    def __init__(self) -> None:
        global _users
        check_ray()
        self.ray: Any = importlib.import_module("ray")
        with _lock:
            self._ours = _users > 0 or not self.ray.is_initialized()
            if self._ours and not _users:
                _connect(self.ray)
            _users += self._ours

    def close(self) -> None:
        """Safe to call twice."""
        global _users
        with _lock:
            ours, self._ours = self._ours, False
            _users -= ours
            if ours and not _users:
                self.ray.shutdown()

    def cpus(self) -> int:
        """CPUs of the whole cluster, in use or not."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def store_bytes(self) -> int:
        """Size of this machine's object store."""
        here = self.ray.get_runtime_context().get_node_id()
        found = [node for node in self.ray.nodes() if node["NodeID"] == here]
        return int(found[0]["Resources"].get("object_store_memory", 0)) if found else 0


def _connect(ray: Any) -> None:
    """To the cluster of RAY_ADDRESS, else to a new one on this machine."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    address = os.environ.get("RAY_ADDRESS")
    with isolate(lambda error: _no_cluster(address, error)):
        if address:
            ray.init(address="auto", **quiet)
        else:
            ray.init(address="local", num_cpus=node_cpus(), include_dashboard=False, **quiet)
    if in_main:
        signal.signal(signal.SIGTERM, handler)  # Ray sets its own; what ends a trainer is not ours to change


def _no_cluster(address: str | None, error: Exception) -> ZvlError:
    what = f"a Ray cluster at RAY_ADDRESS={address}" if address else "to start Ray on this machine"
    todo = "start one there with `ray start`, or unset RAY_ADDRESS" if address else "try `ray start --head`"
    return ZvlError(f"expected {what}, got {type(error).__name__}: {error}; {todo}")
