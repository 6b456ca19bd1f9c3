"""What `zvl.differ` makes of records, logs, states and recipes that differ in one known way."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zvl
from zvl.differ import Report, diff_logs, diff_recipes, diff_states
from zvl.differ.batches import Difference
from zvl.differ.fields import Field, describe, differing, flat
from zvl.errors import ZvlError
from zvl.recipe import load_recipe
from zvl.runlog import RunLog

RECIPE = """\
seed = 5
lanes = 2
flush_every = 32
chunk_rows = 4
[processor]
layout = "qwen2_5_vl"
tokenizer = "TOKENIZER"
max_pixels = 12544
[[dataset]]
name = "photos"
path = "data/rows.jsonl"
[[operator]]
use = "probe_images"
[[operator]]
use = "tokenize_chat"
[[operator]]
use = "pack"
max_tokens = 256
lookahead = 8
[[operator]]
use = "batch"
size = 1
[[operator]]
use = "patchify"
"""


def picture(seed: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Noise on a gradient, uint8 (height, width, 3)."""
    width, height = size
    slope = np.linspace(0, 200, width)[None, :, None] + np.zeros((height, 1, 3))
    return (slope + np.random.default_rng(seed).integers(0, 50, (height, width, 3))).astype(np.uint8)


def write_data(folder: Path, rows: int = 24) -> None:
    """Conversations about one to three small pictures each."""
    (folder / "img").mkdir(parents=True)
    lines = []
    for row in range(rows):
        names = [f"img/{row}_{place}.png" for place in range(1 + row % 3)]
        for place, name in enumerate(names):
            Image.fromarray(picture(10 * row + place, (56 + 28 * (row % 3), 84))).save(folder / name)
        asked = [{"type": "image"} for _ in names] + [{"type": "text", "text": f"What is in picture {row}?"}]
        answer = "Noise " * (1 + row % 5)
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": messages, "images": names}) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qwen_tokenizer: Path) -> Path:
    """A folder with a recipe and its data."""
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "a"
    write_data(made / "data")
    (made / "run.toml").write_text(RECIPE.replace("TOKENIZER", str(qwen_tokenizer)))
    return made


def twin(folder: Path, *edits: tuple[str, str]) -> Path:
    """A copy of the folder beside it, with other words in its recipe."""
    copy = folder.with_name("b")
    shutil.copytree(folder, copy)
    text = (copy / "run.toml").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (copy / "run.toml").write_text(text)
    return copy


def logged(folder: Path, steps: int = 6) -> Path:
    path = folder / "run.jsonl"
    pipeline = load_recipe(folder / "run.toml")
    with pipeline.loader(runner="inline", max_steps=steps) as loader, RunLog(path, pipeline) as log:
        for batch in loader:
            log.write(batch)
    return path


def compare(a: Path, b: Path) -> Report:
    return diff_logs(logged(a), logged(b))


def first(report: Report) -> Difference:
    assert report.difference is not None
    assert not report.same
    return report.difference


def where(folder: Path, row: int) -> tuple[int, int, int, int]:
    """Step, lane, pack and place of a row of the dataset, where the run first has it."""
    with load_recipe(folder / "run.toml").loader(runner="inline", max_steps=6) as loader:
        for batch in loader:
            for pack, keys in enumerate(batch.keys):
                for place, key in enumerate(keys):
                    if f"#{row}@" in key:
                        return batch.step, batch.lane, pack, place
    raise AssertionError(f"row {row} does not come")


def test_the_same_recipe_logs_the_same(folder: Path) -> None:
    report = compare(folder, twin(folder))
    assert report.same
    assert (report.equal, report.fields, report.notes) == (12, [], [])


@pytest.mark.parametrize(("row", "image"), [(2, 1), (5, 2), (9, 0)])
def test_one_pixel_of_one_image_is_named(folder: Path, row: int, image: int) -> None:
    copy = twin(folder)
    path = copy / f"data/img/{row}_{image}.png"
    pixels = np.asarray(Image.open(path)).copy()
    pixels[40, 30, 1] ^= 0x80
    Image.fromarray(pixels).save(path)
    for report in (compare(folder, copy), diff_recipes(folder / "run.toml", copy / "run.toml", steps=6, workers=1)):
        found = first(report)
        assert found.key is not None
        assert found.key.startswith(f"photos/rows.jsonl#{row}@")
        assert (found.what, found.image) == ("pixels", image)
        assert (found.step, found.lane, found.pack, found.sample) == where(folder, row)
        assert found.operator == "operator 4 (patchify): its codec or resize, or the image's own bytes"
        assert report.fields == []
        assert f"image {image} has other pixels" in found.how


