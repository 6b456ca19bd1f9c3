"""TorchTitan 0.3.0's own Trainer on the CPU, in processes of its own: what each rank trained on, before and after."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from zvl_demo.tokenizer import small_tokenizer

REFERENCE = Path(__file__).parent.parent / "reference"
WORDS = ("a", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "while", "rain", "falls", "on", "hills")

TEXT = """
lanes = 4
flush_every = 64
chunk_rows = 8
seed = 3
[processor]
layout = "qwen3_vl"
tokenizer = "{tokenizer}"
[[dataset]]
name = "text"
path = "text.jsonl"
[[operator]]
use = "tokenize_text"
max_tokens = 64
[[operator]]
use = "pack"
max_tokens = 64
lookahead = 8
[[operator]]
use = "batch"
size = 2
"""

IMAGES = """
lanes = 2
flush_every = 64
chunk_rows = 8
[processor]
layout = "qwen3_vl"
tokenizer = "{tokenizer}"
chat_template = "chat.jinja"
min_pixels = 1024
max_pixels = 65536
[[dataset]]
name = "pictures"
path = "pictures.jsonl"
[[operator]]
use = "probe_images"
[[operator]]
use = "tokenize_chat"
[[operator]]
use = "pack"
max_tokens = 64
lookahead = 8
dummy_image = true
processor = true
[[operator]]
use = "batch"
size = 2
[[operator]]
use = "patchify"
"""

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)


def write_text(folder: Path, cache: Path) -> None:
    rng = random.Random(1)
    lines = [json.dumps({"text": " ".join(rng.choices(WORDS, k=rng.randint(4, 40)))}) for _ in range(200)]
    (folder / "text.jsonl").write_text("\n".join(lines))
    (folder / "few.jsonl").write_text("\n".join(lines[:24]))
    tokenizer = small_tokenizer(cache)
    (folder / "tokenizer").symlink_to(tokenizer)
    (folder / "recipe.toml").write_text(TEXT.format(tokenizer=tokenizer))


def write_images(folder: Path) -> None:
    """Pictures whose sides are whole patches: they are not resized, so their pixels are those of the files."""
    (folder / "chat.jinja").write_text(CHAT)
    rng = np.random.default_rng(5)
    lines = []
    for number in range(48):
        width, height = (32 * int(side) for side in rng.integers(1, 4, 2))
        PilImage.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        question = [{"type": "image"}, {"type": "text", "text": "what"}]
        answer = [{"type": "text", "text": " ".join(WORDS[: 1 + number % 7])}]
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": messages, "images": [f"{number}.png"]}))
    (folder / "pictures.jsonl").write_text("\n".join(lines))


def run(script: str, *arguments: str) -> Any:
    """What a script prints last, as JSON."""
    command = [sys.executable, "-W", "ignore", str(REFERENCE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def steps(*ranks: list[list[Any]]) -> dict[int, list[str]]:
    """The global batch of each step: the hashes of the ranks' batches, rank by rank, which is lane by lane."""
    found: dict[int, list[str]] = {}
    for rank in ranks:
        for step, digest in rank:
            found.setdefault(step, []).append(digest)
    return found


def test_the_run_goes_on_with_another_number_of_ranks(tmp_path: Path, qwen_tokenizer: Path) -> None:
    write_text(tmp_path, qwen_tokenizer.parent)
    zero, one = run("torchtitan_rank.py", "llama3", str(tmp_path))
    unbroken = steps(zero["unbroken"])
    assert [len(set(batches)) for batches in unbroken.values()] == [4, 4, 4, 4]
    before = steps(zero["two, before"], one["two, before"])
    assert list(before) == [1, 2]
    # From two ranks to one, and from one to two.
    assert before | steps(zero["one, after two"]) == unbroken
    assert steps(zero["unbroken"][:8]) | steps(zero["two, after one"], one["two, after one"]) == unbroken


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, qwen_tokenizer: Path) -> Any:
    """What `torchtitan_images.py` found."""
    folder = tmp_path_factory.mktemp("torchtitan")
    write_text(folder, qwen_tokenizer.parent)
    (folder / "recipe.toml").rename(folder / "text.toml")
    (folder / "finite.toml").write_text(
        (folder / "text.toml").read_text().replace('path = "text.jsonl"', 'path = "few.jsonl"\npasses = "once"')
    )
    write_images(folder)
    recipe = IMAGES.format(tokenizer=(folder / "tokenizer").resolve())
    (folder / "recipe.toml").write_text(recipe)
    (folder / "no_dummy.toml").write_text(recipe.replace("dummy_image = true\nprocessor = true\n", ""))
    return run("torchtitan_images.py", str(folder))


def test_batches_with_images_are_those_of_torchtitans_own_collator(images: Any) -> None:
    compared = images["compared"]
    assert compared["images"] > 10
    assert compared["special"]
    for ours, theirs in compared["names"]:
        assert ours == theirs
    pixels = compared["difference"].pop("pixel_values")
    assert max(pixels) < 1e-6
    assert compared["difference"] == {
        name: [0.0] * 3 for name in ("labels", "input", "positions", "grid_thw", "mrope_positions")
    }


def test_its_vision_language_model_trains_on_them(images: Any) -> None:
    trained = images["trained"]
    assert [step for step, _ in trained["seen"]] == [1, 1, 2, 2]
    # Pixels come as bytes and become numbers on the device.
    assert set(trained["dtypes"]) == {"torch.uint8"}
    assert all(change > 0 for change in trained["moved"].values())


def test_its_validator_takes_a_finite_recipe_from_the_beginning_each_time(images: Any) -> None:
    first, second = images["validated"]
    assert first == second > 0


def test_processes_of_one_data_parallel_rank_write_ledgers_of_their_own(images: Any) -> None:
    assert images["ledgers"] == ["out/ledger.jsonl", "out/ledger.process0.jsonl"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "expected dataloader.recipe, the path of a recipe, got none"),
        ("length", "the trainer has seq_len=128, the pipeline pack(max_tokens=64): make them equal"),
        ("rows", "the trainer has local_batch_size=3, the pipeline batch(size=2): make them equal"),
        ("lanes", "4 lanes cannot be shared by dp_size=3 ranks: sizes that work are 1, 2, 4"),
        ("tower", "the other ranks would wait for it: give pack dummy_image = true and processor = true"),
        ("tokens", "a recipe with images needs TorchTitan's MultiModalTokenizer, got HuggingFaceTokenizer"),
        ("tokenizer", "the tokenizers differ: token"),
        ("round", "4 lanes x 1 batches_per_step on 1 ranks is 4 batches a rank, got global_batch_size"),
        ("vocabulary", "the model's vocabulary has 512 tokens"),
        (
            "mask",
            "ScaledDotProductAttention has no mask, so the samples of a row would see each other: choose attn_backend",
        ),
        ("unloaded", "the model has been trained for 2 steps, but the data stand at step 0: their state was saved and"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(images: Any, name: str, words: str) -> None:
    assert words in images["refused"].get(name, "nothing was refused")
