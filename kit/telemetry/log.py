"""The kit's one logger and its format; INFO is one line a milestone, for operators."""

from __future__ import annotations

import logging
import sys

LOGGER_NAME = "kit"


def get_logger(area: str) -> logging.Logger:
    """Return the logger of one part of the kit, such as `engine` or `worker`."""
    return logging.getLogger(f"{LOGGER_NAME}.{area}")


def configure_logging(level: int = logging.INFO, *, rank: str | None = None) -> None:
    """Send the kit's log lines to standard error; called once, by a command or a rank's process.

    rank: how lines call the rank; None for a process that is none.
    """
    handler = logging.StreamHandler(sys.stderr)
    where = "" if rank is None else f" {rank}"
    handler.setFormatter(
        logging.Formatter(f"%(levelname)s %(asctime)s [%(name)s{where}] %(message)s")
    )
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
