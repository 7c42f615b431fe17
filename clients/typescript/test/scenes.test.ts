import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { CardDraw, Fireworks, type Init, InvalidArgument, RedPacketRain, type SendBonusRequest } from "../src/index.js";
import { docs } from "./docs.js";

const SCENES = { "red-packet-rain": RedPacketRain, "card-draw": CardDraw, fireworks: Fireworks };

function keeping() {
  const requests: Init<SendBonusRequest>[] = [];
  const sendBonus = async (request: Init<SendBonusRequest>) => {
    requests.push(request);
    return { token: `token of ${request.tradeNo}` };
  };
  return { requests, sendBonus };
}

interface Vector {
  scene: keyof typeof SCENES;
  activity: string;
  bonus_type: string;
  round: number;
  user_id: string;
  number: number;
  trade_no: string;
}

/** The document's user ids are numbers of 64 bits, which JSON.parse would round. */
function vectors(): Vector[] {
  const text = readFileSync(docs("order-numbers.json"), "utf8");
  return JSON.parse(text.replace(/"user_id": ([0-9]+)/g, '"user_id": "$1"'));
}

test("order numbers are those of the documentation", async () => {
  assert.ok(vectors().length >= 5);
  for (const vector of vectors()) {
    const sender = keeping();
    const scene = new SCENES[vector.scene](sender, vector.activity, vector.bonus_type);
    const userId = BigInt(vector.user_id);
    assert.equal(scene.tradeNo(vector.round, userId, vector.number), vector.trade_no);
    const prize = { amount: 7n, description: "for you" };
    const token = await scene.send(vector.round, { userId, deviceId: "phone" }, vector.number, prize);
    assert.equal(token, `token of ${vector.trade_no}`);
    assert.deepEqual(sender.requests, [
      {
        tradeNo: vector.trade_no,
        user: { userId, deviceId: "phone" },
        activity: vector.activity,
        scene: vector.scene,
        bonus: { type: vector.bonus_type, amount: 7n, description: "for you" },
      },
    ]);
  }
});

test("names and numbers with which an order number could be refused, or be another one, are refused", () => {
  for (const [activity, bonusType] of [
    ["", "cash"], ["a b", "cash"], ["a\n", "cash"], ["红包", "cash"], ["a".repeat(65), "cash"], ["a", ""], ["a", "Cash"],
    ["a", "cash\n"], ["a", "c".repeat(33)], ["a".repeat(64), "c".repeat(32)],
  ] as const) {
    assert.throws(() => new RedPacketRain(keeping(), activity, bonusType), InvalidArgument, `${activity} ${bonusType}`);
  }
  const rain = new RedPacketRain(keeping(), "a".repeat(64), "cash");
  for (const wrong of [-1, 0.5, 2 ** 32, Number.NaN, Infinity]) {
    assert.throws(() => rain.tradeNo(wrong, 1n, 0), InvalidArgument);
    assert.throws(() => rain.tradeNo(0, 1n, wrong), InvalidArgument);
  }
  // A number has been rounded by then, and 42 as a number would be one day 2^53 + 1.
  for (const wrong of [0n, -1n, 2n ** 63n, 42 as unknown as bigint, "42" as unknown as bigint]) {
    assert.throws(() => rain.tradeNo(0, wrong, 0), InvalidArgument);
  }
});
