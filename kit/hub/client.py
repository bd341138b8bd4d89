"""The hub: what a model holds, and the bytes of its files."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get

# Documented under this path, though the module does not list it.
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from kit.errors import HubError
from kit.hub.record import FetchRecord, FileFacts

_LIBRARY = "hunyuan-paged-kit"
_LISTING_TIMEOUT_S = 30.0
_NUM_RESETS = 20
_PAUSE_S = 1.0


class StoppedError(Exception):
    """A download was told to stop."""


class HubClient:
    """Asks one hub; a token comes from where huggingface_hub finds it (HF_TOKEN, its login)."""

    def __init__(self, endpoint: str | None = None) -> None:
        """endpoint: URL of the hub; None takes HF_ENDPOINT."""
        self._endpoint = endpoint or constants.ENDPOINT

    @property
    def is_offline(self) -> bool:
        """Whether HF_HUB_OFFLINE forbids any request."""
        return constants.is_offline_mode()

    def list_files(self, model: str, revision: str) -> FetchRecord:
        """Resolve a revision to its commit and list the files of that commit.

        Raises HubError: no such model or revision, no access, no connection, or a list that a
        download could not be checked against.
        """
        api = HfApi(endpoint=self._endpoint, library_name=_LIBRARY)
        try:
            with _explained(model, revision, self._endpoint):
                info = api.model_info(
                    model, revision=revision, files_metadata=True, timeout=_LISTING_TIMEOUT_S
                )
            files = {file.rfilename: _facts(file) for file in info.siblings or ()}
            _check_hash(info.sha, 40)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HubError(
                f"model {model}: {self._endpoint} does not answer as a hub does "
                f"({type(error).__name__}: {error}); does HF_ENDPOINT name one?"
            ) from error
        return FetchRecord("kit.fetch/1", model, revision, str(info.sha), files)

    def download(
        self, record: FetchRecord, name: str, partial: Path, stop: threading.Event
    ) -> None:
        """Append to `partial` what it lacks of a file; a broken connection is taken up again.

        What has arrived stays when this fails. Raises HubError, or StoppedError after `stop`.
        """
        # The redirect to where the bytes lie is followed by the client, which leaves the token
        # behind when the host changes.
        url = hf_hub_url(record.model, name, revision=record.commit, endpoint=self._endpoint)
        with (
            _explained(record.model, record.revision, self._endpoint),
            _PartialFile(partial, stop) as file,
        ):
            for resets_left in reversed(range(_NUM_RESETS)):
                try:
                    http_get(
                        url,
                        file,
                        resume_size=file.tell(),
                        headers=build_hf_headers(library_name=_LIBRARY),
                        expected_size=record.files[name].num_bytes,
                        displayed_filename=name,
                    )
                except httpx2.ReadError:  # http_get itself goes on after all other failures
                    if not resets_left:
                        raise
                    stop.wait(_PAUSE_S)
                except ValueError as error:  # above the library's limit for one file
                    raise HubError(f"{name}: {error}") from error
                else:
                    return


class _PartialFile(io.FileIO):
    """A file that grows at its end until `stop` is set; nothing waits in a buffer."""

    def __init__(self, path: Path, stop: threading.Event) -> None:
        super().__init__(path, "ab")
        self._stop = stop

    def write(self, data: Any) -> int:
        if self._stop.is_set():
            raise StoppedError
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


def _facts(file: Any) -> FileFacts:
    """Read one entry of a list that anybody may have written; raises ValueError."""
    path = PurePosixPath(file.rfilename)
    if path.is_absolute() or ".." in path.parts or "\\" in file.rfilename:
        raise ValueError(f"file {file.rfilename!r} lies outside the repository")
    if not isinstance(file.size, int) or file.size < 0:
        raise ValueError(f"file {file.rfilename!r} has size {file.size!r}")
    if file.lfs is None:
        return FileFacts(file.size, None, _check_hash(file.blob_id, 40))
    return FileFacts(file.size, _check_hash(file.lfs.sha256, 64), None)


def _check_hash(text: object, length: int) -> str:
    if not isinstance(text, str) or not re.fullmatch(rf"[0-9a-f]{{{length}}}", text):
        raise ValueError(f"{text!r} is no hash of {length} hexadecimal digits")
    return text


@contextmanager
def _explained(model: str, revision: str, endpoint: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into a HubError that says what to do."""
    try:
        yield
    except GatedRepoError as error:
        raise HubError(
            f"model {model}: the hub gives it only to accounts that accepted its terms; accept "
            f"them on the model's page and set HF_TOKEN to a token of that account"
        ) from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"model {model}: the hub at {endpoint} has no such model or does not show it to you "
            f"(HTTP {error.response.status_code}); check the spelling, or set HF_TOKEN for a "
            f"private model"
        ) from error
    except RevisionNotFoundError as error:
        raise HubError(
            f"revision {revision!r}: model {model} has no such branch, tag or commit; leave "
            f"--revision out for the newest commit of main"
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubError(f"model {model}: HF_HUB_OFFLINE is set, so the hub is not asked") from error
    except HfHubHTTPError as error:
        raise HubError(
            f"model {model}: the hub at {endpoint} answered HTTP {error.response.status_code}; "
            f"run the same command again, it goes on where it stopped"
        ) from error
    except (httpx2.HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk: the library gives its own no number
        raise HubError(
            f"model {model}: the connection to the hub at {endpoint} failed "
            f"({type(error).__name__}: {error}); run the same command again, it goes on where it "
            f"stopped. HF_ENDPOINT names another hub"
        ) from error
