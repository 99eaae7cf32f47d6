"""Records: what was written once is read for ever, exactly, or refused by name."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import AdmissionError, RestoreError
from agentloop.exchange import Fact, ReplyTaken, RunClosed
from agentloop.messages import Text
from agentloop.persistence import records
from agentloop.persistence.batch import KINDS
from agentloop.persistence.records import RECORD_VERSION, decode_record, encode_record
from tests.messages.values import call, reply
from tests.persistence.facts import ARGUMENTS, GOLDEN, LATER, UNTOLD, as_told_by_v1, facts, v1_record

GOLDEN_FILES = sorted((Path(__file__).parent / "golden").glob("v[0-9]/*.json"))
CLOSED = RunClosed(run_id="r1", outcome="failed", reason="x", at_ms=1)


def record(**changes: Any) -> str:
    """The record of a run's end with some members changed; ``...`` takes one away."""
    members = {**json.loads(encode_record(CLOSED)), **changes}
    return json.dumps({name: value for name, value in members.items() if value is not ...})


def refused(data: bytes | str, code: str = "bad_record") -> str:
    with pytest.raises(RestoreError) as caught:
        decode_record(data, where="fact 7 of s.db")
    assert caught.value.code == code
    assert caught.value.where.startswith("fact 7 of s.db")
    assert caught.value.__cause__ is None
    return str(caught.value)


# -- golden files


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_any_version_wrote_is_read(path: Path) -> None:
    """(R89)"""
    data = path.read_bytes().removesuffix(b"\n")
    fact = decode_record(data, where=path.name)
    if path.parent.name == "v1":
        assert v1_record(GOLDEN[path.stem]) == data
        assert fact == as_told_by_v1(GOLDEN[path.stem])
    else:
        assert fact == GOLDEN[path.stem]
        assert encode_record(fact) == data


def test_the_files_of_version_1_stay_as_they_were_written() -> None:
    digest = hashlib.sha256()
    for path in GOLDEN_FILES:
        if path.parent.name == "v1":
            digest.update(path.name.encode() + path.read_bytes())
    assert digest.hexdigest() == "1b818eed1999c8964daa09927764ad40183063ea03e4791fbe0330c0cd5b6439"


def test_the_version_that_is_written_has_a_golden_file_for_each_kind() -> None:
    written = {path.stem for path in GOLDEN_FILES if path.parent.name == f"v{RECORD_VERSION}"}
    assert written == set(GOLDEN)
    assert {type(fact) for fact in GOLDEN.values()} == KINDS


def test_a_record_is_one_line_with_its_kind_and_version() -> None:
    assert encode_record(CLOSED) == (
        b'{"fact":"run_closed","outcome":"failed","reason":"x","at_ms":1,"run_id":"r1","version":2}'
    )


# -- exactness


@given(fact=facts)
@settings(max_examples=200)
def test_every_fact_comes_back_equal(fact: Fact) -> None:
    data = encode_record(fact)
    assert decode_record(data, where="here") == fact
    assert decode_record(data.decode(), where="here") == fact
    assert b"\n" not in data


def test_every_unicode_scalar_comes_back() -> None:
    scalars = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    for start in range(0, len(scalars), 1 << 16):
        fact = ReplyTaken(
            run_id="r1",
            origin_id="o1",
            index=0,
            attempt_id="a1",
            reply=reply(Text(text=scalars[start : start + (1 << 16)])),
        )
        assert decode_record(encode_record(fact), where="here") == fact


@given(digits=st.text("0123456789", min_size=40, max_size=400), text=st.text(max_size=10))
def test_argument_text_is_never_parsed(digits: str, text: str) -> None:
    """(R18)"""
    for arguments in (ARGUMENTS, f'{{"n":-0,"m":{digits},"e":1E+{digits}, "s":"{text}"', digits, "-0", text):
        fact = ReplyTaken(
            run_id="r1", origin_id="o1", index=0, attempt_id="a1", reply=reply(call("c", arguments=arguments))
        )
        back = decode_record(encode_record(fact), where="here")
        assert type(back) is ReplyTaken
        assert back.reply.calls[0].arguments.text == arguments


@given(fact=facts, data=st.data())
def test_another_layout_is_the_same_fact(fact: Fact, data: st.DataObject) -> None:
    members = list(msgspec.json.decode(encode_record(fact)).items())
    mixed = dict(data.draw(st.permutations(members)))
    text = msgspec.json.format(msgspec.json.encode(mixed), indent=2)
    assert decode_record(text, where="here") == fact


