// The page in a real Chromium, beside real services: what operators do, what a browser must not be made to do, and what
// people who see or move differently need. CONSOLE_SHOTS names a folder for pictures; CONSOLE_ASSETS one with a page that is
// newer than the binary's.

import assert from "node:assert/strict";
import { mkdir, readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { Fleet } from "./fleet.js";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const SHOTS = process.env.CONSOLE_SHOTS;
const ASSETS = process.env.CONSOLE_ASSETS;
const PAGES = ["flow", "find", "user", "archive", "held", "payouts", "acts", "budgets", "reconcile", "rules", "schedule", "instances"];
const DESK = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 844 };

let fleet;
let browser;
let conflicted;

before(async () => {
  fleet = await Fleet.start();
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
  });
  conflicted = await fleet.conflict(42);
  await fleet.conflict(43);
  fleet.startRain();
});

after(async () => {
  await browser?.close();
  await fleet?.stop();
});

/** A page whose every request and message is looked at. */
async function open({ viewport = DESK, colorScheme = "light", key = fleet.keys.operator, path = "flow", url = fleet.url } = {}) {
  const context = await browser.newContext({ viewport, colorScheme, locale: "en-US" });
  const page = await context.newPage();
  if (ASSETS) {
    await page.route(/\/console\/(app\.(js|css))?$/, async (route) => {
      const name = new URL(route.request().url()).pathname.replace("/console/", "") || "index.html";
      const response = await route.fetch();
      await route.fulfill({ response, body: await readFile(`${ASSETS}/${name}`) });
    });
  }
  const wrong = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(`${url}/console/`)) wrong.push(`asks ${request.url()}`);
  });
  page.on("console", (message) => {
    // A refusal of a service is told on the page, and by the browser here.
    if (message.type() === "error" && !message.text().includes("Failed to load resource")) wrong.push(message.text());
  });
  page.on("pageerror", (error) => wrong.push(String(error)));
  await page.goto(`${url}/console/#/${path}`);
  if (key) {
    await page.getByLabel("Access key").fill(key);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("navigation").waitFor();
  }
  const close = async () => {
    assert.deepEqual(wrong, []);
    await context.close();
  };
  return { page, context, close };
}

async function go(page, name) {
  await page.evaluate((to) => {
    location.hash = `#/${to}`;
  }, name);
  await page.getByRole("heading", { level: 1 }).waitFor();
  await page.waitForFunction(() => !document.querySelector("main")?.textContent?.includes("Loading"));
}

async function shot(page, name) {
  if (!SHOTS) return;
  await mkdir(SHOTS, { recursive: true });
  await page.screenshot({ path: `${SHOTS}/${name}.png` });
}

/** What axe-core finds wrong: every rule, of every weight. */
async function audit(page, where) {
  // By the debugger: as a script of the page the content security policy would stop it.
  await page.evaluate(await readFile(AXE, "utf8"));
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const told = found.violations.map((one) => `${one.id} (${one.impact}): ${one.nodes.map((node) => node.html).join(" ")}`);
  assert.deepEqual(told, [], where);
}

test("a wrong key is refused, a right one signs in, and a sign-out ends it", async () => {
  const { page, context, close } = await open({ key: null });
  // Until the page knows that nobody is signed in, it says that it loads.
  await page.getByLabel("Access key").waitFor();
  await shot(page, "sign-in");
  await audit(page, "sign-in");
  await page.getByLabel("Access key").fill("wfk_wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").filter({ hasText: "not known" }).waitFor();
  await page.getByLabel("Access key").fill(fleet.keys.operator);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Flow" }).waitFor();
  const [cookie] = await context.cookies();
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, "Strict");
  assert.equal(await page.evaluate(() => document.cookie), "");
  const kept = await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }));
  assert.ok(!kept.includes("wfk_"), "the browser keeps no key");
  await page.reload();
  await page.getByRole("heading", { name: "Flow" }).waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Access key").waitFor();
  assert.deepEqual(await context.cookies(), []);
  await close();
});

test("the flow is live, its charts have lines, and a click leads to the cause", async () => {
  const { page, close } = await open();
  await page.waitForFunction(() => /[1-9]/.test(document.querySelector(".stage-value")?.textContent ?? ""));
  const first = await page.locator(".stages").textContent();
  await page.waitForFunction((was) => document.querySelector(".stages")?.textContent !== was, first, { timeout: 15_000 });
  await page.locator(".chart canvas").first().waitFor();
  assert.equal(await page.locator(".chart").count(), 4);
  await page.getByRole("region", { name: "Lanes" }).getByRole("link", { name: "cash" }).click();
  await page.getByRole("heading", { name: "Rules" }).waitFor();
  await close();
});

test("an archived event is found, counted, inspected and replayed", async () => {
  const { page, close } = await open({ path: "archive" });
  await page.getByLabel("Reason").selectOption("conflict");
  await page.getByRole("button", { name: conflicted }).first().waitFor();
  await page.getByRole("button", { name: "Count all that match" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("entries match").waitFor();
  await shot(page, "archive-count");
  await audit(page, "a count");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: conflicted }).first().click();
  await dialog.getByText("Nobody has replayed it").waitFor();
  await shot(page, "archive-entry");
  await audit(page, "an archived entry");
  await dialog.getByRole("button", { name: "Replay" }).click();
  await dialog.getByLabel("Your name").fill("Lin");
  await dialog.getByRole("button", { name: "Replay 1" }).click();
  await dialog.getByText("1 of 1 replayed").waitFor();
  // It is a conflict for ever, and is told so.
  await dialog.getByText(/conflict/).last().waitFor();
  await dialog.getByRole("button", { name: "Close" }).last().click();
  await page.getByRole("button", { name: conflicted }).first().click();
  await dialog.getByText(/Lin/).first().waitFor();
  await close();
});

test("a replay ends with its dialog", async () => {
  const { page, close } = await open({ path: "archive" });
  await page.getByLabel("Reason").selectOption("conflict");
  await page.getByRole("button", { name: conflicted }).first().waitFor();
  let calls = 0;
  await page.route("**/v1/archive/replay", async (route) => {
    calls += 1;
    await new Promise((done) => setTimeout(done, 500));
    await route.continue();
  });
  await page.getByRole("button", { name: "Select all on this page" }).click();
  await page.getByRole("button", { name: /^Replay [2-9]/ }).click();
  const asked = page.waitForRequest("**/v1/archive/replay");
  await page.getByRole("dialog").getByRole("button", { name: /^Replay/ }).click();
  await asked;
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.waitForTimeout(1_500);
  assert.equal(calls, 1, "what was not asked for yet stays as it is");
  await page.getByText(/The replay was stopped: 1 of [2-9]/).waitFor();
  await close();
});

