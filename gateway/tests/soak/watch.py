"""What the soak test sees from outside: processes in /proc, /metrics, and the ledger through the command line.

The rule: it only reads, and what it could not read is `None`, never zero.
"""

import asyncio
import json
import os
import platform
import time

BRAIN = "pons-brain"
# Small, since what the server holds to answer would else show up as its growth.
LEDGER_PAGE, LEDGER_MOST = 500, 10_000


def memory_kib(pid):
    """Anonymous memory, swapped out or not."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        return sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap"))
    except (OSError, KeyError, ValueError):
        return None


def open_files(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def alive(pid):
    """Whether the process runs; a zombie does not."""
    return state_and_parent(pid)[0] not in (None, "Z", "X")


def state_and_parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError, ValueError):
        return None, None


def brain_of(server):
    """Process id of the server's living brain, or `None` while there is none."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        state, parent = state_and_parent(entry)
        if parent != server or state in ("Z", "X"):
            continue
        try:
            with open(f"/proc/{entry}/comm") as file:
                if file.read().strip() == BRAIN:
                    return int(entry)
        except OSError:
            continue
    return None


def machine():
    """What the numbers were measured on."""
    processor, memory = platform.processor(), None
    try:
        with open("/proc/cpuinfo") as file:
            processor = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        with open("/proc/meminfo") as file:
            memory = int(file.readline().split()[1])
    except (OSError, StopIteration, IndexError, ValueError):
        pass
    usable = len(os.sched_getaffinity(0))
    return {"processor": processor, "cores": usable, "memory_kib": memory, "kernel": platform.release()}


class Gauges:
    """The parts of a scrape that the soak test judges."""

    def __init__(self, text):
        self.values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                self.values[name] = float(value)

    def total(self, name, **labels):
        """Sum over all series of a metric with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [
            value
            for series, value in self.values.items()
            if series.split("{")[0] == name and all(label in series for label in wanted)
        ]
        return sum(found) if found else None

    def summary(self):
        blocks = {state: self.total("pons_brain_blocks", state=state) for state in ("free", "cached", "held")}
        known = [value for value in blocks.values() if value is not None]
        return {
            "running": self.total("pons_brain_sequences_running"),
            "waiting": self.total("pons_brain_sequences_waiting"),
            "in_flight": self.total("pons_requests_in_flight"),
            "connected": self.total("pons_brain_connected"),
            "restarts": self.total("pons_brain_restarts_total"),
            "blocks": {**blocks, "total": sum(known) if len(known) == 3 else None},
        }


async def scrape(target):
    status, _, body = await target.once(target.head("GET", "/metrics"))
    if status != 200:
        raise RuntimeError(f"/metrics answered {status}")
    return Gauges(body.decode())


async def is_ready(target):
    try:
        return (await target.once(target.head("GET", "/ready")))[0] == 200
    except OSError:
        return False


async def sample(target, server, started):
    brain = brain_of(server)
    gauges = (await scrape(target)).summary()
    # A brain that ended meanwhile would mix two lives in one sample.
    same = brain is not None and brain_of(server) == brain
    return {
        "at_s": round(time.monotonic() - started, 2),
        "server_kib": memory_kib(server),
        "server_files": open_files(server),
        "brain_pid": brain if same else None,
        "brain_kib": memory_kib(brain) if same else None,
        "brain_files": open_files(brain) if same else None,
        **gauges,
    }


class Ledger:
    """All records of the run, collected page by page, since one listing is bounded."""

    def __init__(self, program, state_dir):
        self.program, self.state_dir = program, state_dir
        self.records, self.listed_twice, self.gaps = {}, 0, 0

    async def command(self, *arguments):
        process = await asyncio.create_subprocess_exec(
            self.program,
            "ledger",
            *arguments,
            "--json",
            "--state-dir",
            self.state_dir,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, complaint = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"pons ledger {arguments[0]} failed: {complaint.decode(errors='replace')[-500:]}")
        return [json.loads(line) for line in out.splitlines()]

    async def collect(self):
        """Adds what is new. A page must reach back to a known record, or some were missed."""
        limit, ids = LEDGER_PAGE, []
        while limit <= LEDGER_MOST:
            page = await self.command("list", "--limit", str(limit))
            ids = [record["request_id"] for record in page]
            if len(page) < limit or any(name in self.records for name in ids):
                break
            limit = min(limit * 4, LEDGER_MOST) if limit < LEDGER_MOST else LEDGER_MOST + 1
        self.gaps += limit > LEDGER_MOST
        self.listed_twice += len(ids) - len(set(ids))
        self.records.update(zip(ids, page))

    async def sum(self):
        """Totals over all tenants and models."""
        names = ("requests", "incomplete", "prompt_tokens", "cached_tokens", "output_tokens")
        rows = await self.command("sum")
        return {name: sum(row[name] for row in rows) for name in names}
