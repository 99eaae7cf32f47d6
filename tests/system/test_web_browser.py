"""The page in a real browser behind a real proxy: what a person sees while things go well, and while they do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.system.web_page_stage import Browser, Stage, chromium, expect

pytestmark = [pytest.mark.system, pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def stage(browser: Browser, tmp_path: Path) -> AsyncIterator[Stage]:
    async with Stage.set(browser, tmp_path) as found:
        yield found


async def test_text_is_seen_while_the_model_still_withholds_the_rest(stage: Stage) -> None:
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    await ask.say(", two")
    await expect(stage.of("answer")).to_have_text("One, two")
    await stage.shows("running")
    await ask.answer(".")
    await stage.completed("One, two.")
    await expect(stage.of("usage")).to_contain_text("34")
    assert (stage.model.asked, stage.noise) == (1, [])


async def test_a_page_that_is_loaded_anew_in_mid_answer_goes_on(stage: Stage) -> None:
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    await stage.page.reload()
    await expect(stage.of("answer")).to_have_text("One")
    await ask.answer(", two.")
    await stage.completed("One, two.")
    await expect(stage.page.get_by_test_id("turn")).to_have_count(1)
    assert (stage.model.asked, stage.noise) == (1, [])


async def test_what_is_said_while_the_browser_is_offline_is_shown_when_it_is_back(stage: Stage) -> None:
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    await stage.context.set_offline(True)
    await expect(stage.of("connection")).to_have_attribute("data-state", "offline")
    await ask.say(", two")
    await stage.context.set_offline(False)
    await expect(stage.of("answer")).to_have_text("One, two")
    await expect(stage.of("connection")).to_have_attribute("data-state", "online")
    await ask.answer(".")
    await stage.completed("One, two.")
    assert stage.model.asked == 1


async def test_a_proxy_that_dies_and_comes_back_loses_and_doubles_nothing(stage: Stage) -> None:
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    await stage.nginx.kill()
    await expect(stage.of("connection")).to_have_attribute("data-state", "reconnecting")
    await ask.say(", two")
    await stage.nginx.start()
    await expect(stage.of("answer")).to_have_text("One, two", timeout=20_000)
    await expect(stage.of("connection")).to_have_attribute("data-state", "online")
    await ask.answer(".")
    await stage.completed("One, two.")
    assert stage.model.asked == 1


async def test_a_call_shows_its_exact_arguments_and_runs_once_when_it_is_approved(stage: Stage) -> None:
    arguments = '{"to": "Ann",  "body": "Hi <b>Ann</b>, 1.0"}'
    ask = await stage.send("Greet Ann.")
    await ask.call("send_mail", arguments)
    await stage.shows("waiting")
    await expect(stage.of("tool-call")).to_have_attribute("data-state", "waiting")
    shown = stage.of("approval")
    await shown.get_by_test_id("exact").click()
    assert await shown.get_by_test_id("arguments").text_content() == arguments
    assert stage.server.mails() == []
    await shown.get_by_test_id("approve").click()
    again = await stage.model.ask()
    assert again.messages[-1]["content"] == "sent to Ann"
    await expect(stage.of("tool-call")).to_have_attribute("data-state", "done")
    await again.answer("Done.")
    await stage.completed("Done.")
    assert stage.server.mails() == ["Ann: Hi <b>Ann</b>, 1.0"]
    assert (stage.model.asked, stage.noise) == (2, [])


async def test_an_approval_hides_nothing_of_what_would_run(stage: Stage) -> None:
    body = "pay \u202e000001\u202c \u200b \u05d0\u05d1 " + "x" * 9_000
    ask = await stage.send("Greet Ann.")
    await ask.call("send_mail", json.dumps({"to": "\u05d2", "body": body}, ensure_ascii=False))
    await stage.shows("waiting")
    shown = stage.of("approval")
    arguments = shown.get_by_test_id("arguments")
    for _ in range(2):
        text = await arguments.inner_text()
        assert "pay \\u202e000001\\u202c \\u200b \u05d0\u05d1 xx" in text
        assert json.loads(text) == {"to": "\u05d2", "body": body}
        assert await arguments.evaluate("part => part.scrollHeight - part.clientHeight") <= 0
        await shown.get_by_test_id("exact").click()
    await expect(shown.get_by_test_id("unseen")).to_contain_text("3 characters")
    await shown.get_by_test_id("deny").click()
    await (await stage.model.ask()).answer("As you wish.")
    await stage.completed("As you wish.")
    assert (stage.server.mails(), stage.noise) == ([], [])


async def test_a_double_click_sends_once_cancels_nothing_and_leaves_the_focus_in_place(stage: Stage) -> None:
    await stage.of("composer").fill("Count.")
    await stage.of("send").dblclick()
    ask = await stage.model.ask()
    await ask.answer("One.")
    await stage.completed("One.")
    await expect(stage.of("composer")).to_be_focused()
    again = await stage.send("Greet Ann.")
    await again.call("send_mail", '{"to": "Ann", "body": "Hi"}')
    await stage.shows("waiting")
    await expect(stage.page.get_by_role("region", name="Waiting for you")).to_be_focused()
    await stage.of("approve").dblclick()
    await (await stage.model.ask()).answer("Done.")
    await stage.completed("Done.")
    assert (stage.server.mails(), stage.model.asked, stage.noise) == (["Ann: Hi"], 3, [])


async def test_a_turn_that_is_cancelled_while_its_text_is_under_way_ends_cancelled(stage: Stage) -> None:
    async def late(route: Any) -> None:
        if route.request.method == "POST":
            await asyncio.sleep(0.5)
        await route.continue_()

    await stage.page.route("**/turns", late)
    await stage.of("composer").fill("Count.")
    await stage.of("send").click()
    await stage.of("cancel").click()
    await stage.shows("ended", "cancelled")
    assert stage.noise == []


async def test_what_is_open_in_a_call_stays_open_while_it_runs(stage: Stage) -> None:
    ask = await stage.send("Greet Ann.")
    await ask.call("send_mail", '{"to": "Ann",  "body": "Hi"}')
    await stage.shows("waiting")
    call = stage.of("tool-call")
    await call.locator("summary").click()
    await call.get_by_test_id("exact").click()
    await stage.of("approve").click()
    again = await stage.model.ask()
    await expect(call).to_have_attribute("data-state", "done")
    await expect(call.get_by_test_id("arguments")).to_have_text('{"to": "Ann",  "body": "Hi"}')
    await expect(call.get_by_test_id("exact")).to_have_attribute("aria-pressed", "true")
    await again.answer("Done.")
    await stage.completed("Done.")


async def test_a_conversation_whose_turn_goes_on_is_not_deleted_and_says_why(stage: Stage) -> None:
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    await stage.of("conversation").hover()
    await stage.of("delete-conversation").click()
    await stage.of("confirm-delete").click()
    await expect(stage.of("error")).to_contain_text("A turn of this conversation goes on")
    await ask.answer(", two.")
    await stage.completed("One, two.")


async def test_a_text_that_is_refused_after_its_conversation_was_left_is_found_there(stage: Stage) -> None:
    left = asyncio.Event()

    async def refuse(route: Any) -> None:
        if route.request.method == "POST":
            await left.wait()
            await route.fulfill(status=429, json={"error": {"code": "limited", "message": "expected 8"}})
        else:
            await route.continue_()

    await stage.page.route("**/turns", refuse)
    await stage.of("composer").fill("Do not lose this.")
    await stage.of("send").click()
    await stage.of("new-conversation").click()
    left.set()
    await expect(stage.of("error")).to_contain_text("It is kept there")
    await stage.of("conversation").locator("a").click()
    await expect(stage.of("composer")).to_have_value("Do not lose this.")
    assert stage.model.asked == 0


async def test_a_call_that_is_denied_does_not_run_and_the_model_reads_why(stage: Stage) -> None:
    ask = await stage.send("Greet Ann.")
    await ask.call("send_mail", '{"to": "Ann", "body": "Hi"}')
    await stage.of("deny-reason").fill("Not today.")
    await stage.of("deny").click()
    again = await stage.model.ask()
    assert "Not today." in again.messages[-1]["content"]
    await again.answer("As you wish.")
    await stage.completed("As you wish.")
    assert stage.server.mails() == []
    assert (stage.model.asked, stage.noise) == (2, [])


async def test_a_turn_is_cancelled_in_mid_answer_and_the_conversation_goes_on(stage: Stage) -> None:
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    await stage.of("cancel").click()
    await stage.shows("ended", "cancelled")
    await expect(stage.of("withdrawn")).to_be_visible()
    again = await stage.send("Count on.")
    await again.answer("Two.")
    await stage.completed("Two.")
    await expect(stage.page.get_by_test_id("turn")).to_have_count(2)
    assert (stage.model.asked, stage.noise) == (2, [])


async def crash_in_mid_answer(stage: Stage) -> None:
    """Have the server die while an answer comes, and come back; the person is asked what shall be."""
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    await stage.server.kill()
    ask.over.set()
    await expect(stage.of("connection")).to_have_attribute("data-state", "reconnecting")
    await stage.server.start()
    await stage.shows("unsettled")
    await expect(stage.of("unsettled")).to_be_visible()
    await expect(stage.of("composer")).to_be_disabled()
    await expect(stage.of("withdrawn")).to_contain_text("was taken back")
    await expect(stage.page.get_by_test_id("answer")).to_have_count(0)
    await expect(stage.of("turn")).not_to_contain_text("One")
    await stage.page.reload()
    await stage.shows("unsettled")
    assert stage.model.asked == 1  # nothing is sent before the person chooses


async def test_after_a_crash_nothing_is_sent_until_the_person_asks_again(stage: Stage) -> None:
    await crash_in_mid_answer(stage)
    await expect(stage.page.get_by_test_id("answer")).to_have_count(0)
    await stage.of("ask-again").click()
    again = await stage.model.ask()
    await again.answer("One, two.")
    await stage.completed("One, two.")
    await expect(stage.of("withdrawn")).to_be_visible()
    assert stage.model.asked == 2


async def test_after_a_crash_a_turn_that_is_discarded_sends_nothing_and_the_conversation_goes_on(stage: Stage) -> None:
    await crash_in_mid_answer(stage)
    await stage.of("discard").click()
    await stage.shows("ended", "cancelled")
    assert stage.model.asked == 1
    again = await stage.send("Count on.")
    await again.answer("Two.")
    await stage.completed("Two.")
    assert stage.model.asked == 2


async def test_a_server_that_ends_in_order_leaves_a_turn_that_goes_on_without_a_second_request(stage: Stage) -> None:
    ask = await stage.send("Count.")
    await ask.say("One")
    await expect(stage.of("answer")).to_have_text("One")
    ending = asyncio.create_task(stage.server.stop())
    await expect(stage.of("connection")).to_have_attribute("data-state", "reconnecting")
    await ask.answer(", two.")
    await ending
    await stage.server.start()
    await stage.shows("paused")
    await stage.of("continue").click()
    await stage.completed("One, two.")
    await expect(stage.of("connection")).to_have_attribute("data-state", "online")
    assert stage.model.asked == 1


HOSTILE = """Look:

