"""A checkpoint from the hub to a folder: pinned, resumable, every byte checked."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from filelock import FileLock, Timeout

from kit.errors import HubError
from kit.hub.client import HubClient
from kit.hub.copies import copies_at, copies_of, store_folder
from kit.hub.names import ModelId
from kit.hub.record import RECORD_NAME, FetchRecord, damage, read_record, write_record
from kit.modelspec.config import load_generation_config, load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors
from kit.tokenizer.tokenizer import Tokenizer

# Weights, configuration, tokenizer, terms; no code and no pictures.
_WANTED = ("*.safetensors", "*.json", "LICENSE*", "NOTICE*")
_WORK_NAME = ".kit_fetch"
_NUM_CONNECTIONS = 4
_NUM_TRIES = 2

Say = Callable[[str], None]


def free_disk_bytes(folder: Path) -> int:
    """Bytes that may still be written below `folder`."""
    return shutil.disk_usage(folder).free


def fetch(
    model: ModelId,
    *,
    to: Path | None,
    client: HubClient,
    say: Say,
    store: Path | None = None,
    free_bytes: Callable[[Path], int] = free_disk_bytes,
) -> Path:
    """Bring one commit of a model here and check it; returns its folder.

    to: a folder of its own; None takes one in the store, where the model's id finds it.
    say: called with a line about each thing done.
    store: None takes the kit's own, below HF_HOME.
    free_bytes: how much room is left below a folder.

    What arrived before an interruption is kept and the next call goes on from there. Offline, a
    copy that is here already is checked again. Raises HubError or CheckpointError.
    """
    store = store or store_folder()
    if client.is_offline:
        folder, record = _copy_here(model, to, store)
        say(f"offline: {record.model}@{record.commit} is here already")
    else:
        record = _wanted(client.list_files(model.name, model.revision or "main"))
        say(f"model {record.model}, revision {record.revision}: commit {record.commit}")
        folder = to or store / model.folder_name / record.commit
    with _claimed(folder, record) as work:
        missing = _missing(folder, record, say)
        if missing:
            if client.is_offline:
                raise HubError(
                    f"{folder}: {', '.join(missing)} absent or damaged, and HF_HUB_OFFLINE "
                    f"is set; run `kit fetch {record.model} --revision {record.commit}` online"
                )
            _check_space(folder, record, missing, work, free_bytes, say)
            _download_all(client, folder, record, missing, work)
        say(f"{len(record.files)} files, {_size(record.num_bytes)}: sizes and hashes are right")
        num_tensors = _check_checkpoint(folder)
        write_record(folder / RECORD_NAME, record)
    shutil.rmtree(work)
    say(f"checkpoint is complete: {num_tensors} tensors; {RECORD_NAME} holds commit and hashes")
    return folder


def _copy_here(model: ModelId, to: Path | None, store: Path) -> tuple[Path, FetchRecord]:
    copies = copies_of(model, store) if to is None else copies_at([to], model)
    if not copies:
        raise HubError(
            f"model {model}: HF_HUB_OFFLINE is set, and no complete copy is in {to or store}"
        )
    return copies[0]


def _wanted(listed: FetchRecord) -> FetchRecord:
    """Keep the files that a checkpoint needs; refuse a repository that is none."""
    files = {
        name: facts
        for name, facts in listed.files.items()
        if any(fnmatchcase(name, pattern) for pattern in _WANTED)
        # Hidden names and the record's are the kit's own here.
        and not any(part.startswith(".") or part == RECORD_NAME for part in name.split("/"))
    }
    if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
        raise HubError(
            f"model {listed.model}@{listed.revision} holds no checkpoint that the kit can read: "
            f"config.json and *.safetensors expected, {len(listed.files)} other files found"
        )
    return FetchRecord(listed.format, listed.model, listed.revision, listed.commit, files)


@contextmanager
def _claimed(folder: Path, record: FetchRecord) -> Iterator[Path]:
    """Hold a folder for one commit; yields where unfinished files lie.

    Refuses a folder with anything else in it: nothing of the user's is ever overwritten.
    """
    work = folder / _WORK_NAME
    try:
        if folder.is_dir() and any(path != work for path in folder.iterdir()):
            there = read_record(folder / RECORD_NAME) or read_record(work / RECORD_NAME)
            if there is None:
                raise HubError(f"folder {folder} is not empty; name a new one with --to")
            if (there.model, there.commit) != (record.model, record.commit):
                raise HubError(
                    f"folder {folder} holds {there.model}@{there.commit}; name a new one with --to"
                )
        work.mkdir(parents=True, exist_ok=True)
        with FileLock(work / "lock", timeout=0):
            write_record(work / RECORD_NAME, record)
            yield work
    except Timeout as error:
        raise HubError(f"another kit fetch is writing to {folder}; wait for it") from error
    except OSError as error:
        raise HubError(f"folder {folder} cannot be written: {error}") from error


def _missing(folder: Path, record: FetchRecord, say: Say) -> list[str]:
    """Names of files that are not there in full; reads every byte of those that are."""
    missing = []
    if any((folder / name).is_file() for name in record.files):
        say(f"reading what is in {folder}")
    for name, facts in record.files.items():
        path = folder / name
        if path.is_file():
            problem = damage(path, facts)
            if problem is None:
                continue
            say(f"{name} is damaged: {problem}")
            path.unlink()
        missing.append(name)
    return missing


def _check_space(
    folder: Path,
    record: FetchRecord,
    missing: list[str],
    work: Path,
    free_bytes: Callable[[Path], int],
    say: Say,
) -> None:
    total = sum(record.files[name].num_bytes for name in missing)
    arrived = sum(_partial_bytes(_partial(work, record, name)) for name in missing)
    needed, free = total - arrived, free_bytes(folder)
    if needed > free:
        raise HubError(
            f"folder {folder}: {needed} bytes ({_size(needed)}) are still to be downloaded and "
            f"{free} ({_size(free)}) are free; free {_size(needed - free)}, or name a folder on "
            f"another disk with --to"
        )
    here = f", {_size(arrived)} of them arrived before" if arrived else ""
    say(f"downloading {len(missing)} files, {_size(total)}{here}; {_size(free)} are free")


def _download_all(
    client: HubClient, folder: Path, record: FetchRecord, missing: list[str], work: Path
) -> None:
    """Download a few files at a time; the first failure, or Ctrl-C, stops them all."""
    stop = threading.Event()
    with ThreadPoolExecutor(_NUM_CONNECTIONS, thread_name_prefix="kit-fetch") as pool:
        futures = [
            pool.submit(_download, client, folder, record, name, work, stop) for name in missing
        ]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _download(
    client: HubClient,
    folder: Path,
    record: FetchRecord,
    name: str,
    work: Path,
    stop: threading.Event,
) -> None:
    """Download one file, check its bytes, move it to its place; a damaged one is fetched anew."""
    facts, partial, target = record.files[name], _partial(work, record, name), folder / name
    if _partial_bytes(partial) > facts.num_bytes:
        partial.unlink()
    problem: str | None = None
    for _ in range(_NUM_TRIES):
        client.download(record, name, partial, stop)
        problem = damage(partial, facts)
        if problem is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.replace(target)
            return
        partial.unlink()
    raise HubError(
        f"{name}: what the hub sent is damaged, {_NUM_TRIES} times: {problem}; it was removed. "
        f"Run the same command later, or name another hub with HF_ENDPOINT"
    )


def _partial(work: Path, record: FetchRecord, name: str) -> Path:
    """Unfinished files are named by content: another commit's bytes are never appended to."""
    facts = record.files[name]
    key = f"{name}\0{facts.sha256 or facts.git_sha1}"
    return work / hashlib.sha256(key.encode()).hexdigest()


def _partial_bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _check_checkpoint(folder: Path) -> int:
    """Check that a start would find everything; returns the number of tensors."""
    files, model = CheckpointFiles.open(folder), load_model_config(folder)
    load_generation_config(folder)
    check_tensors(files, model)
    Tokenizer.from_folder(folder, model)
    return len(files.tensors)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.2f} MiB"