def test_what_was_written_is_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The careful reading is for other layouts, and to name a fault."""
    monkeypatch.delattr(records, "_decode_checked")
    for path in GOLDEN_FILES:
        assert type(decode_record(path.read_bytes().removesuffix(b"\n"), where=path.name)) in KINDS


# -- version 1


@given(fact=facts.filter(lambda fact: type(fact) not in LATER))
@settings(max_examples=200)
def test_what_version_1_told_is_read_and_written_again_in_todays_form(fact: Fact) -> None:
    """(R89)"""
    told = decode_record(v1_record(fact), where="here")
    assert told == as_told_by_v1(fact)
    again = encode_record(told)
    assert json.loads(again)["version"] == RECORD_VERSION
    assert decode_record(again, where="here") == told


@given(fact=facts.filter(lambda fact: type(fact) not in LATER), data=st.data())
def test_another_layout_of_version_1_is_the_same_fact(fact: Fact, data: st.DataObject) -> None:
    members = list(msgspec.json.decode(v1_record(fact)).items())
    text = msgspec.json.format(msgspec.json.encode(dict(data.draw(st.permutations(members)))), indent=2)
    assert decode_record(text, where="here") == as_told_by_v1(fact)


@pytest.mark.parametrize("name", ["send_ended", "send_ended_failed", "send_ended_refused", "send_ended_untold"])
def test_an_early_record_of_version_2_did_not_tell_what_was_previewed(name: str) -> None:
    """The first ones had no such field (R89)."""
    data = (Path(__file__).parent / "golden" / "v2-early" / f"{name}.json").read_bytes().removesuffix(b"\n")
    told = decode_record(data, where="here")
    assert told == GOLDEN[name]
    assert (told.stream_refused, told.previewed) == (False, None)  # type: ignore[union-attr]
    assert json.loads(encode_record(told)) == {**json.loads(data), "stream_refused": False, "previewed": None}


@pytest.mark.parametrize("name", ["origin_opened_cut", "run_redacted"])
def test_an_early_record_of_version_2_knew_no_child_runs(name: str) -> None:
    data = (Path(__file__).parent / "golden" / "v2-early" / f"{name}.json").read_bytes().removesuffix(b"\n")
    told = decode_record(data, where="here")
    assert told == GOLDEN[name]
    later = {"parent": None, "brought": 0} if name == "origin_opened_cut" else {"parent": None}
    assert json.loads(encode_record(told)) == {**json.loads(data), **later}


def test_an_early_record_of_version_2_knew_nothing_that_its_host_brought_as_said_before() -> None:
    data = (Path(__file__).parent / "golden" / "v2-early" / "origin_opened_child.json").read_bytes().removesuffix(b"\n")
    told = decode_record(data, where="here")
    assert told == GOLDEN["origin_opened_child"]
    assert json.loads(encode_record(told)) == {**json.loads(data), "brought": 0}


@pytest.mark.parametrize("name", ["slot_moved", "slot_moved_settled", "slot_moved_started", "slot_moved_untold"])
def test_an_early_record_of_version_2_did_not_tell_what_was_converted(name: str) -> None:
    """The first ones had no such field (R89)."""
    data = (Path(__file__).parent / "golden" / "v2-early" / f"{name}.json").read_bytes().removesuffix(b"\n")
    told = decode_record(data, where="here")
    assert told == GOLDEN[name]
    assert json.loads(encode_record(told)) == {**json.loads(data), "converted": []}


@pytest.mark.parametrize("name", ["send_ended", "slot_moved"])
def test_a_record_from_before_effects_were_settled_names_no_author(name: str) -> None:
    """The first ones of version 1 had no such field (R89)."""
    members = json.loads(v1_record(GOLDEN[name]))
    del members["author"]
    told = decode_record(json.dumps(members), where="here")
    assert told == msgspec.structs.replace(as_told_by_v1(GOLDEN[name]), author=None)


def test_a_record_of_version_1_holds_nothing_that_came_later() -> None:
    """(R39, R40)"""
    for fact in GOLDEN.values():
        for name in UNTOLD.get(type(fact), {}):
            members = {**json.loads(v1_record(fact)), name: json.loads(encode_record(fact))[name]}
            assert f"$.{name}: expected no field of this name" in refused(json.dumps(members))
        if type(fact) in UNTOLD:
            written = encode_record(fact).replace(b'"version":2}', b'"version":1}')
            assert ": expected no field of this name" in refused(written)


def test_version_1_had_no_record_of_a_kind_that_came_later() -> None:
    later = [fact for fact in GOLDEN.values() if type(fact) in LATER]
    assert {type(fact) for fact in later} == set(LATER)
    for fact in later:
        assert "$.fact: expected" in refused(v1_record(fact))


def test_a_record_of_version_2_tells_its_time() -> None:
    for name in ("send_ended", "slot_moved", "rerun_allowed"):
        data = v1_record(GOLDEN[name]).replace(b'"version":1}', b'"version":2}')
        assert "$.at_ms: expected this field, got none" in refused(data)


@given(at=st.integers(0, 2_000), value=st.integers(0, 255), name=st.sampled_from(sorted(GOLDEN)))
@settings(max_examples=200)
def test_a_damaged_record_of_version_1_is_a_fact_or_a_named_error(at: int, value: int, name: str) -> None:
    data = bytearray(v1_record(GOLDEN[name]))
    data[at % len(data)] = value
    with contextlib.suppress(RestoreError):
        assert type(decode_record(bytes(data), where="here")) in KINDS


# -- what is refused


def test_what_is_no_fact_has_no_record() -> None:
    class Other(RunClosed, frozen=True, tag="other"):
        pass

    for value in (object(), {"fact": "run_closed"}, Other(run_id="r", outcome="failed", reason=None, at_ms=1)):
        with pytest.raises(AdmissionError, match="expected a fact"):
            encode_record(value)  # type: ignore[arg-type]
    with pytest.raises(AdmissionError, match="surrogate") as caught:
        encode_record(RunClosed(run_id="\ud800secret", outcome="failed", reason=None, at_ms=1))
    assert caught.value.__cause__ is None
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("version", [-1, 0, 3, 10**40])
def test_another_version_is_named(version: int) -> None:
    assert refused(record(version=version), "restore_version") == (
        f"restore_version: fact 7 of s.db: expected record version 1 to 2, got {version}"
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (record(fact="run_paused"), "$.fact: expected a known kind of fact, got 'run_paused'"),
        (record(fact="secret text"), "$.fact: expected a known kind of fact, got str"),
        (record(fact=["secret"]), "$.fact: expected a known kind of fact, got list"),
        (record(fact=...), "$.fact: expected this field, got none"),
        (record(version=...), "$.version: expected this field, got none"),
        (record(version="1"), "$.version: expected a number, got str"),
        (record(version=True), "$.version: expected a number, got bool"),
        (record(version=1.0), "$.version: expected a number, got float"),
        (record(reason=...), "$.reason: expected this field, got none"),
        (record(colour=1), "$.colour: expected no field of this name"),
        (record(outcome="secret"), "$.outcome: expected one of the known words"),
        (record(at_ms="1"), "$.at_ms: expected int, got str"),
        (record(at_ms=1.5), "$.at_ms: expected int, got float"),
        (record(run_id=None), "$.run_id: expected str, got null"),
        (record()[:-1] + ', "run_id": "r2"}', "expected each key once"),
        (record(reason="\ud800"), "$.reason: expected surrogates in pairs"),
        (record()[:-1], "expected"),
        (record() + "{}", "expected"),
        ("", "expected"),
        ("[]", "$: expected an object, got list"),
        ("null", "$: expected an object, got NoneType"),
        ("[" * 100_000, "levels of nesting"),
        (b"\xef\xbb\xbf{}", "expected"),
        (b"\xff", "valid UTF-8"),
        ("\ud800", "valid UTF-8"),
    ],
)
def test_what_is_no_record_is_named_by_its_place(data: bytes | str, says: str) -> None:
    told = refused(data)
    assert says in told
    assert "secret" not in told


def test_a_rule_of_a_value_inside_is_told_with_its_place() -> None:
    data = encode_record(GOLDEN["reply_taken"]).replace(b'"format_version":1', b'"format_version":2')
    assert "$.reply.format_version: expected" in refused(data)
    data = encode_record(GOLDEN["send_ended"]).replace(b'"input_tokens":10', b'"input_tokens":-10')
    assert "$.usage: Usage.input_tokens: expected an integer of 0 or more" in refused(data)


@given(at=st.integers(0, 2_000), value=st.integers(0, 255), name=st.sampled_from(sorted(GOLDEN)))
@settings(max_examples=200)
def test_a_damaged_record_is_a_fact_or_a_named_error(at: int, value: int, name: str) -> None:
    data = bytearray(encode_record(GOLDEN[name]))
    data[at % len(data)] = value
    with contextlib.suppress(RestoreError):
        assert type(decode_record(bytes(data), where="here")) in KINDS
