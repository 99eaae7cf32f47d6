"""`chat_app`: a chat backend as an aiohttp application, to be run alone or mounted in another one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from aiohttp import web

from ...agent import Agent
from ...errors import AgentLoopError
from ...limits import WebLimits
from ...runtime import Runtime
from ..metrics import PrometheusMetrics
from ..openai_endpoint import routes as openai_routes
from ..serving.attendance import ClientGonePolicy
from ..serving.problem import Problem, problem_of
from ..serving.service import Service
from ..serving.user import Auth
from ..ui_stream import routes as ui_routes
from .api import json_answer
from .api import routes as api_routes
from .origin import Origins
from .static import page_routes

__all__ = ["SERVICE", "chat_app"]

_log = logging.getLogger("agentloop.web")

SERVICE: Final = web.AppKey("agentloop_service", Service)
"""Under which the application has its `Service`."""

_begun: ContextVar[bool] = ContextVar("agentloop_begun", default=False)  # whether a part of an answer is sent

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_KEPT_HEADERS: Final = ("Allow", "Location", "Retry-After", "WWW-Authenticate")
"""What an HTTP error keeps of its own headers when it is answered as JSON."""

_HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def chat_app(
    runtime: Runtime,
    agents: Sequence[Agent[Any]],
    *,
    auth: Auth | None,
    limits: WebLimits | None = None,
    client_gone: ClientGonePolicy | None = None,
    deps: Callable[[str], Any] | None = None,
    metrics: PrometheusMetrics | None = None,
    page: bool = False,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    ui_reset_step: bool = True,
) -> web.Application:
    """Serve agents to browsers, phones and other clients.

    ``/api/…`` is for conversations and turns, ``/v1/…`` for OpenAI clients, ``/ui/chat`` for chat transports of the
    Vercel AI SDK. ``/healthz`` answers while the process does, ``/readyz`` while it takes new turns, ``/metrics`` is
    for Prometheus where ``metrics`` is given, and ``/`` is the page where ``page`` is set. On shutdown it takes
    nothing new, waits up to ``limits.drain_seconds`` for turns that go on, and ends all streams; their clients come
    back to whoever answers next. The runtime stays the caller's: it is opened before, and closed after the application.

        async with al.Runtime(provider, store="chat.db") as runtime:
            app = chat_app(runtime, [assistant], auth=my_auth)

    Args:
        agents: served under their names; the first one where a client names none.
        auth: says who sends a request (`Auth`). It must be given: None says that everybody is the same user.
        limits: what clients may take; see `WebLimits`.
        client_gone: ``detach``: a turn goes on when nobody follows it (the default on a durable store).
            ``cancel``: it is cancelled after ``limits.gone_seconds``.
        deps: makes what tools are given as ``ctx.deps``, of the user's name.
        metrics: counts answers, and is served without ``auth``: keep ``/metrics`` from the outside. Give it to the
            runtime as an observer too.
        origins: pages of other sites that may use it, as ``https://app.example``; none may by default.
        hosts: names by which it may be reached; ``()`` is any.
        ui_reset_step: whether clients at ``/ui/chat`` know ``reset-step``, as the package ``ai`` does from 7.0.70 on.

    Raises:
        InputError: a value of another type or form.
    """
    service = Service(runtime, agents, auth=auth, limits=limits, client_gone=client_gone, deps=deps)
    allowed = Origins(origins, hosts)
    app = web.Application(middlewares=[_answering(allowed, metrics)], client_max_size=service.limits.body_bytes)
    app[SERVICE] = service
    app.add_routes(api_routes(service, page=page))
    app.add_routes(openai_routes(service))
    app.add_routes(ui_routes(service, reset_step=ui_reset_step))
    app.add_routes(_health_routes(service))
    if metrics is not None:
        app.add_routes([_metrics_route(service, metrics)])
    if page:
        app.add_routes(page_routes())

    async def prepare(request: web.Request, response: web.StreamResponse) -> None:
        for name, value in (*_HEADERS.items(), *allowed.headers(request).items()):
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        _begun.set(True)

    async def shutdown(_: web.Application) -> None:
        await service.drain()

    async def cleanup(_: web.Application) -> None:
        await service.close()

    app.on_response_prepare.append(prepare)
    app.on_shutdown.append(shutdown)
    app.on_cleanup.append(cleanup)
    return app


def _health_routes(service: Service) -> list[web.RouteDef]:
    async def healthy(_: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        if service.draining:
            return json_answer({"status": "draining"}, status=503)
        if service.runtime.fault is not None:
            return json_answer({"status": "store"}, status=503)
        return json_answer({"status": "ok"})

    return [web.get("/healthz", healthy), web.get("/readyz", ready)]


def _metrics_route(service: Service, metrics: PrometheusMetrics) -> web.RouteDef:
    async def expose(_: web.Request) -> web.Response:
        metrics.streams.set(service.streams.taken)
        metrics.turns.set(service.runs.taken)
        return web.Response(body=metrics.text(), headers={"Content-Type": metrics.content_type})

    return web.get("/metrics", expose)


def _answering(allowed: Origins, metrics: PrometheusMetrics | None) -> Any:
    """What goes wrong is answered as JSON, whoever raised it."""

    async def answer(request: web.Request, handler: _Handler) -> web.StreamResponse:
        _begun.set(False)
        try:
            allowed.check(request)
            preflight = allowed.preflight(request)
            return await handler(request) if preflight is None else preflight
        except web.HTTPMovedPermanently:
            raise
        except Exception as error:
            if _begun.get():  # the connection ends, and so the client knows
                raise
            return _answer(_problem(request, error))

    @web.middleware
    async def middleware(request: web.Request, handler: _Handler) -> web.StreamResponse:
        response = await answer(request, handler)
        if metrics is not None:
            resource = request.match_info.route.resource
            metrics.answered("" if resource is None else resource.canonical, request.method, response.status)
        return response

    return middleware


def _problem(request: web.Request, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case AgentLoopError():
            return problem_of(error)
        case web.HTTPException():  # aiohttp's own, such as no such route; or of an `auth` that sends people elsewhere
            headers = {name: error.headers[name] for name in _KEPT_HEADERS if name in error.headers}
            return Problem(error.status, "http", error.reason, headers=headers)
        case _:
            _log.error("%s %s: %s", request.method, request.rel_url.path, type(error).__name__, exc_info=error)
            return Problem(500, "error", "the server could not answer; its log says why")


def _answer(problem: Problem) -> web.Response:
    return web.Response(
        body=problem.body(), status=problem.status, content_type="application/json", headers=problem.headers
    )
