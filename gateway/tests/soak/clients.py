"""Clients of the soak test: they ask, read at their own pace, break off, and compare.

The rule: every request leaves a note of what its client saw under the id that the ledger uses.
"""

import asyncio
import collections
import json
import random
import time

import wire
from reading import Reading

# What a client does next, and how often out of a hundred.
KINDS = {"stream": 44, "whole": 19, "cut": 14, "early": 4, "slow": 5, "malformed": 11, "half": 3}
SHOWN_FAILURES = 60
EARLY_S = 1.5
SLOW_EVENT_S = 0.12
SLOW_PAUSE_S = 2.0
FRAMES_BEFORE_CUT = 40


class Notes:
    """What happened, for the verdict."""

    def __init__(self):
        self.counts = collections.Counter()
        self.failures, self.failure_count = [], 0
        self.requests = {}
        self.kills = []
        self.gaps = {"across_a_kill_s": 0.0, "otherwise_s": 0.0}
        self.first_text_s = []
        self.crossed = 0
        self.output_tokens = 0

    def fail(self, what):
        self.failure_count += 1
        if len(self.failures) < SHOWN_FAILURES:
            self.failures.append(what)
            print(f"FAILURE: {what}", flush=True)

    def gap(self, last, now):
        killed = any(last <= moment <= now for moment in self.kills)
        name = "across_a_kill_s" if killed else "otherwise_s"
        self.gaps[name] = max(self.gaps[name], now - last)


