"""Two pictures of the page, for people: ``python -m tests.system.web_page_pictures FOLDER``.

``chat.png`` is an answer beside a list of conversations, ``approval.png`` a call that waits for a person, on a dark
narrow screen.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.system.web_page_stage import Browser, Stage, chromium

__all__ = ["main"]

_MAIL = """{
  "to": "ann@example.com",
  "body": "Hello Ann, the train is 20 minutes late. I will be there at 14:50."
}"""

_ANSWER = """A lease is a lock that runs out by itself, so a process that dies holds nobody up for long:

| State | Who may go on |
|---|---|
| alive, renewing | its owner |
| dead, lease left | nobody yet |
| lease over | whoever asks first |

The loop that renews it is short:

```python
while True:
    await asyncio.sleep(lease.seconds / 3)
    await store.renew(lease)
```
"""


async def _chat(browser: Browser, folder: Path, to: Path) -> None:
    async with Stage.set(browser, folder, viewport={"width": 1100, "height": 760}, device_scale_factor=2) as stage:
        for question, answer in (
            ("When does the train to Ghent leave?", "At 13:05, from platform 3."),
            ("What is a lease?", _ANSWER),
        ):
            await stage.of("new-conversation").click()
            ask = await stage.send(question)
            await ask.answer(answer)
            await stage.shows("ended", "completed")
        await stage.page.screenshot(path=to)


async def _approval(browser: Browser, folder: Path, to: Path) -> None:
    options = {"viewport": {"width": 400, "height": 840}, "device_scale_factor": 2, "color_scheme": "dark"}
    async with Stage.set(browser, folder, **options) as stage:
        ask = await stage.send("Tell Ann that I am late.")
        await ask.say("I will send Ann this mail, once you agree:")
        await ask.call("send_mail", _MAIL)
        await stage.shows("waiting")
        await stage.page.screenshot(path=to)


async def main(folder: Path) -> None:
    """Make both, in a folder that is there."""
    async with chromium() as browser:
        for make, name in ((_chat, "chat.png"), (_approval, "approval.png")):
            with tempfile.TemporaryDirectory() as place:
                await make(browser, Path(place), folder / name)
            print(folder / name)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
