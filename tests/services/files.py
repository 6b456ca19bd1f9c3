"""Files in memory as a web server has them: ranges, etags, and If-Match, each of which can be left out."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import unquote

from services.server import Reply, Request

__all__ = ["Files", "folder_files", "serve_bytes"]


class Files(dict[str, bytes]):
    """Bytes by decoded path, without a slash before it. Change it while it is served, and the objects have changed."""

    def __init__(
        self, files: dict[str, bytes], *, ranges: bool = True, etags: str = '"{}"', if_match: bool = True
    ) -> None:
        super().__init__(files)
        self.ranges = ranges
        self.etags = etags
        self.if_match = if_match
        self.hashes: dict[str, tuple[bytes, str]] = {}

    def __call__(self, request: Request) -> Reply:
        path = unquote(request.path.partition("?")[0]).removeprefix("/")
        if path.startswith("forbidden/"):
            return Reply(403, {}, b"no")
        if path not in self:
            return Reply(404, {}, b"")
        data = self[path]
        return serve_bytes(data, self._etag(path, data), request, self.ranges, self.if_match)

    def _etag(self, path: str, data: bytes) -> str:
        """Hashed once for each content: hashing large files would be all that a test measures."""
        known = self.hashes.get(path)
        if known is None or known[0] is not data:
            known = self.hashes[path] = data, hashlib.sha256(data).hexdigest()[:20]
        return self.etags.format(known[1])


def serve_bytes(data: bytes, etag: str, request: Request, ranges: bool = True, if_match: bool = True) -> Reply:
    """A file, or the range of it that is asked for."""
    headers = {"ETag": etag} if etag else {}
    if if_match and request.headers.get("If-Match", etag) != etag:
        return Reply(412, headers, b"")
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not ranges or not wanted:
        size = {"Content-Length": str(len(data))} if request.method == "HEAD" else {}
        return Reply(200, headers | size, data)
    start, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
    if start > last:
        return Reply(416, headers, b"")
    return Reply(206, headers | {"Content-Range": f"bytes {start}-{last}/{len(data)}"}, data[start : last + 1])


def folder_files(folder: Path, prefix: str = "") -> dict[str, bytes]:
    """The files below a folder, by their paths in it."""
    return {
        f"{prefix}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
