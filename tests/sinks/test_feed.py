"""One run's events for any number of readers, who come late, go and come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import StreamRefused
from agentloop.events import Event, ModelEnd, ReasoningPreview, RequestRejected, TextPreview
from agentloop.sinks import Feed, Follower
from tests.sinks.feeding import Line, taken


def short(events: list[Event]) -> list[str]:
    """Each event as its type, previews with offset and text."""
    return [
        f"{event.type} {event.offset}:{event.text}" if isinstance(event, TextPreview | ReasoningPreview) else event.type
        for event in events
    ]


async def test_a_follower_gets_every_event_in_order_and_then_the_end() -> None:
    """(R262, R319)"""
    line = Line()
    follower = line.feed.follow()
    line.note()
    await line.call("he", "llo")
    line.feed.close()
    events = [event async for event in follower]
    assert short(events) == [
        "runtime.rejected",
        "model.start",
        "model.output 0:hello",
        "model.end",
    ]
    assert [event.sequence for event in events] == [1, 2, 4, 5]


async def test_a_live_follower_gets_each_preview_as_it_comes() -> None:
    """(R267)"""
    line = Line()
    follower = line.feed.follow()
    await line.start()
    await line.show("he")
    assert short(await taken(follower)) == ["model.start", "model.output 0:he"]
    await line.show("llo")
    assert short(await taken(follower)) == ["model.output 2:llo"]
    await line.end()
    assert short(await taken(follower)) == ["model.end"]


async def test_a_follower_that_waits_is_woken_by_the_next_event() -> None:
    line = Line()
    reading = asyncio.ensure_future(line.feed.follow().__anext__())
    await asyncio.sleep(0)
    assert not reading.done()
    line.note()
    assert (await reading).type == "runtime.rejected"


async def test_a_late_follower_gets_each_stretch_of_an_ended_attempt_in_one() -> None:
    """(R267)"""
    line = Line()
    await line.start()
    stretches: list[tuple[type[TextPreview | ReasoningPreview], list[str]]] = [
        (ReasoningPreview, ["h", "m"]),
        (TextPreview, ["he", "l"]),
        (ReasoningPreview, ["…"]),
    ]
    for kind, texts in stretches:
        for text in texts:
            await line.show(text, kind)
    await line.show("lo")
    await line.end()
    assert short(await taken(line.feed.follow())) == [
        "model.start",
        "model.reasoning 0:hm",
        "model.output 0:hel",
        "model.reasoning 2:…",
        "model.output 3:lo",
        "model.end",
    ]


async def test_another_event_between_two_previews_loses_no_text_to_those_who_read_it_first() -> None:
    """(R319)"""
    line = Line()
    await line.start()
    await line.show("a")
    line.note()
    await line.show("b")
    await line.end()
    assert short(await taken(line.feed.follow(), 3)) == ["model.start", "model.output 0:a", "runtime.rejected"]
    assert short(await taken(line.feed.follow(after=3))) == ["model.output 1:b", "model.end"]


async def test_the_previews_of_a_failed_attempt_are_gone_for_late_followers() -> None:
    """(R265, R267)"""
    line = Line()
    await line.call("wrong", status="error")
    await line.call("right")
    events = await taken(line.feed.follow())
    assert short(events) == ["model.start", "model.end", "model.start", "model.output 0:right", "model.end"]
    assert [event.retracted for event in events if isinstance(event, ModelEnd)] == [True, False]


async def test_an_end_whose_start_was_never_pushed_leaves_the_attempt_before_alone() -> None:
    line = Line()
    await line.call("kept")
    await line.end("error")
    assert short(await taken(line.feed.follow())) == ["model.start", "model.output 0:kept", "model.end", "model.end"]


async def test_a_reader_in_the_middle_of_folded_text_gets_the_rest_of_it() -> None:
    line = Line()
    follower = line.feed.follow()
    await line.start()
    for text in ("ab", "c", "def"):
        await line.show(text)
    assert short(await taken(follower, 2)) == ["model.start", "model.output 0:ab"]
    await line.end()
    assert short(await taken(follower)) == ["model.output 2:cdef", "model.end"]


# -- every cut


SHOWN: list[tuple[type[TextPreview | ReasoningPreview], str]] = [
    (ReasoningPreview, "x"),
    (ReasoningPreview, "yz"),
    (TextPreview, "ab"),
    (TextPreview, "c"),
    (ReasoningPreview, "w"),
    (TextPreview, "d"),
]


async def whole_run(line: Line) -> None:
    await line.start()  # 1
    for kind, text in SHOWN:  # 2 to 7
        await line.show(text, kind)
    await line.parsed()  # 8
    await line.end()  # 9
    line.note()  # 10
    await line.call("no", "pe", status="error")  # 11 to 14
    await line.call("e", "nd")  # 15 to 18


@pytest.mark.parametrize("after", range(20))
async def test_following_after_any_event_gives_exactly_what_comes_after_it(after: int) -> None:
    """(R319)"""
    line = Line()
    await whole_run(line)
    line.feed.close()
    events = [event async for event in line.feed.follow(after=after)]
    shown = dict(enumerate(SHOWN, 2)) | {16: (TextPreview, "e"), 17: (TextPreview, "nd")}
    for kind in (TextPreview, ReasoningPreview):
        got = "".join(event.text for event in events if isinstance(event, kind))
        assert got == "".join(text for sequence, (k, text) in shown.items() if k is kind and sequence > after)
    others = [event.sequence for event in events if not isinstance(event, TextPreview | ReasoningPreview)]
    assert others == [sequence for sequence in (1, 8, 9, 10, 11, 14, 15, 18) if sequence > after]


# -- any interleaving


class Reader:
    """What a person sees: text by attempt, taken back when the attempt fails."""

    def __init__(self, feed: Feed, after: int) -> None:
        self.feed, self.after = feed, after
        self.follower = feed.follow(after=after)
        self.sequences: list[int] = []
        self.pieces: dict[tuple[str, str], list[TextPreview | ReasoningPreview]] = {}

    async def read(self, count: int | None = None) -> None:
        for event in await taken(self.follower, count):
            self.sequences.append(event.sequence)
            if isinstance(event, TextPreview | ReasoningPreview):
                self.pieces.setdefault((event.attempt_id, event.type), []).append(event)
            elif isinstance(event, ModelEnd) and event.retracted:
                for kind in ("model.output", "model.reasoning"):
                    self.pieces.pop((event.attempt_id, kind), None)

    def reconnect(self) -> None:
        """A new follower after the last event seen, as a browser does it."""
        self.follower = self.feed.follow(after=self.follower.seen)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_is_lost_and_nothing_comes_twice_however_readers_come_and_go(data: st.DataObject) -> None:
    """(R265, R267, R319)"""
    asyncio.run(_interleave(data))


async def _interleave(data: st.DataObject) -> None:
    line = Line()
    readers: list[Reader] = []
    pushed: list[tuple[int, str, str, str]] = []  # sequence, attempt, kind, text
    failed: set[str] = set()
    others: list[int] = []
    sequence = 0
    running = False
    for _ in range(data.draw(st.integers(0, 25))):
        step = data.draw(st.sampled_from(["model", "model", "show", "show", "show", "note", "follow", "read", "again"]))
        if step == "model" and not running:
            await line.start()
            running, sequence = True, sequence + 1
            others.append(sequence)
        elif step == "model":
            status = data.draw(st.sampled_from(["success", "success", "error", "cancelled"]))
            if status != "success":
                failed.add(line.attempt)
            await line.end(status)
            running, sequence = False, sequence + 1
            others.append(sequence)
        elif step == "show" and running:
            kind: Any = data.draw(st.sampled_from([TextPreview, ReasoningPreview]))
            text = data.draw(st.text("abé😀", min_size=1, max_size=3))
            await line.show(text, kind)
            sequence += 1
            pushed.append((sequence, line.attempt, kind.type, text))
        elif step == "note":
            line.note()
            sequence += 1
            others.append(sequence)
        elif step == "follow":
            readers.append(Reader(line.feed, data.draw(st.integers(0, sequence))))
        elif step == "read" and readers:
            await data.draw(st.sampled_from(readers)).read(data.draw(st.integers(1, 4)))
        elif step == "again" and readers:
            data.draw(st.sampled_from(readers)).reconnect()
    if running:
        await line.end()
        others.append(sequence + 1)
    line.feed.close()
    for reader in [*readers, Reader(line.feed, 0)]:
        await reader.read()
        _holds(reader, pushed, failed, others)
    assert not line.feed._waiters


def _holds(reader: Reader, pushed: list[tuple[int, str, str, str]], failed: set[str], others: list[int]) -> None:
    assert reader.sequences == sorted(set(reader.sequences))
    missing = {sequence for sequence in others if sequence > reader.after} - set(reader.sequences)
    assert not missing
    expected: dict[tuple[str, str], str] = {}
    begins: dict[tuple[str, str], int] = {}
    for sequence, attempt, kind, text in pushed:
        if attempt in failed:
            continue
        if sequence > reader.after:
            expected[attempt, kind] = expected.get((attempt, kind), "") + text
        else:
            begins[attempt, kind] = begins.get((attempt, kind), 0) + len(text)
    assert {key: "".join(piece.text for piece in pieces) for key, pieces in reader.pieces.items()} == expected
    for key, pieces in reader.pieces.items():
        offset = begins.get(key, 0)
        for piece in pieces:
            assert piece.offset == offset
            offset += len(piece.text)


# -- back-pressure


async def filled(high_water: int) -> tuple[Line, Follower]:
    line = Line(high_water=high_water)
    follower = line.feed.follow(attached=True)
    await line.start()
    for _ in range(high_water - 1):
        await line.show("x")
    return line, follower


async def test_a_run_waits_for_an_attached_follower_that_is_too_far_behind() -> None:
    line, follower = await filled(4)
    assert not line.feed.behind
    showing = asyncio.ensure_future(line.show("y"))
    await asyncio.sleep(0)
    assert line.feed.behind
    assert not showing.done()
    assert len(await taken(follower, 2)) == 2
    assert not showing.done()  # not for each event: the run goes on when half of the room is free
    await taken(follower, 1)
    await showing


async def test_only_the_attached_follower_holds_a_run_up() -> None:
    line = Line(high_water=2)
    line.feed.follow()
    line.feed.follow(after=0)
    await asyncio.wait_for(line.call(*"abcdefgh"), 1)
    assert not line.feed.behind


@pytest.mark.parametrize("free", ["detach", "close"])
async def test_a_run_that_waits_goes_on_when_its_follower_leaves_or_the_feed_ends(free: str) -> None:
    line, _ = await filled(4)
    showing = asyncio.ensure_future(line.show("y"))
    await asyncio.sleep(0)
    assert not showing.done()
    getattr(line.feed, free)()
    await asyncio.wait_for(showing, 1)
    assert not line.feed.behind


async def test_a_run_that_is_cancelled_while_it_waits_can_still_tell_its_end() -> None:
    """(R265)"""
    line, follower = await filled(4)
    showing = asyncio.ensure_future(line.show("y"))
    await asyncio.sleep(0)
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    await line.end("cancelled")
    assert short(await taken(follower)) == ["model.start", "model.end"]


async def test_process_events_never_wait_for_a_follower() -> None:
    line, follower = await filled(4)
    for _ in range(20):
        line.note()
    assert line.feed.behind
    assert len(await taken(follower)) == 24


# -- the end


async def test_the_error_comes_after_the_last_event_to_every_follower() -> None:
    """(R265)"""
    line = Line()
    early = line.feed.follow()
    await line.call("x", status="error")
    error = StreamRefused("truncated", 1, 2, "a finish", "the end")
    line.feed.close(error)
    for follower in (early, line.feed.follow(), line.feed.follow(after=99)):
        before = [await follower.__anext__() for _ in range(2)] if follower.seen == 0 else []
        assert [event.type for event in before] in (["model.start", "model.end"], [])
        for _ in range(2):
            with pytest.raises(StreamRefused) as caught:
                await follower.__anext__()
            assert caught.value is error


async def test_waiting_followers_are_woken_by_the_end() -> None:
    feed = Feed()
    waiting = [asyncio.ensure_future(feed.follow().__anext__()) for _ in range(3)]
    await asyncio.sleep(0)
    feed.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StopAsyncIteration] * 3


async def test_a_follower_that_is_cancelled_leaves_nothing_behind_and_can_read_on() -> None:
    line = Line()
    follower = line.feed.follow()
    for _ in range(5):
        reading = asyncio.ensure_future(follower.__anext__())
        await asyncio.sleep(0)
        assert len(line.feed._waiters) == 1
        reading.cancel()
        await asyncio.wait({reading})
    assert not line.feed._waiters
    line.note()
    assert isinstance(await follower.__anext__(), RequestRejected)


async def test_what_is_kept_of_long_text_is_one_event() -> None:
    line = Line()
    await line.call(*["x"] * 1_000)
    assert len(line.feed._events) == 3
    assert short(await taken(line.feed.follow(after=500)))[0] == f"model.output 499:{'x' * 501}"


# -- what can be read at once, and what cannot be read any more


async def test_what_is_there_can_be_read_without_waiting() -> None:
    line = Line()
    follower = line.feed.follow()
    assert follower.next_nowait() is None
    await line.start()
    await line.show("he")
    assert short([event for _ in range(2) if (event := follower.next_nowait())]) == ["model.start", "model.output 0:he"]
    assert follower.next_nowait() is None
    await line.end()
    line.feed.close()
    assert short([event async for event in follower]) == ["model.end"]
    assert follower.next_nowait() is None


async def test_a_reader_from_the_beginning_of_a_whole_log_misses_nothing() -> None:
    line = Line()
    assert not line.feed.follow().missed
    await line.call("he", "llo", status="error")  # the previews are taken back, not missed
    assert [line.feed.follow(after=after).missed for after in range(5)] == [False] * 5


async def test_a_reader_of_a_run_that_another_process_began_is_told_that_it_misses_events() -> None:
    feed = Feed(told=1_000)
    assert [feed.follow(after=after).missed for after in (0, 7, 999)] == [True] * 3
    assert not feed.follow(after=1_000).missed


async def test_a_log_that_goes_on_again_and_again_misses_what_is_older_than_the_last_time() -> None:
    line = Line()
    await line.call("one")
    again = line.feed.again(line.feed.last)
    assert not again.follow().missed
    assert short(await taken(again.follow())) == ["model.start", "model.output 0:one", "model.end"]
    start = again.last + 1
    for sequence in (start, start + 1):
        again.push(await _noted(), sequence)
    third = again.again(again.last)
    assert third.follow().missed
    assert third.follow(after=start - 2).missed
    assert not third.follow(after=start - 1).missed


async def _noted() -> Event:
    line = Line()
    line.note()
    return await line.feed.follow().__anext__()
