// Probot with a handler that does nothing: what accepting a delivery costs there. Arguments: webhook secret.
// Prints its port. Run from a folder that has probot in its node_modules.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:net";
import pino from "pino";
import { Probot, Server } from "probot";

const { privateKey } = generateKeyPairSync("rsa", {
  modulusLength: 2048,
  privateKeyEncoding: { type: "pkcs8", format: "pem" },
  publicKeyEncoding: { type: "spki", format: "pem" },
});

// Probot reads port 0 as its default port.
const port = await new Promise((resolve) => {
  const probe = createServer().listen(0, "127.0.0.1", () => {
    const { port } = probe.address();
    probe.close(() => resolve(port));
  });
});

const server = new Server({
  host: "127.0.0.1",
  port,
  webhookPath: "/webhook",
  // Logging each request would slow it down.
  log: pino({ level: "fatal" }),
  Probot: Probot.defaults({ appId: 1, privateKey, secret: process.argv[2] }),
});
await server.load((app) => app.on("pull_request", async () => {}));
await server.start();
console.log(port);
