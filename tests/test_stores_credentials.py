import os
from pathlib import Path

import pytest

from zvl.errors import StorageError
from zvl.stores.credentials import aws_settings

KEYS = """\
[default]
aws_access_key_id = default-key
aws_secret_access_key = default-secret

[train]
aws_access_key_id = train-key
aws_secret_access_key = train%secret
aws_session_token = train-token
"""
CONFIG = """\
[default]
region = eu-west-1

[profile train]
region = us-west-2
endpoint_url = https://s3.house
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with AWS's files, and an environment without its variables."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(KEYS)
    (tmp_path / ".aws/config").write_text(CONFIG)
    return tmp_path


def test_the_default_profile() -> None:
    assert aws_settings() == {
        "access_key_id": "default-key",
        "secret_access_key": "default-secret",
        "region": "eu-west-1",
    }


def test_a_profile_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "train")
    assert aws_settings() == {
        "access_key_id": "train-key",
        "secret_access_key": "train%secret",
        "session_token": "train-token",
        "region": "us-west-2",
        "endpoint": "https://s3.house",
    }


def test_the_environment_goes_before_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert aws_settings() == {}


def test_other_places_of_the_files(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / "other").write_text("[default]\naws_access_key_id = other\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "other"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "none"))
    assert aws_settings() == {"access_key_id": "other"}


def test_no_files_is_no_error(home: Path) -> None:
    (home / ".aws/credentials").unlink()
    (home / ".aws/config").unlink()
    assert aws_settings() == {}


def test_a_profile_that_is_not_there_and_a_file_that_is_none(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match=r"AWS_PROFILE is 'nobody', but neither ~/.aws/credentials nor ~/.aws/"):
        aws_settings()
    (home / ".aws/credentials").write_text("aws_secret_access_key = secret\n")
    with pytest.raises(StorageError, match=r"cannot read ~/.aws/credentials: MissingSectionHeaderError; exp") as error:
        aws_settings()
    assert "= secret" not in str(error.value)
