"""Azurite, Microsoft's server of Azure's blob storage for tests, from npm."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

__all__ = ["Azurite"]

ACCOUNT = "devstoreaccount1"
KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # published by Microsoft
)


class Azurite:
    """The server while the block lasts, with one container. The program is named by AZURITE (`make test-services`)."""

    container = "container"

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("AZURITE", "")
        if not Path(program).is_file():
            raise RuntimeError(f"expected AZURITE to name azurite-blob, got {program!r}: run `make test-services`")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "azurite.log").open("wb")
        options = ["--blobPort", str(self.port), "--location", str(folder), "--skipApiVersionCheck", "--silent"]
        self._process = subprocess.Popen([program, *options], stdout=self._log, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"azurite does not answer; its log: {self._log.name}") from None
                time.sleep(0.1)  # until another process listens; there is nothing to wait on

        self._create_container()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()

    def put(self, objects: dict[str, bytes]) -> None:
        """Store objects by name."""
        from obstore.store import AzureStore

        settings: dict[str, Any] = self._settings(self.url)
        store = AzureStore(
            self.container,
            account_name=ACCOUNT,
            account_key=KEY,
            endpoint=settings["AZURE_STORAGE_ENDPOINT"],
            client_options={"allow_http": True},
        )
        for name, data in objects.items():
            store.put(name, data)

    def point_at(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let az:// mean that address."""
        for name, value in self._settings(url).items():
            monkeypatch.setenv(name, value)

    def _create_container(self) -> None:
        """obstore makes no containers: a request signed as Azure's documentation says (Authorize with Shared Key)."""
        headers = {
            "x-ms-date": datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "x-ms-version": "2021-08-06",
        }
        lines = [*("PUT", "", "", "", "", "text/plain"), *[""] * 6]
        lines += [f"{name}:{value}" for name, value in sorted(headers.items())]
        lines += [f"/{ACCOUNT}/{ACCOUNT}/{self.container}", "restype:container"]
        digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
        headers |= {
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Type": "text/plain",
        }
        url = f"{self.url}/{ACCOUNT}/{self.container}?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, b"", headers, method="PUT"), timeout=30):
            pass

    def _settings(self, url: str) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
        }
