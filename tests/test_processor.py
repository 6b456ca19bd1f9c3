from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zvl.errors import RecipeError, RegistryError
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.processor import Processor

SAVED = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.2, 0.2],
}
NEWLY_SAVED = {
    "processor_class": "Qwen2_5_VLProcessor",
    "image_processor": {
        "data_format": "channels_first",
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.2, 0.2],
        "merge_size": 2,
        "patch_size": 14,
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": 12845056, "shortest_edge": 3136},
        "temporal_patch_size": 2,
    },
}
LAYOUT = Qwen2_5VL(min_pixels=3136, max_pixels=12845056, image_mean=(0.5, 0.4, 0.3), image_std=(0.2, 0.2, 0.2))


@pytest.fixture
def folder(small_qwen: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small_qwen, tmp_path, dirs_exist_ok=True)


def save(folder: Path, name: str, **content: Any) -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder


def test_settings_make_the_layout(qwen_tokenizer: Path) -> None:
    processor = Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=1_003_520, image_mean=[0.5, 0.5, 0.5])
    assert processor.layout == Qwen2_5VL(max_pixels=1_003_520, image_mean=(0.5, 0.5, 0.5))
    assert processor.resize == "torch"
    assert processor.image_token_id == processor.token_id("<|image_pad|>") == 151655
    assert processor.tokenizer.eos_token == "<|im_end|>"
    assert processor.chat_template == (qwen_tokenizer / "chat_template.jinja").read_text()


def test_equal_processors_share_a_tokenizer_and_survive_pickling(qwen_tokenizer: Path) -> None:
    one = Processor("qwen2_5_vl", qwen_tokenizer)
    other = pickle.loads(pickle.dumps(Processor(Qwen2_5VL(), str(qwen_tokenizer))))
    assert one == other
    assert hash(one) == hash(other)
    assert one.tokenizer is other.tokenizer
    assert one != Processor("qwen2_5_vl", qwen_tokenizer, resize="pillow")
    assert one != Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=1_003_520)
    assert one != Processor("qwen2_5_vl", qwen_tokenizer, chat_template="{{ messages }}")
    assert len(pickle.dumps(one)) < 2000


def test_a_tokenizer_object_travels_as_its_content(small_qwen: Path) -> None:
    named = Processor("qwen2_5_vl", small_qwen)
    given = Processor("qwen2_5_vl", named.tokenizer)
    assert given.fingerprint() == named.fingerprint()
    again = pickle.loads(pickle.dumps(given))
    assert again == given
    assert again.chat_template == named.chat_template
    assert again.text.encode(["a photo"])[0].tolist() == named.text.encode(["a photo"])[0].tolist()


def test_the_fingerprint_names_content_and_no_path(folder: Path) -> None:
    mark = Processor("qwen2_5_vl", folder).fingerprint()
    assert json.loads(json.dumps(mark)) == mark
    assert mark == Processor("qwen2_5_vl", shutil.copytree(folder, folder / "elsewhere")).fingerprint()
    assert str(folder) not in json.dumps(mark)
    assert (mark["layout"], mark["settings"]["patch_size"], mark["resize"]) == ("qwen2_5_vl", 14, "torch")
    changes = [{"max_pixels": 999_999}, {"resize": "pillow"}, {"chat_template": "{{ messages }}"}]
    for change in changes:
        assert Processor("qwen2_5_vl", folder, **change).fingerprint() != mark
    changed = shutil.copytree(folder, folder / "changed")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = changed / name
        path.write_text(path.read_text().replace("<|file_sep|>", "<|file_end|>"))
    assert Processor("qwen2_5_vl", changed).fingerprint()["tokenizer"] != mark["tokenizer"]


def test_a_template_may_be_text_or_a_file(qwen_tokenizer: Path) -> None:
    path = qwen_tokenizer / "chat_template_training.jinja"
    assert Processor("qwen2_5_vl", qwen_tokenizer, chat_template=path).chat.marks_loss
    assert Processor("qwen2_5_vl", qwen_tokenizer, chat_template=str(path)).chat_template == path.read_text()
    assert Processor("qwen2_5_vl", qwen_tokenizer, chat_template="{{ bos }}").chat_template == "{{ bos }}"
    with pytest.raises(RecipeError, match=r"expected Jinja text or a .jinja file, got 'no.jinja': no such file"):
        Processor("qwen2_5_vl", qwen_tokenizer, chat_template="no.jinja")


def test_wrong_arguments_are_refused_by_name(qwen_tokenizer: Path) -> None:
    with pytest.raises(RecipeError, match="layout qwen2_5_vl has no setting 'max_pixel'; its settings are: patch_size"):
        Processor("qwen2_5_vl", qwen_tokenizer, max_pixel=1)
    with pytest.raises(RegistryError, match="did you mean 'qwen2_5_vl'"):
        Processor("qwen2_5vl", qwen_tokenizer)
    with pytest.raises(RecipeError, match="resize: expected 'torch' or 'pillow', got 'vips'"):
        Processor("qwen2_5_vl", qwen_tokenizer, resize="vips")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="max_pixels: settings go with a layout's name"):
        Processor(Qwen2_5VL(), qwen_tokenizer, max_pixels=1)
    with pytest.raises(RecipeError, match=r"needs the token '<none>', which the tokenizer does not have"):
        Processor("qwen2_5_vl", qwen_tokenizer).token_id("<none>")


