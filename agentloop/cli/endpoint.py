"""What every command that sends takes: arguments and environment variables that name a live endpoint, and a prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from ..errors import InputError
from ..providers import ChatCompletions, Recorder
from ..providers.endpoint import check_key, choose_dialect, read_base_url
from ..wire.presets import dialect as preset
from .call_text import add_call_text, call_text

__all__ = ["add_endpoint_arguments", "endpoint_provider", "read_prompt"]


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--base-url``, ``--model``, ``--dialect``, ``--call-text`` and ``--api-key-env``."""
    parser.add_argument("--base-url", metavar="URL", help="of the endpoint (default: OPENAI_BASE_URL)")
    parser.add_argument("--model", metavar="NAME", help="(default: AGENTLOOP_MODEL)")
    parser.add_argument("--dialect", metavar="NAME", help="(default: AGENTLOOP_DIALECT, else by the host)")
    add_call_text(parser)
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
        InputError: the endpoint, the model, the dialect or the key is not there or not usable; says
            which argument or variable it came from.
    """
    base_url = args.base_url or environ.get("OPENAI_BASE_URL")
    if not base_url:
        raise InputError("expected --base-url URL, or OPENAI_BASE_URL in the environment")
    base = read_base_url(base_url, where="--base-url" if args.base_url else "OPENAI_BASE_URL")
    model = args.model or model or environ.get("AGENTLOOP_MODEL", "")
    if not model:
        raise InputError("expected --model NAME, or AGENTLOOP_MODEL in the environment")
    if args.api_key_env and not environ.get(args.api_key_env):
        raise InputError(f"--api-key-env: expected a key in the environment variable {args.api_key_env}, got none")
    variable = args.api_key_env or "OPENAI_API_KEY"
    key = environ.get(variable) or None
    if key is not None:
        check_key(key, where=f"environment variable {variable}")
    name = args.dialect or environ.get("AGENTLOOP_DIALECT") or None
    if name is not None:
        _check_dialect(name, where="--dialect" if args.dialect else "AGENTLOOP_DIALECT")
    dialect = preset(choose_dialect(name, base.host or "").name, call_text=call_text(args))
    return ChatCompletions(base_url, model=model, api_key=key, dialect=dialect, recorder=recorder)


def _check_dialect(name: str, *, where: str) -> None:
    if name == "auto":
        raise InputError(
            f"{where}: expected the name of one dialect, got auto, which needs a whole recording: "
            "`agentloop check --dialect auto FILE` names the dialect to give here"
        )
    preset(name, where=where)


def read_prompt(prompt: str) -> str:
    """The prompt that was given, or what standard input holds for ``-``.

    Raises:
        InputError: it is not UTF-8 text, or standard input is closed.
    """
    if prompt != "-":
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise InputError("the prompt is not UTF-8 text") from None
        return prompt
    if sys.stdin is None:
        raise InputError("standard input is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None
