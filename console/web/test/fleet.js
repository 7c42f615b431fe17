// A `windfall serve --dev` for the tests, with a small load.

import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const READY_WITHIN_MS = 60_000;

/** Jobs, a task queue, the auditor, and a payer of badges that never answers, beside the rest. */
const options = (payer, secret) => `[rewards]
pays = { badge = "badges" }
[connectors.badges.wire.http]
url = "http://127.0.0.1:${payer}/pay"
allow = ["127.0.0.1"]
key_id = "test"
secret_file = ${JSON.stringify(secret)}
[connectors.badges.wire.http.wire]
plaintext = true
[connectors.badges.guard]
timeout_ms = 500
[auditor]
enabled = true
every_ms = 1000
sweep_ms = 200
[jobs]
[task_queue.api]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
[task_queue.pools.default]
`;

/** Runs the binary that WINDFALL_BINARY names: its keys as it prints them, and its address when it is ready. */
function run(args) {
  const binary = process.env.WINDFALL_BINARY;
  if (!binary) throw new Error("WINDFALL_BINARY must name the binary windfall");
  const child = spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"] });
  const keys = {};
  const ready = new Promise((done, failed) => {
    const timer = setTimeout(() => failed(new Error("the process was not ready in time")), READY_WITHIN_MS);
    child.on("exit", (code) => failed(new Error(`the process ended with ${code}`)));
    createInterface({ input: child.stdout }).on("line", (line) => {
      const key = /^ {2}(\S+)\s+(wfk_\S+)/.exec(line);
      if (key) keys[key[1]] = key[2];
      const address = /is ready at (\S+)/.exec(line);
      if (address) {
        clearTimeout(timer);
        done(`http://${address[1]}`);
      }
    });
  });
  return { child, keys, ready };
}

/** A server that takes connections and says nothing. */
async function silentServer() {
  const server = createServer((socket) => {
    server.sockets.add(socket);
    socket.on("error", () => undefined).on("close", () => server.sockets.delete(socket));
  });
  server.sockets = new Set();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return server;
}

async function end(child) {
  if (!child || child.exitCode !== null) return;
  const ended = new Promise((done) => child.once("exit", done));
  child.kill("SIGTERM");
  await ended;
}

export class Fleet {
  /** Starts all services in one process, and waits until they are ready. */
  static async start() {
    const data = await mkdtemp(join(tmpdir(), "windfall-console-"));
    const [file, secret] = ["options.toml", "payer.secret"].map((name) => join(data, name));
    const payer = await silentServer();
    await writeFile(secret, randomBytes(32).toString("base64"), { mode: 0o600 });
    await writeFile(file, options(payer.address().port, secret));
    const args = ["serve", "--dev", "--config", file, "--data", data, "--listen", "127.0.0.1:0"];
    const { child, keys, ready } = run(args);
    const fleet = new Fleet();
    Object.assign(fleet, { child, payer, data, keys, sent: 0 });
    fleet.url = await ready.catch(async (error) => {
      await fleet.stop();
      throw error;
    });
    return fleet;
  }

  async stop() {
    this.raining = false;
    await this.rain?.catch(() => undefined);
    for (const child of [this.console, this.child]) await end(child);
    this.payer.close();
    this.payer.sockets.forEach((socket) => socket.destroy());
    await rm(this.data, { recursive: true, force: true });
  }

  /** Starts a console of its own over these services, and answers its address. */
  async startConsole() {
    const key = join(this.data, "console.key");
    await writeFile(key, this.keys.operator);
    const options = join(this.data, "console.toml");
    await writeFile(
      options,
      `data = ${JSON.stringify(join(this.data, "console"))}
access = ${JSON.stringify(join(this.data, "access.toml"))}
[rules]
file = ${JSON.stringify(join(this.data, "rules", "rules.toml"))}
[console]
key_file = ${JSON.stringify(key)}
[[console.services]]
name = "all in one"
url = ${JSON.stringify(this.url)}
[[console.services]]
name = "gone"
url = "http://127.0.0.1:1"
`,
    );
    const { child, ready } = run(["console", "--config", options, "--listen", "127.0.0.1:0"]);
    this.console = child;
    return ready;
  }

  /** Sends one reward, and answers its order number. */
  async send(user, count, reward) {
    return (await this.sendForToken(user, count, reward)).order;
  }

