"""The publisher makes what the engine serves agree with the store. The engine is a double at the HTTP edge."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from sqlalchemy import insert

from art_sdk.backend.engine import EngineClient
from art_sdk.backend.options import BackendOptions
from art_sdk.backend.publisher import KEPT_VERSIONS, Publisher
from art_sdk.backend.router import PolicyRouter
from art_sdk.errors import EngineError, StoreError
from art_sdk.store import steps
from art_sdk.store import tables as t
from art_sdk.store.database import Database

BASE, TRAINED = -2.0, -1.0


class StubEngine:
    """Serves an adapter as the base model if its folder is in `broken`."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {"support@0": "", "base": ""}
        self.broken: set[str] = set()
        self.down = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("refused", request=request)
        body = json.loads(request.content or b"{}")
        match request.url.path:
            case "/v1/models":
                return httpx.Response(200, json={"data": [{"id": name} for name in self.loaded]})
            case "/v1/load_lora_adapter":
                if not Path(body["lora_path"]).is_dir():
                    return httpx.Response(404, json={"error": {"message": "No adapter found"}})
                if body["lora_name"] in self.loaded:
                    return httpx.Response(400, json={"error": {"message": "has already been loaded"}})
                self.loaded[body["lora_name"]] = body["lora_path"]
                return httpx.Response(200, text="ok")
            case "/v1/unload_lora_adapter":
                del self.loaded[body["lora_name"]]
                return httpx.Response(200, text="ok")
            case "/v1/completions":
                path = self.loaded[body["model"]]
                logprob = TRAINED if path and path not in self.broken else BASE
                scored = [None, *({str(token): {"logprob": logprob}} for token in body["prompt"][1:])]
                return httpx.Response(200, json={"choices": [{"prompt_logprobs": scored}]})
        return httpx.Response(200)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    opened = Database(f"sqlite:///{tmp_path / 'art.db'}")
    steps.register_policy(opened, "support", "/models/base")
    return opened


@pytest.fixture
def stub() -> StubEngine:
    return StubEngine()


@pytest.fixture
async def router() -> PolicyRouter:
    return PolicyRouter("http://engine", "key")


@pytest.fixture
async def publisher(
    tmp_path: Path, database: Database, stub: StubEngine, router: PolicyRouter
) -> AsyncIterator[Publisher]:
    async with EngineClient("http://engine", "key", transport=httpx.MockTransport(stub)) as client:
        yield Publisher(options_in(tmp_path), database, client, router)


def options_in(home: Path) -> BackendOptions:
    return BackendOptions(
        policy="support",
        base_model="/models/base",
        base_name="base",
        home=home,
        store_url="sqlite://",
        gateway_port=1,
        engine_port=1,
    )


@pytest.fixture
def candidate(tmp_path: Path, database: Database) -> Callable[[int], Path]:
    """Make a version as the worker does: a folder with its probe, and a row."""

    def make(version: int) -> Path:
        folder = tmp_path / f"{version:06d}"
        folder.mkdir()
        scored = {"prompt_ids": [1], "token_ids": [2, 3], "logprobs": [TRAINED] * 2, "base_logprobs": [BASE] * 2}
        (folder / "probe.json").write_text(json.dumps({"sequences": [scored]}))
        with database.write() as connection:
            row = {"version": version, "path": str(folder), "status": "candidate", "created_at": version}
            connection.execute(insert(t.versions).values(policy="support", **row))
        return folder

    return make


def statuses(database: Database) -> list[str]:
    return [version.status for version in steps.versions(database, "support")]


async def test_the_policy_is_answered_by_its_live_version_from_the_start(
    publisher: Publisher, router: PolicyRouter
) -> None:
    await publisher.reconcile()
    assert router.live("support") == "support@0"
    assert router.names() == ["base", "support", "support@0"]


async def test_a_candidate_that_passes_the_probe_goes_live(
    publisher: Publisher, router: PolicyRouter, database: Database, candidate: Callable[[int], Path]
) -> None:
    await publisher.reconcile()
    candidate(1)
    await publisher.reconcile()
    assert router.live("support") == "support@1"
    assert statuses(database) == ["retired", "live"]


async def test_a_candidate_that_the_engine_serves_as_the_base_model_is_rejected_and_never_routed_to(
    publisher: Publisher,
    router: PolicyRouter,
    database: Database,
    stub: StubEngine,
    candidate: Callable[[int], Path],
) -> None:
    await publisher.reconcile()
    stub.broken.add(str(candidate(1)))
    await publisher.reconcile()
    assert router.live("support") == "support@0"
    assert "support@1" not in router.names()
    assert "support@1" not in stub.loaded
    assert statuses(database) == ["live", "rejected"]
    assert "exactly as the base model" in (steps.versions(database, "support")[1].note or "")


