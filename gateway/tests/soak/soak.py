"""Drives a running server (PONS_URL) with many clients for a while, kills its brain twice, and judges what is left.

The rule: it knows the server only through HTTP, /proc and the command line, and ends with 1 if anything is wrong.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time

import clients
import mix
import verdict
import watch
import wire

SAMPLE_S = 5
LEDGER_S = 10
LOOK_S = 0.02
RESTART_S = 60
QUIET_S = 90
BODY_BYTES = 32 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--server", type=int, required=True, help="process id of pons serve")
    parser.add_argument("--program", required=True, help="the pons program, for its ledger command")
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--record", help="file for samples, counts and findings as JSON")
    return parser.parse_args()


class Soak:
    def __init__(self, options):
        self.options = options
        self.target = wire.Target(os.environ["PONS_URL"].rstrip("/"), os.environ.get("OPENAI_API_KEY", ""))
        self.notes = clients.Notes()
        self.ledger = watch.Ledger(options.program, options.state_dir)
        self.samples, self.restarts = [], []
        self.baseline = self.last = None
        self.started = time.monotonic()
        self.report = {}

    async def model(self):
        """Name and context of the first model."""
        status, _, body = await self.target.once(self.target.head("GET", "/v1/models"))
        if status != 200:
            raise RuntimeError(f"/v1/models answered {status}: {body[:200]!r}")
        first = json.loads(body)["data"][0]
        return first["id"], first["max_model_len"]

    async def run(self):
        model, context_tokens = await self.model()
        combinations = mix.combinations(model)
        print(f"asking {len(combinations)} requests alone", flush=True)
        expected = await clients.expectations(self.target, combinations, self.notes)
        await self.ledger.collect()
        self.baseline = await self.quiesce("before the soak")
        refusals = mix.malformed(self.target, model, context_tokens, BODY_BYTES)
        halves = mix.half_sent(self.target, model)
        crowd = [
            clients.Client(number, self.target, combinations, expected, refusals, halves, self.notes)
            for number in range(self.options.streams)
        ]
        self.started = time.monotonic()
        length_s = self.options.minutes * 60
        until = self.started + length_s
        steady = [self.every(SAMPLE_S, self.look), self.every(LEDGER_S, self.ledger.collect)]
        watchers = [asyncio.create_task(work) for work in steady]
        killer = asyncio.create_task(self.kill_brains([length_s / 3, length_s * 2 / 3]))
        await asyncio.gather(*(client.run(until) for client in crowd))
        await killer
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await self.judge(model)

    async def every(self, pause_s, work):
        """Repeats something at a steady pace; what fails is noted, not fatal."""
        due = self.started
        while True:
            due += pause_s
            await asyncio.sleep(max(0, due - time.monotonic()))
            try:
                await work()
            except (RuntimeError, OSError, ValueError, wire.WireError) as error:
                self.notes.fail(f"{work.__name__}: {error}")

    async def look(self):
        sample = await watch.sample(self.target, self.options.server, self.started)
        sample["output_tokens"] = self.notes.output_tokens
        before = self.samples[-1] if self.samples else {"at_s": 0, "output_tokens": 0}
        self.samples.append(sample)
        rate = (sample["output_tokens"] - before["output_tokens"]) / max(sample["at_s"] - before["at_s"], 0.1)
        counts = self.notes.counts
        done = sum(counts[kind] for kind in clients.KINDS)
        blocks, brain = sample["blocks"], sample["brain_kib"]
        print(
            f"{sample['at_s']:6.0f} s  {done} requests  {self.notes.failure_count} failures  {rate:.0f} tokens/s  "
            f"running {sample['running']:.0f} waiting {sample['waiting']:.0f} in flight {sample['in_flight']:.0f}  "
            f"blocks {blocks['free']:.0f}+{blocks['cached']:.0f}+{blocks['held']:.0f}  "
            f"server {sample['server_kib']} KiB {sample['server_files']} files  "
            f"brain {'gone' if brain is None else f'{brain} KiB'} {sample['brain_files']} files",
            flush=True,
        )

    async def kill_brains(self, moments):
        for moment in moments:
            await asyncio.sleep(max(0, self.started + moment - time.monotonic()))
            brain = watch.brain_of(self.options.server)
            if brain is None:
                self.notes.fail("there is no brain to kill")
                continue
            killed = time.monotonic()
            self.notes.kills.append(killed)
            os.kill(brain, signal.SIGKILL)
            print(f"killed brain {brain}", flush=True)
            await self.time_restart(brain, killed)

    async def time_restart(self, old, killed):
        """From the kill to the new process, and to the moment when the server says that it is ready."""
        seen = None
        while time.monotonic() < killed + RESTART_S:
            brain = watch.brain_of(self.options.server)
            if brain not in (None, old):
                seen = seen or time.monotonic()
                if await watch.is_ready(self.target):
                    ready = time.monotonic()
                    restart = {"process_s": round(seen - killed, 3), "ready_s": round(ready - killed, 3)}
                    self.restarts.append({"at_s": round(killed - self.started, 1), **restart})
                    print(f"brain {brain} is ready after {ready - killed:.2f} s", flush=True)
                    return
            await asyncio.sleep(LOOK_S)
        self.notes.fail(f"no brain was ready within {RESTART_S} s after the kill")

    async def quiesce(self, when):
        """Waits until nothing runs any more and takes a sample."""
        limit = time.monotonic() + QUIET_S
        while True:
            # A brain reports at least every second, so the next sample is of this moment.
            await asyncio.sleep(1.5)
            sample = await watch.sample(self.target, self.options.server, self.started)
            if verdict.quiet(sample) or time.monotonic() > limit:
                print(f"{when}: {sample}", flush=True)
                return sample

    async def judge(self, model):
        notes = self.notes
        self.last = await self.quiesce("after the soak")
        verdict.check_quiet(notes, self.last, self.baseline)
        verdict.check_blocks(notes, self.samples, self.baseline["blocks"]["total"])
        memory = verdict.check_memory(notes, self.samples)
        gauges = await watch.scrape(self.target)
        verdict.check_server_errors(notes, gauges)
        await self.ledger.collect()
        ledger = verdict.check_ledger(notes, self.ledger, await self.ledger.sum(), gauges)
        if len(self.restarts) < 2 or self.last["restarts"] != 2:
            notes.fail(f"{len(self.restarts)} restarts seen, the server counts {self.last['restarts']}; 2 were wanted")
        if not notes.crossed:
            notes.fail("no answer was under way while a brain was killed; the kills proved nothing")
        if not watch.alive(self.options.server):
            notes.fail("the server is gone")
        first = sorted(notes.first_text_s) or [0.0]
        self.report = {
            "model": model,
            "machine": watch.machine(),
            "minutes": self.options.minutes,
            "streams": self.options.streams,
            "counts": dict(sorted(notes.counts.items())),
            "output_tokens": notes.output_tokens,
            "answers_across_a_kill": notes.crossed,
            "restarts": self.restarts,
            "longest_gap": {name: round(value, 3) for name, value in notes.gaps.items()},
            "first_text_s": {"median": round(statistics.median(first), 3), "longest": round(first[-1], 3)},
            "memory": memory,
            "ledger": ledger,
            "failures": notes.failure_count,
        }

    def finish(self):
        """Prints the summary, writes the record, and gives the exit status."""
        print(json.dumps(self.report, indent=2), flush=True)
        if self.options.record:
            whole = {
                **self.report,
                "first_failures": self.notes.failures,
                "baseline": self.baseline,
                "samples": self.samples,
                "after": self.last,
            }
            with open(self.options.record, "w") as file:
                json.dump(whole, file, indent=1)
        for failure in self.notes.failures:
            print(f"FAILURE: {failure}", flush=True)
        print("soak failed" if self.notes.failure_count else "soak passed", flush=True)
        return 1 if self.notes.failure_count else 0


def main():
    soak = Soak(arguments())
    asyncio.run(soak.run())
    sys.exit(soak.finish())


if __name__ == "__main__":
    main()
