// Perfetto's trace processor, compiled for a browser's worker, in Node: requests from standard input, replies to
// standard output, both as its own protocol has them. Argument: the folder of engine_bundle.js.
import { readFileSync, writeSync } from "node:fs";
import path from "node:path";

const node = process;
const folder = node.argv[2];

class Fetched {
  open(_method, name) {
    this.bytes = readFileSync(path.join(folder, path.basename(name)));
  }
  send() {
    this.status = 200;
    this.response = this.bytes.buffer.slice(this.bytes.byteOffset, this.bytes.byteOffset + this.bytes.length);
  }
}

delete globalThis.process; // it refuses to run where it recognises Node
Object.assign(globalThis, {
  self: globalThis,
  importScripts: () => {},
  location: { href: "file:///" },
  WorkerGlobalScope: class {},
  XMLHttpRequest: Fetched,
});
console.log = console.warn = console.error;
(0, eval)(readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));

const port = {
  postMessage(reply) {
    for (let sent = 0; sent < reply.length; ) sent += writeSync(1, reply, sent);
  },
};
globalThis.onmessage({ data: port });
setTimeout(() => {
  // its start-up has run
  port.onmessage({ data: new Uint8Array(readFileSync(0)) });
  node.exit(0);
}, 500);
