"""The routes, for an application of `chat_app` or any other that has a `Service`."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aiohttp import web

from ...admission import digest_bytes
from ...agent import Agent
from ...errors import AgentLoopError
from ...results import RunResult
from ...sinks import Follower
from ...windows import RunOptions
from ..serving.problem import OWN_ENDS, Problem
from ..serving.service import Service
from ..serving.sse import ClientGone
from ..serving.user import User
from .answer import Answer, ChunkWriter
from .presence import Presence
from .refusal import DRAINING, NEEDS_PERSON, Refusal, RequestRefused, refusal_of
from .request import ChatRequest, decode_chat_request

__all__ = ["routes"]

_log = logging.getLogger("agentloop.openai_endpoint")

_KEY: Final = re.compile(r"[ -~]{1,64}")
_KEY_DOMAIN: Final = "agentloop/idempotency-key/v1"
_KEY_CHARS: Final = 32
_KEYED: Final = "oai"
"""Stands where a turn's id has its conversation."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(service: Service) -> list[web.RouteDef]:
    """The three routes, below ``/v1``, as `chat_app` has them."""
    endpoint = _Endpoint(service)
    return [
        web.post("/v1/chat/completions", _refusing(endpoint.complete)),
        web.get("/v1/models", _refusing(endpoint.models)),
        web.get("/v1/models/{model:.+}", _refusing(endpoint.model)),
    ]


class _Begun(msgspec.Struct):
    """A run that has begun, or that was joined.

    Attributes:
        keyed: whether its client named it. joins: whether the same request sent again joins it, whatever happens
            to this process.
    """

    ref: str
    events: Follower
    result: Callable[[], Awaitable[RunResult[Any]]]
    keyed: bool = False
    joins: bool = False


