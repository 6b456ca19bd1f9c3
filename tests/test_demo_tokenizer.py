"""zvl_demo.tokenizer, held against the conversion that transformers brings along."""

import base64
import json
import sysconfig
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from zvl.errors import StorageError
from zvl_demo import tokenizer as module
from zvl_demo.tokenizer import ADDED_TOKENS, SPECIAL_TOKENS, read_ranks, split_token
from zvl_demo.tokenizer import qwen_tokenizer as build

SENTENCES = (
    "It's 12345 o'clock, and they'll say: \"we've done it\"!\r\n\r\n  Indented\ttext.   ",
    "Füße über größere Straßen; Äpfel, Öl und Übermut.",
    "L'été dernier, j'ai mangé une crème brûlée à Besançon.",
    "El pingüino comió piñas mañana.",
    "Zażółć gęślą jaźń.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "שלום עולם, מה שלומך היום?",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "হ্যালো বিশ্ব, কেমন আছো?",
    "வணக்கம் உலகம், எப்படி இருக்கிறீர்கள்?",
    "สวัสดีชาวโลก วันนี้เป็นอย่างไรบ้าง",
    "Xin chào thế giới, hôm nay bạn khỏe không?",
    "你好,世界!今天天气怎么样?",
    "こんにちは世界。今日はいい天気ですね。",
    "안녕하세요 세계, 오늘 날씨가 어때요?",
    "გამარჯობა მსოფლიო, როგორ ხარ?",
    "Բարեւ աշխարհ, ինչպես ես?",
    "ሰላም ዓለም እንዴት ነህ?",
    "👩‍👩‍👧 flags 🇨🇭, math ∑∫√ ≤ ≥, arrows → ⇒, and \U0001d518\U0001d52b",
    "\u0000\u0007 control, \u00a0 spaces \u2003 of \u200b several kinds",
)


@pytest.fixture(scope="module")
def tokenizer(qwen_tokenizer: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(qwen_tokenizer)


def test_ids_of_the_added_tokens(tokenizer: Any) -> None:
    assert len(SPECIAL_TOKENS) == 14
    assert tokenizer.convert_tokens_to_ids([*SPECIAL_TOKENS, *ADDED_TOKENS]) == list(range(151_643, 151_665))
    assert tokenizer("<|image_pad|>").input_ids == [151_655]
    assert len(tokenizer) == 151_665
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token) == (151_645, 151_643, None)
    assert set(tokenizer.all_special_tokens) == set(SPECIAL_TOKENS)
    text = "<tool_call>a</tool_call><|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == "<tool_call>a</tool_call>"


@pytest.mark.parametrize("text", SENTENCES)
def test_text_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    assert len(ids) < len(text.encode())


def corpus(limit: int) -> list[str]:
    """Texts of the installed packages: about `limit` characters of sources and prose, from all over the tree."""
    files = sorted(p for p in Path(sysconfig.get_path("purelib")).rglob("*") if p.suffix in {".py", ".md", ".txt"})
    texts: list[str] = []
    for path in files[:: max(1, len(files) // 400)]:
        text = path.read_bytes()[:30_000].decode(errors="ignore")
        texts.append(unicodedata.normalize("NFC", text))
    assert sum(map(len, texts)) > limit
    while sum(map(len, texts)) > limit:
        texts.pop()
    return texts


def test_ids_equal_those_of_the_conversion_in_transformers(assets: Callable[[str], Path], qwen_tokenizer: Path) -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    class Converter(TikTokenConverter):  # type: ignore[misc]
        """Theirs, with a reader of our own: theirs needs the tiktoken package."""

        @staticmethod
        def load_tiktoken_bpe(path: str) -> dict[bytes, int]:
            rows = (line.split() for line in Path(path).read_bytes().splitlines())
            return {base64.b64decode(token): int(rank) for token, rank in rows}

    ranks = assets("qwen-tokenizer") / "qwen_tokenizer/resources/qwen.tiktoken"
    added = [*SPECIAL_TOKENS, *ADDED_TOKENS]
    theirs = Converter(str(ranks), pattern=PRETOKENIZE_REGEX, extra_special_tokens=added).converted()
    ours = Tokenizer.from_file(str(qwen_tokenizer / "tokenizer.json"))
    texts = [*(unicodedata.normalize("NFC", text) for text in SENTENCES), *corpus(1_500_000)]
    tokens = 0
    for text, mine, other in zip(texts, ours.encode_batch(texts), theirs.encode_batch(texts), strict=True):
        assert mine.ids == other.ids, text[:80]
        tokens += len(mine.ids)
    assert tokens > 250_000


def test_text_is_normalised(tokenizer: Any) -> None:
    assert tokenizer("e\u0301te\u0301").input_ids == tokenizer("\u00e9t\u00e9").input_ids


CONVERSATION = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}, {"type": "image"}]},
    {"role": "assistant", "content": "Two dogs."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]


def test_the_chat_template_is_the_models(tokenizer: Any) -> None:
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    assert tokenizer.apply_chat_template(CONVERSATION, tokenize=False) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{image}What?{image}<|im_end|>\n<|im_start|>assistant\nTwo dogs.<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
    )


def test_the_training_template_renders_the_same_and_marks_the_answers(tokenizer: Any, qwen_tokenizer: Path) -> None:
    marked = (qwen_tokenizer / "chat_template_training.jinja").read_text()
    render = tokenizer.apply_chat_template
    assert render(CONVERSATION, tokenize=False, chat_template=marked) == render(CONVERSATION, tokenize=False)
    encoded = render(CONVERSATION, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True)
    said = [token for token, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mask]
    assert tokenizer.decode(said) == "Two dogs.<|im_end|>\nYes.<|im_end|>\n"


def test_image_settings_are_the_models(qwen_tokenizer: Path) -> None:
    from transformers import Qwen2_5_VLConfig
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    settings = json.loads((qwen_tokenizer / "preprocessor_config.json").read_text())
    vision = Qwen2_5_VLConfig().vision_config
    assert settings["patch_size"] == vision.patch_size == 14
    assert settings["temporal_patch_size"] == vision.temporal_patch_size == 2
    assert settings["merge_size"] == vision.spatial_merge_size == 2
    assert settings["image_mean"] == OPENAI_CLIP_MEAN
    assert settings["image_std"] == OPENAI_CLIP_STD
    assert (settings["min_pixels"], settings["max_pixels"]) == (4 * 28 * 28, 16384 * 28 * 28)


def test_it_is_built_once(qwen_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fetch", None)
    assert build(qwen_tokenizer.parent) == qwen_tokenizer


def test_a_damaged_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.tiktoken"
    path.write_bytes(base64.b64encode(b"a") + b" 0\n" + base64.b64encode(b"b") + b" 2\n")
    with pytest.raises(StorageError, match=r"expected ranks 0 to 151642 in order in .*short\.tiktoken, got 2 others"):
        read_ranks(path)
    with pytest.raises(StorageError, match="expected the token b'abc' to be a merge of two lower ranks"):
        split_token(b"abc", {b"a": 0, b"b": 1, b"c": 2, b"abc": 3, b"bc": 4})
    assert split_token(b"abc", {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"abc": 4}) == (b"a", b"bc")
