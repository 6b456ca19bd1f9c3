"""Where credentials come from: the environment and the standard files, and what to say where there are none.

obstore reads the environment, Google's files and the instance's own identity; it does not read AWS's files, so that is
done here. What is found goes to the client alone: it is never logged, pickled or put in a message.
"""

from __future__ import annotations

import configparser
import os
from typing import Any

from zvl.errors import StorageError

__all__ = ["LOOKED_FOR", "aws_settings"]

LOOKED_FOR = {
    "s3": "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, the profile AWS_PROFILE or 'default' "
    "in ~/.aws/credentials, AWS_WEB_IDENTITY_TOKEN_FILE, a container's or instance's role; AWS_SKIP_SIGNATURE=true for "
    "public buckets",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, gcloud's application default credentials, the "
    "instance's service account; GOOGLE_SKIP_SIGNATURE=true for public buckets",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID with "
    "AZURE_CLIENT_SECRET and AZURE_TENANT_ID, a managed identity, AZURE_USE_AZURE_CLI=true; "
    "AZURE_SKIP_SIGNATURE=true for public containers",
    "http": "none: zvl sends no credentials to web servers",
    "hf": "HF_TOKEN, and the token that `hf auth login` saved",
}
"""What is tried, by scheme."""

LOOKED_FOR["https"] = LOOKED_FOR["http"]


def aws_settings() -> dict[str, Any]:
    """What AWS's files say and the environment does not: keyword arguments of obstore's S3Store.

    Keys of the profile AWS_PROFILE, else `default`, in ~/.aws/credentials (AWS_SHARED_CREDENTIALS_FILE), its region and
    endpoint in ~/.aws/config (AWS_CONFIG_FILE). StorageError for a profile that is named and not there.
    """
    profile = os.environ.get("AWS_PROFILE")
    name = profile or "default"
    keys = _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    config = _section("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    if profile and not keys and not config:
        raise StorageError(
            f"AWS_PROFILE is {profile!r}, but neither ~/.aws/credentials nor ~/.aws/config has it; name one that "
            "is there, or unset it"
        )
    stored = config | keys
    settings = {}
    if profile or "AWS_ACCESS_KEY_ID" not in os.environ:
        for setting in ("access_key_id", "secret_access_key", "session_token"):
            if (value := stored.get(f"aws_{setting}")) is not None:
                settings[setting] = value
    for setting, variables in (
        ("region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
        ("endpoint_url", ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")),
    ):
        if setting in stored and not any(variable in os.environ for variable in variables):
            settings[setting.removesuffix("_url")] = stored[setting]
    return settings


def _section(variable: str, name: str, section: str) -> dict[str, str]:
    """A profile's lines in one of the files; {} where there are none."""
    path = os.environ.get(variable) or os.path.join("~", ".aws", name)
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(os.path.expanduser(path), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, PermissionError) as error:
        raise StorageError(
            f"cannot read {path}: {type(error).__name__}; expected profiles as AWS's tools write"
        ) from None
    return dict(parser[section]) if parser.has_section(section) else {}
