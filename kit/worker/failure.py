"""Exceptions as messages, and back."""

from __future__ import annotations

from kit import errors
from kit.errors import KitError
from kit.messages import Failure


def to_failure(error: BaseException) -> Failure:
    """Return the message that carries an exception; values that are not plain stay behind."""
    plain = {
        name: value
        for name, value in vars(error).items()
        if value is None or isinstance(value, str | int | float)
    }
    return Failure(type(error).__name__, str(error), plain)


def to_error(failure: Failure) -> KitError | None:
    """Return the exception with its class, message and attributes; None if it is not the kit's."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, KitError)):
        return None
    # Not through their constructors: each has arguments of its own and writes its message.
    error = kind.__new__(kind, failure.message)
    error.args = (failure.message,)
    vars(error).update(failure.details)
    return error
