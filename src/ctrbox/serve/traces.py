"""Makes OpenTelemetry spans of requests.

    POST /v1/score                 from the last byte of the request to its answer
      ├ reading                    the fields of the request
      ├ plan                       features of the context and of the candidates
      ├ engine                     the model
      └ writing                    the body of the answer

If one native call answers a request, the call measures these parts. Context and candidates each have a plan part and an engine
part, whose times are added up. A part begins where the one before it ends. A request that Python reads and scores has `reading`,
`engine` (plan and model together) and `writing`.

A request with the W3C header ``traceparent`` continues the trace of the caller, and is sampled as the caller decided. Any other
request begins a trace, if the sampler of the provider selects it. Without ``--traces``, no span is made and no clock is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ctrbox import __version__, _native
from ctrbox.errors import PlanError

PARTS = ("reading", "plan", "engine", "writing")
CONSOLE = "console"
TELLING = "--traces takes the URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318/v1/traces, or console"
LONGEST_HEADER = 1024  # of traceparent and tracestate each; W3C asks for at least 512 characters of tracestate
_current = threading.local()


class Parts:
    """The parts of the request that this thread answers, and their times in nanoseconds."""

    def __init__(self) -> None:
        self.began = self.mark = time.time_ns()
        self.took: dict[str, int] = {}
        self.facts: dict[str, Any] = {}

    def lap(self, part: str) -> None:
        """Add the time since the last lap to a part."""
        now = time.time_ns()
        self.took[part] = self.took.get(part, 0) + max(0, now - self.mark)
        self.mark = now

    def native(self, times: _native.RequestTimes) -> None:
        """Copy the times that a native call measured."""
        self.took = {"reading": times.reading, "plan": times.plan, "engine": times.engine}
        self.facts["ctrbox.context_cached"] = times.cached
        self.mark = time.time_ns()


def current() -> Parts | None:
    """Return the parts of the request that this thread answers; None without traces."""
    return getattr(_current, "parts", None)


class Traces:
    """Makes spans. Any number of threads may use one. ``provider``: of `opentelemetry.sdk.trace`, which owns the exporter."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider, self._trace = provider, trace
        self._tracer = provider.get_tracer("ctrbox.serve", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @staticmethod
    def to(target: str, model: str) -> Traces:
        """Return traces that go to a collector or to stderr. Call it in the process that serves, because it starts a thread."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            exporter = exporter_to(target)
        except ImportError as error:
            raise missing_traces(error) from None
        provider = TracerProvider(resource=Resource.create({"service.name": "ctrbox", "ctrbox.model": model}))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return Traces(provider)

    def begin(self, name: str, carrier: Mapping[str, str], facts: Mapping[str, Any]) -> Traced | None:
        """Begin and return the span of a request; None if it is not sampled. ``carrier``: its traceparent and tracestate."""
        given = {key: value for key, value in carrier.items() if len(value) <= LONGEST_HEADER}
        parent = self._propagator.extract(given) if "traceparent" in given else None
        span = self._tracer.start_span(name, parent, self._trace.SpanKind.SERVER, dict(facts))
        return Traced(self, span) if span.is_recording() else None

    def close(self) -> None:
        """Send the spans that are left."""
        self.provider.shutdown()


class Traced:
    """The span of one request."""

    def __init__(self, traces: Traces, span: Any) -> None:
        self._traces, self._span = traces, span
        self.parts: Parts | None = None

    @property
    def trace_id(self) -> str:
        return format(self._span.get_span_context().trace_id, "032x")

    def around(self, work: Callable[[], Any]) -> Any:
        """Return what ``work()`` returns, and measure its parts; the last part is that of writing."""
        self.parts = _current.parts = Parts()
        try:
            found = work()
            self.parts.lap("writing")
            return found
        finally:
            _current.parts = None

    def end(self, status: int, facts: Mapping[str, Any]) -> None:
        from opentelemetry.trace import Status, StatusCode

        span, parts = self._span, self.parts
        if parts is not None:
            below = self._traces._trace.set_span_in_context(span)
            at = parts.began
            for name in PARTS:
                if name in parts.took:
                    part = self._traces._tracer.start_span(name, below, start_time=at)
                    at += parts.took[name]
                    part.end(at)
            span.set_attributes(parts.facts)
        span.set_attributes(dict(facts))
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def exporter_to(target: str) -> Any:
    if target == CONSOLE:
        import sys

        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=target)


def check_target(target: str) -> None:
    """Raise PlanError unless traces can go there."""
    if target != CONSOLE and not target.startswith(("http://", "https://")):
        raise PlanError(f"{TELLING}; got {target[:200]!r}")
    try:
        exporter_to(target).shutdown()
    except ImportError as error:
        raise missing_traces(error) from None


def missing_traces(error: ImportError) -> PlanError:
    return PlanError(f"--traces needs {error.name}, which is not installed: pip install 'ctrbox[traces]'")
