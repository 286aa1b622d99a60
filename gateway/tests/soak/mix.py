"""What the soak test asks for: well-formed requests whose answer never changes, and malformed ones.

The rule: each request is fixed, seed included, so that every answer to it can be compared with the first.
"""

import json

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
TOWN = (
    "You answer visitors of the town of Aldermoor. The bridge over the Wenn opens at six in the morning and closes "
    "at ten at night. The mill sells flour on Tuesdays and bread on Fridays. The ferry to the island leaves every "
    "hour from the stone pier and takes forty people and two carts. The library keeps the maps of the valley and "
    "lends them for three days. The baker closes on Mondays, the smith on Sundays, the inn never. "
)
RULES = (
    "You review code. A function does one thing. A name says what a value is, not how it is stored. An error names "
    "the field, the value and the remedy. A queue has a bound and a loop has an end. A lock is never held across a "
    "wait. A test fails when the code is wrong and passes when it is right, and it does not sleep to find out. "
)
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "coastal": {"type": "boolean"},
    },
    "required": ["name", "people", "coastal"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def chat(question, system=None, **more):
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    return CHAT, {"messages": messages, **more}


def plain(prompt, **more):
    return PLAIN, {"prompt": prompt, **more}


def combinations(model):
    """(name, path, body) of every request whose answer is known."""
    schema = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    town, rules = TOWN * 4, RULES * 4
    story = "Tell me a story about a lighthouse keeper."
    listed = {
        "greedy": chat("What is the capital of France?", temperature=0, max_tokens=24),
        "greedy-long": chat(story, temperature=0, max_tokens=160),
        "warm-1": chat(story, temperature=1, seed=1, max_tokens=64),
        "warm-2": chat(story, temperature=1, seed=2, max_tokens=96),
        "hot": chat("Name some colours.", temperature=1.4, top_p=0.9, seed=3, max_tokens=48),
        "narrow": chat("Explain rain to a child.", temperature=1, top_k=20, min_p=0.05, seed=4, max_tokens=64),
        "penalties": chat(
            story, temperature=0.8, presence_penalty=0.5, frequency_penalty=0.5, seed=5, max_tokens=64
        ),
        "two-choices": chat("Write one line about bridges.", temperature=1, n=2, seed=6, max_tokens=32),
        "three-choices": chat("Suggest a name for a cat.", temperature=1.2, n=3, seed=7, max_tokens=16),
        "logprobs": chat("Count from one to five.", temperature=0, logprobs=True, top_logprobs=5, max_tokens=24),
        "logprobs-warm": chat(story, temperature=1, seed=8, logprobs=True, top_logprobs=20, max_tokens=48),
        "schema": chat("Describe Lisbon.", temperature=0, response_format=schema, max_tokens=80),
        "schema-warm": chat("Describe Bergen.", temperature=1, seed=9, response_format=schema, max_tokens=80),
        "json": chat(
            "Give me a JSON object with a title.",
            temperature=0.7,
            seed=10,
            response_format={"type": "json_object"},
            max_tokens=48,
        ),
        "tool-required": chat(
            "What is the weather in Oslo?", tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=80
        ),
        "tool-auto": chat(
            "Is it cold in Rome?", tools=[WEATHER], tool_choice="auto", temperature=1, seed=11, max_tokens=48
        ),
        "stop": chat(story, temperature=0, stop=[". ", "\n"], max_tokens=96),
        "stop-many": chat(story, temperature=1, seed=12, stop=["the sea", "lighthouse", "!"], max_tokens=96),
        "town-1": chat("When does the ferry leave?", town, temperature=0, max_tokens=32),
        "town-2": chat("When is the baker closed?", town, temperature=1, seed=13, max_tokens=48),
        "town-3": chat("Where are the maps?", town, temperature=0.7, n=2, seed=14, max_tokens=24),
        "rules-1": chat("Is `fn f(x: T)` well named?", rules, temperature=0, max_tokens=40),
        "rules-2": chat("May a test sleep?", rules, temperature=1, seed=15, max_tokens=64),
        "rules-3": chat("What does an error say?", rules, temperature=1, seed=16, logprobs=True, max_tokens=32),
        "plain": plain("The river rose in the night and", temperature=0, max_tokens=48),
        "plain-warm": plain("Once upon a time", temperature=1, seed=17, n=2, max_tokens=40),
        "plain-logprobs": plain("def add(a, b):", temperature=0, logprobs=3, max_tokens=24),
        "forced-long": plain("One, two, three,", temperature=1, seed=18, ignore_eos=True, max_tokens=200),
    }
    return [(name, path, {"model": model, **body}) for name, (path, body) in listed.items()]


def malformed(target, model, context_tokens, body_bytes):
    """(name, request bytes, statuses that are right)."""
    good = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    text = json.dumps(good).encode()

    def body(name, status, value):
        return name, target.post(CHAT, value), {status}

    def changed(name, status, **fields):
        return body(name, status, {**good, **fields})

    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "no-such-type"}}}
    oversize = target.head("POST", CHAT, body_bytes + 1) + b"{" * 4096
    return [
        body("cut JSON", 400, text[:-7]),
        body("no JSON", 400, b"messages=Hello"),
        body("empty body", 400, b""),
        body("bad UTF-8", 400, text.replace(b"Hello", b"He\xff\xfello")),
        body("deep JSON", 400, b"[" * 20000),
        body("an array", 400, b"[1,2,3]"),
        changed("messages as text", 400, messages="Hello"),
        changed("no messages", 400, messages=[]),
        changed("unknown role", 400, messages=[{"role": "wizard", "content": "Hello"}]),
        changed("text for a number", 400, temperature="hot"),
        changed("temperature out of range", 400, temperature=9),
        changed("no choices", 400, n=0),
        changed("too many choices", 400, n=100000),
        changed("negative max_tokens", 400, max_tokens=-5),
        changed("max_tokens over the context", 400, max_tokens=10**9),
        changed("seed as text", 400, seed="1"),
        changed("empty stop", 400, stop=[""]),
        changed("foreign token id", 400, logit_bias={"99999999": 1}),
        changed("bad schema", 400, response_format=schema),
        changed("tool without a name", 400, tools=[{"type": "function", "function": {}}]),
        changed("too long prompt", 400, messages=[{"role": "user", "content": "word " * (context_tokens + 1000)}]),
        changed("unknown model", 404, model="no-such-model"),
        changed("model as a number", 400, model=7),
        ("wrong key", target.post(CHAT, good, key="sk-wrong"), {401}),
        ("no key", target.post(CHAT, good, key=""), {401}),
        ("unknown path", target.post("/v1/no/such/path", good), {404}),
        ("wrong verb", target.head("GET", CHAT), {405}),
        ("a form", target.head("POST", CHAT, extra=["content-type: text/plain", "content-length: 2"]) + b"{}", {415}),
        ("oversize", oversize, {413}),
        ("huge head", target.head("GET", "/v1/models", extra=["x-filler: " + "a" * 200000]), {400, 431}),
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", {400}),
    ]


def half_sent(target, model):
    """Requests that end in the middle; nobody waits for an answer."""
    request = target.post(CHAT, {"model": model, "messages": [{"role": "user", "content": "Hello " * 200}]})
    end = request.index(b"\r\n\r\n") + 4
    return [request[: end // 2], request[:end], request[: end + 40], request[:-1]]