  /** Sends one reward, and answers its order number and its token. */
  async sendForToken(user, count, { type = "cash", amount = 888 } = {}) {
    const tradeNo = `spring-2027/red-packet-rain/0000000001/${type}/${user}/${count}`;
    const response = await fetch(`${this.url}/v1/bonuses/send`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${this.keys.activity}` },
      body: JSON.stringify({
        trade_no: tradeNo,
        user: { user_id: user },
        activity: "spring-2027",
        scene: "red-packet-rain",
        bonus: { type, amount, description: "red packet" },
      }),
    });
    if (!response.ok) throw new Error(`sending answers ${response.status}: ${await response.text()}`);
    const { token } = await response.json();
    this.sent += 1;
    return { order: tradeNo, token };
  }

  /** A call of the services by one of the callers; its answer, or an error with what was said. */
  async call(caller, path, body, user) {
    const response = await fetch(`${this.url}${path}`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        authorization: `Bearer ${this.keys[caller]}`,
        ...(user === undefined ? {} : { "x-windfall-user": String(user) }),
      },
      body: JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(`${path} answers ${response.status}: ${JSON.stringify(answer)}`);
    return answer;
  }

  /** How the ledger has an order, such as CREDITED. */
  async status(order) {
    const { order: found } = await this.call("operator", "/v1/orders/get", { trade_no: order });
    return found?.status.replace("ORDER_STATUS_", "");
  }

  /** Sends a reward, and waits until it is credited; or reserved, where its payer never answers. */
  async credit(user, count, reward, status = "CREDITED") {
    return this.until(await this.send(user, count, reward), status);
  }

  /** Waits until the ledger has an order in this state. */
  async until(order, status) {
    for (const since = Date.now(); (await this.status(order)) !== status; ) {
      if (Date.now() - since > READY_WITHIN_MS) throw new Error(`${order} was not ${status} in time`);
      await new Promise((done) => setTimeout(done, 50));
    }
    return order;
  }

  /** A withdrawal that a front end has to pay out. */
  async withdraw(user, id, amount) {
    const answer = await this.call("wallet-front", "/v1/wallet/withdraw", { withdrawal_id: id, bonus_type: "cash", amount }, user);
    if (answer.outcome !== "WITHDRAW_OUTCOME_TO_PAY_OUT") throw new Error(`a withdrawal is answered ${JSON.stringify(answer)}`);
  }

  /** What a user has of cash, as the ledger says. */
  async balance(user) {
    const { balances } = await this.call("operator", "/v1/statements/get", { user_id: String(user), page_size: 1 });
    return Number(balances.find((one) => one.bonus_type === "cash")?.balance ?? 0);
  }

  /** Changes a user's balance by hand, which no transfer explains. */
  tamper(user, by) {
    const script = `import sqlite3, sys
with sqlite3.connect(sys.argv[1], timeout=30) as db:
    db.execute("UPDATE accounts SET balance = balance + ? WHERE kind = 0 AND holder = ?", (int(sys.argv[3]), int(sys.argv[2])))
`;
    execFileSync("python3", ["-c", script, join(this.data, "ledger.db"), String(user), String(by)]);
  }

  /** Makes a job whose runs go to a target where nobody listens. */
  async putJob(name) {
    const response = await fetch(`${this.url}/v1/jobs/put`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${this.keys.scheduler}` },
      body: JSON.stringify({
        name,
        spec: { fixed_rate: { every_ms: 3_600_000 }, target: { name: "hook" } },
        why: "a test of the console",
      }),
    });
    if (!response.ok) throw new Error(`a job is answered ${response.status}: ${await response.text()}`);
    await response.body?.cancel();
  }

  /** Sends some rewards a second until the end. */
  startRain() {
    this.raining = true;
    const types = ["cash", "cash", "cash", "coupon", "coin", "gift"];
    const one = async () => {
      for (let count = 0; this.raining; count++) {
        const type = types[count % types.length];
        await this.send(1_000 + (count % 500), 1_000 + count, { type, amount: 1 + (count % 900) });
        await new Promise((done) => setTimeout(done, 10));
      }
    };
    this.rain = one();
  }

  /** Two rewards with one order number: the second one is archived as a conflict. */
  async conflict(user) {
    await this.send(user, 1, { amount: 100 });
    return this.send(user, 1, { amount: 200 });
  }
}
