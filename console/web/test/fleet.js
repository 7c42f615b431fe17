// A `windfall serve --dev` for the tests, with a small load.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const READY_WITHIN_MS = 60_000;

/** Jobs and a task queue beside the rest. */
const OPTIONS = `[jobs]
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
    const options = join(data, "options.toml");
    await writeFile(options, OPTIONS);
    const args = ["serve", "--dev", "--config", options, "--data", data, "--listen", "127.0.0.1:0"];
    const { child, keys, ready } = run(args);
    const fleet = new Fleet();
    Object.assign(fleet, { child, data, keys, sent: 0 });
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

  /** Sends one reward, and answers its status. */
  async send(user, count, { type = "cash", amount = 888 } = {}) {
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
    await response.body?.cancel();
    this.sent += 1;
    return tradeNo;
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
