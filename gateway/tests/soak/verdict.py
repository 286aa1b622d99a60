"""What must hold after a soak. The rule: each check says what it found beside what it wanted."""

import collections
import statistics

# A few descriptors more or less are connections in the kernel's hands.
FILES_SLACK = 5
GROWTH = 1.10
# With fewer samples the first quarter is still warming up, and growth says nothing.
SERVER_SAMPLES, BRAIN_SAMPLES = 80, 30


def quiet(summary):
    """Whether nothing runs, waits, is in flight or holds blocks."""
    idle = all(summary[name] == 0 for name in ("running", "waiting", "in_flight"))
    return idle and summary["blocks"]["held"] == 0 and summary["connected"] == 1


def check_quiet(notes, last, baseline):
    if not quiet(last):
        notes.fail(f"not quiet after the soak: {last}")
    blocks = last["blocks"]
    if blocks["free"] is None or blocks["free"] + blocks["cached"] != blocks["total"]:
        notes.fail(f"free + cached blocks are not all blocks: {blocks}")
    if blocks["total"] != baseline["blocks"]["total"]:
        notes.fail(f"{blocks['total']} blocks in all instead of {baseline['blocks']['total']}")
    for name in ("server_files", "brain_files"):
        if last[name] is None or abs(last[name] - baseline[name]) > FILES_SLACK:
            notes.fail(f"{name}: {last[name]} after the soak, {baseline[name]} before")


def lives(samples):
    """The samples of each brain, in order; a first sample may still show the brain before."""
    found = collections.OrderedDict()
    for sample in samples:
        if sample["brain_pid"] is not None and sample["connected"] == 1:
            found.setdefault(sample["brain_pid"], []).append(sample)
    return [life[1:] for life in found.values()]


def check_blocks(notes, samples, total):
    for sample in (sample for life in lives(samples) for sample in life):
        if sample["blocks"]["total"] != total:
            notes.fail(f"at {sample['at_s']} s: free + cached + held is not {total}: {sample['blocks']}")


def growth(samples, name, least):
    """Memory after the first quarter and at the end, in KiB, and whether that is enough to judge."""
    values = [sample[name] for sample in samples if sample[name] is not None]
    count = len(values)
    if count < 4:
        return None
    early = statistics.median(values[count // 4 : max(count * 2 // 5, count // 4 + 1)])
    late = statistics.median(values[-max(count * 3 // 20, 1) :])
    return {"early_kib": early, "late_kib": late, "samples": count, "judged": count >= least}


def check_memory(notes, samples):
    found = {"server": growth(samples, "server_kib", SERVER_SAMPLES)}
    for number, life in enumerate(lives(samples)):
        found[f"brain {number + 1}"] = growth(life, "brain_kib", BRAIN_SAMPLES)
    for name, value in found.items():
        if value and value["judged"] and value["late_kib"] > value["early_kib"] * GROWTH:
            notes.fail(f"memory of {name} grew from {value['early_kib']} to {value['late_kib']} KiB")
    return found


def check_server_errors(notes, gauges):
    """No 5xx but that of /ready, which is its way to say that a killed brain is gone."""
    errors = gauges.total("pons_requests_total", status="5xx") or 0
    errors -= gauges.total("pons_requests_total", status="5xx", route="ready") or 0
    if errors:
        notes.fail(f"the server counts {errors:.0f} answers with a 5xx status")


def check_ledger(notes, ledger, totals, gauges):
    """The ledger against what the clients saw."""
    if ledger.listed_twice:
        notes.fail(f"{ledger.listed_twice} requests are in the ledger twice")
    if ledger.gaps:
        notes.fail(f"{ledger.gaps} pages of the ledger did not overlap; its records can't be compared")
    for name, note in notes.requests.items():
        check_record(notes, name, note, ledger.records.get(name))
    for name in ledger.records.keys() - notes.requests.keys():
        notes.fail(f"ledger: {name} is recorded, but no well-formed request had that id")
    records = ledger.records.values()
    listed = {name: sum(record[name] for record in records) for name in totals if name.endswith("_tokens")}
    listed["requests"] = len(records)
    listed["incomplete"] = sum(record["outcome"] != "completed" for record in records)
    if listed != totals:
        notes.fail(f"ledger: the records add up to {listed}, the sum says {totals}")
    for kind in ("prompt", "cached", "output"):
        counted = gauges.total("pons_tokens_total", kind=kind)
        if counted != totals[f"{kind}_tokens"]:
            notes.fail(f"metrics count {counted} {kind} tokens, the ledger {totals[f'{kind}_tokens']}")
    return {"listed": listed, "sum": totals, "outcomes": dict(collections.Counter(r["outcome"] for r in records))}


def check_record(notes, name, note, record):
    """One request: a whole answer to the token, a cut one at least what was seen."""
    state = note["state"]
    if record is None:
        if state in ("completed", "cut", "admitted"):
            notes.fail(f"ledger: {name} ({state}) has no record")
    elif state == "refused":
        notes.fail(f"ledger: {name} was refused, but has a record")
    elif state == "completed":
        seen = {"prompt": note["prompt"], "cached": note["cached"], "output": note["output"]}
        kept = {kind: record[f"{kind}_tokens"] for kind in seen}
        if kept != seen or record["outcome"] != "completed":
            notes.fail(f"ledger: {name}: {kept} {record['outcome']}, but the client was told {seen}")
    elif record["output_tokens"] < note["output"]:
        notes.fail(f"ledger: {name}: {record['output_tokens']} tokens, but the client saw {note['output']}")
    elif state in ("cut", "early") and record["outcome"] == "failed":
        notes.fail(f"ledger: {name} ({state}) is recorded as failed")
