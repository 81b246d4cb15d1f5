# SPDX-License-Identifier: Apache-2.0
"""One text of a test for both twins of the SDK.

    twin(client.create())          the value: awaited in an event loop that stays, or as it is
    twin(process.output())         a list of what a generator gives
    with twin.within(client.sandbox()) as box: ...
"""
import asyncio
import contextlib
import inspect
import sys

import cay


class Twin:
    def __init__(self, kind):
        self.loop = asyncio.new_event_loop() if kind == "async" else None

    def new(self, *args, **options):
        """A client."""
        return (cay.AsyncCay if self.loop else cay.Cay)(*args, **options)

    def __call__(self, value):
        if inspect.isasyncgen(value):
            return self.loop.run_until_complete(_collect(value))
        if inspect.isawaitable(value):
            return self.loop.run_until_complete(value)
        return list(value) if inspect.isgenerator(value) else value

    def next(self, generator):
        """The next one of a generator."""
        return self(generator.__anext__()) if self.loop else next(generator)

    def close(self, one):
        """A client or generator."""
        self(one.aclose()) if self.loop else one.close()

    @contextlib.contextmanager
    def within(self, manager):
        if not self.loop:
            with manager as value:
                yield value
            return
        value = self(manager.__aenter__())
        try:
            yield value
        except BaseException:
            if not self(manager.__aexit__(*sys.exc_info())):
                raise
        else:
            self(manager.__aexit__(None, None, None))

    def end(self):
        if self.loop:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


async def _collect(generator):
    return [one async for one in generator]
