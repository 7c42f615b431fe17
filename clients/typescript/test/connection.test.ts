import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { inspect } from "node:util";
import { status } from "@grpc/grpc-js";
import { ArchiveService } from "../src/generated/windfall/v1/grant.js";
import {
  Connection, type ErrorKind, Gateway, isWorthRetrying, OptionError, type Options, Timers, Tokens, Wallet, WindfallError,
} from "../src/index.js";
import { because, type End, Fake, hinted, listen, nobody, resetting, said } from "./fake.js";

let fake: Fake;
const connections: Connection[] = [];

before(async () => {
  fake = await Fake.start();
});

after(() => {
  connections.forEach((connection) => connection.close());
  fake.stop();
});

/** The time-out is a bound for a machine that is very busy. */
function open(options: Options = {}): Connection {
  const connection = new Connection({
    endpoints: [fake.endpoint], attemptTimeoutMs: 20_000, connectTimeoutMs: 20_000, ...options,
  });
  connections.push(connection);
  return connection;
}

async function kindOf(call: Promise<unknown>): Promise<ErrorKind> {
  const error = await call.then(
    () => assert.fail("the call was answered"),
    (error: unknown) => error,
  );
  assert.ok(error instanceof WindfallError, inspect(error));
  return error.kind;
}

const replay = (connection: Connection) =>
  connection.call(ArchiveService.replayArchived, { id: 1n, actor: "", despiteSignature: "" }, { repeat: "never" });
const user = { named: 1n };

test("what a status means, and how often it is asked", async () => {
  const connection = open();
  const tokens = new Tokens(connection);
  const list = () => tokens.list(user);
  for (const [code, kind] of [
    [status.INVALID_ARGUMENT, "refused"], [status.UNAUTHENTICATED, "denied"], [status.PERMISSION_DENIED, "denied"],
    [status.NOT_FOUND, "not-found"], [status.INTERNAL, "unanswered"],
  ] as const) {
    fake.say(said(code));
    assert.equal(await kindOf(list()), kind);
    assert.equal(fake.calls, 1, status[code]);
  }
  for (const code of [status.UNAVAILABLE, status.RESOURCE_EXHAUSTED, status.ABORTED]) {
    fake.say(said(code), hinted(code));
    await list();
    assert.equal(fake.calls, 3, status[code]);
  }
  const [away, busy] = [said(status.UNAVAILABLE), hinted(status.UNAVAILABLE)];
  for (const [ends, kind] of [
    [[away, away, away], "unanswered"],
    [[busy, busy, busy], "busy"],
    // The last one did nothing; of the first ones nobody knows.
    [[away, away, busy], "unanswered"],
    // A refusal for good after a lost answer says nothing of the attempt that was lost.
    [[away, said(status.NOT_FOUND)], "unanswered"],
    [[said(status.RESOURCE_EXHAUSTED), said(status.NOT_FOUND)], "not-found"],
  ] as [End[], ErrorKind][]) {
    fake.say(...ends);
    assert.equal(await kindOf(list()), kind);
    assert.equal(fake.calls, ends.length);
  }
  fake.say(busy, busy, busy);
  await assert.rejects(list(), { kind: "busy", retryAfterMs: 7 });
  // An answer that does not fit the question is none.
  assert.equal(await kindOf(tokens.verify(user, ["a"])), "unanswered");
  fake.say(away);
  assert.equal(await kindOf(replay(connection)), "unanswered");
  assert.equal(fake.calls, 1, "a replay is never made again by itself");
});

test("what became of a withdrawal", async () => {
  const wallet = new Wallet(open({ attempts: 1 }));
  for (const [end, kind, retryAfterMs] of [
    [said(status.INVALID_ARGUMENT), "refused", 0],
    [said(status.PERMISSION_DENIED), "denied", 0],
    [said(status.FAILED_PRECONDITION), "too-little", 0],
    [because("user_frozen"), "frozen", 0],
    [because("of_a_later_release"), "too-little", 0],
    [said(status.ALREADY_EXISTS), "taken", 0],
    [said(status.INTERNAL), "unanswered", 0],
    [said(status.RESOURCE_EXHAUSTED), "unanswered", 0],
    [hinted(status.UNAVAILABLE), "unanswered", 7],
  ] as const) {
    fake.say(end);
    await assert.rejects(wallet.withdraw(user, { withdrawalId: "w", amount: 1n }), { kind, retryAfterMs });
  }
});

