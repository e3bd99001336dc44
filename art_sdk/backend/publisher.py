"""The publisher: makes what the engine serves agree with what the store says, again and again.

    candidate in the store ─► loaded by the engine ─► probed ─► the router's alias is flipped ─► live
                                                        └─ failed: rejected, never routed to

    live ─► its folder is broken when an engine wants it again: rejected, and the newest before it is live

There is no message that could be lost: a candidate that appeared while the gateway was down, and the
adapters that a restarted engine has forgotten, are found by comparing.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import EngineError, StoreError
from ..store import steps
from ..store.database import Database
from ..store.steps import Version
from .engine import EngineClient
from .options import BackendOptions
from .probe import probe
from .router import PolicyRouter

log = logging.getLogger("art_sdk.publisher")

_POLL_SECONDS = 0.2
_ENGINE_CHECK_SECONDS = 2.0
KEPT_VERSIONS = 3
"""Versions that stay loaded: the live one, and those before it for calls that are still under way."""


class Publisher:
    """Publishes the versions of one policy."""

    def __init__(self, options: BackendOptions, database: Database, engine: EngineClient, router: PolicyRouter) -> None:
        self._options = options
        self._database = database
        self._engine = engine
        self._router = router
        self._base_name = steps.served_name(options.policy, 0)
        self._served: dict[str, Version] = {}
        self._checked_at = 0.0

    async def run(self) -> None:
        """Publish for ever. An engine or a store that is away is waited for."""
        down = False
        while True:
            try:
                await self.reconcile()
                if down:
                    log.info("engine and store answer again")
                down = False
            except (EngineError, StoreError) as error:
                if not down:
                    log.warning("%s; trying again until it is back", error)
                down = True
            await asyncio.sleep(_POLL_SECONDS)

    async def reconcile(self) -> None:
        """One round. Raises `EngineError` where the engine can't be reached."""
        policy = self._options.policy
        known = await asyncio.to_thread(steps.versions, self._database, policy)
        await self._restore(known)
        candidates = [version for version in known if version.status == "candidate"]
        for overtaken in candidates[:-1]:
            await asyncio.to_thread(steps.supersede, self._database, policy, overtaken.version)
        for version in candidates[-1:]:
            await self._publish(version)

    async def _restore(self, known: Sequence[Version]) -> None:
        """Serve the live version after a start of this process, and what a new engine has forgotten.

        Of those whose folders have broken since, none is served, and the newest before them answers.
        """
        policy = self._options.policy
        now = asyncio.get_running_loop().time()
        if self._served and now - self._checked_at < _ENGINE_CHECK_SECONDS:
            return
        loaded = await self._engine.loaded()
        self._checked_at = now
        self._router.serve(self._base_name)
        self._router.serve(self._options.base_name)
        broken = [version for version in [*self._served.values()] if not await self._load(version, loaded)]
        if self._router.live(policy) not in self._served:
            before = {v.version: v for v in known if v.status in ("live", "retired") and v.served_at is not None}
            for version in sorted(before.values(), key=lambda v: (v.status == "live", v.version), reverse=True):
                if version not in broken and await self._load(version, loaded):
                    await self._answer_with(version)
                    log.info("%s is answered by %s", policy, version.name)
                    break
        for version in broken:
            self._router.retire(version.name)

    async def _load(self, version: Version, loaded: Collection[str]) -> bool:
        """Have a version loaded that answered before; one that can't be any more is rejected."""
        try:
            if version.path is not None and version.name not in loaded:
                await self._engine.load(version.name, Path(version.path))
        except EngineError as error:
            if not await self._engine.health():
                raise  # the engine's fault, not the version's
            self._served.pop(version.name, None)
            await self._reject(version, str(error))
            return False
        self._served[version.name] = version
        self._router.serve(version.name)
        return True

    async def _answer_with(self, version: Version) -> None:
        self._router.serve(version.name)
        self._router.flip(self._options.policy, version.name)
        self._served[version.name] = version
        if version.status != "live":
            await asyncio.to_thread(steps.make_live, self._database, version.policy, version.version)

    async def _publish(self, version: Version) -> None:
        assert version.path is not None, "version 0 is never a candidate"
        path = Path(version.path)
        try:
            # It is there already where this process, or the store, was lost before the version was recorded as live.
            if version.name not in await self._engine.loaded():
                await self._engine.load(version.name, path)
            result = await probe(self._engine, version.name, self._base_name, path)
        except EngineError as error:
            if not await self._engine.health():
                raise  # the engine's fault, not the version's
            await self._reject(version, str(error))
            return
        if not result.accepted:
            await self._reject(version, result.reason)
            return
        await self._answer_with(version)
        why = f"{result.reason} (share shown {result.served_share:.2f})"
        log.info("%s is answered by %s: %s", version.policy, version.name, why)
        await self._retire_old()

    async def _reject(self, version: Version, why: str) -> None:
        log.error("%s is rejected and stays unserved: %s", version.name, why)
        if version.name in await self._engine.loaded():
            await self._engine.unload(version.name)
        await asyncio.to_thread(steps.reject, self._database, version.policy, version.version, why)

    async def _retire_old(self) -> None:
        adapters = [version for version in self._served.values() if version.path is not None]
        for version in sorted(adapters, key=lambda v: v.version)[:-KEPT_VERSIONS]:
            self._router.retire(version.name)
            await self._engine.unload(version.name)
            del self._served[version.name]