class _Endpoint:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: web.Request) -> web.Response:
        await self._service.identify(request)
        data = [_model(name) for name in self._service.agents]
        return _json(msgspec.json.encode({"object": "list", "data": data}))

    async def model(self, request: web.Request) -> web.Response:
        await self._service.identify(request)
        agent = self._agent(request.match_info["model"])
        return _json(msgspec.json.encode(_model(agent.name)))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        user = await self._service.identify(request)
        key = _key_of(request)
        asked = decode_chat_request(await self._service.read_body(request))
        agent = self._agent(asked.model)
        entered = False
        try:
            async with self._begun(user, agent, asked, key) as begun:
                entered = True
                return await self._answered(request, asked, begun)
        except AgentLoopError as error:
            _log.warning("a run of agent %r: %s", agent.name, type(error).__name__)
            joins = key is not None and self._service.runtime.durable
            raise RequestRefused(refusal_of(error, begun=entered, joins=joins)) from error

    def _agent(self, name: str) -> Agent[Any]:
        agent = self._service.agents.get(name)
        if agent is None:
            names = ", ".join(self._service.agents)
            message = f"model: expected one of {names}, got another name"
            raise RequestRefused(Refusal(status=404, message=message, code="model_not_found", param="model"))
        return agent

    @asynccontextmanager
    async def _begun(self, user: User, agent: Agent[Any], asked: ChatRequest, key: str | None) -> AsyncIterator[_Begun]:
        """Begin the run, or join the one of this key. It ends with the block, but with a key on a durable store."""
        runtime = self._service.runtime
        options: RunOptions = {"history": asked.history, "deps": self._service.deps(user)}
        if key is not None:
            options["run_id"] = user.run(_KEYED, key)
        if key is None or not runtime.durable:
            with self._service.admit(user):
                async with runtime.start(agent, asked.input, **options) as run:
                    yield _Begun(run.ref, runtime.follow(run.ref), run.result, keyed=key is not None)
            return
        self._service.require_open()
        with self._service.streams.hold(user):  # of any number that wait for one run, as its place is its own
            with self._service.beginning(user, user.run(_KEYED, key)):
                ref = await runtime.submit(agent, asked.input, **options)
            with self._service.reading(user, _KEYED, key):
                yield _Begun(ref, runtime.follow(ref), lambda: runtime.result(ref, agent), keyed=True, joins=True)

    async def _answered(self, request: web.Request, asked: ChatRequest, begun: _Begun) -> web.StreamResponse:
        created = None
        if begun.keyed:  # whoever asks again is told the same
            created = (await self._service.runtime.view(begun.ref)).opened_at_ms // 1000
        answer = Answer(f"chatcmpl-{begun.ref.rpartition('.')[2]}", asked.model, created=created)
        if asked.stream:
            return await self._stream(request, begun, answer, include_usage=asked.include_usage)
        return await self._whole(request, begun, answer)

    async def _whole(self, request: web.Request, begun: _Begun, answer: Answer) -> web.Response:
        presence = Presence(request)
        try:
            async with self._service.answering(presence):
                if begun.events.missed:
                    answer.recall(await self._service.runtime.view(begun.ref))
                async for event in begun.events:
                    answer.take(event)  # type: ignore[arg-type]  # a run tells these
                result = await self._ended(begun)
                if answer.unsure:
                    answer.check(await self._service.runtime.view(begun.ref))
                answer.end(result)
                return _json(answer.completion(), headers={"x-request-id": answer.id})
        except OWN_ENDS:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever ended the run: its client is told so
            return _answer(self._refusal(error, begun))
        return _answer(_draining(begun))  # or nobody reads it

    async def _stream(
        self, request: web.Request, begun: _Begun, answer: Answer, *, include_usage: bool
    ) -> web.StreamResponse:
        writer = ChunkWriter(answer, include_usage=include_usage)
        headers = {"x-request-id": answer.id}
        stream = self._service.stream(request, headers=headers, at_cut=writer.fail(_draining(begun)))
        async with self._service.answering(stream):
            try:
                if begun.events.missed:
                    await stream.send(writer.recall(await self._service.runtime.view(begun.ref)))
                await stream.follow(begun.events, frame=writer.take)
                result = await self._ended(begun)
                frames = writer.check(await self._service.runtime.view(begun.ref)) if answer.unsure else b""
                frames += writer.end(result)
            except (ClientGone, *OWN_ENDS):
                raise
            except BaseException as error:  # noqa: BLE001  # as above
                frames = writer.fail(self._refusal(error, begun))
            await stream.send(frames)
        return stream.response

    async def _ended(self, begun: _Begun) -> RunResult[Any]:
        """The result of a run; one that waits for a person is cancelled, as nobody can decide here."""
        result = await begun.result()
        if result.outcome == "waiting_for_approval":
            await self._service.runtime.cancel(begun.ref)
            raise RequestRefused(NEEDS_PERSON)
        return result

    @staticmethod
    def _refusal(error: BaseException, begun: _Begun) -> Refusal:
        if isinstance(error, RequestRefused):
            return error.refusal
        kind = type(error).__name__
        _log.warning("run %s: %s", begun.ref, kind, exc_info=None if isinstance(error, AgentLoopError) else error)
        return refusal_of(error, begun=True, joins=begun.joins)


def _refusing(handler: _Handler) -> _Handler:
    """What goes wrong before a run has begun, in OpenAI's form."""

    async def refusing(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestRefused as refused:
            return _answer(refused.refusal)
        except Problem as problem:
            code = "invalid_api_key" if problem.status == 401 else problem.code
            told = Refusal(status=problem.status, message=problem.message, code=code)
            return _answer(told, headers=problem.headers)

    return refusing


def _draining(begun: _Begun) -> Refusal:
    return msgspec.structs.replace(DRAINING, should_retry=begun.joins)


def _key_of(request: web.Request) -> str | None:
    """The last part of the run's id, from the header ``Idempotency-Key``; None where the client gives none."""
    given = request.headers.getall("Idempotency-Key", [])
    if not given:
        return None
    if len(given) > 1 or _KEY.fullmatch(given[0]) is None:
        message = "Idempotency-Key: expected one of 1 to 64 printable ASCII characters"
        raise RequestRefused(Refusal(status=400, message=message, code="bad_idempotency_key"))
    return digest_bytes(_KEY_DOMAIN, given[0].encode())[:_KEY_CHARS]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentloop"}


def _answer(refusal: Refusal, *, headers: dict[str, str] | None = None) -> web.Response:
    return _json(refusal.body(), status=refusal.status, headers={**refusal.headers, **(headers or {})})


def _json(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