test("a fuse is thrown with a reason, seen in the flow, and rolled back", async () => {
  const { page, close } = await open({ path: "rules" });
  const fuse = page.getByRole("group", { name: "Fuse coin" });
  await fuse.getByRole("button", { name: "Pause" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.locator(".diff .new").first().waitFor();
  await dialog.getByText("Valid.").waitFor();
  const apply = dialog.getByRole("button", { name: "Apply" });
  assert.ok(await apply.isDisabled(), "a change needs a reason");
  await dialog.getByLabel("Why", { exact: true }).fill("the coin system is slow");
  await shot(page, "rules-fuse");
  await audit(page, "the fuse's dialog");
  await apply.click();
  await page.getByText("is in force now").waitFor();
  await go(page, "flow");
  await page.getByRole("link", { name: "The fuse of coin is at pause." }).waitFor();
  await shot(page, "flow-fuse");
  await go(page, "rules");
  await page.getByRole("tab", { name: "History" }).click();
  await page.getByText("the coin system is slow").waitFor();
  await page.getByRole("button", { name: /Roll back to/ }).last().click();
  await dialog.getByLabel("Why", { exact: true }).fill("it is fast again");
  await dialog.getByRole("button", { name: /Roll back to/ }).click();
  await page.getByText("is in force now").waitFor();
  await go(page, "flow");
  await page.getByRole("link", { name: "The fuse of coin is at pause." }).waitFor({ state: "detached" });
  await close();
});

test("a limit is changed in the form, and its text keeps everything else", async () => {
  const { page, close } = await open({ path: "rules" });
  await page.getByRole("button", { name: "Change the limit of gift" }).click();
  const dialog = page.getByRole("dialog");
  // With a limit of nothing, what came would still wait.
  await dialog.getByLabel("Rate, events per second").fill("0");
  const replayed = dialog.getByRole("region", { name: /^With the traffic of the last/ });
  await replayed.getByText("gone → never").waitFor();
  await shot(page, "rules-replayed");
  await audit(page, "the dialog of a change that is replayed");
  await dialog.getByLabel("Rate, events per second").fill("1234");
  await dialog.getByText(/would have made no difference/).waitFor();
  await dialog.locator(".diff .new").filter({ hasText: "rate_per_s = 1234" }).waitFor();
  assert.equal(await dialog.locator(".diff .gone").count(), 0);
  await dialog.getByLabel("Why", { exact: true }).fill("the gift system asks for it");
  await dialog.getByRole("button", { name: "Apply" }).click();
  await page.getByText("is in force now").waitFor();
  await page.getByRole("button", { name: "Change the limit of gift" }).filter({ hasText: "1,234" }).waitFor();
  await close();
});

test("a change is tried by a process, seen to run, and taken back or promoted by force", async () => {
  const { page, close } = await open({ path: "rules" });
  const dialog = page.getByRole("dialog");
  const trial = page.getByRole("region", { name: "A change that some processes try" });
  const go = dialog.getByRole("button", { name: "Try it" });
  const begin = async (type, rate) => {
    await page.getByRole("button", { name: `Change the limit of ${type}` }).click();
    await dialog.getByLabel("Rate, events per second").fill(rate);
    await dialog.getByLabel("For whom").selectOption("try it on some processes first");
  };
  await begin("coin", "40000");
  await dialog.getByText(/It would be tried by \S+/).waitFor();
  await dialog.getByLabel("Share, in %").fill("0");
  await dialog.getByRole("alert").filter({ hasText: "from 1 to 100" }).waitFor();
  await dialog.getByLabel("Choose processes").selectOption("by their names");
  await dialog.getByRole("alert").filter({ hasText: "one process at least" }).waitFor();
  await dialog.getByRole("group", { name: "Processes that try it" }).getByRole("checkbox").first().check();
  await dialog.getByText(/It would be tried by \S+/).waitFor();
  await dialog.getByLabel("Lag of a topic, in records").fill("100000000");
  assert.ok(await go.isDisabled(), "a change needs a reason");
  await dialog.getByLabel("Why", { exact: true }).fill("the coin system may be slow");
  await dialog.getByLabel("Your name").fill("Lin");
  await shot(page, "rules-try");
  await audit(page, "the dialog of a change that is tried");
  await go.click();
  await trial.getByText("operator: Lin").waitFor();
  await trial.getByText("the coin system may be slow").waitFor();
  await trial.getByText("tries it", { exact: true }).waitFor();
  await trial.getByText("limits.types.coin.rate_per_s: 50000 → 40000").waitFor();
  await trial.getByText("lag of a topic: 100,000,000 records").waitFor();
  await trial.getByText(/It counts as proven in/).waitFor();
  assert.ok(await trial.getByRole("button", { name: "Promote: for all processes" }).isDisabled());
  await page.getByRole("button", { name: "Change the limit of coin" }).filter({ hasText: "50,000" }).waitFor();
  await shot(page, "rules-tried");
  await audit(page, "a change that is tried");
  await page.setViewportSize(PHONE);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wide <= 0, `a change that is tried is ${wide} px wider than the phone`);
  await shot(page, "rules-tried-phone");
  await audit(page, "a change that is tried on a phone");
  await page.setViewportSize(DESK);
  // One at a time.
  await begin("gift", "999");
  await dialog.getByText("a change is staged already").waitFor();
  await dialog.getByLabel("Why", { exact: true }).fill("one more");
  assert.ok(await go.isDisabled());
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });

  await trial.getByRole("button", { name: "Take back" }).click();
  await dialog.getByLabel("Why", { exact: true }).fill("not today");
  await audit(page, "a change that is taken back");
  await dialog.getByRole("button", { name: "Take back" }).click();
  await page.getByText("The change is taken back: version").waitFor();
  await trial.waitFor({ state: "detached" });

  await begin("coin", "30000");
  await dialog.getByText(/It would be tried by \S+/).waitFor();
  await dialog.getByLabel("Why", { exact: true }).fill("once more");
  await go.click();
  await trial.getByText("tries it", { exact: true }).waitFor();
  await trial.getByRole("button", { name: "Promote by force …" }).click();
  const force = dialog.getByRole("button", { name: "Promote by force" });
  await dialog.getByLabel("Why", { exact: true }).fill("it will do");
  assert.ok(await force.isDisabled(), "who forces it says so twice");
  await dialog.getByLabel("Promote it although it has not proven itself").check();
  await shot(page, "rules-force");
  await audit(page, "a promotion by force");
  await force.click();
  await page.getByText("The change is made for all processes: version").waitFor();
  await trial.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Change the limit of coin" }).filter({ hasText: "30,000" }).waitFor();
  await page.getByRole("tab", { name: "History" }).click();
  for (const why of ["stage: the coin system may be slow", "abort: not today", "promote: it will do"]) await page.getByText(why).waitFor();
  await close();
});

