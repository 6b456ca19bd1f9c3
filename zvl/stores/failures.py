"""What obstore's errors mean: a failure that may pass, an object that changed or is not there, or the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zvl.errors import StorageError
from zvl.formats._optional import optional
from zvl.stores.credentials import LOOKED_FOR
from zvl.stores.remote import Changed
from zvl.stores.retry import Passing, redact

__all__ = ["first_line", "obstore", "translate"]

BUSY = frozenset(("408", "425", "429"))
"""Answers below 500 that ask to come back later."""

IDENTITY = re.compile(
    r"//169\.254\.|//metadata\.google\.internal|/latest/(?:api/token|meta-data)|token request|sts:"
    r"|MissingAccount|InvalidKey"
)
"""In the message of a request for credentials that failed."""

NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound")

HINTS = {"TimedOut": "timed out", "IncompleteMessage": "connection closed", "IncompleteBody": "connection closed early"}
"""What obstore's messages say only in their second half."""


@contextmanager
def translate(url: str, answered: bool = True) -> Iterator[None]:
    """What obstore raises as `Passing`, `Changed`, FileNotFoundError or StorageError.

    `answered` says that this server has answered before: then even missing credentials may be a passing failure.
    """
    known = obstore().exceptions
    scheme = url.partition("://")[0]
    try:
        yield
    except (FileNotFoundError, known.InvalidPathError, ValueError) as error:
        if NO_BUCKET.search(str(error)):
            raise StorageError(
                f"cannot read {redact(url)}: there is no such bucket; see that its name is right"
            ) from error
        raise FileNotFoundError(first_line(error)) from error
    except (known.PermissionDeniedError, known.UnauthenticatedError) as error:
        raise _denied(url, scheme, error) from error
    except known.PreconditionError as error:
        raise Changed from error
    except known.NotSupportedError as error:
        raise StorageError(
            f"cannot read {redact(url)}: expected a server that serves ranges of bytes, this one sends whole "
            "files; put the file on one that does, or copy it to a local folder"
        ) from error
    except known.BaseError as error:
        raise _judge(url, scheme, error, answered) from error


def _judge(url: str, scheme: str, error: Exception, answered: bool) -> Exception:
    """Whether trying again can help."""
    text = str(error)
    status = re.search(r"status code: (\d{3})", text)
    if IDENTITY.search(text) and not answered:
        return _denied(url, scheme, error)
    if "redirect without LOCATION" in text:
        return StorageError(
            f"cannot read {redact(url)}: the bucket lies in another region; set AWS_REGION to its region"
        )
    if status is None or status[1] >= "500" or status[1] in BUSY or IDENTITY.search(text):
        return Passing(first_line(error))
    if status[1] == "416":
        return Changed("fewer bytes")
    if status[1] == "410":
        return FileNotFoundError(url)
    if status[1] == "404" and ("list request" in text or NO_BUCKET.search(text)):
        return _no_bucket(url)
    return StorageError(f"cannot read {redact(url)}: {first_line(error)}")


def _no_bucket(url: str) -> StorageError:
    return StorageError(f"cannot read {redact(url)}: there is no such bucket; see that its name is right")


def _denied(url: str, scheme: str, error: Exception) -> StorageError:
    return StorageError(
        f"may not read {redact(url)}: {first_line(error)}; credentials were looked for in: {LOOKED_FOR[scheme]}. "
        "Servers also answer so for files that are not there, to those who may not list them"
    )


def first_line(error: BaseException) -> str:
    """obstore's message in one short line, without signatures."""
    line, _, rest = str(error).partition("\n\nDebug source")
    hint = re.search(r'message: "([^"]+)"', rest)
    words = [hint[1]] if hint else [text for word, text in HINTS.items() if word in rest]
    return redact(" ".join(line.split()))[:300].rstrip(" :") + "".join(f" ({word})" for word in words[:1])


def obstore() -> Any:
    """The library, imported at first use; RecipeError names the extra."""
    module = optional("obstore", "cloud", "reading s3://, gs://, az:// and https://")
    optional("obstore.store", "cloud", "reading from remote stores")
    return module
