"""Who holds which content, tags, exclusion, the queue's order; check constraints and foreign keys."""

import json
import zlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "holdings",
        sa.Column("trajectory_id", sa.String(length=32), nullable=False),
        sa.Column("hash", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("trajectory_id", "hash"),
        sqlite_with_rowid=False,
    )
    _fill_holdings(op.get_bind())
    op.create_index("holdings_by_hash", "holdings", ["hash"])

    # Referenced tables first: SQLite makes a table anew, and what refers to the old one would go with it.
    with op.batch_alter_table("groups") as groups:
        groups.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        groups.create_check_constraint("groups_status_check", "status IN ('open', 'ready')")
        groups.create_check_constraint("groups_size_check", "size >= 1")
    with op.batch_alter_table("trajectories") as trajectories:
        trajectories.add_column(sa.Column("excluded", sa.Boolean(), nullable=False, server_default=sa.false()))
        trajectories.create_check_constraint(
            "trajectories_status_check",
            "status IN ('running', 'finished', 'failed', 'cancelled', 'interrupted', 'abandoned')",
        )
        trajectories.drop_index("trajectories_by_time")
        trajectories.create_index("trajectories_by_time", ["started_at", "id"])
        trajectories.create_index("trajectories_by_name", ["name", "started_at", "id"])
    with op.batch_alter_table("steps") as steps:
        steps.create_foreign_key("steps_policy_fkey", "policies", ["policy"], ["name"])
    with op.batch_alter_table("versions") as versions:
        versions.create_foreign_key("versions_policy_fkey", "policies", ["policy"], ["name"])
        versions.create_check_constraint(
            "versions_status_check", "status IN ('candidate', 'live', 'retired', 'rejected')"
        )
    with op.batch_alter_table("claims") as claims:
        claims.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        claims.add_column(sa.Column("version", sa.Integer(), nullable=True))
        claims.create_foreign_key("claims_group_id_fkey", "groups", ["group_id"], ["id"], ondelete="CASCADE")
        claims.create_check_constraint("claims_status_check", "status IN ('waiting', 'ready', 'leased', 'done')")
        claims.create_check_constraint(
            "claims_lease_check", "status <> 'leased' OR (owner IS NOT NULL AND expires_at IS NOT NULL)"
        )
        claims.drop_index("claims_queue")
    op.create_index("claims_oldest", "claims", ["policy", "status", sa.text("priority DESC"), "ready_at"])
    op.create_index("claims_freshest", "claims", ["policy", "status", "priority", "version"])
    op.create_index("claims_stalest", "claims", ["policy", "status", "version"])
    with op.batch_alter_table("outcomes") as outcomes:
        outcomes.alter_column("step", existing_type=sa.Integer(), nullable=True)
        outcomes.create_foreign_key("outcomes_policy_fkey", "steps", ["policy", "step"], ["policy", "step"])
        outcomes.create_check_constraint("outcomes_reason_check", "(reason IS NULL) = (version IS NOT NULL)")
        outcomes.create_index("outcomes_by_reason", ["policy", "reason"])
    op.create_table(
        "tags",
        sa.Column("trajectory_id", sa.String(length=32), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trajectory_id"], ["trajectories.id"], name="tags_trajectory_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trajectory_id", "tag"),
    )
    op.create_index("completions_by_version", "completions", ["version", "policy", "trajectory_id"])
    op.create_index("tags_by_tag", "tags", ["tag", "trajectory_id"])


_PAGE = 500
_SHOWN = (
    "art.input.messages",
    "art.output.messages",
    "art.tool.definitions",
    "art.tool.call.arguments",
    "art.tool.call.result",
    "art.input",
    "art.output",
)


def _fill_holdings(connection: sa.Connection) -> None:
    """What each trajectory's spans point to, and what the lists among it are made of."""
    last = ""
    while ids := list(
        connection.execute(
            sa.text("SELECT id FROM trajectories WHERE id > :last ORDER BY id LIMIT :page"),
            {"last": last, "page": _PAGE},
        ).scalars()
    ):
        last = ids[-1]
        for identity in ids:
            found = sorted(_held(connection, identity))
            if found:
                rows = [{"trajectory": identity, "hash": each} for each in found]
                connection.execute(sa.text("INSERT INTO holdings VALUES (:trajectory, :hash)"), rows)


def _held(connection: sa.Connection, identity: str) -> set[str]:
    spans = sa.text("SELECT attributes FROM spans WHERE trajectory_id = :id").columns(attributes=sa.JSON)
    pending = {
        each
        for attributes in connection.execute(spans, {"id": identity}).scalars()
        for name in _SHOWN
        for each in _hashes(attributes.get(name))
    }
    found: set[str] = set()
    data = sa.text("SELECT data FROM contents WHERE hash = :hash")
    while pending:
        each = pending.pop()
        row = connection.execute(data, {"hash": each}).first()
        if row is None or each in found:
            continue
        found.add(each)
        packed = bytes(row.data)
        if packed[:1] == b"x" or packed.startswith(b'{"after"'):
            content = json.loads(zlib.decompress(packed) if packed[:1] == b"x" else packed)
            if isinstance(content, dict) and content.keys() == {"after", "items"}:
                pending.update([*content["items"], *_hashes(content["after"])])
    return found


def _hashes(value: Any) -> Iterator[str]:
    yield from value if isinstance(value, list) else [value] if value else []
