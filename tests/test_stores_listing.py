"""Patterns mean the same on servers and on this machine: compared with `find_files` and `glob.glob`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zvl.errors import StorageError
from zvl.paths import find_files
from zvl.stores.listing import Meta, find_objects, glob_regex

NAMES = (
    *("0.tar", "1.tar", "a.jsonl", "sub/0.tar", "sub/deep/1.tar", "sub/.hid.tar", ".dot/2.tar", "x[1].tar", "[1].tar"),
)


class Bucket:
    """Objects by URL."""

    lists = True

    def __init__(self, urls: list[str]) -> None:
        self.objects = {url: Meta(len(url), url) for url in urls}
        self.walked: list[tuple[str, bool]] = []

    def head(self, url: str) -> Meta | None:
        return self.objects.get(url)

    def walk(self, folder: str, deep: bool) -> Iterator[tuple[str, Meta]]:
        self.walked.append((folder, deep))
        for url, meta in self.objects.items():
            if url.startswith(folder) and (deep or "/" not in url[len(folder) :]):
                yield url, meta


def _find(pattern: str, bucket: Bucket, suffixes: tuple[str, ...] = (".tar",)) -> list[str]:
    found = find_objects(pattern, suffixes, bucket, lambda urls: [bucket.head(url) for url in urls])
    assert all(bucket.objects[url] == meta for url, meta in found.items())
    return list(found)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize(
    "pattern",
    [
        *("0.tar", "", "sub", "sub/", "*.tar", "**/*.tar", "**", "sub/**", "*/*.tar", "*", "?.tar", "[!0].tar"),
        *("{0,1}.tar", "{0..1}.tar", "{sub,sub/deep}/*.tar", "{0,7}.tar", "none.tar", "none/*.tar", "[0-9].*"),
        *("sub/deep/*.jsonl", "a.jsonl", "x[1].tar", "[1].tar", "**/[01].tar", ".dot/*.tar", "sub/.h*", ".*/*.tar"),
    ],
)
def test_a_pattern_means_what_it_means_on_this_machine(tree: Path, pattern: str) -> None:
    bucket = Bucket([f"s3://b/d/{name}" for name in NAMES])
    local = f"{tree}/{pattern}"
    try:
        expected: object = [os.path.relpath(path, tree) for path, _ in find_files(local, (".tar",))]
    except StorageError as error:
        expected = re.sub(re.escape(str(tree)), "s3://b/d", str(error))
    try:
        found: object = [url.removeprefix("s3://b/d/") for url in _find(f"s3://b/d/{pattern}", bucket)]
    except StorageError as error:
        found = str(error)
    if isinstance(expected, str):
        assert isinstance(found, str)
        assert found.partition(" (asked")[0].split(" at s3")[0] == expected.partition(" (asked")[0].split(" at s3")[0]
    else:
        assert found == expected


PARTS = st.text("a.*?[b]!", min_size=1, max_size=5).filter(lambda part: part not in (".", "..")) | st.just("**")
MATCHED = ("a", "b", ".a", "a.b", "aa/b", "aa/.b/a", "bb/a/b", "..a/a", "[", "a!")


@pytest.fixture(scope="module")
def matched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("matched")
    for name in MATCHED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@given(st.lists(PARTS, min_size=1, max_size=3))
def test_globs_match_as_the_glob_module_does(matched: Path, parts: list[str]) -> None:
    translated = re.compile(glob_regex(parts))
    expected = glob.glob("/".join(parts), root_dir=matched, recursive=True)
    assert {name for name in MATCHED if translated.fullmatch(name)} == {
        name for name in expected if os.path.isfile(f"{matched}/{name}")
    }


def test_only_the_folder_before_the_pattern_is_listed_and_deep_where_it_must_be() -> None:
    bucket = Bucket(["s3://b/web/0.tar", "s3://b/other/0.tar"])
    _find("s3://b/web/*.tar", bucket)
    _find("s3://b/*/0.tar", bucket)
    _find("s3://b/web", bucket)
    assert bucket.walked == [("s3://b/web/", False), ("s3://b/", True), ("s3://b/web/", False)]


def test_an_object_with_braces_in_its_name_is_taken_as_it_is() -> None:
    bucket = Bucket(["s3://b/{p,q}.tar", "s3://b/p.tar", "s3://b/q.tar"])
    assert _find("s3://b/{p,q}.tar", bucket) == ["s3://b/{p,q}.tar"]
    assert _find("s3://b/{p,q,p}.{tar,tar}", bucket) == ["s3://b/p.tar", "s3://b/q.tar"]


@pytest.mark.parametrize("pattern", ["https://h/d/*.tar", "https://h/d/", "https://h/d/none.tar"])
def test_web_servers_cannot_be_listed_and_the_error_says_so(pattern: str) -> None:
    bucket = Bucket(["https://h/d/0.tar", "https://h/d/1.tar"])
    bucket.lists = False
    advice = r"nothing is at https://h/d/.*: .*cannot be listed.*name each file, or write braces: https://h/d/\{"
    with pytest.raises(StorageError, match=advice):
        _find(pattern, bucket)
    assert _find("https://h/d/{0..1}.tar", bucket) == ["https://h/d/0.tar", "https://h/d/1.tar"]
    assert bucket.walked == []
