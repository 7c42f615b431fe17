import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { TimersService } from "../src/generated/windfall/v1/schedule.js";
import {
  CardDraw, Connection, Gateway, IllegalToken, isWorthRetrying, PayoutResult, Payouts, RedPacketRain, Timers, Tokens,
  TokenVerdict, TokenVerifier, Wallet, WindfallError, WithdrawOutcome,
} from "../src/index.js";

const OWN_USER = 2_001n;
/** The tests of every language send this user the same order. */
const SHARED_USER = 7_777n;

const gatewayUrl = process.env["WINDFALL_GATEWAY"];
const skip = gatewayUrl === undefined && "no gateway runs (WINDFALL_GATEWAY is not set); clients/with-gateway starts one";
const connections: Connection[] = [];

/** Opens a connection with one of the keys of the gateway that clients/with-gateway started. */
function live(keyName: string): Connection {
  const connection = new Connection({
    endpoints: [gatewayUrl!], bearerKey: process.env[keyName]!, attemptTimeoutMs: 20_000, connectTimeoutMs: 20_000,
  });
  connections.push(connection);
  return connection;
}

/** Waits until the user's balance of cash is this. The bound is for a machine that is very busy. */
async function untilCredited(userId: bigint, wanted: bigint): Promise<void> {
  const wallet = new Wallet(live("WINDFALL_WALLET_KEY"));
  for (const begunMs = Date.now(); ; await sleep(50)) {
    const { balances } = await wallet.get({ named: userId });
    const credited = balances[0]?.credited ?? 0n;
    assert.ok(credited <= wanted, `credited ${credited}, not ${wanted}`);
    if (credited === wanted && balances[0]?.pending === 0n) {
      return;
    }
    assert.ok(Date.now() < begunMs + 60_000, `user ${userId} has ${credited} after a minute, not ${wanted}`);
  }
}

describe("beside a gateway", { skip }, () => {
  after(() => connections.forEach((connection) => connection.close()));

  test("a reward that is sent again is credited once and paid out once", async () => {
    const gateway = new Gateway(live("WINDFALL_ACTIVITY_KEY"));
    const rain = new RedPacketRain(gateway, "typescript-2027", "cash");
    const user = { userId: OWN_USER };
    const prize = { amount: 888n, description: "red packet" };
    const text = await rain.send(1, user, 0, prize);
    // Again alone, and in a batch beside one that is wrong.
    await rain.send(1, user, 0, prize);
    const [same, wrong] = await gateway.sendBonusBatch([
      rain.request(1, user, 0, prize), rain.request(1, user, 1, { amount: 0n }),
    ]);
    assert.ok(same && "token" in same);
    assert.ok(wrong && "error" in wrong && wrong.error.kind === "refused");

    const verifier = TokenVerifier.load(process.env["WINDFALL_VERIFIER_FILE"]!, "windfall");
    const opened = verifier.open(text, OWN_USER);
    assert.equal(opened.tradeNo, "typescript-2027/rain/0000000001/cash/2001/0");
    assert.equal(opened.amount, 888n);
    assert.throws(() => verifier.open(text, OWN_USER + 1n), IllegalToken);
    await untilCredited(OWN_USER, 888n);

    const [own, other] = await new Tokens(live("WINDFALL_WALLET_KEY")).verify({ named: OWN_USER }, [text, "AQAA"]);
    assert.notEqual(own?.verdict, TokenVerdict.TOKEN_VERDICT_ILLEGAL);
    assert.equal(other?.verdict, TokenVerdict.TOKEN_VERDICT_ILLEGAL);
    const wallet = new Wallet(live("WINDFALL_WALLET_KEY"));
    const take = (withdrawalId: string, amount: bigint) =>
      wallet.withdraw({ named: OWN_USER }, { withdrawalId, bonusType: "cash", amount });
    const payouts = new Payouts(live("WINDFALL_PAYOUTS_KEY"));
    const done = { userId: OWN_USER, withdrawalId: "typescript-1", result: PayoutResult.PAYOUT_RESULT_PAID };
    for (const [nth, outcome] of [
      WithdrawOutcome.WITHDRAW_OUTCOME_TO_PAY_OUT, WithdrawOutcome.WITHDRAW_OUTCOME_PAID_OUT,
    ].entries()) {
      const reply = await take("typescript-1", 800n);
      assert.equal(reply.outcome, outcome);
      assert.equal(reply.balance, 88n);
      assert.equal(await payouts.acknowledge(done), nth === 0);
    }
    await assert.rejects(take("typescript-2", 800n), { kind: "too-little" });
    await assert.rejects(take("typescript-1", 8n), { kind: "taken" });
  });

  // The order numbers of the languages and of HTTP are one, so that the reward is one, whoever sends it.
  test("a reward of several languages is credited once", async () => {
    const draw = new CardDraw(new Gateway(live("WINDFALL_ACTIVITY_KEY")), "shared-2027", "cash");
    await draw.send(15, { userId: SHARED_USER }, 3, { amount: 100n, description: "a card" });
    const answer = await fetch(`${gatewayUrl}/v1/bonuses/send`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${process.env["WINDFALL_ACTIVITY_KEY"]}` },
      body: JSON.stringify({
        trade_no: "shared-2027/draw/0000000015/cash/7777/3", user: { user_id: "7777" }, activity: "shared-2027",
        scene: "card-draw", bonus: { type: "cash", amount: "100" },
      }),
    });
    assert.equal(answer.status, 200, await answer.text());
    await untilCredited(SHARED_USER, 100n);
  });

  test("a key without the role is denied", async () => {
    const sent = new Gateway(live("WINDFALL_WALLET_KEY")).sendBonus({});
    const error = await sent.catch((error: unknown) => error);
    assert.ok(error instanceof WindfallError && error.kind === "refused" && !isWorthRetrying(error));
    await assert.rejects(new Wallet(live("WINDFALL_ACTIVITY_KEY")).get({ named: OWN_USER }), { kind: "denied" });
  });

  test("a timer with a key is added once", async () => {
    const connection = live("WINDFALL_SCHEDULER_KEY");
    const timers = new Timers(connection);
    const dueMs = BigInt(Date.now() + 3_600_000);
    const timer = { target: "rewards", dueMs, key: "typescript-1", payload: Buffer.from("{}") };
    const first = await timers.add({ timer });
    const again = await timers.add({ timer });
    assert.ok(again.existed && again.id === first.id);
    assert.equal((await timers.get({ id: first.id })).dueMs, dueMs);
    // A call that has no method here.
    const request = { tenant: "", after: "", pageSize: 0 };
    const listed = await connection.call(TimersService.listDead, request, { repeat: "safe" });
    assert.ok(Array.isArray(listed.timers));
    await timers.cancel({ id: first.id });
  });
});
