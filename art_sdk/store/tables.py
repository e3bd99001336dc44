"""The tables. Rows are written in any order and more than once; the store ends up the same.

    trajectories 1─* spans          a trajectory is the root span's trace
                 1─* rewards        append-only; their sum is `trajectories.reward`
                 1─* completions    by the trajectory id that the gateway was told
    groups       1─* trajectories
                 1─* claims         one per policy that has tokens in the group: the queue
    policies     1─* versions
    steps                           one row per attempt to train, with its metrics or why nothing was learned
    contents                        messages and other content, once, by hash
    faults                          what a process could not keep; a process without any has no row

Times are integers, nanoseconds since the epoch.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

STATUSES = ("running", "finished", "failed", "cancelled", "interrupted", "abandoned")
"""Of a trajectory."""

contents = Table(
    "contents",
    metadata,
    Column("hash", String(32), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

trajectories = Table(
    "trajectories",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("policy", Text),
    Column("status", Text, nullable=False),  # one of STATUSES
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
    Column("details", JSON, nullable=False),
    Column("journal", Text),
    Index("trajectories_by_time", "started_at"),
    Index("trajectories_by_group", "group_id"),
    Index("trajectories_by_journal", "journal", "status"),
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
)

groups = Table(
    "groups",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("task_key", String(32)),  # None: announced by art.rollouts
    Column("size", Integer, nullable=False),
    Column("status", Text, nullable=False),  # open, ready
    Column("closes_at", BigInteger),
    Column("deadline", BigInteger, nullable=False),
    Column("check_at", BigInteger),
    Index("groups_by_task", "task_key", "status"),
    Index("groups_to_check", "status", "check_at"),
)

claims = Table(
    "claims",
    metadata,
    Column("group_id", String(32), primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("status", Text, nullable=False),  # waiting, ready, leased, done
    Column("ready_at", BigInteger),
    Column("owner", Text),
    Column("expires_at", BigInteger),
    Column("step", Integer),
    Index("claims_queue", "policy", "status", "ready_at"),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("trajectory_id", String(32), primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("step", Integer, nullable=False),
    Column("version", Integer),
    Column("tokens", Integer, nullable=False),
    Column("advantage", Float),
    Column("reason", Text),
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
    Column("policy", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("path", Text),  # None for version 0, the base model
    Column("status", Text, nullable=False),  # candidate, live, retired, rejected
    Column("created_at", BigInteger, nullable=False),
    Column("served_at", BigInteger),
    Column("note", Text),
)

steps = Table(
    "steps",
    metadata,
    Column("policy", Text, primary_key=True),
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
