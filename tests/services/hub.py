"""The parts of Hugging Face's hub that reading a dataset needs, as its documentation describes them."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from services.files import serve_bytes
from services.server import Reply, Request

__all__ = ["Hub"]


class Hub:
    """Datasets by revision: `push` makes a commit of the files, which `main` names from then on.

    Files in `lfs` (by suffix) are served from another host name by a redirect, as the hub does it.
    """

    def __init__(self, repo: str, token: str | None = None, lfs: tuple[str, ...] = (".parquet", ".tar")) -> None:
        self.repo = repo
        self.token = token
        self.lfs = lfs
        self.commits: dict[str, dict[str, bytes]] = {}
        self.names: dict[str, str] = {}
        self.leaked: list[str] = []
        self.port = 0

    def push(self, files: dict[str, bytes], name: str = "main") -> str:
        """The hash of the new commit."""
        digest = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[digest] = dict(files)
        self.names[name] = digest
        return digest

    def __call__(self, request: Request) -> Reply:
        url = urlsplit(request.path)
        path = unquote(url.path)
        if path.startswith("/cdn/"):
            if "Authorization" in request.headers:
                self.leaked.append(path)
            commit, _, name = path.removeprefix("/cdn/").partition("/")
            return serve_bytes(self.commits[commit][name], '"of the cdn"', request)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self._refuse(401, "RepoNotFound")
        if path.startswith(api := f"/api/datasets/{self.repo}"):
            return self._api(path.removeprefix(api).strip("/"), parse_qs(url.query), request)
        if path.startswith(files := f"/datasets/{self.repo}/resolve/"):
            commit, _, name = path.removeprefix(files).partition("/")
            return self._file(self.names.get(commit, commit), name, request)
        return self._refuse(404, "RepoNotFound")

    def _api(self, what: str, query: dict[str, list[str]], request: Request) -> Reply:
        kind, _, rest = what.partition("/")
        if kind in ("", "revision"):
            commit = self.names.get(rest or "main", rest)
            if commit not in self.commits:
                return self._refuse(404, "RevisionNotFound")
            siblings = [{"rfilename": name} for name in sorted(self.commits[commit])]
            return _json({"_id": "1", "id": self.repo, "sha": commit, "siblings": siblings, "tags": []})
        commit, _, folder = rest.partition("/")
        files = self.commits.get(commit)
        if files is None:
            return self._refuse(404, "RevisionNotFound")
        if kind == "paths-info":
            wanted = parse_qs(request.body.decode())["paths"]
            return _json([self._entry(name, files[name]) for name in wanted if name in files])
        inside = {name: data for name, data in files.items() if not folder or name.startswith(f"{folder}/")}
        if not inside:
            return self._refuse(404, "EntryNotFound")
        start = len(folder) + 1 if folder else 0
        deep = query.get("recursive", ["False"])[0].lower() in ("true", "1")
        shown = [self._entry(name, data) for name, data in inside.items() if deep or "/" not in name[start:]]
        folders = {name[: start + name[start:].index("/")] for name in inside if "/" in name[start:]}
        return _json(shown + [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in sorted(folders)])

    def _entry(self, name: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        entry = {"type": "file", "path": name, "size": len(data), "oid": digest[:40]}
        if name.endswith(self.lfs):
            entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 130}
        return entry

    def _file(self, commit: str, name: str, request: Request) -> Reply:
        files = self.commits.get(commit, {})
        if name not in files:
            return self._refuse(404, "EntryNotFound")
        if name.endswith(self.lfs):
            return Reply(302, {"Location": f"http://localhost:{self.port}/cdn/{commit}/{name}?sig=1"}, b"")
        return serve_bytes(files[name], f'"{hashlib.sha1(files[name]).hexdigest()}"', request)

    def _refuse(self, status: int, code: str) -> Reply:
        return Reply(status, {"X-Error-Code": code, "X-Error-Message": code}, b"")


def _json(value: Any) -> Reply:
    return Reply(200, {"Content-Type": "application/json"}, json.dumps(value).encode())