def test_another_size_of_an_image_is_named_though_it_moves_the_packs(folder: Path) -> None:
    copy = twin(folder)
    Image.fromarray(picture(1, (112, 112))).save(copy / "data/img/9_0.png")
    found = first(compare(folder, copy))
    assert found.key is not None
    assert found.key.startswith("photos/rows.jsonl#9@")
    assert (found.what, found.image) == ("size", 0)
    assert "rows of pixel_values" in found.how
    assert found.operator == "operator 0 (probe_images), or the image itself"


def test_another_text_is_named(folder: Path) -> None:
    copy = twin(folder)
    path = copy / "data/rows.jsonl"
    path.write_text(path.read_text().replace("picture 7?", "picture 8?"))
    found = first(compare(folder, copy))
    assert found.key is not None
    assert found.key.startswith("photos/rows.jsonl#7@")
    assert (found.what, found.how) == ("tokens", "the sample has other tokens, as many")
    assert found.operator == "operator 1 (tokenize_chat), or the row's own text"


@pytest.mark.parametrize(
    ("edit", "field", "operator", "what"),
    [
        (("size = 1", "size = 2"), "operator 3 (batch).size: 1 | 2", "operator 3 (batch)", {"packs"}),
        (
            ('"patchify"', '"patchify"\nicc = "srgb"'),
            'operator 4 (patchify).icc: "ignore" | "srgb"',
            "operator 4 (patchify)",
            set(),
        ),
        (
            ("lookahead = 8", "lookahead = 2"),
            "operator 2 (pack).lookahead: 8 | 2",
            "operator 2 (pack)",
            {"order", "rows", "packing"},
        ),
        (("seed = 5", "seed = 6"), "source.seed: 5 | 6", "the source", {"order", "rows"}),
        (
            ("max_pixels = 12544", "max_pixels = 6272"),
            "processor.max_pixels of operator 0 (probe_images), operator 1 (tokenize_chat), operator 4 (patchify): "
            "12544 | 6272",
            "operator 0 (probe_images)",
            {"size"},
        ),
        (
            ('"tokenize_chat"', '"tokenize_chat"\ntrain_on = "all"'),
            'operator 1 (tokenize_chat).train_on: "assistant" | "all"',
            "operator 1 (tokenize_chat)",
            {"labels"},
        ),
    ],
)
def test_a_changed_field_is_named(
    folder: Path, edit: tuple[str, str], field: str, operator: str, what: set[str]
) -> None:
    copy = twin(folder, edit)
    fields = diff_recipes(folder / "run.toml", copy / "run.toml").fields
    assert [(str(one), one.alters) for one in fields] == [(field, True)]
    report = compare(folder, copy)
    assert [str(one) for one in report.fields] == [field]
    if not what:  # the pictures have no colour profile, so nothing else comes of it
        assert report.same
        return
    found = first(report)
    assert found.what in what
    assert [str(one) for one in found.fields] == [field]
    assert found.operator == operator


def test_what_leaves_the_batches_alone_is_told_apart(folder: Path) -> None:
    copy = twin(folder, ('"patchify"', '"patchify"\nparallelism = 3'), ("data/rows", "../a/data/rows"))
    report = diff_recipes(folder / "run.toml", copy / "run.toml", steps=2, workers=1)
    assert report.same
    assert [(str(one), one.alters) for one in report.fields] == [
        ("operator 4 (patchify).parallelism: null | 3", False),
        ('dataset[photos].path: "data/rows.jsonl" | "../a/data/rows.jsonl"', False),
    ]
    assert report.equal == 4


def test_other_data_behind_another_path(folder: Path) -> None:
    copy = twin(folder)
    with (copy / "data/rows.jsonl").open("a") as file:
        file.write((copy / "data/rows.jsonl").read_text().splitlines()[0] + "\n")
    fields = diff_recipes(folder / "run.toml", copy / "run.toml").fields
    assert [one.path for one in fields] == ["source.datasets[photos].data.shards[rows.jsonl]"]
    (folder / "run.toml").write_text((folder / "run.toml").read_text().replace('"data/', '"./data/'))
    fields = diff_recipes(folder / "run.toml", copy / "run.toml").fields
    assert [(one.path, one.alters) for one in fields][1:] == [("dataset[photos].path", True)]


