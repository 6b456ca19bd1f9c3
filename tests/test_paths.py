import os
from pathlib import Path

import braceexpand
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zvl.errors import StorageError
from zvl.paths import beside, expand_braces, find_files, looks_like, relative_names


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def _found(pattern: Path | str, *suffixes: str) -> list[str]:
    return [os.path.basename(path) for path, _ in find_files(str(pattern), suffixes or (".tar",))]


NUMBERS = st.from_regex(r"\A(0{0,3}[0-9])\.\.(0{0,3}[0-9])\Z") | st.sampled_from(["98..101", "012..8", "-3..2"])
WORDS = st.text("ab-/.", max_size=3)
PATTERNS = st.recursive(
    st.one_of(WORDS, NUMBERS.map(lambda span: "{" + span + "}")),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}"),
        st.tuples(inner, inner).map("".join),
    ),
    max_leaves=5,
)


@given(PATTERNS)
def test_braces_are_read_as_by_the_braceexpand_library(pattern: str) -> None:
    assert expand_braces(pattern) == list(braceexpand.braceexpand(pattern))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{0..6..3}", ["0", "3", "6"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{x}", ["{x}"]),
        ("{a", ["{a"]),
        ("a}b", ["a}b"]),
        ("{}", ["{}"]),
        ("{-01..1}", ["-01", "000", "001"]),
        ("{{a,b}", ["{a", "{b"]),
    ],
)
def test_braces_at_the_edges(pattern: str, expected: list[str]) -> None:
    assert expand_braces(pattern) == expected


def test_a_file_is_found_under_its_full_path_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _touch(tmp_path, "a.tar")
    monkeypatch.chdir(tmp_path)
    (found,) = find_files("a.tar", (".tar",))
    assert found.path == str(tmp_path / "a.tar")
    assert found.state == (1, os.stat("a.tar").st_mtime_ns)


def test_a_folder_gives_its_own_files_with_the_suffix(tmp_path: Path) -> None:
    _touch(tmp_path, "b.tar", "a.tar", "c.txt", "sub/d.tar", ".hidden.tar")
    assert _found(tmp_path) == ["a.tar", "b.tar"]


def test_globs_and_braces_together(tmp_path: Path) -> None:
    _touch(tmp_path, "x/0.tar", "x/1.tar", "y/0.tar", "z/0.tar")
    assert len(_found(tmp_path / "{x,y}" / "*.tar")) == 3
    assert len(_found(tmp_path / "**" / "*.tar")) == 4
    assert len(_found(tmp_path / "{x,x}" / "0.tar")) == 1, "a file met twice counts once"


def test_a_name_with_pattern_characters_is_taken_literally_if_it_exists(tmp_path: Path) -> None:
    _touch(tmp_path, "a[1].tar", "a1.tar", "{p,q}.tar")
    assert _found(tmp_path / "a[1].tar") == ["a[1].tar"]
    assert _found(tmp_path / "{p,q}.tar") == ["{p,q}.tar"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none.tar", r"expected a file or folder at .*none\.tar, found neither"),
        ("*.parquet", r"nothing matches .*\*\.parquet"),
        ("s-{0..2}.tar", r"expected a file or folder at .*s-2\.tar, .*asked for: '.*s-\{0\.\.2\}\.tar'"),
        ("sub", r"no \*\.tar lies in the folder .*sub; for its subfolders write .*sub/\*\*/\*\.tar"),
        ("dangling*", r"cannot look at .*dangling\.tar: No such file"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, pattern: str, message: str) -> None:
    _touch(tmp_path, "s-0.tar", "s-1.tar", "sub/x.txt")
    (tmp_path / "dangling.tar").symlink_to(tmp_path / "gone.tar")
    with pytest.raises(StorageError, match=message):
        find_files(str(tmp_path / pattern), (".tar",))


def test_looks_like_goes_by_the_suffix_of_path_matches_or_folder(tmp_path: Path) -> None:
    _touch(tmp_path, "d/a.tar", "d/b.jsonl", "e/c.txt")
    assert looks_like("s3://bucket/web/*.tar", (".tar",))
    assert not looks_like("s3://bucket/web/", (".tar",))
    assert looks_like(str(tmp_path / "nowhere" / "{0..3}.tar"), (".tar",))
    assert looks_like(str(tmp_path / "d"), (".tar",))
    assert looks_like(str(tmp_path / "d" / "*"), (".tar",))
    assert looks_like(str(tmp_path / "d" / "a.{tar,zip}"), (".tar",))
    assert not looks_like(str(tmp_path / "e"), (".tar",))
    assert not looks_like(str(tmp_path / "nowhere"), (".tar",))


def test_relative_names_keep_what_tells_files_apart() -> None:
    assert relative_names(["/a/x/0.tar", "/a/y/0.tar"]) == ("/a", ["x/0.tar", "y/0.tar"])
    assert relative_names(["/a/x/0.tar"]) == ("/a/x", ["0.tar"])
    assert relative_names(["/0.tar", "/x/0.tar"]) == ("/", ["0.tar", "x/0.tar"])
    assert relative_names(["/a/b/0.tar", "/a/bc/0.tar"]) == ("/a", ["b/0.tar", "bc/0.tar"])
    assert relative_names(["s3://b/x/0.tar", "s3://b/y/0.tar"]) == ("s3://b", ["x/0.tar", "y/0.tar"])
    assert relative_names(["https://h/0.tar"]) == ("https://h", ["0.tar"])
    assert relative_names(["s3://a/0.tar", "s3://b/0.tar"]) == ("s3://", ["a/0.tar", "b/0.tar"])


@pytest.mark.parametrize(
    ("folder", "name", "path"),
    [
        ("/d", "a/b.jpg", "/d/a/b.jpg"),
        ("/d", "/e/b.jpg", "/e/b.jpg"),
        ("/d", "https://h/b.jpg", "https://h/b.jpg"),
        ("s3://b/d", "a/b.jpg", "s3://b/d/a/b.jpg"),
        ("s3://b", "a#1 b.jpg", "s3://b/a#1 b.jpg"),
        ("s3://b/d", "./../../../b.jpg", "s3://b/b.jpg"),
        ("s3://b/d", "/mnt/b.jpg", "/mnt/b.jpg"),
        ("https://h/d", "a#1 b?.jpg", "https://h/d/a%231%20b%3F.jpg"),
    ],
)
def test_a_file_named_by_another_lies_beside_it(folder: str, name: str, path: str) -> None:
    assert beside(folder, name) == path
