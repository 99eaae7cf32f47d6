"""Presets: the smallest sets, and none that lets a cut stream pass."""

from __future__ import annotations

import random
import re

import msgspec
import pytest

from agentloop.errors import InputError
from agentloop.wire import (
    ALLOWANCES,
    LENIENT,
    OPENAI,
    PRESETS,
    Dialect,
    check_stream,
    dialect,
    dialect_for_host,
    narrowest_first,
    narrowest_verdict,
)
from tests.wire.quirks import QUIRKS
from tests.wire.streams import needs_shared, shared

RECORDED = {
    "azure": ["azure__*"],
    "github_copilot": ["github-copilot__*"],
    "deepseek": ["deepseek__*"],
    "groq": ["groq__*"],
    "mistral": ["mistral__*"],
    "ollama": ["ollama*"],
    "openrouter": ["openrouter__*"],
    "vllm": ["vllm__*__text__*", "vllm__*__reasoning-text__*"],
    "llama_cpp": ["llama-cpp__*"],
    "litellm": ["litellm-proxy__*"],
    "cerebras": ["cerebras__*"],
    "perplexity": ["perplexity__*"],
    "minimax": ["minimax__*"],
    "writer": ["writer__*"],
    "huggingface": ["hf-router__*"],
    "moonshot": ["moonshot__*"],
    "zai": ["zai__*", "zhipu-bigmodel__*"],
    "doubleword": ["doubleword__*"],
    "avian": ["avian__*"],
    "together": ["together__*"],
    "bedrock": ["aws-bedrock__*"],
    "anthropic": ["anthropic-compat__*"],
    "openai_no_usage": ["openai__*"],
    "gemini_no_usage": ["gemini-openai-compat__*", "envoy-ai-transcoder__*"],
    "xai_no_usage": ["xai__*"],
    "vllm_no_usage": ["vllm__*__tool-text__*"],
}
REPORTED = {  # allowances that no recording at hand shows, from documentation and reports
    "azure": {"identity_empty_later", "delta_absent"},
    "gemini": {
        "index_absent",
        "index_shared",
        "call_id_absent",
        "arguments_placeholder",
        "calls_after_finish",
        "usage_running",
        "usage_partial",
    },
    "ollama": {"index_shared"},
    "minimax": {"arguments_object"},
    "localai": {"call_repeated"},
}


def recordings(preset: str) -> list[bytes]:
    """The recorded streams of a preset's servers that are one whole reply."""
    rows: list[dict[str, str]] = msgspec.json.Decoder().decode_lines(shared("streams", "index.jsonl").read_bytes())
    refused = {row["file"] for row in rows if row["must"] == "refuse"}
    paths = [path for pattern in RECORDED.get(preset, ()) for path in shared("streams").glob(f"{pattern}.sse")]
    assert paths or preset not in RECORDED
    return [path.read_bytes() for path in sorted(paths) if path.name not in refused]


def without(preset: Dialect, allowance: str) -> Dialect:
    return msgspec.structs.replace(preset, **{allowance: False})


def test_the_strict_preset_allows_nothing_and_the_last_one_all_but_an_inferred_finish() -> None:
    """R117."""
    assert narrowest_first()[0] is OPENAI
    assert narrowest_first()[-1] is LENIENT
    assert set(ALLOWANCES) - set(LENIENT.allowances()) == {"finish_inferred"}
    assert not any(preset.finish_inferred for preset in PRESETS.values())


def test_presets_come_by_the_number_of_their_allowances_then_in_a_fixed_order() -> None:
    order = [(len(preset.allowances()), list(PRESETS).index(preset.name)) for preset in narrowest_first()]
    assert order == sorted(order)
    assert len(order) == len(PRESETS)


def test_a_server_that_sends_something_after_the_finish_must_say_done() -> None:
    """R119: a cut between the two would go unseen."""
    for preset in PRESETS.values():
        if preset is not LENIENT:
            assert not (preset.done_absent and (preset.delta_after_finish or preset.calls_after_finish)), preset.name


def test_each_server_has_a_preset_for_requests_that_ask_for_no_usage() -> None:
    for name, preset in PRESETS.items():
        if preset.usage_absent or name.endswith("_no_usage"):
            continue
        quiet = PRESETS[f"{name}_no_usage"]
        assert quiet == msgspec.structs.replace(preset, name=quiet.name, usage_absent=True)


