"""``agentloop serve MODULE:AGENT``: a chat backend with its page, and the protocols that clients speak."""

from __future__ import annotations

import argparse
import asyncio
import hmac
import ipaddress
import logging
import os
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from ..agent import Agent
from ..errors import AgentLoopError, InputError
from ..integrations.metrics import PrometheusMetrics
from ..integrations.serving.problem import Problem
from ..integrations.web import SERVICE, Auth, WebLimits, chat_app
from ..limits import DRAIN_SECONDS, LEASE_SECONDS
from ..providers import ChatCompletions
from ..runtime import Runtime
from .endpoint import add_endpoint_arguments, endpoint_provider
from .numbers import port, some_seconds
from .run import load_agent
from .screen import counted
from .stopping import stop_signal

__all__ = ["add_parser", "password_auth", "run"]

_PORT: Final = 8080
_IDLE_SECONDS: Final = 75.0
"""How long a connection may be open before all headers of its next request are there; a proxy's are shorter."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_USER: Final = "anyone"  # the same as without a password, so that conversations stay where one comes to be
_REALM: Final = {"WWW-Authenticate": 'Basic realm="agentloop", charset="UTF-8"'}


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "serve",
        help="serve agents of yours to browsers and other clients",
        description="Serves a page for a person at /, and what it uses at /api; OpenAI clients find the agents at /v1, "
        "those of the Vercel AI SDK at /ui. It listens on this machine only unless --host says otherwise, and then "
        "wants --password-env or --no-password. Put it behind a proxy that speaks TLS. SIGTERM and Ctrl-C end it: it "
        "takes nothing new, waits for turns that go on, and leaves the others to be continued. Exit 0 then, 1 when "
        "the store cannot be used, 2 on wrong usage or an address that cannot be had.",
    )
    parser.add_argument(
        "agents", metavar="MODULE:AGENT", nargs="+", help="as in notes:assistant, or path/to/notes.py:assistant"
    )
    add_endpoint_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=port, default=_PORT, help=f"0 takes a free one (default {_PORT})")
    parser.add_argument(
        "--store", metavar="PATH", help="a SQLite file, or postgresql://...; without it all ends with the process"
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--password-env", metavar="NAME", help="environment variable with the password that a browser asks for"
    )
    who.add_argument("--no-password", action="store_true", help="everybody who reaches it may use it")
    parser.add_argument("--origin", action="append", default=[], metavar="URL", help="of another page that may use it")
    parser.add_argument(
        "--lease-seconds",
        type=some_seconds,
        default=LEASE_SECONDS,
        metavar="S",
        help=f"after which the turns of a dead process can be taken up (default {LEASE_SECONDS:g})",
    )
    parser.add_argument(
        "--drain-seconds",
        type=some_seconds,
        default=DRAIN_SECONDS,
        metavar="S",
        help="how long ending may take: half for turns to end, half for model calls under way "
        f"(default {DRAIN_SECONDS:g})",
    )
    parser.add_argument("--metrics", action="store_true", help="serve /metrics for Prometheus (extra 'metrics')")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted or terminated; the exit status is described in the command's help."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        auth = _auth(args, os.environ)
        provider = endpoint_provider(args, os.environ)
        agents = [load_agent(where) for where in args.agents]
        asyncio.run(_serve(args, provider, agents, auth))
    except InputError as error:
        args.usage_error(str(error))  # exits with status 2
        raise
    except AgentLoopError as error:
        print(f"agentloop serve: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def password_auth(password: str) -> Auth:
    """Let in who knows a password, as HTTP Basic with any name (a browser asks for it) or as a Bearer token.

    Whoever knows it is one and the same user. Source: RFC 7617, RFC 6750.
    """

    async def auth(request: web.Request) -> str | None:
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        given = value.strip()
        if scheme.lower() == "basic":
            try:
                given = b64decode(given, validate=True).decode().partition(":")[2]
            except ValueError:
                given = ""
        elif scheme.lower() != "bearer":
            given = ""
        if not hmac.compare_digest(
            given.encode(errors="surrogateescape"), password.encode()
        ):  # a header may be no text
            raise Problem(401, "unauthorized", "expected the password, got none or another", headers=_REALM)
        return _USER

    return auth


def _auth(args: argparse.Namespace, environ: Mapping[str, str]) -> Auth | None:
    if args.password_env:
        password = environ.get(args.password_env)
        if not password:
            raise InputError(f"--password-env: expected a password in the environment variable {args.password_env}")
        return password_auth(password)
    if not args.no_password and not _is_local(args.host):
        raise InputError(f"--host {args.host}: expected --password-env NAME with it, or --no-password")
    return None


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(
    args: argparse.Namespace, provider: ChatCompletions, agents: Sequence[Agent[Any]], auth: Auth | None
) -> None:
    stop = stop_signal()
    metrics = PrometheusMetrics() if args.metrics else None
    half = args.drain_seconds / 2
    limits = WebLimits(drain_seconds=half)
    async with Runtime(
        provider,
        store=args.store,
        observers=() if metrics is None else (metrics,),
        lease_seconds=args.lease_seconds,
        settle_seconds=half,
    ) as runtime:
        app = chat_app(
            runtime,
            agents,
            auth=auth,
            limits=limits,
            metrics=metrics,
            page=True,
            origins=args.origin,
            # nobody else's name may lead a browser to a server that asks for no password
            hosts=_LOCAL if auth is None and not args.no_password else (),
        )
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            shutdown_timeout=limits.write_seconds,
            keepalive_timeout=_IDLE_SECONDS,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, args.host, args.port)
            try:
                await site.start()
            except OSError as error:
                raise InputError(f"cannot listen on {args.host}:{args.port}: {error.strerror or error}") from error
            host, number = runner.addresses[0][:2]
            print(f"http://{f'[{host}]' if ':' in host else host}:{number}/", flush=True)
            names = ", ".join(agent.name for agent in agents)
            where = args.store or "memory: all ends with this process"
            print(f"serving {names} ({counted(len(agents), 'agent')}); store: {where}", file=sys.stderr)
            await stop.wait()
            print("ending: waiting for turns that go on", file=sys.stderr)
            await app[SERVICE].drain()  # while it still listens: clients read what there is, and are told of the end
        finally:
            await runner.cleanup()
