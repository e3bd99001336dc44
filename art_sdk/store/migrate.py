"""Alembic, run in the caller's transaction."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from ..errors import StoreError


def alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, name: str) -> None:
    """Bring the schema to this code's revision. Raises `StoreError` for one that is newer."""
    config = alembic_config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise StoreError(
            f"the trajectory store {name} has schema {current}, newer than this version of art-agent-sdk knows: "
            "upgrade with pip install -U art-agent-sdk"
        )
    command.upgrade(config, "head")