@pytest.mark.parametrize("file", ["probe.json", None])
async def test_a_candidate_with_a_broken_folder_is_rejected_with_what_is_wrong(
    publisher: Publisher,
    router: PolicyRouter,
    database: Database,
    stub: StubEngine,
    candidate: Callable[[int], Path],
    file: str | None,
) -> None:
    folder = candidate(1)
    (folder / "probe.json").unlink()
    if file is None:
        folder.rmdir()
    await publisher.reconcile()
    assert router.live("support") == "support@0"
    assert "support@1" not in {*router.names(), *stub.loaded}
    assert statuses(database) == ["live", "rejected"]
    note = steps.versions(database, "support")[1].note or ""
    assert ("probe.json" if file else "No adapter found") in note


async def test_a_candidate_waits_while_the_engine_is_away(
    publisher: Publisher, database: Database, stub: StubEngine, candidate: Callable[[int], Path]
) -> None:
    await publisher.reconcile()
    candidate(1)
    stub.down = True
    with pytest.raises(EngineError):
        await publisher.reconcile()
    assert statuses(database) == ["live", "candidate"]
    stub.down = False
    await publisher.reconcile()
    assert statuses(database) == ["retired", "live"]


async def test_a_candidate_that_a_process_before_this_one_had_loaded_goes_live(
    publisher: Publisher, database: Database, stub: StubEngine, candidate: Callable[[int], Path]
) -> None:
    stub.loaded["support@1"] = str(candidate(1))
    await publisher.reconcile()
    assert statuses(database) == ["retired", "live"]


async def test_a_store_that_is_away_when_a_version_goes_live_costs_it_nothing(
    publisher: Publisher, database: Database, candidate: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreError("the store is away")

    candidate(1)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "make_live", away)
        with pytest.raises(StoreError):
            await publisher.reconcile()
    await publisher.reconcile()
    assert statuses(database) == ["retired", "live"]


async def test_of_several_candidates_the_last_goes_live(
    publisher: Publisher, database: Database, candidate: Callable[[int], Path]
) -> None:
    for version in (1, 2, 3):
        candidate(version)
    await publisher.reconcile()
    assert statuses(database) == ["retired", "retired", "retired", "live"]


async def test_a_new_engine_is_given_what_it_has_forgotten(
    publisher: Publisher, stub: StubEngine, candidate: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate(1)
    await publisher.reconcile()
    del stub.loaded["support@1"]
    monkeypatch.setattr("art_sdk.backend.publisher._ENGINE_CHECK_SECONDS", 0)
    await publisher.reconcile()
    assert "support@1" in stub.loaded


@pytest.mark.parametrize("publisher_is_new", [True, False])
@pytest.mark.parametrize("fault", ["no folder", "served as the base model"])
async def test_a_live_version_that_broke_is_not_routed_to_is_told_and_is_served_once_it_is_back(
    publisher: Publisher,
    router: PolicyRouter,
    database: Database,
    stub: StubEngine,
    candidate: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    publisher_is_new: bool,
) -> None:
    folders = {}
    for version in (1, 2):
        folders[version] = candidate(version)
        await publisher.reconcile()
    stub.loaded = {"support@0": "", "base": ""}  # a new engine
    if fault == "no folder":
        folders[2].rename(folders[2].with_name("away"))
    else:
        stub.broken.add(str(folders[2]))
    monkeypatch.setattr("art_sdk.backend.publisher._ENGINE_CHECK_SECONDS", 0)
    if publisher_is_new:
        router = PolicyRouter("http://engine", "key")
        publisher = Publisher(publisher._options, database, publisher._engine, router)
    for _ in range(3):
        await publisher.reconcile()
    assert len([r for r in caplog.records if "support@2 can't be served" in r.getMessage()]) == 1
    assert statuses(database) == ["retired", "retired", "live"]
    assert "support@2" not in stub.loaded
    assert ("support@1" in stub.loaded) is not publisher_is_new
    assert router.live("support") == (None if publisher_is_new else "support@2")
    if fault == "no folder":
        folders[2].with_name("away").rename(folders[2])
    stub.broken.clear()
    await publisher.reconcile()
    assert router.live("support") == "support@2"
    assert "support@2" in stub.loaded


async def test_old_versions_are_unloaded_and_the_last_few_stay_for_calls_under_way(
    publisher: Publisher, router: PolicyRouter, stub: StubEngine, candidate: Callable[[int], Path]
) -> None:
    for version in range(1, KEPT_VERSIONS + 3):
        candidate(version)
        await publisher.reconcile()
    kept = {f"support@{version}" for version in range(3, KEPT_VERSIONS + 3)}
    assert {name for name, path in stub.loaded.items() if path} == kept
    assert set(router.names()) == kept | {"base", "support", "support@0"}
