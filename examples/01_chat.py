"""Plain chat: text as it streams, and a conversation whose second turn knows the first."""

import asyncio

import agentloop as al
from agentloop.testing import reply

from endpoint import provider

assistant = al.Agent(name="guide", instructions="Answer in one short sentence.")

SCRIPT = [
    reply(text="Air scatters blue light more than red."),
    lambda request: reply(text=f"The light's path is longer then. (Read {len(request.messages)} messages.)"),
]


async def main() -> None:
    async with al.Runtime(provider(SCRIPT)) as runtime:
        for question in ("Why is the sky blue?", "And red at sunset?"):
            print(f"you        {question}\nassistant  ", end="")
            async for text in runtime.text(assistant, question, conversation="sky"):
                print(text, end="", flush=True)
            print()


asyncio.run(main())
