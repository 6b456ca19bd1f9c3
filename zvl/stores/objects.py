"""S3, Google Cloud Storage, Azure and web servers, through obstore."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

from zvl.errors import StorageError
from zvl.stores import remote
from zvl.stores.credentials import aws_settings
from zvl.stores.failures import first_line, obstore, translate
from zvl.stores.listing import Meta
from zvl.stores.remote import Changed
from zvl.stores.retry import Passing, redact

__all__ = ["Objects", "client_options", "get_range"]

CONNECT = 10.0
"""Seconds to wait for a connection."""

LONGEST = 300.0
"""Seconds that one request may take as a whole; it brings at most `PIECE` bytes, unless an object is read whole."""

ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT")
"""Variables that may name a server without TLS, for tests and stores in the house."""

MODIFIED = "modified "
"""Begins the tag of an object that has a time of change and no etag."""


class Place(NamedTuple):
    """A URL taken apart: `root` is what a client is made for, `key` the object's name there.

    A URL without bucket or host has a `root` that ends in a slash.
    """

    scheme: str
    root: str
    key: str


class Objects:
    """The server behind any such URL; keeps a client for each bucket or host, and so its connections."""

    def __init__(self, scheme: str) -> None:
        self.lists = scheme not in ("http", "https")
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._answered: set[str] = set()

    def resolve(self, pattern: str) -> str:
        """As it is; StorageError for a URL with a password or a signature: both would end up in checkpoints."""
        place = _take_apart(pattern)
        if place.root.endswith("/"):
            raise StorageError(f"expected {place.root}BUCKET/PATH, got {pattern!r}")
        if not self.lists and ("?" in pattern or "@" in place.root):
            raise StorageError(
                f"cannot open {redact(pattern)}: expected a URL without query, user and password: it becomes part of "
                "keys and checkpoints; put the files where a plain URL, s3://, gs:// or az:// finds them"
            )
        return pattern

    def head(self, url: str) -> Meta | None:
        """See `Lister.head`."""
        place = _take_apart(url)
        if not place.key or place.key.endswith("/"):
            return None
        try:
            with translate(url, place.root in self._answered):
                found = obstore().head(self._client(place), place.key)
        except FileNotFoundError:
            return None
        self._answered.add(place.root)
        return _meta(found)

    def walk(self, folder: str, deep: bool) -> Iterator[tuple[str, Meta]]:
        """See `Lister.walk`."""
        place = _take_apart(folder)
        store, prefix = self._client(place), place.key.rstrip("/") or None
        try:
            with translate(folder, place.root in self._answered):
                if deep:
                    found = obstore().list(store, prefix).collect()
                else:
                    found = obstore().list_with_delimiter(store, prefix)["objects"]
        except FileNotFoundError as error:
            raise StorageError(f"cannot list {folder}: {error}; rename what has an empty name") from error
        self._answered.add(place.root)
        for one in found:
            if not one["path"].endswith("/"):  # what consoles leave for an empty folder
                yield f"{place.root}/{one['path']}", _meta(one)

    def get(self, url: str, start: int, stop: int, meta: Meta) -> Any:
        """See `Server.get`."""
        place = _take_apart(url)
        return get_range(self._client(place), url, place.key, start, stop, meta)

    def get_whole(self, url: str) -> bytes:
        """See `Server.get_whole`."""
        place = _take_apart(url)
        if place.root.endswith("/") or (self.lists and not place.key):
            raise FileNotFoundError(url)
        if not self.lists and ("?" in url or "//" in place.key or place.key.endswith("/")):
            place = Place(place.scheme, url, "")  # a client of its own: obstore's paths hold neither
        with translate(url, place.root in self._answered):
            store = self._client(place, keep="?" not in url)
            data = bytes(obstore().get(store, place.key).bytes())
        self._answered.add(place.root)
        return data

    def _client(self, place: Place, keep: bool = True) -> Any:
        with self._lock:
            client = self._clients.get(place.root)
            if client is None:
                client = _make_client(place)
                if keep:
                    self._clients[place.root] = client
        return client


def get_range(store: Any, url: str, key: str, start: int, stop: int, meta: Meta, tagged: bool = True) -> Any:
    """A buffer with those bytes of the object that `meta` describes, checked: `Changed` where the server has another.

    A strong tag is sent along (If-Match); sizes, and tags where `tagged`, are compared afterwards in any case.
    """
    options: dict[str, Any] = {"range": (start, stop)}
    if tagged and meta.tag and not meta.tag.startswith(("W/", MODIFIED)):
        options["if_match"] = f'"{meta.tag}"'
    with translate(url):
        result = obstore().get(store, key, options=options)
        found = _meta(result.meta)
        if found.size != meta.size or (tagged and found.tag != meta.tag):
            raise Changed(f"found {found.size} bytes and {found.tag!r}")
        data = result.bytes()
    if result.range != (start, stop) or len(data) != stop - start:
        raise Passing(f"a short answer: {len(data)} bytes of {stop - start}")
    return data


def _meta(found: Any) -> Meta:
    """obstore's metadata; the tag is the etag without quotes, else the time of change."""
    tag = (found["e_tag"] or "").replace('"', "")
    if not tag and (modified := found["last_modified"]).timestamp() > 0:
        tag = f"{MODIFIED}{modified.isoformat()}"
    return Meta(found["size"], tag)


def _take_apart(url: str) -> Place:
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return Place(scheme, f"{scheme}://{bucket}", unquote(key) if scheme in ("http", "https") else key)


def _make_client(place: Place) -> Any:
    """obstore's client for a bucket or host; retries are zvl's own."""
    bucket = place.root.partition("://")[2]
    plain = place.scheme == "http" or any(os.environ.get(name, "").startswith("http:") for name in ENDPOINTS)
    options = {"client_options": client_options(plain), "retry_config": {"max_retries": 0}}
    with translate(f"{place.root}/", answered=False):
        try:
            return _client_of(place, bucket, options)
        except ValueError as error:
            raise StorageError(f"cannot open {redact(place.root)}: {first_line(error)}") from error


def client_options(plain: bool) -> dict[str, Any]:
    """Timeouts for obstore, and whether connections without TLS are allowed."""
    return {
        "allow_http": plain,
        "connect_timeout": timedelta(seconds=CONNECT),
        "read_timeout": timedelta(seconds=remote.PATIENCE.silence),
        "timeout": timedelta(seconds=LONGEST),
    }


def _client_of(place: Place, bucket: str, options: dict[str, Any]) -> Any:
    stores = obstore().store
    if place.scheme == "s3":
        return stores.S3Store(bucket, **options, **aws_settings())
    if place.scheme == "gs":
        return stores.GCSStore(bucket, **options)
    if place.scheme == "az":
        return stores.AzureStore(bucket, **options)
    return stores.HTTPStore(place.root, **options)
