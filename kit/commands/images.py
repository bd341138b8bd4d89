"""Reference images that a command line names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kit.config.deploy import DeployConfig
from kit.engine.preprocess import Preprocessor
from kit.errors import InvalidRequestError
from kit.request import ReferenceImage


def read_images(
    paths: Sequence[Path], model: Path, config: DeployConfig
) -> tuple[ReferenceImage, ...]:
    """Read the files of --image in order; raises InvalidRequestError naming the file."""
    if not paths:
        return ()
    preprocessor = Preprocessor(model, config)
    images = []
    for path in paths:
        field = f"--image {path}"
        try:
            with path.open("rb") as file:
                images.append(preprocessor.read_image(file, field))
        except OSError as error:
            # A pipe's error has no text of the system's.
            reason = error.strerror or "it is a pipe; save the picture to a file and name that"
            raise InvalidRequestError(
                f"{field}: cannot be read: {reason}", param="image"
            ) from error
    return tuple(images)
