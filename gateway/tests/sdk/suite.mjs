// The official OpenAI SDK for Node against a running server (PONS_URL). Each function is one check.

import assert from "node:assert/strict";
import OpenAI from "openai";

const URL = process.env.PONS_URL.replace(/\/$/, "");
const client = new OpenAI({ baseURL: URL + "/v1", apiKey: process.env.OPENAI_API_KEY ?? "none", maxRetries: 0 });
const model = process.env.PONS_TEST_MODEL ?? (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France?" }];
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Weather for a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string", maxLength: 20 } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];

async function running() {
  const text = await (await fetch(URL + "/metrics")).text();
  const lines = text.split("\n").filter((line) => line.startsWith("pons_brain_sequences_running"));
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

const checks = {
  async chat_answers_sensibly() {
    const answer = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 32 });
    assert.match(answer.choices[0].message.content, /Paris/);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },

  async a_stream_equals_the_plain_answer() {
    const request = { model, messages, temperature: 1.2, seed: 11, max_tokens: 40 };
    const plain = await client.chat.completions.create(request);
    const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, plain.choices[0].message.content);
    assert.equal(usage.completion_tokens, plain.usage.completion_tokens);
  },

  async the_stream_helper_builds_the_message() {
    const stream = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 32 });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(text, final.choices[0].message.content);
    assert.equal(final.choices[0].message.role, "assistant");
  },

  async the_stream_helper_builds_several_choices() {
    const stream = client.chat.completions.stream({ model, messages, n: 3, seed: 4, temperature: 1.1, max_tokens: 12 });
    const final = await stream.finalChatCompletion();
    assert.deepEqual(final.choices.map((choice) => choice.index), [0, 1, 2]);
  },

  async a_required_tool_is_called_with_valid_arguments() {
    const request = { model, messages, tools, tool_choice: "required", temperature: 0, max_tokens: 200 };
    const answer = await client.chat.completions.create(request);
    const call = answer.choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "get_weather");
    assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["city"]);
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    const final = await client.chat.completions.stream(request).finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  },

  async a_json_schema_is_kept() {
    const schema = {
      type: "object",
      properties: { name: { type: "string", maxLength: 30 }, capital: { type: "boolean" } },
      required: ["name", "capital"],
      additionalProperties: false,
    };
    const answer = await client.chat.completions.parse({
      model,
      messages,
      temperature: 0,
      max_tokens: 400,
      response_format: { type: "json_schema", json_schema: { name: "city", strict: true, schema } },
    });
    assert.equal(typeof answer.choices[0].message.parsed.capital, "boolean");
  },

  async logprobs_come_with_every_token() {
    const request = { model, messages, temperature: 0, max_tokens: 6, logprobs: true, top_logprobs: 0 };
    const answer = await client.chat.completions.create(request);
    assert.equal(answer.choices[0].logprobs.content.length, answer.usage.completion_tokens);
    assert.ok(answer.choices[0].logprobs.content.every((entry) => entry.logprob <= 0 && entry.top_logprobs.length === 0));
  },

  async completions_stream() {
    const stream = await client.completions.create({ model, prompt: "1, 2, 3,", temperature: 0, max_tokens: 8, stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
    assert.ok(text.length > 0);
  },

  async mistakes_are_told_by_class_and_name() {
    await assert.rejects(
      client.chat.completions.create({ model: "no-such-model", messages, stream: true }),
      (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found" && error.param === "model",
    );
    await assert.rejects(
      client.chat.completions.create({ model, messages: [] }),
      (error) => error instanceof OpenAI.BadRequestError && error.param === "messages",
    );
    const stranger = new OpenAI({ baseURL: URL + "/v1", apiKey: "sk-pons-wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), (error) => error instanceof OpenAI.AuthenticationError);
  },

  async aborting_a_stream_frees_the_brain() {
    const stream = await client.chat.completions.create({ model, messages, stream: true, max_tokens: 4000, ignore_eos: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 5) break;
    const until = Date.now() + 5000;
    while ((await running()) > 0) {
      assert.ok(Date.now() < until, "the sequence still runs");
      await new Promise((done) => setTimeout(done, 50));
    }
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log("ok   node:", name);
  } catch (error) {
    failed += 1;
    console.log("FAIL node:", name);
    console.error(error);
  }
}
console.log(`node SDK: ${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
