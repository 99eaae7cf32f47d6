"""Streaming to a client: previews are shown at once, and taken back when their attempt fails."""

import asyncio

import agentloop as al
from agentloop.testing import broken, reply

from endpoint import provider

assistant = al.Agent(name="guide", instructions="Answer in one short sentence.")

CUT = al.StreamRefused("truncated", 9, 2048, "a finish and [DONE]", "the end of the body")
SCRIPT = [
    broken(reply(text="Water boils at 100 degr"), CUT),
    reply(text="Water boils at 100 degrees Celsius at sea level."),
    reply(text="One, two, three, four, five, six, seven, eight, nine, ten."),
]


class Client:
    """Stands for a browser: a page with the text of the running attempt."""

    def __init__(self) -> None:
        self.page = ""

    def take(self, event: al.Event) -> None:
        match event:
            case al.TextPreview():
                self.page = self.page[: event.offset] + event.text
            case al.ModelEnd(retracted=True):
                print(f"taken back:  {self.page!r} ({event.code})")
                self.page = ""


async def main() -> None:
    async with al.Runtime(provider(SCRIPT)) as runtime:
        question = "At what temperature does water boil?"
        client = Client()
        try:
            async with runtime.start(assistant, question) as run:
                async for event in run:
                    client.take(event)
        except al.StreamRefused as refused:  # nothing is sent again by itself: repeating is a decision
            print(f"refused:     {refused.code} at byte {refused.byte}")

        async with runtime.start(assistant, question) as run:
            async for event in run:
                client.take(event)
            result = await run.result()
        assert client.page == result.require_text()  # the checked reply is what counts
        print(f"kept:        {client.page!r}")

        async with runtime.start(assistant, "Count to ten.") as run:
            async for event in run:
                if isinstance(event, al.TextPreview):
                    print(f"client left: after {event.text!r}")
                    break  # leaving the block cancels the run and closes the connection
        try:
            await runtime.result(run.ref)
        except al.RunCancelled as cancelled:
            print(f"and so:      {cancelled.code}")


asyncio.run(main())
