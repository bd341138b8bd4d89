"""A hub id finds the copy that is on this machine, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import ConfigError, HubError
from kit.hub.copies import find_model
from kit.hub.names import ModelId, parse_model_id
from kit.hub.record import RECORD_NAME, FetchRecord, FileFacts, read_record, write_record

FIRST, SECOND = "a" * 40, "b" * 40


def put(store: Path, commit: str, revision: str = "main") -> Path:
    folder = store / "lab--tiny" / commit
    folder.mkdir(parents=True)
    files = {"config.json": FileFacts(2, None, "c" * 40)}
    write_record(
        folder / RECORD_NAME, FetchRecord("kit.fetch/1", "lab/tiny", revision, commit, files)
    )
    return folder


def find(name: str, tmp_path: Path) -> Path:
    return find_model(name, "MODEL", store=tmp_path, hub_cache=tmp_path / "cache")


def refusal(name: str, tmp_path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        find(name, tmp_path)
    assert caught.value.field == "MODEL"
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("tencent/HunyuanImage-3.0", "tencent/HunyuanImage-3.0", None),
        ("a/b@main", "a/b", "main"),
        ("a/b@refs/pr/1", "a/b", "refs/pr/1"),
        ("a_b/c.d-e@v1.0", "a_b/c.d-e", "v1.0"),
    ],
)
def test_model_ids(text: str, name: str, revision: str | None) -> None:
    model = parse_model_id(text)
    assert model == ModelId(name, revision)
    assert str(model) == text


@pytest.mark.parametrize(
    "text",
    ["", "name", "a/b/c", "/a/b", "./a/b", "../a", "a/..", "a/b@", "a/b@../x", "a--b/c", "a b/c",
     "a/b\n", ".a/b", "a/-b", "ä/b", "a/" + "b" * 300],
)  # fmt: skip
def test_what_is_no_model_id(text: str) -> None:
    assert parse_model_id(text) is None


def test_a_folder_goes_before_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "store", FIRST)
    assert find("lab/tiny", tmp_path / "store") == tmp_path / "store" / "lab--tiny" / FIRST
    (tmp_path / "lab" / "tiny").mkdir(parents=True)
    assert find("lab/tiny", tmp_path / "store") == Path("lab/tiny")


def test_what_cannot_be_an_id_is_a_path(tmp_path: Path) -> None:
    assert find("nowhere", tmp_path) == Path("nowhere")


def test_an_id_that_was_not_fetched_says_what_to_run(tmp_path: Path) -> None:
    assert "kit fetch lab/tiny`" in refusal("lab/tiny", tmp_path)
    assert "kit fetch lab/tiny --revision v1`" in refusal("lab/tiny@v1", tmp_path)


def test_an_unfinished_copy_is_not_found(tmp_path: Path) -> None:
    (put(tmp_path, FIRST) / RECORD_NAME).unlink()
    assert "kit fetch" in refusal("lab/tiny", tmp_path)


def test_several_commits_must_be_told_apart(tmp_path: Path) -> None:
    put(tmp_path, FIRST, "v1")
    put(tmp_path, SECOND)
    message = refusal("lab/tiny", tmp_path)
    assert f"{FIRST} (v1)" in message
    assert f"{SECOND} (main)" in message
    assert find("lab/tiny@v1", tmp_path).name == FIRST
    assert find(f"lab/tiny@{SECOND}", tmp_path).name == SECOND


def test_a_copy_of_another_tool_in_the_hubs_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "cache" / "models--lab--tiny" / "snapshots" / FIRST
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert find(f"lab/tiny@{FIRST}", tmp_path) == snapshot
    refs = tmp_path / "cache" / "models--lab--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text(FIRST)
    assert find("lab/tiny", tmp_path) == snapshot


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "kit.fetch/2"}'])
def test_a_damaged_record_is_said(tmp_path: Path, text: str) -> None:
    path = put(tmp_path, FIRST) / RECORD_NAME
    path.write_text(text)
    with pytest.raises(HubError, match="remove its folder"):
        find("lab/tiny", tmp_path)


def test_a_record_reads_back_as_written(tmp_path: Path) -> None:
    path = put(tmp_path, FIRST) / RECORD_NAME
    record = read_record(path)
    assert record is not None
    assert record.num_bytes == 2
    before = path.read_bytes()
    write_record(path, record)
    assert path.read_bytes() == before
    assert read_record(tmp_path / "none") is None
