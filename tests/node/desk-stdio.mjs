import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { desk } from "./desk.mjs";

const charged = {};
serveStdio(() => desk(charged));