test("a call that is reset may have been done", async (context) => {
  const [enhanceYourCalm, inadequateSecurity] = [0x0b, 0x0c];
  for (const reason of [enhanceYourCalm, inadequateSecurity]) {
    const server = resetting(reason);
    const endpoint = await listen(server);
    context.after(() => server.close());
    for (const attempts of [1, 2]) {
      const connection = open({ endpoints: [endpoint], attempts });
      assert.equal(await kindOf(new Gateway(connection).sendBonus({})), "unanswered");
      assert.equal(await kindOf(new Wallet(connection).withdraw(user, { amount: 1n })), "unanswered");
      await assert.rejects(replay(connection), { kind: "unanswered", message: /Bandwidth|Protocol/ }, "it was not reset");
    }
  }
});

test("a lost answer is asked for again, and at last unknown", async () => {
  // More attempts than are needed, for a machine that is very busy.
  const patient = new Gateway(open({ attemptTimeoutMs: 300, attempts: 8 }));
  fake.say("hangs", "hangs");
  assert.equal((await patient.sendBonus({ tradeNo: "lost" })).token, "token");
  assert.ok(fake.calls >= 3, "the same order, three times");
  const hasty = new Gateway(open({ attemptTimeoutMs: 300, attempts: 2 }));
  fake.say("hangs", "hangs");
  assert.equal(await kindOf(hasty.sendBonus({})), "unanswered");
  // The same where the last attempt is refused, for now or for good.
  for (const last of [hinted(status.UNAVAILABLE), said(status.RESOURCE_EXHAUSTED), said(status.FAILED_PRECONDITION)]) {
    fake.say("hangs", last);
    assert.equal(await kindOf(hasty.sendBonus({})), "unanswered");
  }
});

test("a caller that goes is told that nobody knows", async () => {
  const gateway = new Gateway(open());
  fake.say("hangs");
  const sent = gateway.sendBonus({}, { signal: AbortSignal.timeout(200) });
  assert.equal(await kindOf(sent), "unanswered");
  assert.ok(fake.calls <= 1);
  assert.equal(await kindOf(gateway.sendBonus({}, { signal: AbortSignal.abort() })), "unanswered");
});

test("a gateway that is away is no answer, and another one takes over", async () => {
  const away = await nobody();
  const error = await new Gateway(open({ endpoints: [away] })).sendBonus({}).catch((error: unknown) => error);
  assert.ok(error instanceof WindfallError && error.kind === "unanswered" && isWorthRetrying(error), inspect(error));
  fake.say();
  let gateway = new Gateway(open({ endpoints: [away, fake.endpoint] }));
  for (let nth = 0; nth < 6; nth++) {
    await gateway.sendBonus({});
  }
  assert.equal(fake.calls, 6);
  // Where there was no connection, nothing was sent, and the refusal stands.
  gateway = new Gateway(open({ endpoints: [away, fake.endpoint] }));
  fake.say(said(status.FAILED_PRECONDITION));
  assert.equal(await kindOf(gateway.sendBonus({})), "no-route");
});