def test_a_tokenizer_without_a_template_is_refused_when_it_is_needed(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    processor = Processor("qwen2_5_vl", folder)
    assert processor.fingerprint()["chat_template"]
    with pytest.raises(RecipeError, match="the tokenizer has no chat template: pass chat_template="):
        processor.chat  # noqa: B018


@pytest.mark.parametrize(
    ("name", "content"), [("preprocessor_config.json", SAVED), ("processor_config.json", NEWLY_SAVED)]
)
def test_a_saved_processor_gives_layout_settings_and_template(folder: Path, name: str, content: dict[str, Any]) -> None:
    processor = Processor.from_pretrained(save(folder, name, **content))
    assert processor.layout == LAYOUT
    assert processor == Processor(LAYOUT, folder, chat_template=folder / "chat_template.jinja")
    assert Processor.from_pretrained(folder, max_pixels=999_999).layout.max_pixels == 999_999  # type: ignore[attr-defined]


SAVE = """
import importlib.util, json, sys, torch
if importlib.util.find_spec("torchvision"):
    # Beside a CPU torch its wheel lacks these two, and transformers imports it where it finds it.
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
for folder, arguments in json.loads(sys.argv[1]).items():
    Qwen2VLImageProcessorPil(**arguments).save_pretrained(folder)
"""
GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "all": {
        "size": {"shortest_edge": 4096, "longest_edge": 65536},
        "patch_size": 16,
        "image_mean": [0.1, 0.2, 0.3],
    },
}


@pytest.fixture(scope="module")
def saved_by_transformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of GIVEN. In a process of its own: the two definitions would meet those of other tests."""
    root = tmp_path_factory.mktemp("saved")
    arguments = json.dumps({str(root / name): given for name, given in GIVEN.items()})
    subprocess.run([sys.executable, "-c", SAVE, arguments], check=True)
    return root


def test_what_a_saved_processor_leaves_out_is_its_class_default(folder: Path, saved_by_transformers: Path) -> None:
    save(folder, "preprocessor_config.json", image_processor_type="Qwen2VLImageProcessorFast")
    brief = Processor.from_pretrained(folder)
    assert brief.fingerprint()["layout"] == "qwen2_vl"
    shutil.copytree(saved_by_transformers / "nothing", folder, dirs_exist_ok=True)
    assert brief == Processor.from_pretrained(folder)


def test_what_transformers_saves_is_read_whole(folder: Path, saved_by_transformers: Path) -> None:
    shutil.copytree(saved_by_transformers / "all", folder, dirs_exist_ok=True)
    layout: Any = Processor.from_pretrained(folder).layout
    assert (layout.min_pixels, layout.max_pixels, layout.resample) == (4096, 65536, "bicubic")
    assert (layout.patch_size, layout.image_mean) == (16, (0.1, 0.2, 0.3))


def test_a_model_folder_is_all_that_is_needed(qwen_tokenizer: Path) -> None:
    processor = Processor.from_pretrained(qwen_tokenizer, max_pixels=1_003_520)
    assert processor.layout == Qwen2_5VL(min_pixels=3136, max_pixels=1_003_520)
    assert processor.fingerprint() == Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=1_003_520).fingerprint()


def test_the_model_type_decides_between_families_of_one_image_processor(folder: Path) -> None:
    save(folder, "preprocessor_config.json", image_processor_type="Qwen2VLImageProcessor")
    save(folder, "config.json", model_type="qwen2_5_vl")
    assert Processor.from_pretrained(folder).fingerprint()["layout"] == "qwen2_5_vl"


def test_the_processors_old_template_file_goes_before_the_tokenizers(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    save(folder, "preprocessor_config.json", **SAVED)
    save(folder, "chat_template.json", chat_template="{{ messages }}")
    assert Processor.from_pretrained(folder).chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"do_resize": False}, r"layout qwen2_5_vl cannot honour do_resize = False; expected True"),
        ({"rescale_factor": 1 / 127.5}, r"cannot honour rescale_factor = 0\.0078"),
        ({"do_image_splitting": True}, r"cannot honour the setting do_image_splitting = True"),
        ({"size": {"height": 224, "width": 224}}, r"size: expected shortest_edge and longest_edge, got height, width"),
        ({"resample": 9}, r"resample: expected one of .*, got 9"),
        ({"processor_class": "OddProcessor", "image_processor_type": "Odd"}, r"known family .*, got OddProcessor, Odd"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(folder: Path, change: dict[str, Any], sentence: str) -> None:
    save(folder, "preprocessor_config.json", **{**SAVED, **change})
    with pytest.raises(RecipeError, match=sentence):
        Processor.from_pretrained(folder)


def test_a_folder_without_image_settings_is_refused(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"expected preprocessor_config.json or processor_config.json .* neither"):
        Processor.from_pretrained(folder)
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(RecipeError, match=r"preprocessor_config.json is no JSON"):
        Processor.from_pretrained(folder)


def test_making_one_loads_no_heavy_library(qwen_tokenizer: Path) -> None:
    code = (
        "import sys; from zvl.processor import Processor; "
        f"p = Processor('qwen2_5_vl', {str(qwen_tokenizer)!r}); hash(p); repr(p); "
        "print([m for m in ('torch', 'transformers', 'tokenizers', 'jinja2', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
