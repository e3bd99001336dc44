"""The worker: claim ready groups, take a step, save the version, record it. In its own process.

A version's folder is complete before the store knows of it, and the store learns of the version and
of its groups being trained on in one transaction. So a worker that dies at any moment loses at most
the step in flight: its lease runs out, the folder that no row names is set aside, and the next worker
goes on from the last recorded version. Run by `python -m art_sdk.backend.worker OPTIONS.json`.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import ConfigError, StoreError, TrainingError
from ..store import queue, steps
from ..store.batch import ClaimedGroup, Outcome
from ..store.database import Database, RecordsRefused
from ..store.reasons import Reason
from ..store.steps import Step
from ..store.waiting import Changes
from ..training.step import StepResult, Trainer, nothing_learned
from .options import BackendOptions

log = logging.getLogger("art_sdk.worker")

_LOOK_SECONDS = 1.0
"""For the leases of workers that died: nobody tells when they run out."""
_AWAY_SECONDS = 1.0
_GIVE_UP_SECONDS = 600.0

T = TypeVar("T")


class Worker:
    """Trains one policy, step after step."""

    def __init__(self, options: BackendOptions, database: Database) -> None:
        self._options = options
        self._database = database
        self._owner = f"{os.uname().nodename}:{os.getpid()}:{time.time_ns():x}"
        self._changes = Changes(database)
        steps.register_policy(database, options.policy, options.base_model)
        recorded = [version for version in steps.versions(database, options.policy) if version.path]
        _set_aside_unrecorded(options, database.name, {Path(version.path) for version in recorded if version.path})
        good = [version for version in recorded if version.path and version.status != "rejected"]
        resume = Path(good[-1].path) if good and good[-1].path else None
        given = max((version.version for version in recorded), default=0)
        self._trainer = Trainer(options.base_model, options.lora, options.training, resume=resume, given=given)
        log.info("policy %s: training on from version %d", options.policy, self._trainer.version)

    def run(self) -> None:
        """Train for ever."""
        while True:
            self.run_step()

    def run_step(self) -> Step | None:
        """Wait for enough ready groups and take one step; None where another worker was faster."""
        self._wait_for_groups()
        started_at = time.time_ns()
        with self._lease() as groups:
            if not groups:
                return None
            result = self._learn(groups)
            path = self._options.version_path(self._trainer.version) if result.learned else None
            if path is not None:
                self._trainer.save(path)
            step = until_back(
                lambda: steps.record_step(
                    self._database,
                    self._options.policy,
                    owner=self._owner,
                    groups=groups,
                    outcomes=result.outcomes,
                    metrics=result.metrics,
                    started_at=started_at,
                    version=self._trainer.version if result.learned else None,
                    path=path,
                    note=result.why or None,
                )
            )
        _report(step)
        return step

    def _wait_for_groups(self) -> None:
        options = self._options
        waiting_since: float | None = None
        while True:
            ready = until_back(self._queued)
            if ready >= options.groups_per_step:
                return
            now = time.monotonic()
            waiting_since = (waiting_since or now) if ready else None
            left = _LOOK_SECONDS if waiting_since is None else options.batch_wait - (now - waiting_since)
            if left <= 0:
                return
            self._changes.wait(min(left, _LOOK_SECONDS))

    def _queued(self) -> int:
        enough = self._options.groups_per_step
        return queue.queued(self._database, self._options.policy, time.time_ns(), up_to=enough)

    def _learn(self, groups: Sequence[ClaimedGroup]) -> StepResult:
        started = time.perf_counter()
        try:
            return self._trainer.step(groups)
        except TrainingError as error:  # the weights are untouched: the data is at fault, and is not tried again
            outcomes = tuple(
                Outcome(member.trajectory_id, tokens=0, reason=Reason.NOT_FINITE)
                for g in groups
                for member in g.members
            )
            return nothing_learned(groups, outcomes, str(error), time.perf_counter() - started)

    @contextlib.contextmanager
    def _lease(self) -> Iterator[list[ClaimedGroup]]:
        """Claimed groups, kept ours while the step lasts, given back where it fails."""
        options, policy, seconds = self._options, self._options.policy, self._options.lease_seconds
        groups = until_back(
            lambda: queue.claim(
                self._database,
                policy,
                owner=self._owner,
                limit=options.groups_per_step,
                lease_seconds=seconds,
                order=options.order,
                oldest_version=self._trainer.version - options.training.max_staleness,
            )
        )
        stop = threading.Event()

        def heartbeat() -> None:
            while not stop.wait(seconds / 3):
                with contextlib.suppress(StoreError):  # tried again in time; if it stays away, `record_step` says so
                    queue.renew(self._database, policy, owner=self._owner, lease_seconds=seconds)

        thread = threading.Thread(target=heartbeat, name="art-lease", daemon=True)
        thread.start()
        try:
            yield groups
        finally:
            stop.set()
            thread.join()
            with contextlib.suppress(StoreError):  # then the lease runs out by itself
                queue.release(self._database, policy, owner=self._owner)


def until_back(use_store: Callable[[], T]) -> T:
    """Try again while the store is away: what was trained is worth waiting for. Raises its error after ten minutes:
    then it is worth a person's look."""
    since = time.monotonic()
    said = 0
    while True:
        try:
            return use_store()
        except RecordsRefused:
            raise
        except StoreError as error:
            away = time.monotonic() - since
            if away > _GIVE_UP_SECONDS:
                raise
            if away >= 60 * said:
                log.error("%s; waiting until it is back", error)
                said += 1
            time.sleep(_AWAY_SECONDS)


def _set_aside_unrecorded(options: BackendOptions, store: str, recorded: set[Path]) -> None:
    """Set aside the folder of a step that died between saving and recording: the next one after those recorded.

    Raises `ConfigError` for any other folder that the store does not know: it is somebody's version.
    """
    unknown = sorted(set(options.versions_dir.glob("*")) - recorded)
    left_over = options.version_path(max((int(path.name) for path in recorded), default=0) + 1)
    # Saving writes under a temporary name first, which begins with the folder's own.
    strangers = [path for path in unknown if not path.name.lstrip(".").startswith(left_over.name)]
    if strangers:
        raise ConfigError(
            f"{strangers[0]} is a version that the store {store} does not know: "
            "use the store that it was made with, or another home"
        )
    aside = options.home / "unrecorded"
    for path in unknown:
        aside.mkdir(mode=0o700, exist_ok=True)
        target = aside / f"{options.policy}-{path.name.lstrip('.')}-{time.time_ns()}"
        log.warning("moving %s to %s: its step was never recorded", path, target)
        path.rename(target)


def _report(step: Step) -> None:
    if step.version is None:
        log.warning("step %d of %s: %s", step.step, step.policy, step.note)
    else:
        m = step.metrics
        log.info(
            "step %d made %s@%d: reward %.3f, %d tokens, ratio %.4f, mismatch %.4f nats, %.1f s",
            *(step.step, step.policy, step.version, m["reward_mean"], m["tokens"], m["ratio_mean"], m["mismatch_abs"]),
            m["seconds"],
        )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    options = BackendOptions.model_validate_json(Path(sys.argv[1]).read_text())
    Worker(options, Database(options.store_url)).run()


if __name__ == "__main__":
    main()