test("large batches go in parts and come back in order", async () => {
  const failure = { code: status.FAILED_PRECONDITION, message: "", retryable: true };
  fake.batch = ({ requests }) => ({
    results: requests.map(({ tradeNo }) => ({
      result: tradeNo === "order-700" ? { $case: "failure", value: failure } : { $case: "token", value: tradeNo },
    })),
  });
  const gateway = new Gateway(open());
  const send = (count: number, extension: Record<string, string> = {}) =>
    gateway.sendBonusBatch(Array.from({ length: count }, (_, nth) => ({ tradeNo: `order-${nth}`, extension })));
  fake.say();
  const answers = await send(1_300);
  assert.equal(fake.calls, 3);
  answers.forEach((answer, nth) => {
    if (nth === 700) {
      assert.ok("error" in answer && answer.error.kind === "no-route");
    } else {
      assert.deepEqual(answer, { token: `order-${nth}` });
    }
  });
  assert.equal(answers.length, 1_300);
  assert.deepEqual(await send(0), []);
  // Fat ones, too: 300 of 10 KiB.
  fake.say();
  assert.equal((await send(300, { k: "v".repeat(10_240) })).length, 300);
  assert.equal(fake.calls, 3);
  // What is refused after an attempt was lost may have been taken by that one.
  fake.say(said(status.RESOURCE_EXHAUSTED), said(status.UNAVAILABLE));
  const [doubtful] = await gateway.sendBonusBatch([{ tradeNo: "order-700" }]);
  assert.ok(doubtful && "error" in doubtful && doubtful.error.kind === "unanswered");
});

test("a timer without a key is not added twice", async () => {
  const timers = new Timers(open());
  fake.say(said(status.UNAVAILABLE));
  assert.equal(await kindOf(timers.add({ timer: { target: "hook" } })), "unanswered");
  assert.equal(fake.calls, 1);
  fake.say(said(status.UNAVAILABLE));
  await timers.add({ timer: { target: "hook", key: "call-1" } });
  assert.equal(fake.calls, 2);
});

test("the key and the user go with the call and are not shown", async () => {
  const secret = "wfk_not-a-real-key";
  const assertion = "eyJhbGciOi.a-users.assertion";
  const connection = open({ bearerKey: secret });
  const wallet = new Wallet(connection);
  fake.say();
  await wallet.get({ signed: assertion });
  await wallet.get({ named: 42n });
  const [first, second] = fake.heads;
  assert.deepEqual(first?.get("x-windfall-user-token"), [assertion]);
  assert.deepEqual(first?.get("x-windfall-user"), []);
  assert.deepEqual(second?.get("x-windfall-user"), ["42"]);
  assert.deepEqual(second?.get("authorization"), [`Bearer ${secret}`]);
  assert.ok(!inspect(connection, { depth: 9, showHidden: true }).includes(secret));
  assert.equal(await kindOf(wallet.get({ signed: "a\nb" })), "refused");
  assert.equal(fake.calls, 2);
  assert.throws(
    () => open({ bearerKey: `${secret}\n` }),
    (error: unknown) => error instanceof OptionError && !error.message.includes(secret),
  );
});

test("a number that could have been rounded is not sent", async () => {
  fake.say();
  const gateway = new Gateway(open());
  const untyped = { user: { userId: 2 ** 60 } } as unknown as Parameters<Gateway["sendBonus"]>[0];
  await assert.rejects(gateway.sendBonus(untyped), TypeError);
  await assert.rejects(gateway.sendBonusBatch([untyped]), TypeError);
  assert.equal(fake.calls, 0);
});

test("options that cannot be are refused", () => {
  const at = (endpoint: string): Options => ({ endpoints: [endpoint], bearerKey: "key" });
  for (const options of [
    { endpoints: [] }, { attempts: 0 }, { attempts: 1.5 }, { attemptTimeoutMs: 0 }, { connectTimeoutMs: 60_001 },
    { clientCertFile: "cert.pem" }, at("http://10.0.0.7:7070"), at("https://10.0.0.7:7070"), at("ftp://127.0.0.1"),
    at("127.0.0.1:7070"), at("no address"), at(""), { ...at("https://10.0.0.7:7070"), caFile: "/none.pem" },
  ]) {
    assert.throws(() => new Connection(options), OptionError, inspect(options));
  }
  for (const options of [
    {}, at("http://[::1]:7070"), at("http://localhost:7070"), { ...at("http://10.0.0.7:7070"), keyInPlainText: true },
  ]) {
    new Connection(options).close();
  }
});
