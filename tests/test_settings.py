"""What the environment says, and what is wrong with it."""

from pathlib import Path

import pytest

from art_sdk import settings
from art_sdk.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sqlite:///rel.db", "sqlite:///{here}/rel.db"),
        ("sqlite+pysqlite:///a/rel.db", "sqlite+pysqlite:///{here}/a/rel.db"),
        ("sqlite:////abs.db", "sqlite:////abs.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("postgresql://u:p@host/db", "postgresql://u:p@host/db"),
        ("postgresql:///db", "postgresql:///db"),
    ],
)
def test_a_relative_store_is_the_same_for_a_process_elsewhere(
    given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings.absolute(given) == expected.format(here=tmp_path)


@pytest.mark.parametrize(
    ("variable", "value"), [("ART_REDACT", "key"), ("ART_REDACT", "keys,"), ("ART_SAMPLE_RATE", "2"), ("ART_AUTO", "x")]
)
def test_a_wrong_value_names_its_variable(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    settings.reset()
    with pytest.raises(ConfigError, match=f"{variable}='{value}'"):
        settings.get_settings()
    monkeypatch.undo()
    settings.reset()
