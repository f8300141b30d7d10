// MCP servers over HTTP, each at a port of its own, with a count of their requests.
import { randomUUID } from "node:crypto";
import http from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { createMcpHandler } from "@modelcontextprotocol/server";
import { answering } from "./answering.mjs";
import { desk } from "./desk.mjs";

console.log = console.error; // standard output is for answers
const requests = {};
let charged = {};

// Whatever port a server asks for, it gets a free one on loopback.
const listen = http.Server.prototype.listen;
let listening;
http.Server.prototype.listen = function (...words) {
  const then = words.find((word) => typeof word === "function");
  listening(
    new Promise((resolve) =>
      listen.call(this, 0, "127.0.0.1", () => {
        const { port } = this.address();
        requests[port] = 0;
        this.on("request", () => requests[port]++);
        then?.();
        resolve(port);
      }),
    ),
  );
  return this;
};

const servers = {
  desk: () => http.createServer(toNodeHandler(createMcpHandler(() => desk(charged)))).listen(0),
  everything: () =>
    import("./node_modules/@modelcontextprotocol/server-everything/dist/transports/streamableHttp.js"),
  // a server that has only stdio, behind the transport of its SDK
  files: ({ folder }) => {
    const program = new URL("./node_modules/@modelcontextprotocol/server-filesystem/dist/index.js", import.meta.url);
    const inner = new StdioClientTransport({ command: process.execPath, args: [program.pathname, folder] });
    const outer = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID });
    outer.onmessage = (message) => inner.send(message);
    inner.onmessage = (message) => outer.send(message);
    Promise.all([inner.start(), outer.start()]).then(() =>
      http.createServer((request, response) => outer.handleRequest(request, response)).listen(0),
    );
  },
};

await answering(async (question) => {
  if (question.reset) return (charged = {});
  if (question.count !== undefined) return { requests: requests[question.count], charged: { ...charged } };
  return await new Promise((resolve, reject) => {
    listening = resolve;
    Promise.resolve(servers[question.serve](question)).catch(reject);
  });
});
