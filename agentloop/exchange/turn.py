"""One run's origin, exchanges, slots and counts, as derived from its facts.

Only `Book.install` changes these objects; everyone else reads them.
"""

from __future__ import annotations

from ..messages import Message, ModelExchange, ModelReply, ToolCall, ToolFeedback, Usage
from .facts import ExchangeRef, OriginOpened, RequestRef, RunClosed, RunRedacted, SendEnded, SendStarted, SlotMoved
from .history import History, Shown
from .slots import SlotState
from .steers import Steers, said

__all__ = ["Conversation", "Entry", "Slot", "Turn"]


class Slot:
    """One call's slot.

    Attributes:
        encoded: canonical bytes of the feedback, until the exchange's digest covers them.
        rerun: whether a host, or a lookup, allowed one more execution of it.
        kept: bytes of the full text that is kept of its output; None where none is. The text is in the
            medium only.
        decided: what a host decided about it while it waited; None before that, and where it never did.
        asked: whether its execution has waited for its child run, so that it surely began.
        waits_since_ms: when it began to wait; None where it never did.
        started_at_ms: when its newest execution was claimed. ended_at_ms: when its feedback was
            recorded. None before that, and where a record told none.
    """

    __slots__ = (
        "asked",
        "attempt",
        "call",
        "code",
        "decided",
        "effect_id",
        "encoded",
        "ended_at_ms",
        "feedback",
        "kept",
        "rerun",
        "started_at_ms",
        "state",
        "waits_since_ms",
    )

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.state: SlotState = "open"
        self.effect_id: str | None = None
        self.attempt = 0
        self.feedback: ToolFeedback | None = None
        self.code: str | None = None
        self.encoded = b""
        self.rerun = False
        self.asked = False
        self.kept: int | None = None
        self.decided: SlotMoved | None = None
        self.started_at_ms: int | None = None
        self.ended_at_ms: int | None = None
        self.waits_since_ms: int | None = None


class Entry:
    """One stored reply with its slots.

    Attributes:
        encoded: canonical bytes of the reply, until the exchange's digest covers them.
        exchange: the complete exchange, once every slot holds feedback.
        size: bytes of the canonical reply and of the feedback so far.
        unanswered: slots without feedback.
        started_at_ms: when its attempt was claimed. ended_at_ms: when the attempt's end was
            recorded, None where the record told none.
    """

    __slots__ = (
        "attempt_id",
        "encoded",
        "ended_at_ms",
        "exchange",
        "reply",
        "size",
        "slots",
        "started_at_ms",
        "unanswered",
    )

    def __init__(
        self, reply: ModelReply, attempt_id: str, encoded: bytes, started_at_ms: int, ended_at_ms: int | None
    ) -> None:
        self.reply, self.attempt_id, self.encoded = reply, attempt_id, encoded
        self.started_at_ms, self.ended_at_ms = started_at_ms, ended_at_ms
        self.slots = tuple(Slot(call) for call in reply.calls)
        self.exchange: ModelExchange | None = None
        self.size = len(encoded)
        self.unanswered = len(self.slots)

    @property
    def complete(self) -> bool:
        """Whether every slot holds feedback."""
        return self.exchange is not None


