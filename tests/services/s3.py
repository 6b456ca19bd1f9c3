"""moto's S3 server on loopback, with one bucket."""

from __future__ import annotations

import logging
from typing import Any, Self

import pytest

from services.proxy import Proxy

__all__ = ["S3"]


class S3:
    """The server while the block lasts; `bucket` is there from the start."""

    bucket = "bucket"

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> Self:
        import boto3

        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self._client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        self._client.create_bucket(Bucket=self.bucket)
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._server.stop()

    def put(self, objects: dict[str, bytes]) -> None:
        """Store objects by key, for everyone to read."""
        for key, data in objects.items():
            self._client.put_object(Bucket=self.bucket, Key=key, Body=data, ACL="public-read")

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._client.delete_object(Bucket=self.bucket, Key=key)

    def proxy(self) -> Proxy:
        """An app that hands everything on to the server."""
        return Proxy(self.url)

    def point_at(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let s3:// mean that address."""
        settings = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
