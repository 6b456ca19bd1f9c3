"""Planning and replay over an index cost no image traffic, counted at the server."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage
from services.files import serve_bytes
from services.server import Reply, Request, Server

import zvl
from zvl.digest import batch_digest
from zvl.indexing import index_dataset

SHARDS, ROWS = 8, 64
FLUSH = 256


def picture(seed: int) -> bytes:
    """A JPEG of about 110 kB, whose pixels are few: noise does not compress."""
    pixels = np.random.default_rng(seed).integers(0, 255, (224, 336, 3), np.uint8)
    out = io.BytesIO()
    PilImage.fromarray(pixels).save(out, "JPEG", quality=96)
    return out.getvalue()


class Tars:
    """Tar shards behind a web server; counts the bytes sent, and of each row the bytes of its picture."""

    def __init__(self) -> None:
        pictures = [picture(seed) for seed in range(16)]
        self.shards: dict[str, tuple[bytes, str]] = {}
        self.spans: dict[str, list[tuple[int, int]]] = {}
        for shard in range(SHARDS):
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as tar:
                for row in range(ROWS):
                    asked = [{"type": "image"}, {"type": "text", "text": f"what is in {shard}, {row}?"}]
                    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": "noise"}]
                    add(tar, f"{row:03}.json", json.dumps({"messages": turns}).encode())
                    add(tar, f"{row:03}.jpg", pictures[(shard * 7 + row) % 16])
            out.seek(0)
            with tarfile.open(fileobj=out) as tar:
                members = [member for member in tar.getmembers() if member.name.endswith(".jpg")]
            self.spans[f"s{shard}.tar"] = [(member.offset_data, member.offset_data + member.size) for member in members]
            data = out.getvalue()
            self.shards[f"s{shard}.tar"] = data, f'"{hashlib.sha256(data).hexdigest()[:20]}"'
        self.image_bytes = sum(stop - start for spans in self.spans.values() for start, stop in spans)
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Count from here on."""
        self.sent = 0
        self.sent_of: dict[tuple[str, int], int] = {}

    @property
    def sent_images(self) -> int:
        return sum(self.sent_of.values())

    def __call__(self, request: Request) -> Reply:
        name = request.path.removeprefix("/")
        if name not in self.shards:
            return Reply(404, {}, b"")
        data, etag = self.shards[name]
        reply = serve_bytes(data, etag, request)
        if request.method == "GET":
            span = re.match(r"bytes (\d+)-(\d+)", reply.headers.get("Content-Range", ""))
            begin, end = (int(span[1]), int(span[2]) + 1) if span else (0, len(data))
            with self._lock:
                self.sent += end - begin
                for row, (start, stop) in enumerate(self.spans[name]):
                    if begin < stop and start < end:
                        both = min(stop, end) - max(start, begin)
                        self.sent_of[name, row] = self.sent_of.get((name, row), 0) + both
        return reply


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


@pytest.fixture(scope="module")
def tars() -> Tars:
    return Tars()


@pytest.fixture(scope="module")
def server(tars: Tars) -> Iterator[Server]:
    with Server(tars) as server:
        yield server


@pytest.fixture(scope="module")
def index(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sidecars and offsets of all shards."""
    folder = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZVL_CACHE", str(folder))
        patch.delenv("ZVL_SHARD_CACHE", raising=False)
        assert index_dataset(zvl.open_dataset(url(server)), "webdataset", str(folder / "index")).failed == {}
        yield folder


def url(server: Server) -> str:
    return f"{server.url}/s{{0..{SHARDS - 1}}}.tar"


@pytest.fixture(params=[False, True], ids=["direct", "shard cache"])
def cached(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.delenv("ZVL_SHARD_CACHE", raising=False)
    if request.param:
        monkeypatch.setenv("ZVL_SHARD_CACHE", str(tmp_path / "shards"))
    return bool(request.param)


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Any) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer)


def open_tars(server: Server, index: Path, monkeypatch: pytest.MonkeyPatch, late: bool = True) -> Any:
    monkeypatch.setenv("ZVL_CACHE", str(index))  # offsets are known; counted is what planning and fetching cost
    return zvl.open_dataset(url(server), index=index / "index" if late else False)


def pipeline(dataset: Any, processor: zvl.Processor) -> zvl.Pipeline:
    source = zvl.Mixture(dataset, shuffle="shards", chunk_rows=32, seed=3)
    return (
        zvl.Pipeline(source, lanes=1, flush_every=FLUSH)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=256)
        .batch(1)
        .patchify(processor)
    )


def test_a_thousand_steps_are_planned_without_image_traffic(
    tars: Tars, server: Server, index: Path, processor: zvl.Processor, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    dataset = open_tars(server, index, monkeypatch)
    tars.forget()
    with pipeline(dataset, processor).loader(workers=1, prefetch=1) as loader:
        loader.skip(1000)
        planned = loader.state_dict()["state"]["0"]["clean"]["position"] * tars.image_bytes // (SHARDS * ROWS)
        assert planned > 1.4 * tars.image_bytes
        assert tars.sent_images <= 3 * 130_000  # what is in the making beyond the last step
        assert tars.sent < 0.01 * planned
        next(loader)
        assert tars.sent_images > 0
    dataset.close()


def test_the_same_without_an_index_reads_every_image(
    tars: Tars, server: Server, index: Path, processor: zvl.Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the two tests beside this one count can be seen."""
    monkeypatch.delenv("ZVL_SHARD_CACHE", raising=False)
    dataset = open_tars(server, index, monkeypatch, late=False)
    tars.forget()
    with pipeline(dataset, processor).loader(workers=1, prefetch=1) as loader:
        loader.skip(100)
    assert tars.sent_images > 0.3 * tars.image_bytes
    dataset.close()


def test_the_worst_replay_reads_no_image_again(
    tars: Tars, server: Server, index: Path, processor: zvl.Processor, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    dataset = open_tars(server, index, monkeypatch)
    tars.forget()
    states, keys, digests = [], [], []
    with pipeline(dataset, processor).loader(workers=1, prefetch=1) as loader:
        while len(states) < 3 or states[-1]["state"]["0"]["delivered"] >= states[-2]["state"]["0"]["delivered"]:
            batch = next(loader)
            states.append(loader.state_dict())
            keys.append({key.partition("/")[2] for row in batch.keys for key in row})
            digests.append(batch_digest(batch).sha256)
    dataset.close()
    worst, after = states[-2], digests[-1]  # an interval's last batch: all of it is planned again, to its end
    assert worst["state"]["0"]["delivered"] > 80
    sent = dict(tars.sent_of)
    tars.forget()
    dataset = open_tars(server, index, monkeypatch)
    with pipeline(dataset, processor).loader(workers=1, prefetch=1) as loader:
        loader.load_state_dict(worst)
        assert batch_digest(next(loader)).sha256 == after
    replayed = FLUSH * tars.image_bytes // (SHARDS * ROWS)
    dataset.close()
    delivered = {key.partition("@")[0] for batch in keys[:-1] for key in batch}
    again = {f"{name}#{row}" for name, row in tars.sent_of} & delivered
    assert len(delivered) > 200
    if cached:  # shards come whole, each once in both runs
        for name, row in tars.sent_of:
            start, stop = tars.spans[name][row]
            assert sent.get((name, row), 0) + tars.sent_of[name, row] <= stop - start
    else:
        assert again == set()
        assert tars.sent - tars.sent_images < 0.01 * replayed
        assert 0 < tars.sent_images < 10 * 130_000
