"""The arguments and environment variables that name a live endpoint, for every command that sends."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..errors import InputError
from ..providers import ChatCompletions, Recorder

__all__ = ["add_endpoint_arguments", "endpoint_provider"]


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--base-url``, ``--model``, ``--dialect`` and ``--api-key-env``."""
    parser.add_argument("--base-url", metavar="URL", help="of the endpoint (default: OPENAI_BASE_URL)")
    parser.add_argument("--model", metavar="NAME", help="(default: AGENTLOOP_MODEL)")
    parser.add_argument("--dialect", metavar="NAME", help="(default: AGENTLOOP_DIALECT, else by the host)")
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="environment variable that holds the key (default: OPENAI_API_KEY, where it is set)",
    )


def endpoint_provider(
    args: argparse.Namespace, environ: Mapping[str, str], *, model: str = "", recorder: Recorder | None = None
) -> ChatCompletions:
    """The provider that the arguments and the environment name.

    Args:
        model: used where ``--model`` is not given, before the environment.

    Raises:
        InputError: the endpoint, the model or the key that was named is not there.
    """
    base_url = args.base_url or environ.get("OPENAI_BASE_URL")
    if not base_url:
        raise InputError("expected --base-url URL, or OPENAI_BASE_URL in the environment")
    model = args.model or model or environ.get("AGENTLOOP_MODEL", "")
    if not model:
        raise InputError("expected --model NAME, or AGENTLOOP_MODEL in the environment")
    if args.api_key_env and not environ.get(args.api_key_env):
        raise InputError(f"--api-key-env: expected a key in the environment variable {args.api_key_env}, got none")
    return ChatCompletions(
        base_url,
        model=model,
        api_key=environ.get(args.api_key_env or "OPENAI_API_KEY") or None,
        dialect=args.dialect or environ.get("AGENTLOOP_DIALECT") or None,
        recorder=recorder,
    )