def test_a_server_is_asked_for_what_it_is_known_to_do() -> None:
    """What nobody knows of counts as no schema and a forced call, which is what most servers have."""
    no_schema = {name for name, preset in PRESETS.items() if not preset.json_schema and not name.endswith("_no_usage")}
    assert set(PRESETS) - no_schema - {name for name in PRESETS if name.endswith("_no_usage")} == {
        "openai", "azure", "gemini", "mistral", "ollama", "vllm", "llama_cpp", "cerebras", "perplexity", "xai"
    }  # fmt: skip
    unforced = {name for name, preset in PRESETS.items() if not preset.forced_call and not name.endswith("_no_usage")}
    assert unforced == {"ollama", "perplexity", "minimax", "moonshot", "zai"}
    apart = {name for name, preset in PRESETS.items() if not preset.schema_with_tools and preset.json_schema}
    assert apart == {"gemini", "gemini_no_usage", "vllm", "vllm_no_usage"}
    assert (LENIENT.json_schema, LENIENT.forced_call) == (False, True)


def test_a_preset_is_found_by_name_and_by_host() -> None:
    assert dialect("azure").name == "azure"
    hosts = {
        "api.openai.com": "openai",
        "my-resource.OpenAI.azure.com.": "azure",
        "bedrock-runtime.us-east-1.amazonaws.com": "bedrock",
        "openrouter.ai": "openrouter",
        "localhost": "openai",
        "notopenrouter.ai": "openai",
        "": "openai",
    }
    assert {host: dialect_for_host(host).name for host in hosts} == hosts
    with pytest.raises(InputError, match=r"expected one of openai, azure.*got 'opanai'"):
        dialect("opanai")


@pytest.mark.parametrize("name", QUIRKS)
def test_every_quirk_but_an_inferred_finish_is_admitted_by_the_last_preset(name: str) -> None:
    quirk = QUIRKS[name]
    verdict = check_stream(quirk.events, LENIENT)
    if name == "finish_inferred":
        assert verdict.refusal is not None
    else:
        assert verdict.reply is not None
        assert verdict.reply.text == quirk.text


@needs_shared
@pytest.mark.parametrize("name", RECORDED)
def test_a_preset_admits_its_recordings(name: str) -> None:
    for body in recordings(name):
        verdict = check_stream([body], PRESETS[name])
        if verdict.refusal is not None:  # an older server of the same name, or one that was asked for no usage
            quiet = PRESETS.get(f"{name}_no_usage", LENIENT)
            assert verdict.refusal.code == "missing_usage"
            assert check_stream([body], quiet).reply is not None


@needs_shared
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "lenient" and not name.endswith("_no_usage")])
def test_a_preset_has_no_allowance_that_nothing_needs(name: str) -> None:
    preset = PRESETS[name]
    bodies = recordings(name)
    needed = {
        allowance
        for allowance in preset.allowances()
        if any(check_stream([body], without(preset, allowance)).reply is None for body in bodies)
    }
    assert needed | REPORTED.get(name, set()) == set(preset.allowances())


# The promise: under every preset a stream that is cut before its finish is refused.


FINISH = re.compile(rb'"finish_reason"\s*:\s*"[^"]')
BORDER = re.compile(rb"\r\n\r\n|\n\n")


def places(body: bytes, draw: random.Random) -> list[int]:
    """Event borders and 50 other places before the end of the event with the first finish word.

    All borders of a short stream; of a long one the last ten and 190 others.
    """
    finish = FINISH.search(body)
    assert finish is not None
    ended = BORDER.search(body, finish.end())
    last = len(body) if ended is None else (ended.start() + ended.end()) // 2
    borders = [found.end() for found in BORDER.finditer(body, 0, last)]
    if len(borders) > 200:
        borders = [*draw.sample(borders[:-10], 190), *borders[-10:]]
    return [0, *borders, *(draw.randrange(last + 1) for _ in range(50)), last]


@pytest.mark.parametrize("preset", [OPENAI, LENIENT, *(PRESETS[name] for name in ("gemini", "perplexity", "minimax"))])
@pytest.mark.parametrize("name", [name for name in QUIRKS if name != "finish_inferred"])
def test_a_quirky_stream_cut_before_its_finish_is_refused(name: str, preset: Dialect) -> None:
    """R117."""
    body = b"".join(QUIRKS[name].events)
    for place in places(body, random.Random(7)):
        assert check_stream([body[:place]], preset).reply is None


@needs_shared
def test_a_recorded_stream_cut_anywhere_before_its_finish_is_refused() -> None:
    """R117: under the admitting preset and under the most lenient one."""
    draw = random.Random(20_261_129)
    checked = 0
    for path in sorted(shared("streams").glob("*.sse")):
        body = path.read_bytes()
        admitting = narrowest_verdict([body])
        if admitting.reply is None:
            continue
        for name in {admitting.dialect, "lenient"}:
            for place in places(body, draw):
                assert check_stream([body[:place]], PRESETS[name]).reply is None, (path.name, name, place)
        checked += 1
    assert checked > 100
