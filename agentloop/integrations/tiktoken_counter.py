"""Token counts by the ``tiktoken`` package, an estimate for one named encoding.

How a server frames messages, tools and formats in tokens is its own affair, and images have no text:
those are not counted at all. Leave a `TokenBudget` a margin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..errors import InputError
from ..messages import FunctionSpec, ModelExchange, ModelOptions, ModelRequest, message_texts

__all__ = ["TOKENS_PER_MESSAGE", "TiktokenCounter"]

TOKENS_PER_MESSAGE: Final = 4
"""Added for each message: its role, and the marks around it."""


class TiktokenCounter:
    """A `TokenCounter`.

    Counted are the texts of system and user messages, of replies, of calls (name and arguments) and of
    tool results, the JSON of each tool and of the schema of a response format, and `TOKENS_PER_MESSAGE`
    for each message, a tool's result included. Not counted are images, and what a reply holds
    natively (as reasoning).

    Args:
        encoding: an encoding's name, as ``o200k_base``, or a ``tiktoken.Encoding``. For a name the
            package loads a table, from the network where the directory that ``TIKTOKEN_CACHE_DIR``
            names has none.

    Attributes:
        identity: ``tiktoken:`` and the encoding's name.

    Raises:
        InputError: the package is not installed, there is no such encoding, or its table could not be loaded;
            ``__cause__`` is what went wrong then.
    """

    __slots__ = ("_encode", "identity")

    def __init__(self, encoding: Any) -> None:
        try:
            import tiktoken  # noqa: PLC0415  # an optional extra
        except ImportError as error:
            raise InputError("TiktokenCounter: expected the package tiktoken; install the extra 'tokens'") from error
        if type(encoding) is str:
            if encoding not in tiktoken.list_encoding_names():
                names = ", ".join(sorted(tiktoken.list_encoding_names()))
                raise InputError(f"TiktokenCounter.encoding: expected one of {names}, got {encoding!r}")
            encoding = _loaded(tiktoken.get_encoding, encoding)
        if not isinstance(encoding, tiktoken.Encoding):
            got = type(encoding).__name__
            raise InputError(f"TiktokenCounter.encoding: expected a tiktoken.Encoding or its name, got {got}")
        self.identity = f"tiktoken:{encoding.name}"
        self._encode = encoding.encode_ordinary  # a special token's name in a text is text

    def __repr__(self) -> str:
        return f"<TiktokenCounter {self.identity}>"

    def count(self, request: ModelRequest, /) -> int:
        """An estimate of what the request comes to; the same for the same request."""
        messages = texts = 0
        for message in (*request.messages, *request.exchanges):
            messages += 1 + (len(message.feedback) if isinstance(message, ModelExchange) else 0)
            texts += sum(len(self._encode(text)) for text in message_texts(message))
        declared = (*map(_tool_text, request.tools), *_format_text(request.options))
        return messages * TOKENS_PER_MESSAGE + texts + sum(len(self._encode(text)) for text in declared)


def _loaded(load: Callable[[str], Any], name: str) -> Any:
    try:
        return load(name)
    except Exception as error:  # of the network, the disk, or the package's own
        do = "hand over a tiktoken.Encoding, or set TIKTOKEN_CACHE_DIR to a directory that holds the table"
        rule = f"expected the table of {name!r}, got {type(error).__name__}; {do}"
        raise InputError(f"TiktokenCounter.encoding: {rule}") from error


def _tool_text(tool: FunctionSpec) -> str:
    """The tool as it stands in a request, but for the spaces of its schema, which are the host's."""
    members = {"name": tool.name, "description": tool.description, "parameters": msgspec.Raw(tool.parameters.encode())}
    return msgspec.json.encode(members).decode()


def _format_text(options: ModelOptions) -> tuple[str, ...]:
    wanted = options.response_format
    return () if wanted is None or wanted.schema is None else (wanted.schema,)
