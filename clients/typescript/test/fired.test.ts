import assert from "node:assert/strict";
import { test } from "node:test";
import { FiredIds } from "../src/index.js";

test("what was done is known, and what was only begun is not", () => {
  const ids = new FiredIds(1_000, 10);
  assert.equal(ids.seen("a", 5_000), "never");
  assert.equal(ids.seen("a", 5_000n), "never", "its work was not done: it comes again, and is done again");
  ids.done("a", 5_000n);
  assert.equal(ids.seen("a", 5_000), "before");
  assert.equal(ids.seen("b", 5_000), "never");
});

test("what lies before the window may have been forgotten, and is not called new", () => {
  const ids = new FiredIds(1_000, 10);
  ids.done("old", 1_000);
  ids.done("edge", 4_000);
  ids.done("new", 5_000);
  assert.equal(ids.size, 2);
  assert.equal(ids.seen("old", 1_000), "too-old-to-say");
  assert.equal(ids.seen("edge", 4_000), "before");
  assert.equal(ids.seen("late", 3_000), "never", "nothing that is due at 3,000 was forgotten");
  ids.done("late", 3_000);
  assert.equal(ids.seen("late", 3_000), "too-old-to-say", "a late one is kept no longer than its due time allows");
});

test("it is bounded and forgets the oldest first", () => {
  const ids = new FiredIds(Infinity, 3);
  for (const dueMs of [7, 3, 9, 5, 8]) {
    ids.done(String(dueMs), dueMs);
    assert.ok(ids.size <= 3);
  }
  const seen = [3, 5, 7, 8, 9].map((dueMs) => ids.seen(String(dueMs), dueMs));
  assert.deepEqual(seen, ["too-old-to-say", "too-old-to-say", "before", "before", "before"]);
});

test("an id with another due time is the same timer", () => {
  const ids = new FiredIds(100, 10);
  ids.done("a", 1_000);
  ids.done("a", 1_050);
  assert.equal(ids.size, 1);
  ids.done("b", 1_120);
  assert.equal(ids.seen("a", 1_000), "before", "its newest due time keeps it");
});

test("of many ids in any order it keeps those that are due last", () => {
  const ids = new FiredIds(Infinity, 100);
  // A walk through all residues, so that no two are alike and none is in order.
  const dues = Array.from({ length: 1_009 }, (_, nth) => (nth * 547) % 1_009);
  for (const dueMs of dues) {
    ids.done(`${dueMs}`, dueMs);
  }
  const kept = dues.filter((dueMs) => ids.seen(`${dueMs}`, 2_000) === "before").sort((a, b) => a - b);
  assert.deepEqual(kept, Array.from({ length: 100 }, (_, nth) => 909 + nth));
});