test("a change that was given up says why, a proven one is promoted, and who may only look has no button", async () => {
  const { page, close } = await open({ path: "rules" });
  const trial = page.getByRole("region", { name: "A change that some processes try" });
  // What a process reports, in its words.
  const why = "a topic has too much lag";
  let standing = { state: "failed", reasons: [`consumer-a-1 gave it up: ${why}`] };
  let mayChange = true;
  const since_ms = Date.now() - 5_000;
  await page.route("**/console/api/rules/status", async (route) => {
    const response = await route.fetch();
    const status = await response.json();
    const given_up = standing.state === "failed" ? why : null;
    const process = { ...status.processes[0], process: "consumer-a-1", state: "runs", staged: { since_ms, runs: given_up === null, given_up } };
    const differences = [{ key: "pacing.grant_batch", before: "1000", after: "500" }];
    const guards = { oldest_max_ms: 20_000, failed_max_percent: 5, lag_max_records: 1_000 };
    const staged = { since_ms, proven_ms: since_ms, until_ms: since_ms + 60_000, processes: ["consumer-a-1"], left_ms: 0, guards, differences, ...standing };
    await route.fulfill({ response, json: { ...status, processes: [process], staged } });
  });
  await page.route("**/console/api/rules", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), may_change: mayChange } });
  });
  await page.reload();
  await trial.getByRole("alert").filter({ hasText: `consumer-a-1 gave it up: ${why}` }).waitFor();
  await trial.getByRole("row").filter({ hasText: "consumer-a-1" }).getByText("gave it up", { exact: true }).waitFor();
  await trial.getByText("the oldest event that waits: 20 s; failed grants: 5 %; lag of a topic: 1,000 records").waitFor();
  assert.ok(await trial.getByRole("button", { name: "Promote: for all processes" }).isDisabled());
  await shot(page, "rules-given-up");
  await audit(page, "a change that was given up");
  standing = { state: "proven", reasons: [] };
  await trial.getByText("has proven itself", { exact: true }).waitFor();
  assert.equal(await trial.getByRole("button", { name: "Promote by force …" }).count(), 0);
  await trial.getByRole("button", { name: "Promote: for all processes" }).click();
  const promote = page.getByRole("dialog").getByRole("button", { name: "Promote: for all processes" });
  assert.ok(await promote.isDisabled(), "a promotion needs a reason");
  await page.keyboard.press("Escape");
  mayChange = false;
  await page.reload();
  await trial.getByText("has proven itself", { exact: true }).waitFor();
  await page.getByText("does not change them").waitFor();
  assert.equal(await trial.getByRole("button").count(), 0);
  await close();
});

test("a text that does not validate is told as one types and cannot be applied", async () => {
  const { page, close } = await open({ path: "rules" });
  await page.getByRole("tab", { name: "Text" }).click();
  const editor = page.getByRole("textbox", { name: "Text" });
  const text = await editor.inputValue();
  await editor.fill(text.replace("ratio = 90", "ratio = 900"));
  await page.locator(".note.bad").filter({ hasText: /line \d+.*ratio/ }).waitFor();
  await page.getByLabel("Why", { exact: true }).fill("a mistake");
  assert.ok(await page.getByRole("button", { name: "Apply" }).isDisabled());
  await shot(page, "rules-problem");
  await audit(page, "a problem of the rules");
  await close();
});

test("a reward is found by its order for whoever may see wallets", async () => {
  const { page, close } = await open({ key: fleet.keys["wallet-front"], path: "find" });
  await page.getByLabel("Order number").fill(conflicted);
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("cell", { name: conflicted }).waitFor();
  assert.equal(await page.getByLabel("User number").inputValue(), "42", "the order names its user");
  await shot(page, "find");
  // What this key may not see is refused by the services, and told.
  await go(page, "budgets");
  await page.getByText("role `observe`").waitFor();
  await audit(page, "a refusal");
  await close();
});

test("a credited reward is found by its number, with or without its activity, and leads to its user", async () => {
  const user = 508;
  const order = await fleet.credit(user, 1, { amount: 888 });
  const { page, close } = await open({ path: "find" });
  const search = page.getByRole("button", { name: "Search" });
  const ledger = page.getByRole("region", { name: "In the ledger: spring-2027" });
  assert.ok(await search.isDisabled(), "something is looked for");
  await page.getByLabel("Order number").fill(order);
  await search.click();
  await ledger.getByRole("status").filter({ hasText: "888 cash were credited to user 508 by the ledger." }).waitFor();
  const facts = await ledger.locator("dl").evaluate((list) => {
    const all = [...list.querySelectorAll("dt")].map((one) => [one.textContent, one.nextElementSibling.textContent]);
    return Object.fromEntries(all);
  });
  assert.equal(facts.Order, order);
  assert.equal(facts.State, "credited");
  assert.equal(facts.User, "508");
  assert.equal(facts.Activity, "spring-2027");
  assert.equal(facts.Scene, "red-packet-rain");
  assert.equal(facts.Type, "cash");
  assert.equal(facts.Amount, "888");
  assert.equal(facts.Payer, "The ledger itself");
  assert.match(facts["First seen by the ledger"], /\d{4}/);
  assert.match(facts.Took, /no time|\d+ (ms|s)/);
  assert.equal(await page.getByLabel("User number").inputValue(), "508");
  await shot(page, "find-order");
  await audit(page, "an order that was found");
  await page.setViewportSize(PHONE);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wide <= 0, `an order that was found is ${wide} px wider than the phone`);
  await page.setViewportSize(DESK);

  // Another activity has no such order, and what was looked at is told.
  await page.getByLabel("Activity").fill("autumn-2027");
  await search.click();
  const nothing = page.getByRole("status").filter({ hasText: "Nothing was found" });
  await nothing.filter({ hasText: "the ledger's orders of activity autumn-2027; the archive" }).waitFor();
  assert.equal(await ledger.count(), 0);
  await audit(page, "nothing that was found");
  await page.getByLabel("Activity").fill("spring-2027");
  await search.click();
  await ledger.waitFor();

  // Somebody else's order is not taken for this user's.
  await page.getByLabel("User number").fill("509");
  await search.click();
  await page.getByText("The ledger has this order for user 508. You gave user 509.").waitFor();
  await page.getByLabel("User number").fill("5x");
  await search.click();
  await page.getByRole("alert").filter({ hasText: "whole number" }).waitFor();

  // From the order to the statement of its user, and back by the link of its line.
  await ledger.getByRole("link", { name: "Statement and withdrawals of user 508" }).click();
  await page.getByRole("region", { name: "Statement", exact: true }).getByRole("link", { name: order, exact: true }).click();
  await ledger.getByRole("status").filter({ hasText: "888 cash were credited" }).waitFor();
  await ledger.getByRole("link", { name: "Propose to reverse" }).click();
  const form = page.getByRole("region", { name: "Propose" });
  await form.getByLabel("What").selectOption("Reverse a credited order, all of it");
  assert.equal(await form.getByLabel("Order number").inputValue(), order);
  await close();
});

test("what the ledger refused leads to its entry of the archive, and what waits for its payer to an act", async () => {
  const { page, close } = await open({ path: `find?order=${encodeURIComponent(conflicted)}` });
  const archived = page.getByRole("region", { name: "In the archive" });
  await archived.getByText("conflict", { exact: true }).first().waitFor();
  await page.getByRole("region", { name: "In the ledger: spring-2027" }).getByText("credited to user 42").waitFor();
  await page.getByRole("link", { name: "Its entries in the archive" }).click();
  await page.getByRole("button", { name: conflicted }).first().waitFor();

  const order = await fleet.credit(510, 1, { type: "badge", amount: 3 }, "RESERVED");
  await go(page, `find?order=${encodeURIComponent(order)}&activity=spring-2027`);
  const ledger = page.getByRole("region", { name: "In the ledger: spring-2027" });
  await ledger.getByRole("status").filter({ hasText: "3 badge for user 510 is held: badges has not decided" }).waitFor();
  await ledger.getByText("not yet", { exact: true }).waitFor();
  await shot(page, "find-reserved");
  await audit(page, "an order that waits for its payer");
  await ledger.getByRole("link", { name: "Propose an act" }).waitFor();
  await close();
});

