"""The official OpenAI SDK for Python against a running server (PONS_URL). Each function is one check."""

import json
import os
import sys
import threading
import time
import traceback
import urllib.request

import openai
from openai import OpenAI
from pydantic import BaseModel

URL = os.environ["PONS_URL"].rstrip("/")
client = OpenAI(base_url=URL + "/v1", api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0, timeout=120)
MODEL = os.environ.get("PONS_TEST_MODEL") or client.models.list().data[0].id
HELLO = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def refused(kind, **arguments):
    try:
        client.chat.completions.create(**arguments)
    except kind as error:
        return error
    raise AssertionError(f"not refused with {kind.__name__}")


def metric(name):
    """Sum of a metric's samples."""
    with urllib.request.urlopen(URL + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def models_are_listed_and_found():
    assert client.models.retrieve(MODEL).id == MODEL
    try:
        client.models.retrieve("no/such:model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("an unknown model was found")


def chat_answers_sensibly():
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=32)
    assert "Paris" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens > 3
    assert answer.choices[0].message.tool_calls is None and answer.system_fingerprint


def a_stream_equals_the_plain_answer():
    arguments = dict(model=MODEL, messages=HELLO, temperature=1.2, seed=11, max_tokens=40)
    plain = client.chat.completions.create(**arguments)
    text, usage, ids = "", None, set()
    for chunk in client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}):
        ids.add(chunk.id)
        usage = chunk.usage or usage
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    assert text == plain.choices[0].message.content
    assert usage.completion_tokens == plain.usage.completion_tokens and len(ids) == 1


def the_stream_helper_builds_the_message():
    with client.chat.completions.stream(model=MODEL, messages=HELLO, temperature=0, max_tokens=32) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].message.role == "assistant" and final.choices[0].finish_reason == "stop"


def several_choices_differ_and_repeat_under_a_seed():
    arguments = dict(model=MODEL, messages=HELLO, n=4, seed=42, temperature=1.3, max_tokens=24)
    first, second = (client.chat.completions.create(**arguments) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1 and texts == [choice.message.content for choice in second.choices]


def a_required_tool_is_called_with_valid_arguments():
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    arguments = dict(model=MODEL, messages=question, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=200)
    answer = client.chat.completions.create(**arguments)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    with client.chat.completions.stream(**arguments) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    assert streamed.finish_reason == "tool_calls"
    history = question + [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "4 C, rain"},
    ]
    follow = client.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER], tool_choice="none", max_tokens=24)
    assert follow.choices[0].message.tool_calls is None


def a_named_tool_finishes_with_stop():
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice=choice, temperature=0, max_tokens=200
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert answer.choices[0].finish_reason == "stop"


class City(BaseModel):
    name: str
    capital: bool


def the_parse_helper_gets_an_object():
    schema = City.model_json_schema()
    assert set(schema["required"]) == {"name", "capital"}
    answer = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=City, temperature=0, max_tokens=400)
    assert isinstance(answer.choices[0].message.parsed, City)


def json_mode_gives_json():
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, response_format={"type": "json_object"}, temperature=0.7, seed=3, max_tokens=400
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].finish_reason == "length"


def logprobs_are_the_same_streamed_and_not():
    arguments = dict(model=MODEL, messages=HELLO, temperature=0, seed=7, max_tokens=8, logprobs=True, top_logprobs=2)
    plain = client.chat.completions.create(**arguments).choices[0].logprobs.content
    streamed = []
    for chunk in client.chat.completions.create(**arguments, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in plain] and plain
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in plain)


def completions_echo_scores_the_prompt():
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is Paris", echo=True, max_tokens=1, logprobs=1, temperature=0, seed=1234
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert len(logprobs.tokens) == answer.usage.prompt_tokens + 1
    for token, value, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
        assert top[token] == value
    assert answer.choices[0].text.startswith("The capital of France is Paris")


def a_batch_of_prompts_keeps_its_order():
    answer = client.completions.create(model=MODEL, prompt=["one two", "a b c"], n=2, max_tokens=4, temperature=1, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def stop_strings_are_never_shown():
    answer = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", stop=[" 7"], temperature=0, max_tokens=32)
    assert " 7" not in answer.choices[0].text


def mistakes_are_told_by_class_and_name():
    assert refused(openai.NotFoundError, model="no-such-model", messages=HELLO).code == "model_not_found"
    assert refused(openai.BadRequestError, model=MODEL, messages=[]).param == "messages"
    assert refused(openai.BadRequestError, model=MODEL, messages=HELLO, max_tokens=0).param == "max_tokens"
    assert refused(openai.BadRequestError, model=MODEL, messages=HELLO, temperature=3).param == "temperature"
    long = [{"role": "user", "content": "word " * 40000}]
    assert refused(openai.BadRequestError, model=MODEL, messages=long, stream=True).code == "context_length_exceeded"
    wrong = client.with_options(api_key="sk-pons-wrong")
    try:
        wrong.chat.completions.create(model=MODEL, messages=HELLO)
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    else:
        raise AssertionError("a wrong key was let in")


def leaving_a_stream_frees_the_brain():
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
    )
    for seen, _ in enumerate(stream):
        if seen == 5:
            break
    stream.close()
    until = time.monotonic() + 5
    while metric("pons_brain_sequences_running") > 0:
        assert time.monotonic() < until, "the sequence still runs"
        time.sleep(0.05)


def many_threads_get_their_own_answers():
    wanted = {
        seed: client.chat.completions.create(model=MODEL, messages=HELLO, seed=seed, temperature=1.0, max_tokens=20)
        for seed in range(8)
    }
    failures = []

    def one(seed):
        got = client.chat.completions.create(model=MODEL, messages=HELLO, seed=seed, temperature=1.0, max_tokens=20)
        if got.choices[0].message.content != wanted[seed].choices[0].message.content:
            failures.append(seed)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in wanted for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, f"seeds with another text in company: {failures}"


def embeddings_are_refused_by_name():
    try:
        client.embeddings.create(model=MODEL, input="hello")
    except (openai.BadRequestError, openai.NotFoundError) as error:
        assert error.body["message"]
    else:
        raise AssertionError("a chat model gave embeddings")


CHECKS = [
    models_are_listed_and_found,
    chat_answers_sensibly,
    a_stream_equals_the_plain_answer,
    the_stream_helper_builds_the_message,
    several_choices_differ_and_repeat_under_a_seed,
    a_required_tool_is_called_with_valid_arguments,
    a_named_tool_finishes_with_stop,
    the_parse_helper_gets_an_object,
    json_mode_gives_json,
    logprobs_are_the_same_streamed_and_not,
    completions_echo_scores_the_prompt,
    a_batch_of_prompts_keeps_its_order,
    stop_strings_are_never_shown,
    mistakes_are_told_by_class_and_name,
    leaving_a_stream_frees_the_brain,
    many_threads_get_their_own_answers,
    embeddings_are_refused_by_name,
]

failed = 0
for check in CHECKS:
    try:
        check()
        print("ok   python:", check.__name__)
    except Exception:
        failed += 1
        print("FAIL python:", check.__name__)
        traceback.print_exc()
print(f"python SDK {openai.__version__}: {len(CHECKS) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)