<script>alert(1)</script>
<img src="https://evil.example/a.png" onerror="alert(2)">
<svg onload="alert(3)"><animate onbegin="alert(4)"/></svg>
<iframe src="https://evil.example/"></iframe><math><mi xlink:href="javascript:alert(5)">x</mi></math>

[one](javascript:alert(6)) [two](data:text/html,<script>alert(7)</script>) [three](JaVaScRiPt&#58;alert(8))
[four](vbscript:alert(9)) ![picture](https://evil.example/b.png) &lt;script&gt;alert(10)&lt;/script&gt;
<https://evil.example/"onmouseover="alert(11)> [five](https://evil.example/ "x\\" onclick=alert(12)")

| a |
|:-:|
| <b onclick="alert(13)">c</b> |

```html "><img src=x onerror=alert(14)>
<script>alert(15)</script>
```
"""


async def test_nothing_of_an_answer_or_of_a_person_s_words_is_run_or_fetched(stage: Stage) -> None:
    ask = await stage.send(HOSTILE)
    said = await stage.of("said").text_content()
    assert said is not None
    assert said.removeprefix("You: ") == HOSTILE.strip()
    for at in range(0, len(HOSTILE), 7):  # cut in the middle of everything
        await ask.say(HOSTILE[at : at + 7])
    await ask.end()
    await stage.shows("ended", "completed")
    answer = stage.of("answer")
    await expect(answer).to_contain_text("alert(15)")
    foreign = answer.locator("script, img, iframe, math, style, object, form, input, :not(button) > svg")
    await expect(foreign).to_have_count(0)
    links = await answer.locator("a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert [link for link in links if link is not None and not link.startswith("https://evil.example/")] == []
    handlers = "parts => parts.flatMap(part => [...part.attributes].map(a => a.name)).filter(n => n.startsWith('on'))"
    assert await answer.locator("*").evaluate_all(handlers) == []
    for link in await answer.locator("a").all():
        await link.hover()
    await stage.page.reload()
    await expect(stage.of("answer")).to_contain_text("alert(15)")
    assert (stage.model.asked, stage.noise) == (1, [])


async def test_a_turn_and_an_approval_by_the_keyboard_alone(stage: Stage) -> None:
    keyboard = stage.page.keyboard
    await expect(stage.of("composer")).to_be_focused()
    await keyboard.type("Greet Ann.")
    await keyboard.press("Enter")
    ask = await stage.model.ask()
    await ask.call("send_mail", '{"to": "Ann", "body": "Hi"}')
    await stage.shows("waiting")
    for _ in range(40):
        await keyboard.press("Tab")
        if await stage.of("approve").evaluate("button => button === document.activeElement"):
            break
    await expect(stage.of("approve")).to_be_focused()
    await keyboard.press("Enter")
    again = await stage.model.ask()
    await again.answer("Done.")
    await stage.completed("Done.")
    await keyboard.press("/")
    await expect(stage.of("composer")).to_be_focused()
    await keyboard.type("Thanks.")
    await keyboard.press("Enter")
    last = await stage.model.ask()
    await last.answer("With pleasure.")
    await stage.completed("With pleasure.")
    assert (stage.server.mails(), stage.noise) == (["Ann: Hi"], [])


WIDE = f"""A {"long" * 80} word, and

```
{"code " * 60}
```

|{" cell |" * 20}
|{"-|" * 20}
"""
TOO_WIDE = "() => document.scrollingElement.scrollWidth - innerWidth"
INSIDE = "parts => parts.every(part => part.getBoundingClientRect().right <= innerWidth)"
DARK = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(part => part < 80)"


async def test_it_fits_a_narrow_screen_and_has_a_dark_scheme(browser: Browser, tmp_path: Path) -> None:
    options = {"viewport": {"width": 360, "height": 640}, "color_scheme": "dark"}
    async with Stage.set(browser, tmp_path, **options) as stage:
        ask = await stage.send("x" * 200)
        await ask.say(WIDE)
        await ask.call("send_mail", '{"to": "' + "a" * 200 + '", "body": "Hi"}')
        await stage.shows("waiting")
        assert await stage.page.evaluate(TOO_WIDE) <= 0
        for part in ("turn", "approve", "deny", "composer"):
            assert await stage.page.get_by_test_id(part).evaluate_all(INSIDE)
        assert await stage.page.evaluate(DARK)
        await stage.page.emulate_media(color_scheme="light")
        assert not await stage.page.evaluate(DARK)
        assert stage.noise == []
