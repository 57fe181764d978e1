"""Settings come from the environment; a wrong one is named by its variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meridian.errors import ConfigurationError
from meridian.settings import SERVICES, HttpSettings, KernelSettings, load


class LedgerSettings(HttpSettings):
    model_config = SettingsConfigDict(env_prefix="MERIDIAN_LEDGER_", extra="ignore")

    secret: str
    share: float = Field(0.5, ge=0, le=1)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("MERIDIAN_")]:
        monkeypatch.delenv(name)


def test_variables_are_read_with_their_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERIDIAN_LEDGER_SECRET", "s")
    monkeypatch.setenv("MERIDIAN_LEDGER_HTTP_PORT", "4107")
    monkeypatch.setenv("MERIDIAN_LEDGER_SHARE", "0.25")
    monkeypatch.setenv("LEDGER_SHARE", "0.75")
    settings = load(LedgerSettings)
    assert (settings.secret, settings.http_port, settings.share) == ("s", 4107, 0.25)
    assert settings.http_host == "127.0.0.1", "nothing listens on other interfaces unless told to"


def test_every_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERIDIAN_LEDGER_HTTP_PORT", "many")
    monkeypatch.setenv("MERIDIAN_LEDGER_SHARE", "2")
    with pytest.raises(ConfigurationError) as caught:
        load(LedgerSettings)
    for name in ("MERIDIAN_LEDGER_SECRET: ", "MERIDIAN_LEDGER_HTTP_PORT: ", "MERIDIAN_LEDGER_SHARE: "):
        assert name in caught.value.detail


def test_the_value_of_a_wrong_variable_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERIDIAN_DATABASE_POOL_SIZE", "hunter2")
    with pytest.raises(ConfigurationError) as caught:
        load(KernelSettings)
    assert "MERIDIAN_DATABASE_POOL_SIZE" in caught.value.detail
    assert "hunter2" not in caught.value.detail, "it might be a secret in the wrong place"


def test_overrides_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERIDIAN_DATA_DIR", "/elsewhere")
    assert load(KernelSettings, data_dir=Path("/here")).data_dir == Path("/here")


def test_every_service_has_a_url() -> None:
    urls = [getattr(load(KernelSettings), f"{name}_url") for name in SERVICES]
    assert len(set(urls)) == len(SERVICES)
