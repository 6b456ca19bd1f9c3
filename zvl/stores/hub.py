"""Datasets on Hugging Face's hub: ``hf://datasets/ORG/NAME[@REVISION]/path``.

Names, sizes and commits come from huggingface_hub, bytes in ranges from the addresses that it gives, through obstore.
A revision is replaced by the commit that it names when the dataset is opened: a commit's files never change.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from zvl.errors import StorageError
from zvl.formats._optional import optional
from zvl.stores.credentials import LOOKED_FOR
from zvl.stores.failures import BUSY, obstore, translate
from zvl.stores.listing import Meta
from zvl.stores.objects import client_options, get_range
from zvl.stores.retry import Passing, redact

__all__ = ["Hub", "HubPath", "parse_hub"]

URL = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubPath(NamedTuple):
    """A URL of the hub taken apart; `revision` is None where it names none."""

    repo: str
    revision: str | None
    path: str

    def url(self) -> str:
        """The URL again."""
        at = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"hf://datasets/{self.repo}{at}/{self.path}"


def parse_hub(url: str) -> HubPath:
    """A URL of the hub in its parts; StorageError for what is none.

    >>> parse_hub("hf://datasets/org/name@main/data/0.parquet")
    HubPath(repo='org/name', revision='main', path='data/0.parquet')
    """
    match = URL.fullmatch(url)
    if match is None:
        raise StorageError(f"expected hf://datasets/ORG/NAME/PATH or hf://datasets/ORG/NAME@REVISION/PATH, got {url!r}")
    revision = match["revision"]
    return HubPath(match["repo"], unquote(revision) if revision else None, match["path"] or "")


class Hub:
    """The hub, or what HF_ENDPOINT names in its place; keeps one client, and the commit of each revision it has met."""

    lists = True

    def __init__(self) -> None:
        self._commits: dict[tuple[str, str | None], str] = {}
        self._client: Any = None
        self._lock = threading.Lock()

    def resolve(self, pattern: str) -> str:
        """The same at a commit."""
        place = parse_hub(pattern)
        if place.revision and COMMIT.fullmatch(place.revision):
            return pattern
        key = place.repo, place.revision
        if key not in self._commits:
            with hub_errors(pattern):
                info = _api().dataset_info(place.repo, revision=place.revision)
            self._commits[key] = info.sha
        return place._replace(revision=self._commits[key]).url()

    def head(self, url: str) -> Meta | None:
        """See `Lister.head`. The tag is the hash of the content."""
        place = parse_hub(url)
        if not place.path.strip("/"):
            return None
        with hub_errors(url):
            found = _api().get_paths_info(
                place.repo, [place.path], revision=place.revision, repo_type="dataset", expand=False
            )
        files = [one for one in found if one.path == place.path and _is_file(one)]
        return _meta(files[0]) if files else None

    def walk(self, folder: str, deep: bool) -> Iterator[tuple[str, Meta]]:
        """See `Lister.walk`."""
        place = parse_hub(folder)
        known = optional("huggingface_hub.errors", "cloud", "reading hf://")
        inside = place.path.strip("/") or None
        try:
            with hub_errors(folder):
                found = list(
                    _api().list_repo_tree(
                        place.repo, inside, recursive=deep, revision=place.revision, repo_type="dataset"
                    )
                )
        except known.EntryNotFoundError:
            return
        for one in found:
            if _is_file(one):
                yield place._replace(path=one.path).url(), _meta(one)

    def get(self, url: str, start: int, stop: int, meta: Meta) -> Any:
        """See `Server.get`. Sizes are compared; the content is the commit's, so there is no tag to compare."""
        return get_range(self._http(), url, _key(url), start, stop, meta, tagged=False)

    def get_whole(self, url: str) -> bytes:
        """See `Server.get_whole`."""
        try:
            key = _key(self.resolve(url))
        except StorageError as error:
            if URL.fullmatch(url) is None:
                raise FileNotFoundError(url) from error
            raise
        with translate(url):
            return bytes(obstore().get(self._http(), key).bytes())

    def _http(self) -> Any:
        with self._lock:
            if self._client is None:
                endpoint = _api().endpoint
                token = optional("huggingface_hub", "cloud", "reading hf://").get_token()
                options = client_options(plain=endpoint.startswith("http:"))
                if token:
                    options["default_headers"] = {"authorization": f"Bearer {token}"}
                self._client = obstore().store.HTTPStore(
                    endpoint, client_options=options, retry_config={"max_retries": 0}
                )
        return self._client


@contextmanager
def hub_errors(url: str) -> Iterator[None]:
    """What huggingface_hub raises as `Passing` or StorageError; EntryNotFoundError goes through."""
    known = optional("huggingface_hub.errors", "cloud", "reading hf://")
    try:
        yield
    except known.EntryNotFoundError:
        raise
    except (known.GatedRepoError, known.RepositoryNotFoundError) as error:
        raise StorageError(
            f"may not read {url}: the hub knows no such dataset, or not for you: {_line(error)}; credentials were "
            f"looked for in: {LOOKED_FOR['hf']}"
        ) from error
    except known.RevisionNotFoundError as error:
        raise StorageError(f"cannot read {url}: the dataset has no such revision; name one that it has") from error
    except (known.OfflineModeIsEnabled, known.HFValidationError) as error:
        raise StorageError(f"cannot read {url}: {_line(error)}") from error
    except known.HTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", 500)
        if status in (401, 403):
            raise StorageError(
                f"may not read {url}: {_line(error)}; credentials were looked for in: {LOOKED_FOR['hf']}"
            ) from error
        if status >= 500 or str(status) in BUSY:
            raise Passing(_line(error)) from error
        raise StorageError(f"cannot read {url}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return redact(" ".join(str(error).split()))[:300] or type(error).__name__


def _is_file(entry: Any) -> bool:
    return isinstance(entry, optional("huggingface_hub.hf_api", "cloud", "reading hf://").RepoFile)


def _meta(file: Any) -> Meta:
    return Meta(int(file.size), file.lfs.sha256 if file.lfs else file.blob_id)


def _key(url: str) -> str:
    """Where a file lies below the hub's address; the revision is a commit."""
    place = parse_hub(url)
    return f"datasets/{place.repo}/resolve/{place.revision}/{place.path}"


def _api() -> Any:
    library = optional("huggingface_hub", "cloud", "reading hf://")
    return library.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="zvl")
