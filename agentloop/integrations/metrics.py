"""Counters for Prometheus, by its official client: an observer of a runtime, and of a chat backend.

    metrics = PrometheusMetrics()
    async with al.Runtime(provider, observers=[metrics]) as runtime:
        app = chat_app(runtime, [assistant], auth=my_auth, metrics=metrics)   # GET /metrics

No label holds a text, a user or an id, so that their number is bounded. Names follow
https://prometheus.io/docs/practices/naming/ (2026-11).
"""

from __future__ import annotations

from typing import Any, Final

from ..errors import InputError
from ..events import Event, ModelEnd, ModelStart, RunEnded, TextPreview, ToolEnded, ToolSkipped

__all__ = ["PrometheusMetrics"]

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_FIRST: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_OPEN_CALLS: Final = 10_000
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class PrometheusMetrics:
    """Counts what happens. As an observer it sees runs, from `chat_app` requests, streams and turns.

    Times are in seconds; labels are in brackets.

        agentloop_runs_total, agentloop_run_seconds             [outcome], each time that it ends or is left
        agentloop_model_calls_total                             [status, code]
        agentloop_model_call_seconds                            [status]
        agentloop_first_preview_seconds                         from the start of a model call to its first text
        agentloop_tokens_total                                  [kind] input, output
        agentloop_withdrawn_previews_total
        agentloop_tool_calls_total, agentloop_tool_seconds      [tool, slot], [tool]
        agentloop_http_requests_total                           [route, method, status]
        agentloop_http_streams, agentloop_turns                 open and going on at the moment

    Args:
        registry: a ``prometheus_client.CollectorRegistry``; None makes one of its own.

    Attributes:
        registry: where the counters are. content_type: of `text`.

    Raises:
        InputError: the package is not installed. ValueError: the registry has such counters already.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            import prometheus_client as client  # noqa: PLC0415  # an optional extra
        except ImportError as error:
            rule = "expected the package prometheus-client; install the extra 'metrics'"
            raise InputError(f"PrometheusMetrics: {rule}") from error
        self.registry = client.CollectorRegistry() if registry is None else registry
        self._expose, self.content_type = client.generate_latest, client.CONTENT_TYPE_LATEST

        def counter(name: str, text: str, *labels: str) -> Any:
            return client.Counter(f"agentloop_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Any:
            return client.Histogram(f"agentloop_{name}", text, labels, registry=self.registry, buckets=buckets)

        def gauge(name: str, text: str) -> Any:
            return client.Gauge(f"agentloop_{name}", text, registry=self.registry)

        self._runs = counter("runs", "Runs that ended, or were left, by outcome.", "outcome")
        self._run_seconds = histogram("run_seconds", "How long runs took.", _SECONDS, "outcome")
        self._calls = counter("model_calls", "Model calls that ended.", "status", "code")
        self._call_seconds = histogram("model_call_seconds", "How long model calls took.", _SECONDS, "status")
        self._first = histogram("first_preview_seconds", "From the start of a model call to its first text.", _FIRST)
        self._tokens = counter("tokens", "Tokens as providers reported them.", "kind")
        self._withdrawn = counter("withdrawn_previews", "Model calls whose previews were taken back.")
        self._tools = counter("tool_calls", "Tool calls that were answered.", "tool", "slot")
        self._tool_seconds = histogram("tool_seconds", "How long tools took.", _SECONDS, "tool")
        self._requests = counter("http_requests", "Requests that were answered.", "route", "method", "status")
        self.streams = gauge("http_streams", "Event streams that are open.")
        self.turns = gauge("turns", "Turns that go on here.")
        self._started: dict[str, int] = {}
        self._known: set[str] = set()  # names of tools that ran

    async def observe(self, event: Event) -> None:
        """Count an event of a run; an `Observer`."""
        match event:
            case ModelStart():
                if len(self._started) < _OPEN_CALLS:
                    self._started[event.attempt_id] = event.occurred_at_ms
            case TextPreview(offset=0):
                began = self._started.pop(event.attempt_id, None)
                if began is not None:
                    self._first.observe(max(0, event.occurred_at_ms - began) / 1000)
            case ModelEnd():
                self._started.pop(event.attempt_id, None)
                self._calls.labels(event.status, event.code or "").inc()
                self._call_seconds.labels(event.status).observe(event.duration_ms / 1000)
                if event.retracted:
                    self._withdrawn.inc()
                if event.usage is not None:
                    self._tokens.labels("input").inc(event.usage.input_tokens)
                    self._tokens.labels("output").inc(event.usage.output_tokens)
            case ToolEnded():
                self._known.add(event.tool)
                self._tools.labels(event.tool, event.slot).inc()
                self._tool_seconds.labels(event.tool).observe(event.duration_ms / 1000)
            case ToolSkipped():  # its name may be one that a model made up
                self._tools.labels(event.tool if event.tool in self._known else "", event.slot).inc()
            case RunEnded():
                self._runs.labels(event.outcome).inc()
                self._run_seconds.labels(event.outcome).observe(event.duration_ms / 1000)
            case _:
                pass

    def answered(self, route: str, method: str, status: int) -> None:
        """Count an answer.

        Args:
            route: the pattern that took the request, not its path; ``""`` where none did.
        """
        self._requests.labels(route, method if method in _METHODS else "other", str(status)).inc()

    def text(self) -> bytes:
        """All of it, in the format of `content_type`."""
        exposed: bytes = self._expose(self.registry)
        return exposed
