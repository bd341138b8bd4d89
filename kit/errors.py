"""Every exception of the kit, in one tree, grouped by who must act."""

from __future__ import annotations

from typing import ClassVar

_MAX_VALUE_CHARS = 1000


class KitError(Exception):
    """Root of all errors the kit raises on purpose."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    http_type: ClassVar[str] = "server_error"
    retry_helps: ClassVar[bool] = False
    """Whether the same request may succeed when it is sent again, here or elsewhere."""


class ConfigError(KitError):
    """A deploy file, overlay, override or flag is wrong; the operator must change it.

    The message names the field, what was got, where it was set, and what to change.
    """

    exit_code = 2

    def __init__(
        self, field: str, reason: str, *, value: object = None, source: str = "", remedy: str = ""
    ) -> None:
        self.field, self.reason, self.value = field, reason, value
        self.source, self.remedy = source, remedy
        got = ""
        if value is not None or source:
            shown = repr(value)
            if len(shown) > _MAX_VALUE_CHARS:
                shown = f"{shown[:_MAX_VALUE_CHARS]}... of {len(shown)} characters"
            got = f" (got {shown}{f', set by {source}' if source else ''})"
        super().__init__(f"{field}: {reason}{got}{f'; {remedy}' if remedy else ''}")


def flag_error(flag: str, reason: str, value: object, remedy: str) -> ConfigError:
    """Return the error of a flag or an argument of the command line."""
    return ConfigError(flag, reason, value=value, source="the command line", remedy=remedy)


class CheckpointError(KitError):
    """The checkpoint folder is incomplete, damaged or not what its config.json says."""

    exit_code = 2


class RecordError(KitError):
    """A replay record is absent, damaged or of another format."""

    exit_code = 2


class HubError(KitError):
    """The hub cannot be reached, refuses, has no such model, or sent something damaged."""

    exit_code = 2


class UnsupportedError(KitError):
    """This build, platform, backend or model cannot do what was asked."""

    exit_code = 2
    http_status = 501

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class RequestError(KitError):
    """The caller must change the request. `param` is the request's field."""

    exit_code = 2
    http_status = 400
    http_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class InvalidRequestError(RequestError):
    """A field of the request is out of range, of the wrong type or contradicts another."""


class NotFoundError(RequestError):
    """The request names a model or a job that is not here."""

    http_status = 404


class CapacityError(RequestError):
    """The request cannot fit even in an empty pool."""

    def __init__(
        self, message: str, *, needed_bytes: int, given_bytes: int, param: str | None = None
    ) -> None:
        self.needed_bytes, self.given_bytes = needed_bytes, given_bytes
        super().__init__(message, param=param)


class OverloadedError(KitError):
    """The queue is full; the same request may succeed after `retry_after_s` seconds."""

    http_status = 503
    retry_helps = True

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class DeadlineError(KitError):
    """The request's own time limit has passed; sending it again would cost the same again."""

    http_status = 504


class CancelledError(KitError):
    """The request was cancelled by its caller."""

    http_status = 499


class EngineError(KitError):
    """Our fault: the request was fine."""


class UnavailableError(EngineError):
    """The engine is shutting down or has stopped; another server may answer."""

    http_status = 503
    retry_helps = True


class WorkerError(EngineError):
    """A rank failed while it ran a request."""


class GroupLostError(WorkerError):
    """A worker group as a whole is gone or cannot be trusted: it must be started anew."""


class KVCacheError(EngineError):
    """The page accounting is broken: a page lost, freed twice or given to two writers."""