test("a token leads to its order where its user is known, and otherwise it is said what is missing", async () => {
  const user = 511;
  const { order, token } = await fleet.sendForToken(user, 1, { type: "badge", amount: 3 });
  await fleet.until(order, "RESERVED");
  const { page, close } = await open({ key: fleet.keys["wallet-front"], path: "find" });
  const search = page.getByRole("button", { name: "Search" });
  const worth = page.getByRole("region", { name: "What the token is worth" });
  await page.getByLabel("Token").fill("no token");
  await search.click();
  await page.getByRole("alert").filter({ hasText: "This is no token" }).waitFor();
  // As it is copied from a letter, and without its user.
  await page.getByLabel("Token").fill(`${token.slice(0, 40)} ${token.slice(40)}`);
  await search.click();
  await worth.getByText("A token is judged for one user only").waitFor();
  await page.getByLabel("User number").fill("512");
  await search.click();
  await worth.getByText("It is no token of user 512").waitFor();
  await page.getByLabel("User number").fill(String(user));
  for (const since = Date.now(); ; ) {
    await search.click();
    await worth.getByText(/of user 511|The token is valid/).waitFor();
    // Tokens are stored a moment after the reward was sent.
    if ((await worth.getByText("The token is valid").count()) > 0) break;
    assert.ok(Date.now() - since < 30_000, "the token is stored");
    await page.waitForTimeout(200);
  }
  await worth.getByText(order).waitFor();
  assert.equal(await page.getByLabel("Order number").inputValue(), order, "the token names its order");
  await page.getByRole("region", { name: "Credited or on its way" }).getByRole("cell", { name: order }).waitFor();
  await shot(page, "find-token");
  await audit(page, "a token");
  await close();
  // Who may see orders and no tokens is told so.
  const other = await open({ path: "find" });
  await other.page.getByLabel("Token").fill(token);
  await other.page.getByRole("button", { name: "Search" }).click();
  await other.page.getByText("Your key lacks the role verify").waitFor();
  await other.close();
});

test("a budget's end is told in words, by the pace of the last minutes and of the last hour", async () => {
  const { page, close } = await open();
  const budget = (scene, total, used) => ({ activity: "spring-2027", scene, bonus_type: "cash", is_set: total > 0, total: String(total), used: String(used), reserved: "0" });
  const pace = (scene, recent, hour) => ({ activity: "spring-2027", scene, bonus_type: "cash", left: 0, recent, hour });
  await page.route("**/v1/budgets/list", (route) =>
    route.fulfill({
      json: {
        budgets: [budget("soon", 1_000_000, 400_000), budget("idle", 500, 0), budget("young", 500, 0), budget("spent", 500, 500), budget("new", 500, 0), budget("none", 0, 5)],
      },
    }),
  );
  const hour = (amount) => ({ amount, known_s: 3_590 });
  let forecast = {
    is_cut: false,
    known_min_s: 30,
    budgets: [
      pace("soon", { amount: 300_000, known_s: 300 }, hour(3_590)),
      pace("idle", { amount: 0, known_s: 300 }, hour(0)),
      pace("young", { amount: 0, known_s: 120 }, { amount: 0, known_s: 120 }),
      pace("spent", { amount: 100, known_s: 300 }, hour(100)),
      pace("new", { amount: 100, known_s: 20 }, { amount: 100, known_s: 20 }),
    ],
  };
  await page.route("**/console/api/budgets", (route) =>
    forecast ? route.fulfill({ json: forecast }) : route.fulfill({ status: 503, json: { code: "UNAVAILABLE", message: "not now" } }),
  );
  await go(page, "budgets");
  const ends = async (scene) => {
    const cells = await page.getByRole("row").filter({ hasText: scene }).getByRole("cell").allTextContents();
    return cells.slice(5, 7);
  };
  await page.getByRole("row").filter({ hasText: "soon" }).waitFor();
  assert.deepEqual(await ends("soon"), ["in 10 min", "not within a day"]);
  assert.deepEqual(await ends("idle"), ["no use in the last 5 min", "no use in the last hour"]);
  assert.deepEqual(await ends("young"), ["no use in the last 2 min", "no use in the last 2 min"]);
  assert.deepEqual(await ends("spent"), ["used up", "used up"]);
  assert.deepEqual(await ends("new"), ["not known yet", "not known yet"]);
  assert.deepEqual(await ends("none"), ["–", "–"]);
  await shot(page, "budgets-forecast");
  await audit(page, "budgets that end");
  // What budgets have left is shown whatever is known of their end.
  forecast = null;
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText("When budgets end cannot be told: not now").waitFor();
  assert.deepEqual(await ends("soon"), ["not known yet", "not known yet"]);
  await close();
});

