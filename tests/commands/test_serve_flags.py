"""The flags of `kit serve` become settings, or are refused by name before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from kit.cli import build_parser
from kit.commands.serve import DEFAULT_MODEL_NAME, read_settings
from kit.errors import ConfigError
from kit.server.settings import ServerSettings


def read(*flags: str, key: str | None = None) -> ServerSettings:
    return read_settings(build_parser().parse_args(["serve", *flags]), key)


def test_defaults() -> None:
    assert read() == ServerSettings(name=DEFAULT_MODEL_NAME)


def test_every_flag_reaches_its_setting() -> None:
    settings = read(
        *("owner/model", "--served-model-name", "pictures", "--served-model-name", "old-name"),
        *("--api-key", "k1", "--root-path", "/images", "--max-body-bytes", "1000"),
        *("--request-timeout-s", "90", "--stall-limit-s", "7.5"),
    )
    assert settings == ServerSettings(
        name="pictures",
        aliases=("old-name",),
        api_key="k1",
        root_path="/images",
        max_body_bytes=1000,
        default_timeout_s=90.0,
        stall_limit_s=7.5,
    )


def test_a_model_is_named_as_it_was_typed() -> None:
    assert read("owner/model").name == "owner/model"


@pytest.mark.parametrize(
    ("flags", "variable", "key"),
    [
        ([], None, None),
        ([], "", None),  # as a compose file passes a variable that nobody set
        ([], "from-env", "from-env"),
        (["--api-key", "from-flag"], "from-env", "from-flag"),
    ],
)
def test_the_key_comes_from_the_flag_or_the_environment(
    flags: list[str], variable: str | None, key: str | None
) -> None:
    assert read(*flags, key=variable).api_key == key


@pytest.mark.parametrize(
    ("flags", "variable", "field"),
    [
        (["--api-key", ""], None, "--api-key"),
        (["--api-key", "two words"], None, "--api-key"),
        ([], "schlüssel", "KIT_API_KEY"),
        ([], "line\n", "KIT_API_KEY"),
    ],
)
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    flags: list[str], variable: str | None, field: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(*flags, key=variable)
    assert refused.value.field == field
    for secret in filter(None, (*flags[1:], variable)):
        assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        ("--root-path", "images"),
        ("--root-path", "/"),
        ("--root-path", "/images/"),
        ("--root-path", "//images"),
        ("--max-body-bytes", "0"),
        ("--max-body-bytes", "-5"),
        ("--request-timeout-s", "0"),
        ("--request-timeout-s", "1e999"),
        ("--request-timeout-s", "100000"),
        ("--stall-limit-s", "-1"),
        ("--served-model-name", " "),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_flag(flags: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        read(*flags)
    assert refused.value.field == flags[0]
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--port", "x", "an integer"),
        ("--port", "1.5", "an integer"),
        ("--port", "80_91", "an integer"),
        ("--stall-limit-s", "1_0", "a number as JSON writes it"),
        ("--stall-limit-s", "nan", "a number as JSON writes it"),
    ],
)
def test_numbers_are_numbers(
    flag: str, value: str, expected: str, capsys: pytest.CaptureFixture[Any]
) -> None:
    with pytest.raises(SystemExit):
        read(flag, value)
    assert f"argument {flag}: got {value!r}, expected {expected}" in capsys.readouterr().err
