"""The engine's command line and environment, and how a failed start is explained."""

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from art_sdk.backend.engine import Engine, EngineClient, EngineOptions, engine_argv, engine_env
from art_sdk.errors import EngineError


def options(**changes: Any) -> EngineOptions:
    return EngineOptions(
        **{"base_model": "/models/tiny", "served_names": ("support@0", "tiny"), "device": "cpu"} | changes
    )


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def fake_interpreter(folder: Path, script: str) -> str:
    """An interpreter in which vLLM is installed, and whose server runs `script`."""
    package = folder / "vllm"
    (package / "entrypoints" / "openai").mkdir(parents=True)
    for module in (package, package / "entrypoints", package / "entrypoints" / "openai"):
        (module / "__init__.py").write_text("")
    (package / "entrypoints" / "openai" / "api_server.py").write_text(script)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_the_base_model_answers_to_all_its_names() -> None:
    argv = engine_argv(options(), 8123)
    at = argv.index("--served-model-name")
    assert argv[at + 1 : at + 3] == ["support@0", "tiny"]
    assert value(argv, "--host") == "127.0.0.1"
    assert value(argv, "--port") == "8123"


def test_logprobs_are_those_of_the_sampled_distribution_and_the_models_defaults_are_off() -> None:
    argv = engine_argv(options(), 1)
    assert value(argv, "--logprobs-mode") == "processed_logprobs"
    assert value(argv, "--generation-config") == "vllm"


def test_the_engines_rank_is_exactly_the_adapters() -> None:
    assert value(engine_argv(options(lora_rank=8), 1), "--max-lora-rank") == "8"


def test_a_cpu_gets_short_prefix_blocks_and_a_small_cache() -> None:
    argv = engine_argv(options(), 1)
    assert value(argv, "--block-size") == "32"
    assert value(argv, "--kv-cache-memory-bytes") == str(2**30)
    assert "--block-size" not in engine_argv(options(device="cuda"), 1)
    assert "--kv-cache-memory-bytes" not in engine_argv(options(device="cuda"), 1)


def test_tool_calls_are_parsed_only_when_a_parser_is_named() -> None:
    assert "--enable-auto-tool-choice" not in engine_argv(options(), 1)
    argv = engine_argv(options(tool_call_parser="hermes"), 1)
    assert "--enable-auto-tool-choice" in argv
    assert value(argv, "--tool-call-parser") == "hermes"


def test_extra_arguments_come_last() -> None:
    assert engine_argv(options(extra_args=("--seed", "7")), 1)[-2:] == ["--seed", "7"]


def test_the_key_travels_in_the_environment_and_not_on_the_command_line() -> None:
    env = engine_env(options(), "secret", {"PATH": "/bin"})
    assert env["VLLM_API_KEY"] == "secret"
    assert env["PATH"] == "/bin"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "secret" not in engine_argv(options(), 1)


def test_the_interpreter_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from art_sdk import settings

    monkeypatch.setenv("ART_ENGINE_PYTHON", "/opt/vllm/bin/python")
    settings.reset()
    assert engine_argv(options(), 1)[0] == "/opt/vllm/bin/python"
    monkeypatch.undo()
    settings.reset()
    assert engine_argv(options(), 1)[0] == sys.executable


@pytest.mark.parametrize("wrong", [{"lora_rank": 7}, {"max_loras": 0}, {"served_names": ()}, {"hots": "0.0.0.0"}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        options(**wrong)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port} on 127.0.0.1 is in use: .*\(--port, or port=\)"):
            Engine(options(port=port), log=tmp_path / "engine.log").start()


def test_missing_vllm_says_what_to_install(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(EngineError, match=r"-m pip install --extra-index-url \S+ '.*\[cpu\]'$"):
        Engine(options(python=str(python)), log=tmp_path / "engine.log").start()


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="/no/such/python can't be run"):
        Engine(options(python="/no/such/python"), log=tmp_path / "engine.log").start()


def test_an_engine_that_dies_is_explained_by_the_end_of_its_own_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("of an earlier start\n")
    python = fake_interpreter(tmp_path, "raise SystemExit('RuntimeError: operator torchvision::nms does not exist')")
    engine = Engine(options(python=python), log=log)
    with pytest.raises(EngineError) as raised:
        engine.start(timeout=20)
    assert "ended with code 1" in str(raised.value)
    assert "pip uninstall -y torchvision" in str(raised.value)
    assert "of an earlier start" not in str(raised.value)
    assert not engine.alive()


@pytest.mark.slow
def test_an_engine_that_never_answers_is_stopped_and_explained(tmp_path: Path) -> None:
    python = fake_interpreter(tmp_path, "import time\nprint('loading', flush=True)\ntime.sleep(60)")
    engine = Engine(options(python=python), log=tmp_path / "engine.log")
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"did not answer within 1 s[\s\S]*loading"):
        engine.start(timeout=1.0)
    assert not engine.alive()
    assert time.monotonic() - started < 10


def client(answer: Callable[[httpx.Request], httpx.Response]) -> EngineClient:
    return EngineClient("http://engine", "key", transport=httpx.MockTransport(answer))


async def test_logprobs_are_those_of_the_scored_tokens_only() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        positions = [None, *({str(token): {"logprob": -token / 10}} for token in (2, 3, 4))]
        return httpx.Response(200, json={"choices": [{"prompt_logprobs": positions}]})

    async with client(answer) as engine:
        assert await engine.logprobs("support@1", [1, 2], [3, 4]) == [-0.3, -0.4]


async def test_a_refused_adapter_is_an_engine_error_with_the_engines_message(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, json={"error": {"message": "no tensors"}})

    async with client(answer) as engine:
        with pytest.raises(EngineError, match=r"refused to load support@1 from .* \(500\): no tensors"):
            await engine.load("support@1", tmp_path)


async def test_an_engine_that_is_down_is_an_engine_error() -> None:
    async with EngineClient("http://127.0.0.1:9", "key") as engine:
        assert not await engine.health()
        with pytest.raises(EngineError, match="can't be reached to list its models"):
            await engine.loaded()


@pytest.mark.parametrize(("gpu", "cpu_build"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_gpu_is_used_where_there_is_one_unless_the_engine_is_built_for_cpus(
    gpu: bool, cpu_build: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_sdk.backend.engine.gpu_found", lambda: gpu)
    python = "/bin/true" if cpu_build else "/bin/false"
    assert options(device="auto", python=python).on_cpu() is (cpu_build or not gpu)
