"""The publisher: makes what the engine serves agree with what the store says, again and again.

    candidate in the store ─► loaded by the engine ─► probed ─► the router's alias is flipped ─► live
                                                        └─ failed: rejected, never routed to

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
        self._broken: dict[str, str] = {}
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

        One that can't be served any more is not routed to, is logged, and is tried again and again: its folder may
        come back.
        """
        now = asyncio.get_running_loop().time()
        if self._served and now - self._checked_at < _ENGINE_CHECK_SECONDS:
            return
        loaded = await self._engine.loaded()
        self._checked_at = now
        self._router.serve(self._base_name)
        self._router.serve(self._options.base_name)
        live = [version for version in known if version.status == "live"][-1:]
        for version in {version.name: version for version in [*self._served.values(), *live]}.values():
            if version.name in self._served and version.name in loaded:
                continue
            if fault := await self._fault(version, loaded):
                if fault != self._broken.get(version.name):
                    log.error("%s can't be served: %s. Restore its folder: it is tried again", version.name, fault)
                self._broken[version.name] = fault
                continue
            self._broken.pop(version.name, None)
            self._served[version.name] = version
            self._router.serve(version.name)
        if live and live[0].name in self._served and self._router.live(self._options.policy) is None:
            self._router.flip(self._options.policy, live[0].name)
            log.info("%s is answered by %s", self._options.policy, live[0].name)

    async def _publish(self, version: Version) -> None:
        # It is there already where this process, or the store, was lost before the version was recorded as live.
        if fault := await self._fault(version, await self._engine.loaded()):
            await self._reject(version, fault)
            return
        self._router.serve(version.name)
        self._router.flip(version.policy, version.name)
        self._served[version.name] = version
        await asyncio.to_thread(steps.make_live, self._database, version.policy, version.version)
        log.info("%s is answered by %s", version.policy, version.name)
        await self._retire_old()

    async def _fault(self, version: Version, loaded: Collection[str]) -> str | None:
        """Have a version loaded and probed. Why it must not be routed to, in words; then it is not loaded either."""
        if version.path is None:
            return None
        try:
            if version.name not in loaded:
                await self._engine.load(version.name, Path(version.path))
            result = await probe(self._engine, version.name, self._base_name, Path(version.path))
        except EngineError as error:
            if not await self._engine.health():
                raise  # the engine's fault, not the version's
            fault = str(error)
        else:
            log.info("%s: %s (share shown %.2f)", version.name, result.reason, result.served_share)
            if result.accepted:
                return None
            fault = result.reason
        if version.name in await self._engine.loaded():
            await self._engine.unload(version.name)
        return fault

    async def _reject(self, version: Version, why: str) -> None:
        log.error("%s is rejected and stays unserved: %s", version.name, why)
        await asyncio.to_thread(steps.reject, self._database, version.policy, version.version, why)

    async def _retire_old(self) -> None:
        adapters = [version for version in self._served.values() if version.path is not None]
        for version in sorted(adapters, key=lambda v: v.version)[:-KEPT_VERSIONS]:
            self._router.retire(version.name)
            await self._engine.unload(version.name)
            del self._served[version.name]