def test_an_operator_more(folder: Path) -> None:
    copy = twin(
        folder, ('[[operator]]\nuse = "pack"', '[[operator]]\nuse = "shuffle"\nsize = 4\n[[operator]]\nuse = "pack"')
    )
    fields = diff_recipes(folder / "run.toml", copy / "run.toml").fields
    assert [str(one) for one in fields] == ['operator 2 (shuffle): absent | "present"']
    found = first(compare(folder, copy))
    assert found.what in ("order", "rows")
    assert [str(one) for one in found.fields] == ['operator 2 (shuffle): absent | "present"']


def test_runs_with_other_lanes_or_steps_are_not_set_side_by_side(folder: Path) -> None:
    copy = twin(folder, ("lanes = 2", "lanes = 4"))
    report = diff_recipes(folder / "run.toml", copy / "run.toml", steps=2)
    assert report.notes == ["lanes differ, so that no step of one is a step of the other: none was run"]
    assert not report.same
    logs = logged(folder), logged(copy)
    with pytest.raises(ZvlError, match=r"a run with 2 lanes, .*b/run.jsonl with 4: no batch of one is a batch of the"):
        diff_logs(*logs)


def test_a_run_that_ends_earlier(folder: Path) -> None:
    shorter, longer = logged(twin(folder), 4), logged(folder, 6)
    report = diff_logs(longer, shorter)
    assert report.same
    assert (report.equal, report.notes) == (8, ["only A has 4 batches of steps 4 to 5"])
    text = shorter.read_text().splitlines()
    shorter.write_text(text[0] + "\n")
    with pytest.raises(ZvlError, match="expected a log with at least one batch, got none"):
        diff_logs(longer, shorter)


def states() -> tuple[dict[str, Any], dict[str, Any]]:
    rows = [{"n": n} for n in range(64)]
    pipeline = zvl.Pipeline(
        zvl.Mixture({"d": zvl.from_rows(rows)}, chunk_rows=4, seed=3), lanes=4, flush_every=8
    ).batch(2)
    found = []
    for steps in (1, 6):
        with pipeline.loader(runner="inline", max_steps=steps) as loader:
            list(loader)
            found.append(loader.state_dict())
    return found[0], found[1]


def test_states_are_told_in_words() -> None:
    a, b = states()
    assert diff_states(a, deepcopy(a)).same
    report = diff_states(a, b)
    assert not report.same
    assert report.fields == []
    assert report.lanes == [
        "lanes 0 to 3: B is 5 batches ahead (1 | 6); its interval begins at row 0 | 8 of the lane, in dataset 0 at "
        "pass 0, chunk 0, row 0 | pass 0, chunk 2, row 0; 1 | 2 batches of it delivered"
    ]
    b = deepcopy(a)
    b["state"]["2"]["delivered"] = 7
    del b["state"]["3"]
    b |= {"lanes": 8, "pixels": "0123", "operators": ["77"]}
    report = diff_states(a, b)
    assert report.lanes == ["lane 2: 1 | 7 batches of it delivered", "lane 3: only in A"]
    assert [one.path for one in report.fields] == [
        "lanes", "pixels of the test images (hash)", "operator 0 (fingerprint)",
    ]  # fmt: skip
    assert str(report.fields[0]) == "lanes: 4 | 8"


def test_fields_are_flat_by_name() -> None:
    value = {"a": {"b": 1, "c": []}, "d": [{"name": "x", "e": 2}, {"f": 3}], "g": [["t", 1]], "h": [1, 2]}
    assert flat(value) == {"a.b": 1, "a.c": [], "d[x].e": 2, "d[1].f": 3, "g[t]": [1], "h": [1, 2]}
    assert str(Field("a", "x" * 200, None, True)) == f'a: "{"x" * 76}... | null'


def test_a_long_list_of_files_is_a_hash_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = zvl.Pipeline(zvl.Mixture({"d": zvl.from_rows([{"n": 1}])}), lanes=1).batch(1)
    whole = describe(pipeline)
    assert describe(pipeline, brief=True) == whole
    monkeypatch.setattr("zvl.differ.fields.BRIEF", 10)
    brief = describe(pipeline, brief=True)
    assert list(brief["source"]["datasets"][0]["data"]) == ["fingerprint"]
    assert differing(whole, describe(pipeline)) == []
