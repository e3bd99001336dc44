"""The tables. Rows are written in any order and more than once; the store ends up the same.

    trajectories 1─* spans          a trajectory is the root span's trace
                 1─* rewards        append-only; their sum is `trajectories.reward`
                 1─* completions    by the trajectory id that the gateway was told
    groups       1─* trajectories
                 1─* claims         one per policy that has tokens in the group: the queue
    policies     1─* versions
    steps                           one row per attempt to train, with its metrics or why nothing was learned
    contents                        messages and other content, once, by hash
                 1─* holdings       the trajectories that a content belongs to: it goes when the last of them goes
    trajectories 1─* tags           what people call it
    faults                          what a process could not keep; a process without any has no row

Times are integers, nanoseconds since the epoch. Foreign keys are only where one transaction writes both rows: what
journals bring comes in any order, so nothing may ask for a trajectory to be there before its spans, rewards or tokens.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def _one_of(column: str, *values: str) -> CheckConstraint:
    """The only values that a column may have."""
    return CheckConstraint(f"{column} IN ({', '.join(map(repr, values))})", name=column)


STATUSES = ("running", "finished", "failed", "cancelled", "interrupted", "abandoned")
"""Of a trajectory."""

contents = Table(
    "contents",
    metadata,
    Column("hash", String(32), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

holdings = Table(
    "holdings",
    metadata,
    Column("trajectory_id", String(32), primary_key=True),
    Column("hash", String(32), primary_key=True),
    Index("holdings_by_hash", "hash"),
    sqlite_with_rowid=False,
)

trajectories = Table(
    "trajectories",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("policy", Text),
    Column("status", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("input", String(32)),
    Column("output", String(32)),
    Column("error", Text),
    Column("reward", Float),
    Column("group_id", String(32)),
    Column("task_key", String(32)),
    Column("parent_id", String(32)),
    Column("train", Boolean, nullable=False),
    Column("excluded", Boolean, nullable=False, server_default=false()),
    Column("details", JSON, nullable=False),
    Column("journal", Text),
    _one_of("status", *STATUSES),
    Index("trajectories_by_time", "started_at", "id"),
    Index("trajectories_by_name", "name", "started_at", "id"),
    Index("trajectories_by_group", "group_id"),
    Index("trajectories_by_journal", "journal", "status"),
)

tags = Table(
    "tags",
    metadata,
    Column("trajectory_id", String(32), ForeignKey("trajectories.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", Text, primary_key=True),
    Index("tags_by_tag", "tag", "trajectory_id"),
)

spans = Table(
    "spans",
    metadata,
    Column("trajectory_id", String(32), primary_key=True),
    Column("span_id", String(16), primary_key=True),
    Column("parent_id", String(16)),
    Column("name", Text, nullable=False),
    Column("operation", Text),
    Column("response_id", Text),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("error", Text),
    Column("attributes", JSON, nullable=False),
)

rewards = Table(
    "rewards",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("trajectory_id", String(32), nullable=False, index=True),
    Column("span_id", String(16)),
    Column("name", Text, nullable=False),
    Column("value", Float, nullable=False),
    Column("source", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

completions = Table(
    "completions",
    metadata,
    Column("response_id", Text, primary_key=True),
    Column("choice", Integer, primary_key=True),
    Column("policy", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("trajectory_id", String(32), index=True),
    Column("span_id", String(16)),
    Column("prompt_ids", LargeBinary, nullable=False),  # little-endian u32
    Column("token_ids", LargeBinary, nullable=False),  # little-endian u32
    Column("logprobs", LargeBinary, nullable=False),  # little-endian f32, what the engine computes in
    Column("sampling", JSON, nullable=False),
    Column("finish_reason", Text),
    Column("created_at", BigInteger, nullable=False),
    Index("completions_by_version", "version", "policy", "trajectory_id"),
)

groups = Table(
    "groups",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("task_key", String(32)),  # None: announced by art.rollouts
    Column("size", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("closes_at", BigInteger),
    Column("deadline", BigInteger, nullable=False),
    Column("check_at", BigInteger),
    Column("priority", Integer, nullable=False, server_default="0"),
    _one_of("status", "open", "ready"),
    CheckConstraint("size >= 1", name="size"),
    Index("groups_by_task", "task_key", "status"),
    Index("groups_to_check", "status", "check_at"),
)

claims = Table(
    "claims",
    metadata,
    Column("group_id", String(32), ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("ready_at", BigInteger),
    Column("priority", Integer, nullable=False, server_default="0"),  # the group's
    Column("version", Integer),  # the newest that answered for the policy in the group, known once it is ready
    Column("owner", Text),
    Column("expires_at", BigInteger),
    Column("step", Integer),
    _one_of("status", "waiting", "ready", "leased", "done"),
    CheckConstraint("status <> 'leased' OR (owner IS NOT NULL AND expires_at IS NOT NULL)", name="lease"),
    Index("claims_oldest", "policy", "status", text("priority DESC"), "ready_at"),
    Index("claims_freshest", "policy", "status", "priority", "version"),
    Index("claims_stalest", "policy", "status", "version"),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("trajectory_id", String(32), primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("step", Integer),  # None: it was too stale to be claimed
    Column("version", Integer),
    Column("tokens", Integer, nullable=False),
    Column("advantage", Float),
    Column("reason", Text),
    ForeignKeyConstraint(("policy", "step"), ("steps.policy", "steps.step")),
    CheckConstraint("(reason IS NULL) = (version IS NOT NULL)", name="reason"),
    Index("outcomes_by_reason", "policy", "reason"),
)

policies = Table(
    "policies",
    metadata,
    Column("name", Text, primary_key=True),
    Column("base_model", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("policy", Text, ForeignKey("policies.name"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("path", Text),  # None for version 0, the base model
    Column("status", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("served_at", BigInteger),
    Column("note", Text),
    _one_of("status", "candidate", "live", "retired", "rejected"),
)

steps = Table(
    "steps",
    metadata,
    Column("policy", Text, ForeignKey("policies.name"), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("version", Integer),  # None: nothing was learned, `note` says why
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("note", Text),
)

journals = Table(
    "journals",
    metadata,
    Column("file", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("corrupt", Integer, nullable=False),
)

faults = Table(
    "faults",
    metadata,
    Column("process", Text, primary_key=True),  # as `trajectories.journal` names it
    Column("dropped", Integer, nullable=False),
    Column("unreadable", Integer, nullable=False),
    Column("errors", JSON, nullable=False),
    Column("at", BigInteger, nullable=False),
)
