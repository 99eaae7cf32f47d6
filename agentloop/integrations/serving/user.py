"""Who asks, and under which names what is theirs is stored.

A user's conversation ``c`` is stored as ``<key>.c``, and its turn ``t`` is the run ``<key>.c.t``, where the key
is a digest of who the user is. A client names conversations and turns without the key, which comes from its
authentication alone: so no id that it could send names anything of another user.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from ...admission import digest_bytes
from ...limits import check_name
from .problem import Problem

__all__ = ["ANYONE", "Auth", "ID_RULE", "User", "check_id"]

Auth = Callable[[web.Request], Awaitable[str | None]]
"""Says who sends a request: the user's id, 1 to 128 characters, or None where it is nobody known (401).

It is awaited for each request. What else it gives is answered with 400, and what it raises with 500."""

ANYONE: Final = "anyone"
"""The one user where nobody is asked who they are."""

ID_RULE: Final = "1 to 40 of A-Z a-z 0-9 _ -"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_DOMAIN: Final = "agentloop/web-user/v1"
_KEY_CHARS: Final = 32


class User(msgspec.Struct, frozen=True):
    """One user.

    Attributes:
        name: as the host's ``auth`` says; stored as the author of decisions.
        key: 32 hex digits, made of the name.
    """

    name: str
    key: str

    @classmethod
    def of(cls, name: str) -> User:
        """The user of that name.

        Raises:
            InputError: it is not 1 to 128 characters of text.
        """
        check_name("user", name)
        return cls(name, digest_bytes(_DOMAIN, name.encode())[:_KEY_CHARS])

    @property
    def prefix(self) -> str:
        """What the names of all conversations of the user begin with."""
        return f"{self.key}."

    def conversation(self, conversation: str) -> str:
        """The stored name of a conversation.

        Raises:
            Problem: 400, the id has another form.
        """
        return self.prefix + check_id("conversation", conversation)

    def run(self, conversation: str, turn: str) -> str:
        """The id of the run that a turn is.

        Raises:
            Problem: 400, an id has another form.
        """
        return f"{self.conversation(conversation)}.{check_id('turn', turn)}"


def check_id(what: str, text: str) -> str:
    """An id that a client gave, as it is.

    Raises:
        Problem: 400, it has another form.
    """
    if _ID.fullmatch(text) is None:
        raise Problem(400, "bad_id", f"{what}: expected {ID_RULE}, got {len(text)} characters of another form")
    return text
