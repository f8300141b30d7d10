// The official SDKs of three providers: asked once or as a stream, at whatever base URL a question names.
import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import OpenAI from "openai";
import { answering } from "./answering.mjs";

// What came over the wire, decoded, beside what the SDK makes of it.
const fetched = globalThis.fetch;
let bodies = [];
globalThis.fetch = async (...request) => {
  const response = await fetched(...request);
  bodies.push(response.clone().arrayBuffer());
  return response;
};

const said = (text) => [{ role: "user", content: text }];

const clients = {
  "openai-chat": (base, key) => {
    const client = new OpenAI({ baseURL: `${base}/openai/v1`, apiKey: key, maxRetries: 0 });
    const ask = (text, stream) => client.chat.completions.create({ model: "fake-1", messages: said(text), stream });
    return { ask: async (text) => (await ask(text, false)).choices[0].message.content, stream: (text) => ask(text, true) };
  },
  "openai-responses": (base, key) => {
    const client = new OpenAI({ baseURL: `${base}/openai/v1`, apiKey: key, maxRetries: 0 });
    const ask = (text, stream) => client.responses.create({ model: "fake-1", input: text, stream });
    return { ask: async (text) => (await ask(text, false)).output_text, stream: (text) => ask(text, true) };
  },
  anthropic: (base, key) => {
    const client = new Anthropic({ baseURL: `${base}/anthropic`, apiKey: key, maxRetries: 0 });
    const ask = (text, stream) =>
      client.messages.create({ model: "fake-1", max_tokens: 99, messages: said(text), stream });
    return { ask: async (text) => (await ask(text, false)).content[0].text, stream: (text) => ask(text, true) };
  },
  gemini: (base, key) => {
    const client = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: `${base}/gemini` } });
    const ask = (text) => ({ model: "fake-1", contents: text });
    return {
      ask: async (text) => (await client.models.generateContent(ask(text))).text,
      stream: (text) => client.models.generateContentStream(ask(text)),
    };
  },
};

await answering(async ({ sdk, base, key, text, stream }) => {
  bodies = [];
  const client = clients[sdk](base, key);
  const found = { text: null, events: [], error: null };
  try {
    if (stream) {
      for await (const event of await client.stream(text)) {
        const { sdkHttpResponse, ...rest } = event;
        found.events.push(JSON.stringify(rest));
      }
    } else found.text = await client.ask(text);
  } catch (error) {
    found.error = { status: error.status ?? null, message: String(error.message) };
  }
  found.bytes = (await Promise.all(bodies)).map((body) => Buffer.from(body).toString("base64"));
  return found;
});
