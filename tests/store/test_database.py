"""Opening a store: migrated, private, and clear about what is wrong."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

import art_sdk as art
from art_sdk.settings import Settings
from art_sdk.store import Store, open_store
from art_sdk.store import tables as t
from art_sdk.store.database import SCHEMA, Database

from .build import SECOND, apply, end


def test_the_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    with database.read() as connection:
        differing = compare_metadata(MigrationContext.configure(connection), t.metadata)
        # Alembic can't compare an index that is sorted both ways; that it is used, `test_plans.py` says.
        assert [each for each in differing if getattr(each[1], "name", "") != "claims_oldest"] == []
        assert MigrationContext.configure(connection).get_current_revision() == SCHEMA


def test_the_files_of_a_store_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        database = Database(f"sqlite:///{tmp_path}/made/art.db")
        with database.write():
            assert {p.name for p in (tmp_path / "made").iterdir()} == {"art.db", "art.db-wal", "art.db-shm"}
            assert {p.stat().st_mode & 0o777 for p in (tmp_path / "made").iterdir()} == {0o600}
        database.close()
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700


def test_a_store_shows_the_same_when_opened_again_and_in_another_process(
    database: Database, write: Callable[..., None]
) -> None:
    write(end(1), end(2, "failed"))
    with open_store(database.url) as again:
        here = [(run.id, run.status, run.spans) for run in again.trajectories()]
    code = f"""
import art_sdk as art
with art.open_store({database.url!r}) as store:
    print([(run.id, run.status, run.spans) for run in store.trajectories()])
"""
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(here)
    assert len(here) == 2


# What is wrong, in words


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    text = "not a database, " * 100
    (tmp_path / "art.db").write_text(text)
    with pytest.raises(art.StoreError, match=r"sqlite:///.*art.db.*is not a database: move the file away"):
        open_store(f"sqlite:///{tmp_path}/art.db")
    assert (tmp_path / "art.db").read_text() == text


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(art.StoreError, match=r"trajectory store sqlite:///.*unable to open database file"):
        open_store(f"sqlite:///{tmp_path}")


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(art.StoreError, match=r"cannot create the trajectory store .*file/art.db"):
        open_store(f"sqlite:///{tmp_path}/file/art.db")


@pytest.mark.parametrize("url", ["art.db", "sqlite", "postgresql://host:port/x", "://"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(art.StoreError, match=r"URL is not one: expected sqlite:///path or postgresql://"):
        open_store(url)


@pytest.mark.parametrize("url", ["mysql://u:secret@host/db", "oracle://u:secret@host/db", "http://u:secret@host/v1"])
def test_a_scheme_that_is_none_of_ours(url: str) -> None:
    with pytest.raises(art.StoreError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert url.partition(":")[0] in str(caught.value) or "URL is not one" in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_postgres_that_does_not_answer_and_its_password_is_not_told(scheme: str) -> None:
    with pytest.raises(art.StoreError, match=r"u:\*\*\*@127.0.0.1:9/db.*") as caught:
        open_store(f"{scheme}://u:hunter2@127.0.0.1:9/db?connect_timeout=2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("secret", ["password=hunter2", "sslpassword=hunter2", "PASSWORD=hunter2"])
def test_a_password_among_the_urls_options_is_not_told(secret: str) -> None:
    with pytest.raises(art.StoreError, match=r"127.0.0.1:9/db") as caught:
        open_store(f"postgresql://u@127.0.0.1:9/db?connect_timeout=2&{secret}")
    assert "hunter2" not in str(caught.value)


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(art.StoreError, match=r"psycopg.*pip install '.*\[postgres\]'"):
        open_store("postgresql://u:hunter2@127.0.0.1:9/db")


def test_a_schema_of_a_later_release_is_refused_and_left_alone(database: Database, tmp_path: Path) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(art.StoreError, match=r"schema 9999, newer than this version.*pip install -U"):
        open_store(database.url)
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9999"


def test_an_unknown_or_ambiguous_id_is_a_store_error(database: Database, write: Callable[..., None]) -> None:
    write(end(1), end(2))
    store = Store(database)
    with pytest.raises(art.StoreError, match=r"no trajectory in .* starts with 'ff'"):
        store.trajectory("ff")
    with pytest.raises(art.StoreError, match="more than one trajectory"):
        store.trajectory("000")
    assert store.trajectory("0" * 31 + "1").status == "finished"


# At the same time


def test_two_threads_may_open_a_new_store_at_once(empty_url: str) -> None:
    faults: list[Exception] = []

    def begin() -> None:
        try:
            Database(empty_url).close()
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_failed_transaction_leaves_nothing_behind(database: Database, write: Callable[..., None]) -> None:
    def fail_midway() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("INSERT INTO contents VALUES ('h', '00')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_midway()
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM contents").scalar() == 0


def test_readers_are_not_held_up_by_a_writer(database: Database, write: Callable[..., None]) -> None:
    write(end(1))
    with database.write() as connection:
        apply(connection, [end(2)], journal="a-1", settings=Settings(), now=SECOND)
        assert len(list(Store(database).trajectories())) == 1
