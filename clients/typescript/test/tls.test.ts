import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { ServerCredentials } from "@grpc/grpc-js";
import { Connection, Gateway, type Options } from "../src/index.js";
import { Fake } from "./fake.js";

const skip = spawnSync("openssl", ["version"]).status !== 0 && "openssl, which makes the certificates, is not installed";

/** Issues certificates, and keeps them and their keys in a folder. */
class Authority {
  readonly #folder = mkdtempSync(join(tmpdir(), "windfall-"));

  constructor() {
    this.#openssl(
      "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2", "-subj", "/CN=test",
      "-addext", "keyUsage=keyCertSign", "-keyout", "ca.key", "-out", "ca.pem",
    );
  }

  file(name: string): string {
    return join(this.#folder, name);
  }

  issue(name: string): { cert: string; key: string } {
    writeFileSync(this.file("names"), `subjectAltName=DNS:${name}`);
    this.#openssl(
      "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", `/CN=${name}`,
      "-keyout", `${name}.key`, "-out", `${name}.csr`,
    );
    this.#openssl(
      "x509", "-req", "-in", `${name}.csr`, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
      "-extfile", "names", "-out", `${name}.pem`,
    );
    return { cert: this.file(`${name}.pem`), key: this.file(`${name}.key`) };
  }

  remove(): void {
    rmSync(this.#folder, { recursive: true });
  }

  #openssl(...words: string[]): void {
    execFileSync("openssl", words, { cwd: this.#folder, stdio: "pipe" });
  }
}

test("a certificate is as good as a key, and strangers are not trusted", { skip }, async (context) => {
  const [own, stranger] = [new Authority(), new Authority()];
  const server = own.issue("gateway.test");
  const pair = { cert_chain: readFileSync(server.cert), private_key: readFileSync(server.key) };
  const fake = await Fake.start(ServerCredentials.createSsl(readFileSync(own.file("ca.pem")), [pair], true));
  context.after(() => {
    fake.stop();
    own.remove();
    stranger.remove();
  });
  const { cert, key } = own.issue("rain.test");
  const good: Options = {
    endpoints: [fake.endpoint.replace("http:", "https:")], caFile: own.file("ca.pem"), clientCertFile: cert, clientKeyFile: key,
    serverName: "gateway.test", attempts: 1, attemptTimeoutMs: 20_000, connectTimeoutMs: 20_000,
  };
  const send = async (options: Options) => {
    const connection = new Connection(options);
    context.after(() => connection.close());
    return new Gateway(connection).sendBonus({});
  };
  assert.equal((await send(good)).token, "token");
  const { clientCertFile: _cert, clientKeyFile: _key, ...nameless } = good;
  await assert.rejects(send({ ...good, caFile: stranger.file("ca.pem") }), { kind: "unanswered" }, "another authority");
  await assert.rejects(send({ ...good, serverName: "another.test" }), { kind: "unanswered" }, "another name");
  await assert.rejects(send(nameless), { kind: "unanswered" }, "no certificate");
  assert.equal(fake.calls, 1);
});