class Client:
    """One client, with a connection that it keeps while all goes well."""

    def __init__(self, number, target, combinations, expected, refusals, halves, notes):
        self.number, self.target, self.notes = number, target, notes
        self.combinations, self.expected = combinations, expected
        self.refusals, self.halves = refusals, halves
        # Which requests come is the same in every run; when they come is not.
        self.random = random.Random(number)
        self.connection = None
        self.sent = 0

    async def run(self, until):
        kinds, weights = list(KINDS), list(KINDS.values())
        while time.monotonic() < until:
            kind = self.random.choices(kinds, weights)[0]
            self.sent += 1
            name = f"soak-{self.number}-{self.sent}"
            try:
                await getattr(self, kind)(name)
                self.notes.counts[kind] += 1
            except (wire.WireError, OSError, ValueError, KeyError, TypeError) as error:
                self.notes.counts["broken"] += 1
                self.notes.fail(f"{name} ({kind}): {type(error).__name__}: {error}")
                self.hang_up()
                # A server that is gone must not be asked a thousand times a second.
                await asyncio.sleep(0.2)
        self.hang_up()

    def hang_up(self):
        if self.connection is not None:
            self.connection.drop()
            self.connection = None

    async def ask(self, name, stream, small=False):
        """Sends one of the known requests."""
        combination, path, body = self.random.choice(self.combinations)
        if stream:
            usage = {"include_usage": True, "continuous_usage_stats": True}
            body = {**body, "stream": True, "stream_options": usage}
        if small:
            self.hang_up()
        if self.connection is None:
            self.connection = await self.target.connect(small)
        self.notes.requests[name] = {"combination": combination, "state": "sent", "output": 0}
        await self.connection.send(self.target.post(path, body, request_id=name))
        return self.expected[combination]

    async def head(self, name):
        """The answer's head; anything but 200 is a failure and its body is read away."""
        answer = await self.connection.answer()
        if answer.status == 200:
            self.notes.requests[name]["state"] = "admitted"
            if answer.headers.get("x-request-id") != name:
                raise ValueError(f"the answer is for {answer.headers.get('x-request-id')!r}")
            return answer
        self.notes.requests[name]["state"] = "refused"
        self.notes.counts[f"status {answer.status}"] += 1
        body = await answer.whole()
        raise ValueError(f"status {answer.status}: {body[:300]!r}")

    async def frames(self, name, answer, reading, paced=True):
        """Reads events into `reading`, yielding after each, until the terminator."""
        note = self.notes.requests[name]
        last = None
        async for moment, data in answer.events():
            if reading.whole:
                raise ValueError("a frame after the terminator")
            if data == b"[DONE]":
                reading.whole = True
            else:
                value = json.loads(data)
                if "error" in value:
                    raise ValueError(f"error in the stream: {value['error']}")
                if reading.add(value):
                    if last is None:
                        self.notes.first_text_s.append(moment - note["began"])
                    elif paced:
                        self.notes.gap(last, moment)
                    last = moment
                if reading.usage:
                    self.notes.output_tokens += reading.usage["completion_tokens"] - note["output"]
                    note["output"] = reading.usage["completion_tokens"]
            yield
        if not reading.whole:
            raise ValueError("the stream ended without its terminator")

    def finished(self, name, reading, expected):
        """Compares a whole answer and notes its usage."""
        note, usage = self.notes.requests[name], reading.usage
        self.notes.output_tokens += usage["completion_tokens"] - note["output"]
        note.update(
            state="completed",
            output=usage["completion_tokens"],
            prompt=usage["prompt_tokens"],
            cached=usage["prompt_tokens_details"]["cached_tokens"],
        )
        if any(note["began"] < moment for moment in self.notes.kills[-1:]):
            self.notes.crossed += 1
        for field in ("completion_tokens", "prompt_tokens"):
            if usage[field] != expected.usage[field]:
                self.wrong(name, f"{field} {usage[field]} instead of {expected.usage[field]}")
        if difference := reading.difference(expected):
            self.wrong(name, difference)

    def wrong(self, name, difference):
        self.notes.counts["wrong"] += 1
        self.notes.fail(f"{name} ({self.notes.requests[name]['combination']}): wrong answer: {difference}")

    async def begin(self, name, stream, small=False):
        began = time.monotonic()
        expected = await self.ask(name, stream, small)
        self.notes.requests[name]["began"] = began
        return expected

    async def stream(self, name):
        expected = await self.begin(name, True)
        reading = Reading()
        async for _ in self.frames(name, await self.head(name), reading):
            pass
        self.finished(name, reading, expected)

    async def whole(self, name):
        expected = await self.begin(name, False)
        answer = await self.head(name)
        reading = Reading()
        reading.add(json.loads(await answer.whole()))
        self.finished(name, reading, expected)

    async def slow(self, name):
        """Reads a stream with pauses through a small buffer."""
        expected = await self.begin(name, True, small=True)
        reading, pause_at = Reading(), self.random.randrange(1, 20)
        seen = 0
        async for _ in self.frames(name, await self.head(name), reading, paced=False):
            seen += 1
            await asyncio.sleep(SLOW_PAUSE_S if seen == pause_at else self.random.uniform(0, SLOW_EVENT_S))
        self.finished(name, reading, expected)
        self.hang_up()

    async def cut(self, name):
        """Leaves after a random number of frames."""
        expected = await self.begin(name, True)
        reading, frames = Reading(), self.random.randrange(FRAMES_BEFORE_CUT)
        answer = await self.head(name)
        if frames:
            async for _ in self.frames(name, answer, reading):
                frames -= 1
                if frames == 0 and not reading.whole:
                    break
        if reading.whole:
            self.finished(name, reading, expected)
            return
        self.hang_up()
        self.notes.requests[name]["state"] = "cut"
        if difference := reading.not_a_prefix(expected):
            self.wrong(name, difference)

    async def early(self, name):
        """Leaves before the answer, or at least without waiting for it."""
        await self.begin(name, self.random.random() < 0.5)
        await asyncio.sleep(self.random.uniform(0, EARLY_S))
        self.hang_up()
        self.notes.requests[name]["state"] = "early"

    async def malformed(self, name):
        what, request, right = self.random.choice(self.refusals)
        status, _, body = await self.target.once(request)
        self.notes.counts[f"malformed: {what}"] += 1
        if status not in right:
            self.notes.fail(f"{name}: {what}: status {status} instead of {sorted(right)}: {body[:300]!r}")

    async def half(self, name):
        connection = await self.target.connect()
        await connection.send(self.random.choice(self.halves))
        await asyncio.sleep(self.random.uniform(0, 0.2))
        connection.drop()


async def expectations(target, combinations, notes):
    """Asks each request once, alone, and keeps the answers."""
    expected = {}
    for combination, path, body in combinations:
        name = f"soak-alone-{combination}"
        status, _, answer = await target.once(target.post(path, body, request_id=name))
        if status != 200:
            raise RuntimeError(f"{combination}: status {status}: {answer[:500]!r}")
        expected[combination] = reading = Reading()
        reading.add(json.loads(answer))
        usage = reading.usage
        notes.requests[name] = {
            "combination": combination,
            "state": "completed",
            "output": usage["completion_tokens"],
            "prompt": usage["prompt_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"],
        }
    return expected
