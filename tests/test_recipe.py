"""zvl.recipe: what a recipe makes, and what it says about mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zvl
from zvl.errors import RecipeError, StorageError
from zvl.fingerprint import digest
from zvl.recipe import load_recipe, parse_recipe

RECIPE = """\
seed = 17
lanes = 2
flush_every = 64

[processor]
layout = "qwen2_5_vl"
tokenizer = "tokenizer"
max_pixels = 1003520

[[dataset]]
name = "docs"
path = "docs.jsonl"

[[operator]]
use = "probe_images"

[[operator]]
use = "shuffle"
size = 8

[[operator]]
use = "pack"
max_tokens = 4096

[[operator]]
use = "patchify"
"""

FUNCTIONS = """\
from dataclasses import dataclass
from zvl import Map

def tag(sample):
    return sample | {"tag": 1}

def keep(sample):
    return True

@dataclass(frozen=True, kw_only=True)
class Twice(Map):
    factor: float = 2.0
    def __call__(self, sample):
        return sample

class Bare(Map):
    pass
"""

Load = Callable[..., zvl.Pipeline]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Write the recipe, with some text replaced, and load it from another folder."""
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))  # restores sys.path afterwards
    folder = tmp_path / "recipes"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "docs.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(32)))
    (folder / "more.jsonl").write_text('{"text": "more"}\n')
    (folder / "recipe_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)

    def load(*changes: tuple[str, str], text: str = RECIPE) -> zvl.Pipeline:
        for old, new in changes:
            assert old in text, f"the test replaces {old!r}, which the recipe lacks"
            text = text.replace(old, new)
        (folder / "a.toml").write_text(text)
        return load_recipe("recipes/a.toml")

    return load


def complaint(load: Load, *changes: tuple[str, str]) -> str:
    with pytest.raises(RecipeError) as caught:
        load(*changes)
    return str(caught.value)


def test_paths_among_a_datasets_options_are_below_the_recipes_folder(load: Load, tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir(exist_ok=True)
    (tmp_path / "recipes/pictures").mkdir()
    (tmp_path / "recipes/pictures/a").write_bytes(b"A")
    (tmp_path / "recipes/lines.jsonl").write_text('{"image": "a"}\n')
    dataset = 'path = "lines.jsonl"\noptions = { image_root = "pictures", index = false }\n'
    (docs,) = load(('path = "docs.jsonl"\n', dataset)).source.datasets
    assert docs.read(0, [0]) == [{"images": [b"A"]}]
    message = complaint(load, ('path = "docs.jsonl"\n', 'path = "docs.jsonl"\noptions = { index = "none" }\n'))
    assert f"index='{tmp_path}/recipes/none' holds nothing for this dataset" in message


def names(pipeline: zvl.Pipeline) -> list[str]:
    return [placed.operator.name for placed in pipeline.operators]


def test_a_recipe_says_the_same_as_code(load: Load, tmp_path: Path) -> None:
    got = load()
    processor = zvl.Processor("qwen2_5_vl", tmp_path / "recipes/tokenizer", max_pixels=1_003_520)
    docs = zvl.open_dataset(tmp_path / "recipes/docs.jsonl")
    expected = (
        zvl.Pipeline(zvl.Mixture({"docs": docs}, weights={"docs": 1.0}, seed=17), lanes=2, flush_every=64)
        .probe_images(processor=processor)
        .shuffle(8)
        .pack(4096)
        .patchify(processor=processor)
    )
    assert (got.lanes, got.flush_every, got.batches_per_step) == (2, 64, 1)
    assert [placed.operator for placed in got.operators] == [placed.operator for placed in expected.operators]
    assert digest(got.source.fingerprint()) == digest(expected.source.fingerprint())


def test_every_key_of_the_run_and_of_a_dataset_arrives(load: Load) -> None:
    pipeline = load(
        ("lanes = 2\n", 'lanes = 2\nbatches_per_step = 3\nchunk_rows = 16\nshuffle = "rows"\n'),
        ('path = "docs.jsonl"\n', 'path = ["docs.jsonl", "more.jsonl"]\npasses = 3\nweight = 2\non_error = "drop"\n'
         'format = "jsonl"\n[[dataset]]\nname = "more"\npath = "more.jsonl"\npasses = "once"\nshuffle = "none"\n'),
    )  # fmt: skip
    source = pipeline.source
    assert isinstance(source, zvl.Mixture)
    assert pipeline.batches_per_step == 3
    assert source.chunk_rows == 16
    assert source.shuffle == {"docs": "rows", "more": "none"}
    assert source.passes == {"docs": zvl.Passes(3), "more": zvl.Once()}
    assert source.weights == {"docs": 2.0, "more": 1.0}
    assert [list(dataset.shards) for dataset in source.datasets] == [["docs.jsonl", "more.jsonl"], ["more.jsonl"]]
    assert [dataset.on_error for dataset in source.datasets] == ["drop", "raise"]


def test_a_dataset_may_bound_the_pixels_of_its_images(load: Load) -> None:
    bounded = ('path = "docs.jsonl"', 'path = "docs.jsonl"\nmax_pixels = 50000\nmin_pixels = 4000')
    probe: Any = load(bounded).operators[0].operator
    assert dict(probe.max_pixels) == {"docs": 50_000}
    assert dict(probe.min_pixels) == {"docs": 4_000}
    twice = ('use = "probe_images"', 'use = "probe_images"\nmax_pixels = { docs = 9000 }')
    assert complaint(load, bounded, twice) == (
        "recipes/a.toml:13: dataset[0] (docs): max_pixels: probe_images has max_pixels of its own, "
        "which would set it: say it in one place"
    )
    gone = ('[[operator]]\nuse = "probe_images"\n', "")
    assert "min_pixels: the recipe has no probe_images, which would set it" in complaint(load, bounded, gone)


def test_a_block_list_lies_beside_the_recipe(load: Load, tmp_path: Path) -> None:
    (tmp_path / "recipes/blocked.txt").write_text("docs/docs.jsonl#1\n")
    pipeline = load(("seed = 17", 'seed = 17\nblocked = "blocked.txt"'))
    assert pipeline.blocked == tmp_path / "recipes/blocked.txt"


def test_functions_and_operator_classes_come_from_modules_beside_the_recipe(load: Load) -> None:
    pipeline = load(
        ('use = "patchify"\n',
         'use = "recipe_functions:tag"\nkind = "map"\nparallelism = 3\nrunner = "processes"\nversion = 2\n'
         '[[operator]]\nuse = "recipe_functions:keep"\nkind = "filter"\n'
         '[[operator]]\nuse = "recipe_functions:Twice"\nfactor = 3\n'),
    )  # fmt: skip
    assert names(pipeline)[3:] == ["map:tag", "filter:keep", "Twice"]
    tag, _, twice = pipeline.operators[3:]
    assert (tag.parallelism, tag.runner) == (3, "processes")
    assert tag.operator.version == 2  # type: ignore[attr-defined]
    assert twice.operator.factor == 3.0  # type: ignore[attr-defined]
    assert type(twice.operator.factor) is float  # type: ignore[attr-defined]


def test_an_operator_may_hold_operators(load: Load) -> None:
    pipeline = load(('use = "patchify"\n', 'use = "patchify"\npixels = [{ use = "recipe_functions:Twice" }]\n'))
    (inner,) = pipeline.operators[3].operator.pixels  # type: ignore[attr-defined]
    assert inner.name == "Twice"
    message = complaint(load, ('use = "patchify"\n', 'use = "patchify"\npixels = [{ use = "shuffle", size = 3 }]\n'))
    assert message == (
        "recipes/a.toml:27: operator[3] (patchify): pixels: expected a list, each a table with `use` that names a Map "
        'or a table with `use` that names a RandomMap, got [{"use": "shuffle", "size": 3}]'
    )


def test_an_operator_that_can_do_without_a_processor_must_ask_for_it(load: Load) -> None:
    with_it = load(('use = "patchify"', 'use = "decode_images"\nprocessor = true'))
    without = load(('use = "patchify"', 'use = "decode_images"'))
    assert with_it.operators[3].operator.processor == with_it.operators[0].operator.processor  # type: ignore[attr-defined]
    assert without.operators[3].operator.processor is None  # type: ignore[attr-defined]


def test_a_chat_template_lies_beside_the_recipe_or_the_tokenizer(load: Load, tmp_path: Path) -> None:
    change = ("max_pixels", 'chat_template = "own.jinja"\nmax_pixels')
    assert "no such file" in complaint(load, change)
    (tmp_path / "recipes/tokenizer/own.jinja").write_text("of the tokenizer")
    assert load(change).operators[0].operator.processor.chat_template == "of the tokenizer"  # type: ignore[attr-defined]
    (tmp_path / "recipes/own.jinja").write_text("of the recipe")
    assert load(change).operators[0].operator.processor.chat_template == "of the recipe"  # type: ignore[attr-defined]


def test_a_saved_processor_is_named_by_its_path(load: Load, tmp_path: Path) -> None:
    saved = {"processor_class": "Qwen2_5_VLProcessor", "patch_size": 14, "max_pixels": 50_000}
    (tmp_path / "recipes/tokenizer/preprocessor_config.json").write_text(json.dumps(saved))
    change = ('layout = "qwen2_5_vl"\ntokenizer = "tokenizer"\nmax_pixels = 1003520', 'path = "tokenizer"')
    assert load(change).operators[0].operator.processor.layout.max_pixels == 50_000  # type: ignore[attr-defined]
    message = complaint(load, (change[0], f'{change[1]}\nmax_pixels = "many"'))
    assert message == 'recipes/a.toml:7: processor: max_pixels: expected an integer, got "many"'
    message = complaint(load, ('layout = "qwen2_5_vl"\n', 'layout = "qwen2_5_vl"\npath = "tokenizer"\n'))
    assert message == (
        "recipes/a.toml:6: processor: expected path, or layout and tokenizer, got path and layout: leave one out"
    )


MISTAKES = {
    "unknown field": (
        ("max_tokens =", "max_token ="),
        "recipes/a.toml:23: operator[2] (pack): unknown field 'max_token'; did you mean 'max_tokens'?",
    ),
    "unknown field, nothing near": (
        ("size = 8", "size = 8\nqqq = 1"),
        "recipes/a.toml:20: operator[1] (shuffle): unknown field 'qqq'; known are: size",
    ),
    "wrong type": (
        ("max_tokens = 4096", 'max_tokens = "4096"'),
        'recipes/a.toml:23: operator[2] (pack): max_tokens: expected an integer, got "4096"',
    ),
    "wrong choice": (
        ("max_tokens = 4096", 'max_tokens = 4096\nalgorithm = "best"'),
        "recipes/a.toml:24: operator[2] (pack): algorithm: expected one of "
        '"knapsack", "first_fit", "best_fit", "wrap", got "best"',
    ),
    "true is no number": (
        ("max_tokens = 4096", "max_tokens = true"),
        "recipes/a.toml:23: operator[2] (pack): max_tokens: expected an integer, got true",
    ),
    "value refused by the operator": (
        ("size = 8", "size = 0"),
        "recipes/a.toml:17: operator[1] (shuffle): expected size of at least 1 sample, got 0",
    ),
    "missing field": (
        ("max_tokens = 4096\n", ""),
        "recipes/a.toml:21: operator[2] (pack): missing field 'max_tokens': expected an integer",
    ),
    "unknown operator": (
        ('use = "pack"', 'use = "pakc"'),
        "recipes/a.toml:22: operator[2] (pakc): no operator is named 'pakc'; did you mean 'pack'?",
    ),
    "no use": (
        ('use = "pack"\n', ""),
        'recipes/a.toml:21: operator[2]: expected use = "NAME" of an operator, or "package.module:function"',
    ),
    "function without kind": (
        ('use = "patchify"', 'use = "recipe_functions:keep"'),
        "recipes/a.toml:25: operator[3] (recipe_functions:keep): recipe_functions:keep is a function: "
        'say kind = "map" or kind = "filter"',
    ),
    "function that is not there": (
        ('use = "patchify"', 'use = "recipe_functions:kepe"'),
        "recipes/a.toml:26: operator[3] (recipe_functions:kepe): recipe_functions has no function 'kepe'; "
        "did you mean 'keep'?",
    ),
    "class without fields": (
        ('use = "patchify"', 'use = "recipe_functions:Bare"'),
        "recipes/a.toml:26: operator[3] (recipe_functions:Bare): Bare is no dataclass: "
        "put @dataclass(frozen=True, kw_only=True) above the class",
    ),
    "module that is not there": (
        ('use = "patchify"', 'use = "no_such_module_here:f"'),
        "recipes/a.toml:26: operator[3] (no_such_module_here:f): cannot import 'no_such_module_here': "
        "No module named 'no_such_module_here'; the module must be installed or lie in the recipe's folder",
    ),
    "processor of an operator": (
        ('use = "patchify"', 'use = "patchify"\nprocessor = "qwen2_5_vl"'),
        "recipes/a.toml:27: operator[3] (patchify): processor: expected true or false; "
        "its settings go into [processor]",
    ),
    "parallelism": (
        ('use = "patchify"', 'use = "patchify"\nparallelism = 0'),
        'recipes/a.toml:27: operator[3] (patchify): parallelism: expected "auto" or an integer of at least 1, got 0',
    ),
    "runner": (
        ('use = "patchify"', 'use = "patchify"\nrunner = "fibres"'),
        "recipes/a.toml:27: operator[3] (patchify): runner: expected one of inline, threads, processes, ray, "
        "got 'fibres'",
    ),
    "unknown key": (
        ("seed = 17", "sede = 17"),
        "recipes/a.toml:1: unknown key 'sede'; did you mean 'seed'?",
    ),
    "missing lanes": (
        ("lanes = 2\n", ""),
        "recipes/a.toml: missing field 'lanes': expected an integer",
    ),
    "workers": (
        ("lanes = 2\n", "lanes = 2\nworkers = 4\n"),
        "recipes/a.toml:3: unknown key 'workers': it cannot change the data, so it belongs to the command line "
        "(--workers), not into a recipe",
    ),
    "prefetch of an operator": (
        ("size = 8\n", "size = 8\nprefetch = 4\n"),
        "recipes/a.toml:20: operator[1] (shuffle): unknown field 'prefetch': it cannot change the data, so it "
        "belongs to the command line (--prefetch), not into a recipe",
    ),
    "two datasets of one name": (
        ('path = "docs.jsonl"\n', 'path = "docs.jsonl"\n[[dataset]]\nname = "docs"\npath = "more.jsonl"\n'),
        "recipes/a.toml:14: dataset[1] (docs): dataset[0] has the name 'docs' too: give each its own",
    ),
    "passes": (
        ('path = "docs.jsonl"\n', 'path = "docs.jsonl"\npasses = "twice"\n'),
        'recipes/a.toml:10: dataset[0] (docs): passes: expected "forever", "once" or a whole number of 1 or more, '
        "got 'twice'",
    ),
    "weight": (
        ('path = "docs.jsonl"\n', 'path = "docs.jsonl"\nweight = "much"\n'),
        'recipes/a.toml:13: dataset[0] (docs): weight: expected a number, got "much"',
    ),
    "a table where a list of tables belongs": (
        ("[[dataset]]", "[dataset]"),
        "recipes/a.toml: dataset: expected tables in a list: write [[dataset]] above each",
    ),
    "no dataset": (
        ('[[dataset]]\nname = "docs"\npath = "docs.jsonl"\n', ""),
        "recipes/a.toml: expected at least one [[dataset]] with name and path, got none",
    ),
    "list of paths with a comma": (
        ('path = "docs.jsonl"', 'path = ["docs,1.jsonl", "more.jsonl"]'),
        "recipes/a.toml:12: dataset[0] (docs): path: expected a list of local paths without commas; "
        "use one path with braces: {a,b}",
    ),
    "format's option": (
        ('path = "docs.jsonl"\n', 'path = "docs.jsonl"\noptions = { speed = 1 }\n'),
        "recipes/a.toml:10: dataset[0] (docs): cannot open '{folder}/docs.jsonl' as jsonl: got an unexpected keyword "
        "argument 'speed'; its options are: image_root",
    ),
    "layout": (
        ('layout = "qwen2_5_vl"', 'layout = "qwen2_5"'),
        "recipes/a.toml:6: processor: no layout is named 'qwen2_5'; did you mean 'qwen2_5_vl'?",
    ),
    "layout's setting": (
        ("max_pixels = 1003520", "max_pixel = 1003520"),
        "recipes/a.toml:8: processor: unknown field 'max_pixel'; did you mean 'max_pixels'?",
    ),
    "processor without tokenizer": (
        ('tokenizer = "tokenizer"\n', ""),
        "recipes/a.toml:5: processor: missing field 'tokenizer': expected path, or layout and tokenizer",
    ),
    "operator without a processor": (
        ('[processor]\nlayout = "qwen2_5_vl"\ntokenizer = "tokenizer"\nmax_pixels = 1003520\n', ""),
        "recipes/a.toml:10: operator[0] (probe_images): it needs the table [processor], "
        "which this recipe does not have",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_with_line_and_key(load: Load, tmp_path: Path, mistake: str) -> None:
    change, expected = MISTAKES[mistake]
    assert complaint(load, change) == expected.replace("{folder}", str(tmp_path / "recipes"))


def test_what_is_no_toml_is_named_with_its_line(load: Load) -> None:
    message = complaint(load, ("lanes = 2", "lanes = = 2"))
    assert message == "recipes/a.toml: no valid TOML: Invalid value (at line 2, column 9)"


def test_a_missing_recipe_and_missing_data_are_said(load: Load, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^cannot read the recipe nowhere.toml: No such file or directory$"):
        load_recipe("nowhere.toml")
    with pytest.raises(StorageError) as caught:
        load(("docs.jsonl", "absent.jsonl"))
    assert str(caught.value).startswith("recipes/a.toml:10: dataset[0] (docs): expected a file or folder at ")


def test_the_recipe_s_folder_may_have_a_name_that_looks_like_a_pattern(load: Load, tmp_path: Path) -> None:
    folder = (tmp_path / "recipes").rename(tmp_path / "v[1]")
    (folder / "a.toml").write_text(RECIPE)
    assert list(load_recipe(folder / "a.toml").source.datasets[0].shards) == ["docs.jsonl"]


def test_a_recipe_may_be_a_dict(load: Load, tmp_path: Path) -> None:
    operator = {"use": "batch", "size": 2}
    table: dict[str, Any] = {"lanes": 2, "dataset": [{"name": "d", "path": "docs.jsonl"}], "operator": [operator]}
    assert names(parse_recipe(table, folder=tmp_path / "recipes")) == ["batch"]
    operator["sise"] = 3
    with pytest.raises(RecipeError, match=r"^recipe: operator\[0\] \(batch\): unknown field 'sise'"):
        parse_recipe(table, folder=tmp_path / "recipes")
