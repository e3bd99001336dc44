"""How each candidate is switched on in production: one function each, run in the candidate's own environment.

The OpenTelemetry instrumentors get what their pages tell people to use: a provider with a batch span processor
and the OTLP exporter over HTTP, with messages recorded. Nothing here imports another candidate's packages.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def _unchanged(function: F) -> F:
    return function


def _nothing() -> None: ...


@dataclass
class Switched:
    """What the measured program needs of a candidate."""

    trajectory: Callable[[Any], Any] = _unchanged
    """Decorator of the function that runs the agent, where the candidate has one."""
    run: Callable[[Any], Any] = _unchanged
    """Decorator by which a plain function becomes a span with others inside."""
    step: Callable[[Any], Any] = _unchanged
    """Decorator by which a plain function becomes a span inside that one."""
    flush: Callable[[], Any] = _nothing
    """All that was recorded is in the store or sink."""
    callbacks: list[Any] = field(default_factory=list)
    """For `config={"callbacks": …}` of each run."""


def switch_on(name: str, sink: str, home: Path, delay: float) -> Switched:
    """`delay`: seconds that a store in this process takes for each transaction; the sink has its own."""
    if name == "none":
        return Switched()
    return _SWITCHES[name](sink, home, delay)


def _slow_commits(delay: float) -> None:
    if delay:
        from sqlalchemy import Engine, event

        event.listen(Engine, "commit", lambda _: time.sleep(delay))


def _ours(sink: str, home: Path, delay: float) -> Switched:
    os.environ["ART_HOME"] = str(home)
    import art_sdk as art

    _slow_commits(delay)

    def flush() -> None:
        if not art.flush(600):
            raise TimeoutError("art.flush: not all is in the store after 600 s")

    return Switched(trajectory=art.trajectory, run=art.trajectory, step=art.tool, flush=flush)


def _otlp_provider(sink: str) -> Any:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{sink}/v1/traces")))
    trace.set_tracer_provider(provider)
    return provider


def _otlp_switched(provider: Any) -> Switched:
    span = provider.get_tracer("agent").start_as_current_span

    def step(function: Any) -> Any:
        return span(function.__name__)(function)

    return Switched(run=step, step=step, flush=lambda: provider.force_flush(600_000))


def _openinference(sink: str, home: Path, delay: float) -> Switched:
    from openinference.instrumentation.langchain import LangChainInstrumentor

    provider = _otlp_provider(sink)
    LangChainInstrumentor().instrument(tracer_provider=provider)
    return _otlp_switched(provider)


def _genai(sink: str, home: Path, delay: float) -> Switched:
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor

    provider = _otlp_provider(sink)
    # It looks for the `langchain` package, of which it and the agent use nothing.
    LangChainInstrumentor().instrument(tracer_provider=provider, skip_dep_check=True)
    return _otlp_switched(provider)


def _openllmetry(sink: str, home: Path, delay: float) -> Switched:
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor

    provider = _otlp_provider(sink)
    LangchainInstrumentor().instrument(tracer_provider=provider, skip_dep_check=True)
    return _otlp_switched(provider)


def _mlflow(sink: str, home: Path, delay: float) -> Switched:
    sys.modules["litellm"] = None  # type: ignore[assignment]  # of the environment it borrows; it would price calls with it
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{home / 'mlflow.db'}")
    mlflow.set_experiment("benchmark")
    mlflow.langchain.autolog()
    _slow_commits(delay)
    return Switched(run=mlflow.trace, step=mlflow.trace, flush=mlflow.flush_trace_async_logging)


def _langfuse(sink: str, home: Path, delay: float) -> Switched:
    os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1", "LANGFUSE_BASE_URL": sink}
    from langfuse import get_client, observe
    from langfuse.langchain import CallbackHandler

    return Switched(run=observe, step=observe, flush=get_client().flush, callbacks=[CallbackHandler()])


def _langsmith(sink: str, home: Path, delay: float) -> Switched:
    os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "lsv2_pt_1", "LANGSMITH_ENDPOINT": sink}
    from langchain_core.tracers.langchain import wait_for_all_tracers
    from langsmith import traceable
    from langsmith.run_trees import get_cached_client

    def flush() -> None:
        wait_for_all_tracers()
        get_cached_client().flush()

    return Switched(run=traceable, step=traceable, flush=flush)


_SWITCHES: dict[str, Callable[[str, Path, float], Switched]] = {
    "ours": _ours,
    "openinference": _openinference,
    "genai": _genai,
    "openllmetry": _openllmetry,
    "mlflow": _mlflow,
    "langfuse": _langfuse,
    "langsmith": _langsmith,
}