class Turn:
    """An origin and all that followed from it.

    Attributes:
        past: all that was said before, and this turn's messages.
        history: what the ``messages`` of the newest request are: all of those, or less by the origin's
            ``context``; and after a steer the exchanges before it and that.
        exchanges: the complete exchanges of this turn, in order; ``entries`` may have one more.
        digests: chain digests; ``digests[n]`` covers the origin and its first n exchanges.
        origin_size: bytes of the origin: this turn's own messages, its tools, options and context.
        size: bytes of this turn: origin, replies, feedback and steers. kept: of the full texts kept of its outputs.
        steers: what the user said while it went on. stopping: whether it shall end after the exchange under way.
        equal_calls: how often each tool was asked for with the same arguments.
        claims: ids of all attempts and executions, so that none ever stands for two.
        sends: attempts that have started and not ended.
        sent: the newest attempt, whatever became of it.
        ended: the end of the newest attempt, until its reply is taken in or the next one starts.
        refused: ends of the attempts since the newest reply that failed with a typed error of the provider.
        unknown_sends: attempts that ended without a reply though a server may have worked on them.
        redacted: what is left of a run whose texts were removed; it has no entries then.
    """

    __slots__ = (
        "_base",
        "_frame_size",
        "_shown",
        "_since",
        "claims",
        "closed",
        "digests",
        "ended",
        "entries",
        "equal_calls",
        "exchanges",
        "kept",
        "model_calls",
        "opened",
        "origin_size",
        "past",
        "redacted",
        "refused",
        "sends",
        "sent",
        "size",
        "steers",
        "stopping",
        "tool_calls",
        "unknown_sends",
        "usage",
    )

    def __init__(self, opened: OriginOpened, past: History, *, own_size: int, frame_size: int) -> None:
        self.opened, self.past, self._frame_size = opened, past, frame_size
        cut = opened.context
        self._base = Shown(past.messages, past.size) if cut is None else past.without(cut)
        self._shown, self._since = self._base.messages, 0  # with the exchanges up to that one, and the steers
        self.origin_size = self.size = own_size + frame_size
        self.entries: list[Entry] = []
        self.exchanges: list[ModelExchange] = []
        self.digests = [opened.digest]
        self.claims: dict[str, None] = {}  # of texts only, so that the collector does not track it as it does a set
        self.sends: dict[str, SendStarted] = {}
        self.sent: SendStarted | None = None
        self.ended: SendEnded | None = None
        self.refused: tuple[SendEnded, ...] = ()
        self.unknown_sends: tuple[str, ...] = ()
        self.model_calls = 0
        self.tool_calls = 0
        self.kept = 0
        self.usage: Usage | None = None
        self.equal_calls: dict[tuple[str, str], int] = {}
        self.steers = Steers()
        self.stopping = False
        self.closed: RunClosed | None = None
        self.redacted: RunRedacted | None = None

    @property
    def run_id(self) -> str:
        """The run that owns this turn."""
        return self.opened.run_id

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages of this turn's newest request."""
        return self._shown

    @property
    def last(self) -> Entry | None:
        """The newest entry."""
        return self.entries[-1] if self.entries else None

    @property
    def request_size(self) -> int:
        """Bytes of the expanded request over all entries, their answers so far and all steers included."""
        return self._base.size + self._frame_size + self.size - self.origin_size

    @property
    def tip(self) -> str:
        """Digest of the newest request, or of the exchange that it came to."""
        placed = self.steers.placed
        return placed[-1].digest if placed and placed[-1].after == len(self.exchanges) else self.digests[-1]

    @property
    def next_digest(self) -> str:
        """Digest of the next request: with the steers that wait, unless it repeats a refused one."""
        return self.tip if self.refused or not self.steers.pending else self.steers.digest(self.tip)

    @property
    def steered(self) -> bool:
        """Whether a user has said more than the newest exchange answers, so that no reply is the end of the run."""
        return self.steers.follow(len(self.exchanges))

    def place_steers(self, digest: str) -> None:
        """The request of that digest is about to leave, with the steers that wait."""
        if not self.refused and self.steers.pending:
            self._shown = (*self._shown, *self.exchanges[self._since :], *self.steers.pending)
            self._since = len(self.exchanges)
            self.steers.place(self._since, digest)

    def is_asked(self, ref: RequestRef) -> bool:
        """Whether a request of that length has that digest, be it the one that comes next."""
        if self.digests[ref.exchanges] == ref.digest:
            return True
        if any((one.after, one.digest) == (ref.exchanges, ref.digest) for one in self.steers.placed):
            return True
        return ref.exchanges == len(self.exchanges) and ref.digest == self.next_digest

    def asked(self, ref: RequestRef) -> tuple[tuple[Message, ...], tuple[ModelExchange, ...], int]:
        """Messages, exchanges after them, and bytes of a request that `is_asked`."""
        count, steers = ref.exchanges, self.steers
        later = sum(entry.size for entry in self.entries[count:])
        if count == len(self.exchanges) and ref.digest == self.tip:
            size = self.request_size - later - steers.pending_size
            return self._shown, tuple(self.exchanges[self._since :]), size
        inside = steers.before(count)
        if ref.digest != self.digests[count]:
            digests = [one.digest for one in steers.placed]
            inside = steers.placed[: digests.index(ref.digest) + 1 if ref.digest in digests else None]
        since = inside[-1].after if inside else 0
        messages = (*self._base.messages, *said(self.exchanges[:since], inside))
        size = self.request_size - later - steers.pending_size - sum(one.size for one in steers.placed[len(inside) :])
        if steers.pending and inside == steers.placed and ref.digest == self.next_digest:
            messages += (*self.exchanges[since:count], *steers.pending)
            return messages, (), size + steers.pending_size
        return messages, tuple(self.exchanges[since:count]), size

    def said(self, count: int) -> tuple[tuple[Message, ...], int]:
        """What was said up to the exchange of that number, from 1, after this turn's own messages; and its bytes."""
        steers = self.steers.before(count)
        size = sum(entry.size for entry in self.entries[:count]) + sum(one.size for one in steers)
        return said(self.exchanges[:count], steers), size


class Conversation:
    """The turns of one conversation.

    Attributes:
        head: the newest complete exchange, None before the first.
        live: id of the run that is on it now.
        runs: ids of its runs, oldest first; the first one is a branch's own id where there is a ``base``.
        base: the exchange of another conversation that it goes on from, and what was said up to there.
        source: name of that conversation.
    """

    __slots__ = ("base", "head", "live", "name", "runs", "source")

    def __init__(self, name: str) -> None:
        self.name = name
        self.head: ExchangeRef | None = None
        self.live: str | None = None
        self.runs: list[str] = []
        self.base: tuple[ExchangeRef, History] | None = None
        self.source: str | None = None
