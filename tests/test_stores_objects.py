"""S3 (moto's server) and web servers through obstore, with faults: the same bytes, or one clear error."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from services.files import Files
from services.s3 import S3
from services.server import FAULTS, Reply, Server

import zvl
from zvl.errors import StorageError
from zvl.storage import read_object, read_objects, read_ranges, shared_store, store_for
from zvl.stores import remote
from zvl.stores.retry import Patience

DATA = random.Random(0).randbytes(300_000)
QUICK = Patience(first=0.001, longest=0.01, silence=0.4)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote, "PATIENCE", QUICK)
    shared_store.cache_clear()
    yield
    shared_store.cache_clear()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server


def _read(url: str, ranges: list[tuple[int, int]]) -> list[bytes]:
    store = store_for(url)
    with store.open(url) as file:
        parts = read_ranges(file, ranges)
    store.close()
    return parts


RANGES = [(i * 29_000, 200 + i) for i in range(10)]


def _expected(data: bytes = DATA) -> list[bytes]:
    return [data[start : start + size] for start, size in RANGES]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_a_web_server_is_survived(fault: str) -> None:
    with Server(Files({"d/f.tar": DATA}), faults=(fault,)) as server:  # type: ignore[arg-type]
        assert _read(f"{server.url}/d/f.tar", RANGES) == _expected()
        assert read_object(f"{server.url}/d/f.tar") == DATA
        assert sum(server.injected.values()) == len(server.seen) == len(RANGES) + 2
        assert all(count == 2 for count in server.seen.values()), "every request failed once and was made again"


def test_all_faults_of_s3_are_survived(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put({"d/f.tar": DATA, "d/g.tar": b"x"})
    with Server(s3.proxy(), faults=FAULTS) as server:
        s3.point_at(server.url, monkeypatch)
        (f, g) = store_for("s3://").list("s3://bucket/d/*.tar", ())
        assert (f.path, f.state.size, g.path) == ("s3://bucket/d/f.tar", len(DATA), "s3://bucket/d/g.tar")
        assert _read(f.path, RANGES) == _expected()
        assert read_object(g.path) == b"x"
        assert set(server.injected) == set(FAULTS)


def test_a_server_that_stays_down_ends_in_one_error() -> None:
    with Server(Files({"f": DATA}), faults=("503",)) as server:
        server.seen.subtract({f"GET /f bytes={start}-{start + size - 1}": 999 for start, size in RANGES})
        tried = rf"cannot read bytes 0 to 200 of {server.url}/f: gave up after 10 attempts in \d s; the last one failed"
        with pytest.raises(StorageError, match=tried + r" with: .*503 Service Unavailable: slow down; see that the "):
            _read(f"{server.url}/f", RANGES)
    with pytest.raises(StorageError, match=r"look at http://127.0.0.1:9/f: gave up after 10.*Connection refused"):
        _read("http://127.0.0.1:9/f", RANGES)


@pytest.mark.parametrize("if_match", [True, False])
@pytest.mark.parametrize("etags", ['"{}"', 'W/"{}"'])
def test_an_object_replaced_while_in_use_is_never_mixed(etags: str, if_match: bool) -> None:
    files = Files({"f": DATA}, etags=etags, if_match=if_match and etags == '"{}"')
    with Server(files) as server:
        store = store_for(server.url)
        with store.open(f"{server.url}/f") as file:
            assert read_ranges(file, RANGES) == _expected()
            files["f"] = DATA[::-1]
            with pytest.raises(StorageError, match=r"/f changed while in use: expected 300000 bytes and tag .*restore"):
                read_ranges(file, RANGES)
        store.close()


def test_without_etags_the_size_still_counts() -> None:
    files = Files({"f": DATA}, etags="")
    with Server(files) as server:
        store = store_for(server.url)
        with store.open(f"{server.url}/f") as file:
            for shorter in (DATA[:-1], DATA[:100]):
                files["f"] = shorter
                with pytest.raises(StorageError, match="changed while in use: expected 300000 bytes"):
                    file.read(299_000, 500)
        store.close()


def test_an_s3_object_replaced_or_deleted_while_in_use(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put({"r/f": DATA})
    s3.point_at(s3.url, monkeypatch)
    store = store_for("s3://")
    with store.open("s3://bucket/r/f") as file:
        assert file.read(10, 10) == DATA[10:20]
        s3.put({"r/f": DATA[::-1]})
        with pytest.raises(StorageError, match="s3://bucket/r/f changed while in use: expected 300000 bytes and tag"):
            file.read(10, 10)
        s3.delete("r/f")
        with pytest.raises(StorageError, match="s3://bucket/r/f is gone: it was there when"):
            file.read(10, 10)
    store.close()


def test_states_from_a_listing_and_from_a_look_agree(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put({"s/f": DATA})
    s3.point_at(s3.url, monkeypatch)
    (listed,) = store_for("s3://").list("s3://bucket/s/*", ())
    (looked,) = store_for("s3://").list("s3://bucket/s/f", ())
    assert listed == looked
    assert listed.state.version > 0


STRANGE = ("a b.tar", "x#y.tar", "p%20q.tar", "q?r.tar", "[1].tar", "ü.tar", "{a,b}.tar", "a+b&c.tar", "w*.tar")


def test_strange_names_are_taken_as_they_are(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put({f"odd/{name}": name.encode() for name in STRANGE})
    s3.point_at(s3.url, monkeypatch)
    store = store_for("s3://")
    assert [found.path for found in store.list("s3://bucket/odd", (".tar",))] == sorted(
        f"s3://bucket/odd/{name}" for name in STRANGE
    )
    for name in STRANGE:
        (found,) = store.list(f"s3://bucket/odd/{name}", ())
        with store.open(found.path) as file:
            assert file.read(0, file.state().size) == name.encode()
    store.close()


def test_a_url_is_decoded_once() -> None:
    with Server(Files({"a b/ü%.tar": b"12"})) as server:
        assert _read(f"{server.url}/a%20b/%C3%BC%25.tar", [(0, 2)]) == [b"12"]


def test_patterns_on_s3(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put({f"web/{name}": b"x" for name in ("0.tar", "1.tar", "sub/2.tar", "a.jsonl", ".hid.tar")})
    s3.point_at(s3.url, monkeypatch)
    store = store_for("s3://")

    def names(pattern: str) -> list[str]:
        return [found.path.removeprefix("s3://bucket/web/") for found in store.list(pattern, (".tar",))]

    assert names("s3://bucket/web/") == names("s3://bucket/web") == ["0.tar", "1.tar"]
    assert names("s3://bucket/web/**/*.tar") == ["0.tar", "1.tar", "sub/2.tar"]
    assert names("s3://bucket/web/{0..1}.tar") == ["0.tar", "1.tar"]
    assert names("s3://bucket/*/*.jsonl") == ["a.jsonl"]
    for pattern, message in {
        "s3://bucket/web/{0..2}.tar": r"expected a file or folder at s3://bucket/web/2.tar, found neither \(asked",
        "s3://bucket/web/*.zip": r"nothing matches s3://bucket/web/\*.zip",
        "s3://bucket/no/": r"expected a file or folder at s3://bucket/no/, found neither",
        "s3://nobucket/x/*.tar": r"cannot read s3://nobucket/x/: there is no such bucket; see that its name is right",
        "s3://nobucket/x.tar": r"there is no such bucket",
        "s3://": r"expected s3://BUCKET/PATH, got 's3://'",
    }.items():
        with pytest.raises(StorageError, match=message):
            store.list(pattern, (".tar",))
    store.close()


def test_a_web_server_has_no_listing() -> None:
    with Server(Files({"d/0.tar": b"0", "d/1.tar": b"1"})) as server:
        store = store_for(server.url)
        assert len(store.list(f"{server.url}/d/{{0..1}}.tar", ())) == 2
        with pytest.raises(StorageError, match=r"web servers cannot be listed"):
            store.list(f"{server.url}/d/*.tar", ())
        with pytest.raises(StorageError, match=r"web servers cannot be listed"):
            store.list(f"{server.url}/d/", ())
        store.close()


def test_a_server_without_ranges_is_refused_for_shards_and_good_for_small_files() -> None:
    with Server(Files({"f": DATA}, ranges=False)) as server:
        with pytest.raises(StorageError, match=r"expected a server that serves ranges of bytes, this one sends whole"):
            _read(f"{server.url}/f", RANGES)
        assert read_object(f"{server.url}/f") == DATA


def test_signed_urls_name_no_datasets_but_pictures_and_are_never_shown() -> None:
    with Server(Files({"a.jpg": DATA, "x//b.jpg": b"b", "forbidden/a": b""})) as server:
        signed = f"{server.url}/a.jpg?sig=SECRET"
        assert read_objects([signed, f"{server.url}/x//b.jpg", f"{server.url}/none.jpg?x=1"]) == [DATA, b"b", None]
        assert any("?sig=SECRET" in what for what in server.seen)
        with pytest.raises(StorageError, match=r"without query, user and password") as error:
            zvl.open_dataset(signed, format="webdataset")
        assert "SECRET" not in str(error.value)
        with pytest.raises(StorageError, match=r"may not read .*looked for in: none: zvl sends no") as error:
            read_object(f"{server.url}/forbidden/a?sig=SECRET")
        assert "SECRET" not in str(error.value)
        server.faults = ("503",)
        server.seen["GET /a.jpg?sig=SECRET "] = -999
        with pytest.raises(StorageError, match=r"cannot read http.*/a.jpg\?\*\*\*: gave up after 10 attempts") as error:
            read_object(signed)
        assert "SECRET" not in str(error.value)


@pytest.mark.parametrize("url", ["https://", "http:///x", "s3://", "s3://bucket", "s3://bucket/a//b", "ftp://h/x"])
def test_urls_that_nothing_can_have_are_absent(url: str) -> None:
    assert read_object(url) is None


def test_no_permission_names_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(Files({})) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"{server.url}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        with pytest.raises(
            StorageError, match=r"may not read s3://forbidden/x: .*403.*AWS_ACCESS_KEY_ID.*~/.aws/cred"
        ) as e:
            read_object("s3://forbidden/x")
        assert "hidden" not in str(e.value)


def test_a_dataset_pickles_without_client_or_secret(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path))
    s3.put({"p/0.jsonl": b'{"text": "a"}\n{"text": "b"}\n'})
    s3.point_at(s3.url, monkeypatch)
    dataset = zvl.open_dataset("s3://bucket/p/0.jsonl")
    saved = pickle.dumps(dataset)
    assert b"secret" not in saved.lower()
    assert pickle.loads(saved).read(0, [1]) == dataset.read(0, [1]) == [{"text": "b"}]
    dataset.close()


def test_many_small_reads_are_in_flight_together() -> None:
    with Server(Files({"f": DATA}), latency=0.03) as server:
        store = store_for(server.url)
        with store.open(f"{server.url}/f") as file:
            ranges = [(i * 2_300, 1000) for i in range(128)]
            monkey = pytest.MonkeyPatch()
            monkey.setattr(remote, "GAP", 100)
            assert read_ranges(file, ranges) == [DATA[start : start + 1000] for start, _ in ranges]
            monkey.undo()
        store.close()
        assert server.most_at_once > 8


def test_gs_through_the_interface_that_it_shares_with_s3(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not Google's server: there is none for tests. obstore reads buckets there by requests that moto answers too."""
    s3.put({"gs/0.tar": DATA, "gs/1.tar": b"1"})
    monkeypatch.setenv("GOOGLE_BASE_URL", s3.url)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    store = store_for("gs://bucket")
    assert [found.state.size for found in store.list("gs://bucket/gs/*.tar", ())] == [len(DATA), 1]
    assert _read("gs://bucket/gs/0.tar", RANGES) == _expected()
    with store.open("gs://bucket/gs/1.tar") as file:
        s3.put({"gs/1.tar": b"2"})
        with pytest.raises(StorageError, match=r"gs://bucket/gs/1.tar changed while in use"):
            file.read(0, 1)
    store.close()


@pytest.mark.parametrize(("url", "variable"), [("s3://b/x", "AWS_SKIP_SIGNATURE"), ("gs://b/x", "GOOGLE_SKIP")])
def test_no_credentials_at_all_is_said_at_once(url: str, variable: str, tmp_path: Path) -> None:
    """In a process of its own: the environment of this one belongs to other tests too."""
    with Server(lambda request: Reply(404, {}, b"")) as nobody:
        code = f"""
import zvl.stores.remote, zvl.storage
zvl.storage.store_for({url!r}).list({url!r}, ())
"""
        environment = {
            "PATH": "",
            "HOME": str(tmp_path),
            "AWS_METADATA_ENDPOINT": nobody.url,
            "HTTP_PROXY": nobody.url,
            "http_proxy": nobody.url,
        }
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert f"may not read {url}: " in done.stderr
    assert variable in done.stderr
