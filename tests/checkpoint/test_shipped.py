"""What the kit says of the checkpoint that it ships with, against its files."""

from __future__ import annotations

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT, DEFAULT_FINGERPRINT
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.fingerprint import fingerprint_model


def test_the_named_fingerprint_is_that_of_the_files() -> None:
    assert fingerprint_model(CheckpointFiles.open(DEFAULT_CHECKPOINT)) == DEFAULT_FINGERPRINT
