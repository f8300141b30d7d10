// The official MCP clients, of SDK 1.x and 2.x: each does the steps of a question in a session of its own.
import { Client as Client2, StreamableHTTPClientTransport as Http2 } from "@modelcontextprotocol/client";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as Http1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CreateMessageRequestSchema, LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";
import net from "node:net";
import { createInterface } from "node:readline";
import { answering } from "./answering.mjs";

// What stands in for the pipes of a process: the same lines, over a socket.
class Lines {
  constructor(port) {
    this.port = port;
  }
  async start() {
    this.socket = net.connect(this.port, "127.0.0.1");
    // one message per turn of the loop: SDK 1.x drops progress that comes in one piece with the answer
    createInterface({ input: this.socket }).on("line", (line) => setImmediate(() => this.onmessage?.(JSON.parse(line))));
    this.socket.on("close", () => this.onclose?.());
    await new Promise((resolve, reject) => this.socket.once("connect", resolve).once("error", reject));
  }
  async send(message) {
    this.socket.write(JSON.stringify(message) + "\n");
  }
  async close() {
    this.socket.end();
  }
}

const who = { name: "test", version: "1.0.0" };
const sampled = async () => ({ role: "assistant", model: "fake-1", content: { type: "text", text: "42" } });

function connected({ sdk, url, port, mode }, logs) {
  const capabilities = { sampling: {} };
  const log = ({ params }) => void logs.push(params.data);
  if (sdk === 1) {
    const client = new Client1(who, { capabilities });
    client.setRequestHandler(CreateMessageRequestSchema, sampled);
    client.setNotificationHandler(LoggingMessageNotificationSchema, log);
    const call = (tool, options) => client.callTool(tool, undefined, options);
    return { client, call, transport: port ? new Lines(port) : new Http1(new URL(url)) };
  }
  const client = new Client2(who, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler("sampling/createMessage", sampled);
  client.setNotificationHandler("notifications/message", log);
  const call = (tool, options) => client.callTool(tool, options);
  return { client, call, transport: port ? new Lines(port) : new Http2(new URL(url)) };
}

async function step({ client, call }, [what, ...words], logs) {
  const params = { name: words[0], arguments: words[1], _meta: words[2] };
  switch (what) {
    case "tools":
      return (await client.listTools()).tools.map((tool) => tool.name).sort();
    case "call":
      return (await call(params)).content;
    case "structured":
      return (await call(params)).structuredContent;
    case "progress": {
      const told = [];
      const result = await call(params, { onprogress: (progress) => told.push(progress) });
      return [told, result.content];
    }
    case "resources":
      return (await client.listResources()).resources.map((resource) => resource.uri);
    case "read":
      return (await client.readResource({ uri: words[0] })).contents;
    case "prompts":
      return (await client.listPrompts()).prompts.map((prompt) => prompt.name).sort();
    case "prompt":
      return (await client.getPrompt({ name: words[0], arguments: words[1] })).messages;
    case "level":
      return await client.setLoggingLevel(words[0]);
    case "log": // one that belongs to no call
      while (!logs.length) await new Promise((resolve) => setTimeout(resolve, 20));
      return true;
    case "wrong":
      try {
        return (await call(params)).content;
      } catch (error) {
        return { error: String(error.message) };
      }
  }
  throw new Error(`no step ${what}`);
}

await answering(async (question) => {
  const logs = [];
  const session = connected(question, logs);
  await session.client.connect(session.transport);
  const found = [];
  try {
    for (const words of question.steps) found.push(await step(session, words, logs));
    const era = session.client.getProtocolEra?.() ?? "legacy";
    return { era, server: session.client.getServerVersion()?.name, found, logs };
  } finally {
    await session.client.close();
  }
});
