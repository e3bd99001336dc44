"""The gateway's process: API, router and publisher in one event loop, completions into its own journal.

Run by `python -m art_sdk.backend.serve OPTIONS.json`, with both keys in the environment.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from .. import lifecycle
from ..capture import journal
from ..store import steps
from ..store.database import Database
from .engine import HOST, EngineClient
from .gateway import create_app
from .options import ENGINE_KEY, GATEWAY_KEY, BackendOptions
from .publisher import Publisher
from .router import PolicyRouter

_GRACE_SECONDS = 3
"""For calls under way when the gateway ends; then they are broken off, and recorded as aborted."""


async def serve(options: BackendOptions, gateway_key: str, engine_key: str) -> None:
    """Serve until the process is told to end."""
    engine_url = f"http://{HOST}:{options.engine_port}"
    database = Database(options.store_url)
    steps.register_policy(database, options.policy, options.base_model)
    router = PolicyRouter(engine_url, engine_key)
    app = create_app(router=router, policies={options.policy}, record=journal.append, api_key=gateway_key)
    config = uvicorn.Config(
        app,
        host=HOST,
        port=options.gateway_port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    async with EngineClient(engine_url, engine_key) as engine:
        server = uvicorn.Server(config)
        publishing = asyncio.create_task(Publisher(options, database, engine, router).run())
        # A gateway that no longer publishes would serve old versions without a word: it ends, and is started again.
        publishing.add_done_callback(lambda _: setattr(server, "should_exit", True))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _told)
        await server.serve()
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
    database.close()


def _told(number: int, frame: FrameType | None) -> None:
    """uvicorn ends at the signal and then raises it again, which would end this process before it has written all."""


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("LiteLLM").setLevel(logging.WARNING)
    options = BackendOptions.model_validate_json(Path(sys.argv[1]).read_text())
    asyncio.run(serve(options, os.environ[GATEWAY_KEY], os.environ[ENGINE_KEY]))
    lifecycle.shutdown()


if __name__ == "__main__":
    main()
