"""The publisher: makes what the engine serves agree with what the store says, again and again.

    candidate in the store ─► loaded by the engine ─► probed ─► the router's alias is flipped ─► live
                                                        └─ failed: rejected, never routed to

There is no message that could be lost: a candidate that appeared while the gateway was down, and the
adapters that a restarted engine has forgotten, are found by comparing.
"""

import asyncio
import logging
from collections.abc import Sequence
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
        """Serve the live version after a start of this process, and what a new engine has forgotten."""
        now = asyncio.get_running_loop().time()
        if self._served and now - self._checked_at < _ENGINE_CHECK_SECONDS:
            return
        loaded = await self._engine.loaded()
        self._checked_at = now
        live = [version for version in known if version.status == "live"][-1:]
        for version in {version.name: version for version in [*self._served.values(), *live]}.values():
            if version.name not in loaded and version.path is not None:
                await self._engine.load(version.name, Path(version.path))
            self._served[version.name] = version
            self._router.serve(version.name)
        self._router.serve(self._base_name)
        self._router.serve(self._options.base_name)
        if live and self._router.live(self._options.policy) is None:
            self._router.flip(self._options.policy, live[0].name)
            log.info("%s is answered by %s", self._options.policy, live[0].name)

    async def _publish(self, version: Version) -> None:
        policy = self._options.policy
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
            await self._engine.unload(version.name)
            await self._reject(version, result.reason)
            return
        self._router.serve(version.name)
        self._router.flip(policy, version.name)
        self._served[version.name] = version
        await asyncio.to_thread(steps.make_live, self._database, policy, version.version)
        log.info(
            "%s is answered by %s: %s (share shown %.2f)", policy, version.name, result.reason, result.served_share
        )
        await self._retire_old()

    async def _reject(self, version: Version, why: str) -> None:
        log.error("%s is rejected and stays unserved: %s", version.name, why)
        await asyncio.to_thread(steps.reject, self._database, version.policy, version.version, why)

    async def _retire_old(self) -> None:
        adapters = [version for version in self._served.values() if version.path is not None]
        for version in sorted(adapters, key=lambda v: v.version)[:-KEPT_VERSIONS]:
            self._router.retire(version.name)
            await self._engine.unload(version.name)
            del self._served[version.name]
