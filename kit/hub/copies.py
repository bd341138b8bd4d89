"""Checkpoints on this machine by the id that they have on the hub."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import isdir
from pathlib import Path

from kit.errors import HubError, flag_error
from kit.hub.endpoint import check_endpoint
from kit.hub.names import ModelId, parse_model_id
from kit.hub.record import RECORD_NAME, FetchRecord, read_record


def store_folder() -> Path:
    """Where `kit fetch` puts checkpoints: below HF_HOME, beside what other tools download."""
    # Here: what starts from a folder does not need the library.
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "hunyuan-paged-kit"


def copies_of(model: ModelId, store: Path) -> list[tuple[Path, FetchRecord]]:
    """Every complete copy in a store that the id matches, sorted by commit."""
    return copies_at(sorted((store / model.folder_name).glob("*")), model)


def copies_at(folders: Iterable[Path], model: ModelId) -> list[tuple[Path, FetchRecord]]:
    """Those of the folders that hold a complete copy that the id matches."""
    found = []
    for folder in folders:
        record = read_record(folder / RECORD_NAME)
        if (
            record is not None
            and record.model == model.name
            and model.revision in (None, record.revision, record.commit)
        ):
            found.append((folder, record))
    return found


def find_model(
    name: str, field: str, *, store: Path | None = None, hub_cache: Path | None = None
) -> Path:
    """Return the folder of a checkpoint: of this path, or a copy of the model with this hub id.

    The network is never asked. A copy that another tool left in the hub's own cache is taken too;
    as for every folder, the start checks that it is complete.

    field: what the name was given as, for messages.
    store, hub_cache: None takes the kit's own and the hub's own, below HF_HOME.

    Raises ConfigError where there is neither, or several copies fit. A path that cannot be a hub
    id is returned as it is.
    """
    path = Path(name)
    model = parse_model_id(name)
    if isdir(path) or model is None:
        return path
    copies = copies_of(model, store or store_folder())
    if len(copies) > 1:
        commits = ", ".join(f"{record.commit} ({record.revision})" for _, record in copies)
        raise flag_error(
            field,
            f"several commits of this model are here: {commits}",
            name,
            f"write {model.name}@ and one of them",
        )
    if copies:
        return copies[0][0]
    cached = _in_hub_cache(model, hub_cache)
    if cached is None:
        raise flag_error(
            field,
            "no such folder, and no model of this name is on this machine",
            name,
            f"run `kit fetch {_fetch_arguments(model)}` first, or give a checkpoint folder",
        )
    return cached


def _in_hub_cache(model: ModelId, hub_cache: Path | None) -> Path | None:
    check_endpoint()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            model.name, revision=model.revision, cache_dir=hub_cache, local_files_only=True
        )
    except IncompleteSnapshotError as error:
        raise HubError(
            f"model {model}: the copy in the hub's cache is not complete; run `kit fetch "
            f"{_fetch_arguments(model)}`"
        ) from error
    except LocalEntryNotFoundError:
        return None
    return Path(folder)


def _fetch_arguments(model: ModelId) -> str:
    return model.name if model.revision is None else f"{model.name} --revision {model.revision}"