test("a change of a limit tells when budgets would end", async () => {
  const { page, close } = await open({ path: "rules" });
  const outcome = { name: "gift", came: 100, passed: 100, came_max_per_s: 10, waiting_max: 0, waited_max_s: 0, waiting: 0, drained_s: 0 };
  const budget = (scene, in_force_s, wanted_s) => ({ activity: "spring-2027", scene, bonus_type: "gift", in_force_s, wanted_s });
  const budgets = [budget("rain", 3_600, 7_200), budget("draw", 60_000, null), budget("same", 90_000, 180_000)];
  const replayed = { ok: true, from_ms: 0, to_ms: 3_600_000, in_force: [outcome], wanted: [outcome], budgets, unknown: {} };
  await page.route("**/console/api/rules/replay", (route) => route.fulfill({ json: replayed }));
  await page.getByRole("button", { name: "Change the limit of gift" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Rate, events per second").fill("4321");
  const ends = dialog.getByRole("group", { name: "When budgets would end" });
  await ends.getByRole("row").filter({ hasText: "rain" }).getByText("in 1 h → in 2 h").waitFor();
  await ends.getByRole("row").filter({ hasText: "draw" }).getByText("in 16.7 h → never").waitFor();
  // Neither ends within a day.
  assert.equal(await ends.getByRole("row").filter({ hasText: "same" }).count(), 0);
  await shot(page, "rules-replayed-budgets");
  await audit(page, "the dialog of a change with budgets");
  await close();
});

test("a job is run, and paused with a reason", async () => {
  await fleet.putJob("report");
  const { page, close } = await open({ key: fleet.keys.scheduler, path: "schedule" });
  await page.getByRole("button", { name: "report" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Run now" }).click();
  await dialog.getByText(/Run \d.* was started/).waitFor();
  await dialog.getByRole("cell", { name: "call" }).waitFor();
  await shot(page, "job");
  await audit(page, "a job");
  assert.ok(await dialog.getByRole("button", { name: "Pause" }).isDisabled(), "a pause needs a reason");
  await dialog.getByLabel("Why").fill("the report system moves");
  await dialog.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("row").filter({ hasText: "report" }).getByText("paused").waitFor();
  await close();
});

/** A call of the page is made, and its answer is lost. */
async function loseAnswer(page, path) {
  await page.route(`**/console/api/call${path}`, async (route) => {
    await route.fetch();
    await route.abort();
  });
}

test("a user's statement, withdrawals and freeze are shown, page by page and as they were", async () => {
  const user = 501;
  const order = await fleet.credit(user, 1, { amount: 1_000 });
  const before = new Date();
  await new Promise((done) => setTimeout(done, 1_100));
  for (let count = 1; count <= 55; count++) await fleet.withdraw(user, `w-501-${count}`, 2);
  const { page, close } = await open({ path: "user" });
  await page.getByLabel("User number").fill("12x");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("alert").filter({ hasText: "whole number" }).waitFor();
  await page.getByLabel("User number").fill("9223372036854775808");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("alert").filter({ hasText: "whole number" }).waitFor();
  assert.equal(await page.getByRole("region", { name: "Statement" }).count(), 0, "nothing was asked");
  await page.getByLabel("User number").fill(String(user));
  await page.keyboard.press("Enter");
  const statement = page.getByRole("region", { name: "Statement" });
  await statement.getByText("balance cash 890").waitFor();
  await page.getByText("not frozen", { exact: true }).waitFor();
  const line = statement.getByRole("row").nth(1);
  assert.match(await line.textContent(), /withdrawal−2cash890w-501-55/);
  await shot(page, "user-statement");
  await audit(page, "a user's statement");
  await statement.getByRole("button", { name: "More" }).click();
  await statement.getByRole("link", { name: order, exact: true }).waitFor();
  assert.match(await statement.getByRole("row").last().textContent(), /reward\+1,000cash1,000/);
  const withdrawals = page.getByRole("region", { name: "Withdrawals" });
  await withdrawals.getByRole("cell", { name: "w-501-55", exact: true }).waitFor();
  await withdrawals.getByLabel("State").selectOption("paid");
  await withdrawals.getByText("Nothing here.").waitFor();
  await withdrawals.getByLabel("State").selectOption("held");
  await withdrawals.getByRole("button", { name: "More" }).click();
  await withdrawals.getByRole("cell", { name: "w-501-1", exact: true }).waitFor();
  // As it was before the withdrawals.
  const pad = (number) => String(number).padStart(2, "0");
  const local = `${before.getFullYear()}-${pad(before.getMonth() + 1)}-${pad(before.getDate())}T${pad(before.getHours())}:${pad(before.getMinutes())}:${pad(before.getSeconds())}`;
  await page.getByLabel("As it was at").fill(local);
  await page.getByRole("button", { name: "Search" }).click();
  const then = page.getByRole("region", { name: "Statement as it was at" });
  await then.getByText("balance cash 1,000").waitFor();
  assert.equal(await then.getByRole("row").count(), 2);
  await close();
});

test("a payout is acknowledged as paid or refused, with what it means before the click", async () => {
  const user = 502;
  await fleet.credit(user, 1, { amount: 100 });
  await fleet.withdraw(user, "w-502-a", 30);
  await fleet.withdraw(user, "w-502-b", 20);
  await fleet.withdraw(user, "w-502-c", 10);
  const { page, close } = await open({ key: fleet.keys.payouts, path: "payouts" });
  const list = page.getByRole("region", { name: "To pay out" });
  const row = (id) => list.getByRole("row").filter({ has: page.getByRole("cell", { name: id, exact: true }) });
  // The oldest ones come first, and those of another test are there, too.
  await list.getByText(/wait\./).waitFor();
  await shot(page, "payouts");
  await audit(page, "payouts");
  while ((await row("w-502-a").count()) === 0) await list.getByRole("button", { name: "More" }).click();
  await row("w-502-a").getByRole("button").click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("30 cash, user 502", { exact: true }).waitFor();
  await dialog.getByText("withdrawal windfall 502 w-502-a").waitFor();
  assert.ok(await dialog.getByRole("button", { name: "Look at it first" }).isDisabled(), "nobody is led to one of the answers");
  await dialog.getByLabel("How its payout ended").selectOption("paid");
  await dialog.getByRole("button", { name: "Look at it first" }).click();
  await dialog.getByText("30 cash of user 502 have arrived").waitFor();
  await shot(page, "payout-paid");
  await audit(page, "an acknowledgement");
  await dialog.getByRole("button", { name: "Paid: 30 cash, user 502" }).click();
  await dialog.getByText("was acknowledged: paid.").waitFor();
  await dialog.getByRole("button", { name: "Close" }).last().click();
  await page.waitForFunction(() => !document.querySelector("main")?.textContent?.includes("w-502-a"));

  while ((await row("w-502-b").count()) === 0) await list.getByRole("button", { name: "More" }).click();
  await row("w-502-b").getByRole("button").click();
  await dialog.getByLabel("How its payout ended").selectOption("refused for good");
  await dialog.getByRole("button", { name: "Look at it first" }).click();
  await dialog.getByRole("alert").filter({ hasText: "must be given" }).waitFor();
  await dialog.getByLabel("Reason").fill("账".repeat(100));
  await dialog.getByRole("button", { name: "Look at it first" }).click();
  await dialog.getByRole("alert").filter({ hasText: "300 bytes" }).waitFor();
  await dialog.getByLabel("Reason").fill("closed account");
  await dialog.getByRole("button", { name: "Look at it first" }).click();
  await dialog.getByText("Never say so after a time-out").waitFor();
  assert.equal(await fleet.balance(user), 40, "nothing has moved before the last click");
  const refuse = dialog.getByRole("button", { name: "Refused: 20 cash back to user 502" });
  await loseAnswer(page, "/v1/payouts/acknowledge");
  await refuse.click();
  await dialog.getByRole("alert").filter({ hasText: "not known" }).filter({ hasText: "in the same way, which is safe" }).waitFor();
  await shot(page, "payout-lost");
  await page.unroute("**/console/api/call/v1/payouts/acknowledge");
  await refuse.click();
  await dialog.getByText("had been acknowledged before").waitFor();
  assert.equal(await fleet.balance(user), 60, "it went back once");
  await dialog.getByRole("button", { name: "Close" }).last().click();

  // Whoever closes the dialog before the answer is told on the page.
  while ((await row("w-502-c").count()) === 0) await list.getByRole("button", { name: "More" }).click();
  await row("w-502-c").getByRole("button").click();
  await dialog.getByLabel("How its payout ended").selectOption("paid");
  await dialog.getByRole("button", { name: "Look at it first" }).click();
  await page.route("**/v1/payouts/acknowledge", async (route) => {
    await new Promise((done) => setTimeout(done, 500));
    await route.continue();
  });
  const asked = page.waitForRequest("**/v1/payouts/acknowledge");
  await dialog.getByRole("button", { name: "Paid: 10 cash, user 502" }).click();
  await asked;
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  await page.getByRole("status").filter({ hasText: "w-502-c of user 502 was acknowledged: paid." }).waitFor();
  await close();
});

test("what is to be paid out is shown without the role that acknowledges it, and the role is named", async () => {
  const { page, close } = await open({ path: "payouts" });
  await page.getByText("lacks the role pay_out").waitFor();
  await page.getByRole("region", { name: "To pay out" }).getByRole("row").nth(1).waitFor();
  assert.equal(await page.getByRole("button", { name: /^Acknowledge/ }).count(), 0);
  await close();
  const other = await open({ key: fleet.keys.scheduler, path: "payouts" });
  await other.page.getByText("with the role pay_out, or observe").waitFor();
  for (const name of ["user", "acts", "reconcile"]) {
    await go(other.page, name);
    await other.page.getByText("with the role observe").waitFor();
    await audit(other.page, `${name} without its role`);
  }
  await other.close();
});

/** Fills the form of an act and opens its dialog. */
async function propose(page, what, fields, { reason, evidence }) {
  const form = page.getByRole("region", { name: "Propose" });
  await form.getByLabel("What").selectOption(what);
  for (const [label, value] of Object.entries(fields)) await form.getByLabel(label).fill(value);
  await form.getByLabel("Reason").fill(reason);
  await form.getByLabel("Evidence").fill(evidence);
  await form.getByLabel("Your name").fill("Lin");
  await form.getByRole("button", { name: "Look at it first" }).click();
}

test("an act is proposed, its proposer cannot approve it, and another operator does", async () => {
  const user = 503;
  const order = await fleet.credit(user, 1, { amount: 888 });
  const { page, close } = await open({ path: "user?user=503" });
  // From the line of the statement to the form.
  await page.getByRole("link", { name: `Propose to reverse ${order}` }).click();
  const form = page.getByRole("region", { name: "Propose" });
  await form.getByLabel("What").selectOption("Reverse a credited order, all of it");
  assert.equal(await form.getByLabel("Order number").inputValue(), order);
  await form.getByRole("button", { name: "Look at it first" }).click();
  await form.getByRole("alert").filter({ hasText: "must be given" }).first().waitFor();
  const dialog = page.getByRole("dialog");
  assert.equal(await dialog.count(), 0, "an act has a reason and evidence");
  await shot(page, "acts-form");
  await audit(page, "the form of an act");
  await propose(page, "Reverse a credited order, all of it", {}, { reason: "paid by mistake", evidence: "ticket 4711" });
  await dialog.getByText("888 cash, user 503", { exact: true }).waitFor();
  await dialog.getByText("888 cash go back to the budget").waitFor();
  await shot(page, "act-propose");
  await audit(page, "a proposal");
  // Its answer is lost: the same again is the same act.
  await loseAnswer(page, "/v1/acts/propose");
  await dialog.getByRole("button", { name: "Propose", exact: true }).click();
  await dialog.getByRole("alert").filter({ hasText: "not known" }).filter({ hasText: "makes the same act" }).waitFor();
  await page.unroute("**/console/api/call/v1/acts/propose");
  await dialog.getByRole("button", { name: "Propose again" }).click();
  const repeated = await dialog.getByText("The same was proposed before").textContent();
  const id = /act (\d+)/.exec(repeated)[1];
  await dialog.getByRole("button", { name: "Close" }).last().click();
  const list = page.getByRole("region", { name: "Acts", exact: true });
  const row = list.getByRole("row").filter({ has: page.getByRole("button", { name: `Act ${id}`, exact: true }) });
  await row.getByText("yours").waitFor();
  await row.getByRole("button").click();
  await dialog.getByText("Another operator approves it, with another key").waitFor();
  assert.equal(await dialog.getByRole("button", { name: /Approve/ }).count(), 0, "who proposes does not approve");
  await shot(page, "act-own");
  await audit(page, "an act of one's own");
  assert.equal(await fleet.balance(user), 888, "nothing is done yet");
  await close();

  const second = await open({ key: fleet.keys.approver, path: "acts" });
  const two = second.page.getByRole("dialog");
  await second.page.getByText("lacks the role operate").waitFor();
  await second.page.getByRole("button", { name: `Act ${id}`, exact: true }).click();
  await two.getByText("ticket 4711").waitFor();
  await two.getByText("operator: Lin").waitFor();
  await two.getByRole("button", { name: "Approve …" }).click();
  await two.getByText(/is done at this moment, once.*888 cash, user 503/).waitFor();
  await two.getByLabel("Your name").fill("Ann");
  await shot(second.page, "act-approve");
  await audit(second.page, "an approval");
  await loseAnswer(second.page, "/v1/acts/approve");
  await two.getByRole("button", { name: `Approve act ${id} and do it now` }).click();
  await two.getByRole("alert").filter({ hasText: "not known" }).filter({ hasText: "at most" }).waitFor();
  await second.page.unroute("**/console/api/call/v1/acts/approve");
  await two.getByRole("button", { name: `Approve act ${id} and do it now` }).click();
  await two.getByText(/It had ended before.*done\. 888 taken back from the user/).waitFor();
  assert.equal(await fleet.balance(user), 0, "it was done once");
  await two.getByRole("button", { name: "Close" }).last().click();
  await second.page.getByLabel("Shown").selectOption("all, the newest first");
  await second.page.getByRole("row").filter({ hasText: `Act ${id}` }).getByText("done", { exact: true }).waitFor();
  await second.close();
});

test("an approval whose subject has changed moves nothing and says so", async () => {
  const user = 504;
  await fleet.credit(user, 1, { amount: 10 });
  const { act } = await fleet.call("operator", "/v1/acts/propose", {
    deed: { adjust_account: { user_id: String(user), activity: "spring-2027", scene: "", bonus_type: "cash", amount: "10", to_user: false } },
    reason: "taken by fraud",
    evidence: "ticket 4712",
  });
  await fleet.withdraw(user, "w-504", 10);
  const { page, close } = await open({ key: fleet.keys.approver, path: `acts?act=${act.id}`, viewport: PHONE });
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Approve …" }).click();
  await dialog.getByText("10 cash are taken from the balance of user 504").waitFor();
  assert.ok(await dialog.evaluate((box) => box.scrollWidth <= box.clientWidth), "the dialog fits the phone");
  await shot(page, "act-phone");
  await audit(page, "an approval on a phone");
  await dialog.getByRole("button", { name: /and do it now/ }).click();
  await dialog.getByRole("alert").filter({ hasText: "not done. the user's balance lacks 10" }).waitFor();
  await audit(page, "an act that was not done");
  await close();
});

test("a user is frozen by two, and an act is refused with a reason", async () => {
  const user = 505;
  const { page, close } = await open({ path: `acts?deed=freeze_user&user=${user}` });
  await propose(page, "Freeze a user", { "User number": "0" }, { reason: "cheats", evidence: "case 9" });
  await page.getByRole("alert").filter({ hasText: "whole number" }).waitFor();
  const dialog = page.getByRole("dialog");
  assert.equal(await dialog.count(), 0);
  await propose(page, "Freeze a user", { "User number": String(user) }, { reason: "cheats", evidence: "case 9" });
  await dialog.getByText("User 505 withdraws nothing from then on").waitFor();
  await dialog.getByRole("button", { name: "Propose", exact: true }).click();
  const id = /Act (\d+)/.exec(await dialog.getByText("was proposed. It waits").textContent())[1];
  await go(page, `user?user=${user}`);
  await page.getByText("to freeze the user waits for another operator").waitFor();
  await page.getByRole("link", { name: `Act ${id}` }).click();
  await dialog.getByRole("button", { name: "Refuse …" }).click();
  await dialog.getByLabel("Reason").fill("it was somebody else");
  await dialog.getByRole("button", { name: `Refuse act ${id}` }).click();
  await dialog.getByText(/refused\. it was somebody else/).waitFor();
  await close();
  const again = { deed: { freeze_user: { user_id: String(user) } }, reason: "cheats all the same", evidence: "case 10" };
  const { act } = await fleet.call("operator", "/v1/acts/propose", again);
  await fleet.call("approver", "/v1/acts/approve", { id: act.id });
  const seen = await open({ path: `user?user=${user}` });
  await seen.page.getByText("Frozen: this user withdraws nothing").waitFor();
  await seen.page.getByRole("link", { name: "Propose to end the freeze" }).waitFor();
  await audit(seen.page, "a frozen user");
  await seen.close();
});

test("an order whose payer never answers, and a withdrawal, lead to acts that settle them", async () => {
  const user = 507;
  const order = await fleet.credit(user, 1, { type: "badge", amount: 3 }, "RESERVED");
  await fleet.credit(user, 2, { amount: 40 });
  await fleet.withdraw(user, "w-507", 40);
  const { page, close } = await open();
  // Without the minute for which the page leaves out what is new.
  await page.route("**/v1/reserved/list", (route) => route.continue({ postData: JSON.stringify({ page_size: 200 }) }));
  await go(page, "held");
  const row = page.getByRole("row").filter({ hasText: order });
  assert.equal(await row.getByRole("button").count(), 0, "one person alone does not release what may have been paid");
  await row.getByRole("link", { name: `Propose an act ${order}` }).click();
  const dialog = page.getByRole("dialog");
  const settle = async (what, because, means) => {
    await propose(page, what, {}, because);
    await dialog.getByText(means).waitFor();
    await dialog.getByRole("button", { name: "Propose", exact: true }).click();
    const id = /Act (\d+)/.exec(await dialog.getByText("was proposed. It waits").textContent())[1];
    await fleet.call("approver", "/v1/acts/approve", { id });
    await dialog.getByRole("button", { name: "Close" }).last().click();
    await dialog.waitFor({ state: "detached" });
  };
  await settle("Settle an order: its payer has paid it", { reason: "in the payer's statement", evidence: "line 12" }, "3 badge are posted to the settlement of the payer");
  assert.equal(await fleet.status(order), "CREDITED");
  await go(page, `user?user=${user}`);
  await page.getByRole("link", { name: "Propose to settle w-507" }).click();
  await settle("Settle a withdrawal: its payer has certainly not paid it", { reason: "barred", evidence: "ticket 4714" }, "40 cash go back to the balance of user 507");
  assert.equal(await fleet.balance(user), 40);
  await close();
});

test("an act about what the ledger does not know is refused before anything is kept", async () => {
  const { page, close } = await open({ path: "acts" });
  await propose(page, "Settle an order: its payer has paid it", { "Order number": "no-such-order" }, { reason: "r", evidence: "e" });
  const dialog = page.getByRole("dialog");
  await dialog.getByText("The ledger knows no such order").waitFor();
  assert.equal(await dialog.getByRole("button", { name: "Propose", exact: true }).count(), 0);
  await page.keyboard.press("Escape");
  await propose(page, "Settle a withdrawal: its payer has paid it", { "User number": "505", Withdrawal: "none" }, { reason: "r", evidence: "e" });
  await dialog.getByText("no such withdrawal of this user").waitFor();
  await page.keyboard.press("Escape");
  await propose(page, "Give money to a user from a budget", { "User number": "505", "Bonus type": "cash", Amount: "1.5", Activity: "spring-2027", Scene: "s" }, { reason: "r", evidence: "e" });
  await page.getByRole("alert").filter({ hasText: "An amount is a whole number" }).waitFor();
  assert.equal(await dialog.count(), 0);
  await close();
});

test("a difference is found, acknowledged and resolved, and until the ledger was swept nothing is known", async () => {
  const user = 506;
  await fleet.credit(user, 1, { amount: 100 });
  const { page, close } = await open({ path: "reconcile" });
  await page.getByText(/Nothing differs, as compared at/).waitFor();
  await shot(page, "reconcile");
  // The auditor's words for a ledger that nobody has compared for long.
  const pretend = async (change, said) => {
    await page.route("**/console/api/call/v1/audits/get", async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, json: { ...(await response.json()), ...change } });
    });
    await page.getByRole("button", { name: "Refresh" }).click();
    await page.getByRole("alert").filter({ hasText: said }).waitFor();
    await page.unroute("**/console/api/call/v1/audits/get");
  };
  await pretend({ compared_ms: "1000" }, /is not known: nothing was compared in the last ten minutes/);
  await shot(page, "reconcile-not-known");
  await audit(page, "a ledger of which nothing is known");
  await pretend({ sweeps: "0" }, /the first sweep/);
  await pretend({ is_behind: true }, /too many transfers are unread/);
  await pretend({ compared_ms: "0", differences: [{ kind: "overdrawn", open: "1", acknowledged: "2" }] }, /Differences: 1 open, 2 acknowledged, and whether there are more is not known: nothing was ever compared/);

  fleet.tamper(user, 5);
  const dialog = page.getByRole("dialog");
  const found = page.getByRole("row").filter({ hasText: "wrong_balance" }).getByRole("button");
  for (const since = Date.now(); (await found.count()) === 0; ) {
    assert.ok(Date.now() - since < 60_000, "the auditor finds it");
    await page.getByRole("button", { name: "Refresh" }).click();
    await page.waitForTimeout(500);
  }
  await page.getByRole("alert").filter({ hasText: "Differences: 1 open, 0 acknowledged." }).waitFor();
  await page.getByText("an account is not the sum of its transfers").first().waitFor();
  assert.match(await page.getByRole("link", { name: "What to do: the runbook" }).getAttribute("href"), /runbook\/WindfallAuditDifference\.md$/);
  await found.click();
  await shot(page, "difference");
  await audit(page, "a difference");
  await dialog.getByLabel("What you say about it").selectOption("I am at it: its page ends");
  await dialog.getByRole("button", { name: "Acknowledge" }).click();
  await dialog.getByRole("alert").filter({ hasText: "must be given" }).waitFor();
  await dialog.getByLabel("Note").fill("ann looks at it, ticket 4713");
  await dialog.getByRole("button", { name: "Acknowledge" }).click();
  await dialog.getByText("was acknowledged.").waitFor();
  await dialog.getByRole("button", { name: "Close" }).last().click();
  await page.getByText("Differences: 0 open, 1 acknowledged.").waitFor();
  fleet.tamper(user, -5);
  await page.getByLabel("State").selectOption("Acknowledged");
  await found.click();
  await dialog.getByText("operator: ann looks at it, ticket 4713").waitFor();
  await dialog.getByLabel("What you say about it").selectOption("It was mended or explained");
  await dialog.getByLabel("Note").fill("the balance was put back");
  await loseAnswer(page, "/v1/audits/differences/mark");
  await dialog.getByRole("button", { name: "Resolve" }).click();
  await dialog.getByRole("alert").filter({ hasText: "not known" }).filter({ hasText: "Open the difference again" }).waitFor();
  await page.unroute("**/console/api/call/v1/audits/differences/mark");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await page.getByText(/Nothing differs, as compared at/).waitFor();
  await page.getByLabel("State").selectOption("Resolved");
  await found.click();
  await dialog.getByText("operator: the balance was put back").waitFor();
  await close();
});

test("a key that may only look marks no difference, and where nobody audits that is said", async () => {
  const { page, close } = await open({ key: fleet.keys.approver, path: "reconcile" });
  const differences = [{ id: "7", kind: "wrong_balance", subject: "user 1", detail: "5, not 4", first_seen_ms: "1", last_seen_ms: "1", seen: "1", state: "DIFFERENCE_STATE_OPEN" }];
  await page.route("**/v1/audits/differences/list", (route) => route.fulfill({ json: { differences, next_after: "0" } }));
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByRole("button", { name: "Difference 7" }).click();
  await page.getByRole("dialog").getByText("lacks the role operate").waitFor();
  assert.equal(await page.getByRole("dialog").getByRole("button", { name: /Resolve|Acknowledge/ }).count(), 0);
  await page.keyboard.press("Escape");
  await page.route("**/v1/audits/get", (route) => route.fulfill({ status: 501, json: { code: "UNIMPLEMENTED", message: "no service" } }));
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByRole("alert").filter({ hasText: "no service that the console knows audits" }).waitFor();
  await page.unroute("**/v1/audits/get");
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText(/Nothing differs, as compared at/).waitFor();
  // What was known is not shown once the auditor does not answer.
  await page.route("**/v1/audits/get", (route) => route.fulfill({ status: 503, json: { code: "UNAVAILABLE", message: "the ledger is away" } }));
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByRole("alert").filter({ hasText: "is not known: the ledger is away" }).waitFor();
  assert.equal(await page.getByText(/Nothing differs/).count(), 0);
  await close();
});

test("the keyboard reaches everything, first of all the content", async () => {
  const { page, close } = await open();
  await page.reload();
  await page.getByRole("navigation").waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), "MAIN");
  await go(page, "rules");
  await page.getByRole("tab", { name: "Form" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.getByRole("tab", { name: "Text", selected: true }).waitFor();
  await close();
});

test("rules that cannot be read any more are not shown as those in force", async () => {
  const { page, close } = await open();
  await page.locator(".stages").waitFor();
  assert.equal(await page.getByText("The live rules cannot be read").count(), 0);
  await page.route("**/console/api/flow", async (route) => {
    const response = await route.fetch();
    const sample = await response.json();
    await route.fulfill({ response, json: { ...sample, rules: { ...sample.rules, is_stale: true } } });
  });
  await page.getByText("The live rules cannot be read").waitFor();
  await close();
});

test("a sign-out that fails is told, and one that is done shows the sign-in", async () => {
  const { page, close } = await open();
  await page.route("**/console/api/session", (route) =>
    route.request().method() === "DELETE"
      ? route.fulfill({ status: 503, contentType: "application/json", body: '{"code":"UNAVAILABLE","message":"not now"}' })
      : route.continue(),
  );
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByText("You are still signed in: not now").waitFor();
  await page.unroute("**/console/api/session");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Access key").waitFor();
  await close();
});

for (const colorScheme of ["light", "dark"]) {
  for (const [screen, viewport] of [["desk", DESK], ["phone", PHONE]]) {
    test(`every page can be read: ${colorScheme}, ${screen}`, async () => {
      const { page, close } = await open({ viewport, colorScheme });
      for (const name of PAGES) {
        await go(page, name === "user" ? "user?user=42" : name);
        if (name === "flow") await page.locator(".chart canvas").first().waitFor();
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(wide <= 0, `${name} is ${wide} px wider than the ${screen}`);
        await audit(page, `${name}, ${colorScheme}, ${screen}`);
        await shot(page, `${name}-${colorScheme}-${screen}`);
      }
      await close();
    });
  }
}

test("a console of its own shows the fleet, calls it, and names what is away", async () => {
  const { page, close } = await open({ url: await fleet.startConsole(), path: "instances" });
  await page.getByRole("row").filter({ hasText: "all in one" }).getByText("answers", { exact: true }).waitFor();
  await page.getByRole("row").filter({ hasText: "gone" }).getByText("does not answer").first().waitFor();
  await go(page, "flow");
  await page.getByRole("link", { name: "gone does not answer." }).waitFor();
  await page.waitForFunction(() => /[1-9]/.test(document.querySelector(".stage-value")?.textContent ?? ""));
  await go(page, "archive");
  await page.getByRole("button", { name: conflicted }).first().waitFor();
  await go(page, "rules");
  await page.getByText("does not change them").waitFor();
  assert.equal(await page.getByRole("group", { name: /^Fuse/ }).count(), 0);
  await close();
});

/** The texts of the page by their keys, in the languages as the source has them. */
async function words() {
  const source = await readFile(new URL("../src/i18n.ts", import.meta.url), "utf8");
  const found = [...source.matchAll(/^ {2}"([^"]+)": \["((?:[^"\\]|\\.)*)", "((?:[^"\\]|\\.)*)"\],$/gm)];
  assert.equal(found.length, [...source.matchAll(/^ {2}"/gm)].length, "each word is read");
  const table = (nth) => new Map(found.map((one) => [one[1], one[nth]]));
  return { en: table(2), zh: table(3) };
}

test("every word is there in Chinese", async () => {
  const { en, zh } = await words();
  assert.ok(en.size > 200);
  assert.ok([...zh.values()].every((text) => text !== ""));
  assert.deepEqual([...zh.keys()].sort(), [...en.keys()].sort());
  const { page, close } = await open();
  await page.getByLabel("Language").selectOption("zh");
  await page.getByRole("heading", { name: "流量" }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), "zh-CN");
  await page.waitForTimeout(300);
  await shot(page, "flow-zh");
  await audit(page, "flow, Chinese");
  // A word in small letters may be what a service says.
  const english = [...en].filter(([key, text]) => zh.get(key) !== text && /^[A-Z]| /.test(text)).map(([, text]) => text);
  for (const name of PAGES) {
    await go(page, name === "user" ? "user?user=42" : name === "acts" ? "acts?deed=give" : name);
    if (name === "acts") await page.getByLabel("事项").selectOption({ index: 1 });
    if (name === "flow") await page.locator(".chart canvas").first().waitFor();
    const found = await page.evaluate((unwanted) => {
      const texts = [];
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      // A chart's legend has what services call things, but for its time.
      const isOurs = (one) => !one.closest(".u-legend") || one.closest(".u-legend tr:first-child") !== null;
      while (walker.nextNode()) if (isOurs(walker.currentNode.parentElement)) texts.push(walker.currentNode.textContent.trim());
      for (const one of document.querySelectorAll("[aria-label]")) texts.push(one.getAttribute("aria-label"));
      // Heads and labels hold nothing that a service says, but versions and names of task queues.
      const own = [...document.querySelectorAll("h1, th, label, nav a:not(.version), [role=tab], .lead")].filter(isOurs).map((one) => one.textContent.trim());
      return [...texts.filter((text) => unwanted.includes(text)), ...own.filter((text) => text && !/[\u4e00-\u9fff]/.test(text))];
    }, english);
    assert.deepEqual(found, [], name);
  }
  await go(page, "flow");
  await page.reload();
  await page.getByRole("heading", { name: "流量" }).waitFor();
  await close();
});
