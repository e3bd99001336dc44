"""The capture benchmark's sink counts what a real exporter sends, or its figures about the peers mean nothing."""

from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.capture_peers.servers import Sink, server


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with server("sink") as url:
        yield Sink(url)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_sink_counts_spans_and_finds_the_calls_in_them(sink: Sink, compression: Compression) -> None:
    sink.reset()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{sink.url}/v1/traces", compression=compression)))
    tracer = provider.get_tracer("test")
    for number in range(1000):
        tracer.start_span("chat", attributes={"answer": f"echo: call-{number:016x}"}).end()
    provider.shutdown()
    received = sink.received()
    assert received["spans"] == 1000
    assert received["calls"] == [f"call-{number:016x}" for number in range(1000)]


def test_a_reset_sink_has_received_nothing(sink: Sink) -> None:
    sink.reset()
    assert sink.received() == {"spans": 0, "calls": [], "requests": 0}
