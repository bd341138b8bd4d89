"""A download from a hub on this machine: whole, broken off, damaged, refused, offline."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import COMMIT, MODEL, Answer, FakeHub

from kit.errors import CheckpointError, HubError
from kit.hub.client import HubClient
from kit.hub.fetch import fetch, free_disk_bytes
from kit.hub.names import ModelId
from kit.hub.record import RECORD_NAME, read_record

SHARD = "model-0003-of-0003.safetensors"
LARGE = "extra.safetensors"
LARGE_BYTES = 25 << 20
CHUNK_BYTES = 10 << 20
"""What huggingface_hub writes at a time: a file that breaks off goes on from a multiple of it."""

MODEL_ID = ModelId(MODEL, None)


class Offline(HubClient):
    """A client as HF_HUB_OFFLINE makes it; it points to where nobody answers."""

    is_offline = True


@pytest.fixture
def hub(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", os.devnull)
    with FakeHub.of_folder(checkpoint).serve() as hub:
        yield hub


@pytest.fixture
def large_hub(hub: FakeHub) -> FakeHub:
    """With a file of several chunks that no index names."""
    hub.files[LARGE] = os.urandom(1 << 20) * (LARGE_BYTES >> 20)
    return hub


def run(hub: FakeHub, to: Path, **options: object) -> list[str]:
    """Fetch; returns the lines that were said."""
    lines: list[str] = []
    fetch(MODEL_ID, to=to, client=HubClient(hub.url), say=lines.append, **options)  # type: ignore[arg-type]
    return lines


def refusal(hub: FakeHub, to: Path, **options: object) -> str:
    with pytest.raises(HubError) as caught:
        run(hub, to, **options)
    return str(caught.value)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_model_comes_whole_and_its_commit_stands_beside_it(hub: FakeHub, tmp_path: Path) -> None:
    lines = run(hub, tmp_path / "model")
    files = content(tmp_path / "model")
    record = read_record(tmp_path / "model" / RECORD_NAME)
    assert record is not None
    assert (record.model, record.revision, record.commit) == (MODEL, "main", COMMIT)
    wanted = {n: c for n, c in hub.files.items() if n not in ("README.md", "modeling.py")}
    assert {n: c for n, c in files.items() if n != RECORD_NAME} == wanted
    assert record.files.keys() == wanted.keys()
    assert COMMIT in lines[0]
    assert "372 tensors" in lines[-1]


def test_again_downloads_nothing_but_reads_every_byte(hub: FakeHub, tmp_path: Path) -> None:
    run(hub, tmp_path / "model")
    before = len(hub.seen)
    run(hub, tmp_path / "model")
    assert [seen.path for seen in hub.seen[before:]] == [f"/api/models/{MODEL}/revision/main"]
    shard = tmp_path / "model" / SHARD
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)
    lines = run(hub, tmp_path / "model")
    assert any(line.startswith(f"{SHARD} is damaged: sha256") for line in lines)
    assert shard.read_bytes() == hub.files[SHARD]


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_dropped_connection_is_taken_up_where_it_broke(
    large_hub: FakeHub, tmp_path: Path, is_reset: bool
) -> None:
    large_hub.script[LARGE] = [Answer(stop_after=LARGE_BYTES - 1, is_reset=is_reset)]
    run(large_hub, tmp_path / "model")
    begun, resumed = large_hub.ranges(LARGE)
    assert begun is None
    # What a reset throws away with the socket's buffer may hold the end of the second chunk.
    starts = (1, 2) if is_reset else (2,)
    assert resumed in [f"bytes={CHUNK_BYTES * num_chunks}-" for num_chunks in starts]
    assert (tmp_path / "model" / LARGE).read_bytes() == large_hub.files[LARGE]


def test_the_next_call_goes_on_where_the_last_one_failed(
    large_hub: FakeHub, tmp_path: Path
) -> None:
    large_hub.script[LARGE] = [Answer(stop_after=LARGE_BYTES - 1), Answer(status=503)]
    message = refusal(large_hub, tmp_path / "model")
    assert "HTTP 503" in message
    assert "run the same command again" in message
    assert not (tmp_path / "model" / LARGE).exists(), "what has its name is whole"
    large_hub.seen.clear()
    arrived = 2 * CHUNK_BYTES
    needed = f"{LARGE_BYTES - arrived} bytes"
    assert needed in refusal(large_hub, tmp_path / "model", free_bytes=lambda _: 0)
    lines = run(large_hub, tmp_path / "model", free_bytes=lambda _: LARGE_BYTES - arrived)
    assert large_hub.ranges(LARGE) == [f"bytes={arrived}-"]
    assert any(f"{arrived / 2**20:.2f} MiB of them arrived before" in line for line in lines)
    assert (tmp_path / "model" / LARGE).read_bytes() == large_hub.files[LARGE]


def test_a_shard_damaged_on_its_way_is_fetched_once_more(hub: FakeHub, tmp_path: Path) -> None:
    hub.script[SHARD] = [Answer(content=hub.files[SHARD][:-1] + b"\0")]
    run(hub, tmp_path / "model")
    assert len(hub.ranges(SHARD)) == 2
    assert (tmp_path / "model" / SHARD).read_bytes() == hub.files[SHARD]


def test_a_shard_that_stays_damaged_is_named_and_not_kept(hub: FakeHub, tmp_path: Path) -> None:
    hub.script[SHARD] = [Answer(content=hub.files[SHARD][:-1] + b"\0")] * 2
    message = refusal(hub, tmp_path / "model")
    assert f"{SHARD}: what the hub sent is damaged, 2 times: sha256" in message
    files = content(tmp_path / "model")
    assert SHARD not in files
    assert RECORD_NAME not in files, "the record says that everything is there"
    run(hub, tmp_path / "model")


def test_a_small_file_is_checked_by_its_git_id(hub: FakeHub, tmp_path: Path) -> None:
    wrong = hub.files["config.json"].replace(b"64", b"65", 1)
    hub.script["config.json"] = [Answer(content=wrong)] * 2
    assert "config.json: what the hub sent is damaged, 2 times: git sha1" in refusal(
        hub, tmp_path / "model"
    )


def test_too_little_room_is_said_before_anything_is_downloaded(
    hub: FakeHub, tmp_path: Path
) -> None:
    names = [n for n in hub.files if n not in ("README.md", "modeling.py")]
    needed = sum(len(hub.files[name]) for name in names)
    asked: list[Path] = []

    def free(folder: Path) -> int:
        asked.append(folder)
        return needed - 1

    message = refusal(hub, tmp_path / "model", free_bytes=free)
    assert f"{needed} bytes" in message
    assert f"{needed - 1} (" in message
    assert "--to" in message
    assert asked == [tmp_path / "model"]
    assert [seen.path for seen in hub.seen] == [f"/api/models/{MODEL}/revision/main"]
    run(hub, tmp_path / "model", free_bytes=lambda _: needed)


def test_free_disk_bytes_is_a_number_of_this_disk(tmp_path: Path) -> None:
    assert free_disk_bytes(tmp_path) > 0


def test_a_revision_is_pinned_to_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    tagged = "f" * 40
    hub.revisions["v1/final"] = tagged
    client = HubClient(hub.url)
    said: list[str] = []
    folder = fetch(
        ModelId(MODEL, "v1/final"), to=None, store=tmp_path, client=client, say=said.append
    )
    assert folder == tmp_path / "lab--tiny-image" / tagged
    downloads = [seen.path for seen in hub.seen if "/resolve/" in seen.path]
    assert downloads
    assert all(f"/resolve/{tagged}/" in path for path in downloads)


def test_a_revision_that_does_not_exist(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="revision 'v9': model lab/tiny-image has no such branch"):
        fetch(ModelId(MODEL, "v9"), to=tmp_path / "m", client=HubClient(hub.url), say=print)
    assert not (tmp_path / "m").exists()


def test_a_model_that_does_not_exist_is_404(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"no such model .*HTTP 404.*spelling"):
        fetch(ModelId("lab/other", None), to=tmp_path / "m", client=HubClient(hub.url), say=print)


def test_a_private_model_is_401_without_a_token_and_comes_with_one(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    message = refusal(hub, tmp_path / "model")
    assert "HTTP 401" in message
    assert "HF_TOKEN" in message
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    run(hub, tmp_path / "model")
    to_storage = [seen for seen in hub.seen if seen.path.startswith("/bytes/")]
    assert to_storage
    assert all(seen.authorization is None for seen in to_storage), "the token is for the hub only"


def test_a_gated_model_says_to_accept_its_terms(hub: FakeHub, tmp_path: Path) -> None:
    hub.is_gated = True
    assert "accepted its terms" in refusal(hub, tmp_path / "model")


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"connection to the hub at http://127.0.0.1:9 failed"):
        fetch(MODEL_ID, to=tmp_path / "m", client=HubClient("http://127.0.0.1:9"), say=print)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"rfilename": "../outside.json", "size": 1, "blobId": "a" * 40}, "outside"),
        ({"rfilename": "/etc/x.json", "size": 1, "blobId": "a" * 40}, "outside"),
        ({"rfilename": "a\\b.json", "size": 1, "blobId": "a" * 40}, "outside"),
        ({"rfilename": "x.json", "size": -1, "blobId": "a" * 40}, "size -1"),
        ({"rfilename": "x.json", "blobId": "a" * 40}, "size None"),
        ({"rfilename": "x.json", "size": 1}, "None is no hash"),
        ({"rfilename": "x.json", "size": 1, "blobId": "../x"}, "no hash"),
        ({"size": 1, "blobId": "a" * 40}, "rfilename"),
    ],
)
def test_a_list_that_cannot_be_trusted(
    hub: FakeHub, tmp_path: Path, entry: dict[str, object], words: str
) -> None:
    hub.entries.append(entry)
    message = refusal(hub, tmp_path / "model")
    assert "does not answer as a hub does" in message
    assert words in message
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("commit", ["../../x", "", None, "F" * 40])
def test_a_commit_that_is_no_hash(hub: FakeHub, tmp_path: Path, commit: str | None) -> None:
    hub.revisions["main"] = commit
    assert "no hash of 40" in refusal(hub, tmp_path / "model")


def test_a_repository_without_a_checkpoint(hub: FakeHub, tmp_path: Path) -> None:
    for name in list(hub.files):
        if name.endswith(".safetensors"):
            del hub.files[name]
    assert "holds no checkpoint" in refusal(hub, tmp_path / "model")


def test_a_repository_that_lacks_a_shard(hub: FakeHub, tmp_path: Path) -> None:
    del hub.files[SHARD]
    with pytest.raises(CheckpointError, match=f"shard {SHARD} is missing"):
        run(hub, tmp_path / "model")
    assert not (tmp_path / "model" / RECORD_NAME).exists()


def test_names_of_the_kits_own_are_not_taken_from_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.files[RECORD_NAME] = hub.files[".kit_fetch/x.json"] = b"{}"
    run(hub, tmp_path / "model")
    record = read_record(tmp_path / "model" / RECORD_NAME)
    assert record is not None
    assert not {RECORD_NAME, ".kit_fetch/x.json"} & record.files.keys()


def test_a_folder_with_something_else_in_it_is_left_alone(hub: FakeHub, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text("mine")
    assert "is not empty" in refusal(hub, own)
    assert content(own) == {"config.json": b"mine"}
    run(hub, tmp_path / "model")
    hub.revisions["main"] = "e" * 40
    assert f"holds {MODEL}@{COMMIT}" in refusal(hub, tmp_path / "model")


def test_a_folder_that_cannot_be_written(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(hub, tmp_path / "file" / "model")


def test_two_at_a_time_do_not_share_a_folder(hub: FakeHub, tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(folder: Path) -> int:
        entered.set()
        leave.wait(30)
        return free_disk_bytes(folder)

    first = threading.Thread(target=run, args=(hub, tmp_path / "m"), kwargs={"free_bytes": wait})
    first.start()
    assert entered.wait(30)
    try:
        assert "another kit fetch is writing" in refusal(hub, tmp_path / "m")
    finally:
        leave.set()
        first.join()
    assert (tmp_path / "m" / RECORD_NAME).exists()


def test_offline_a_copy_is_checked_and_nothing_is_asked(hub: FakeHub, tmp_path: Path) -> None:
    client, offline = HubClient(hub.url), Offline("http://127.0.0.1:9")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set, and no complete copy"):
        fetch(MODEL_ID, to=None, store=tmp_path, client=offline, say=print)
    folder = fetch(MODEL_ID, to=None, store=tmp_path, client=client, say=print)
    said: list[str] = []
    assert fetch(MODEL_ID, to=None, store=tmp_path, client=offline, say=said.append) == folder
    assert fetch(MODEL_ID, to=folder, client=offline, say=said.append) == folder
    assert "offline" in said[0]
    with (folder / SHARD).open("r+b") as file:
        file.write(b"\0")
    with pytest.raises(HubError, match=f"{SHARD} absent or damaged"):
        fetch(MODEL_ID, to=None, store=tmp_path, client=offline, say=print)


def test_equal_files_of_two_names_do_not_share_a_partial_file(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["a.json"] = hub.files["b.json"] = json.dumps({"x": "y" * 1000}).encode()
    run(hub, tmp_path / "model")
    assert (tmp_path / "model" / "a.json").read_bytes() == hub.files["b.json"]
