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
const PAGES = ["flow", "find", "archive", "held", "budgets", "rules", "schedule", "instances"];
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
  await dialog.getByLabel("Rate, events per second").fill("1234");
  await dialog.locator(".diff .new").filter({ hasText: "rate_per_s = 1234" }).waitFor();
  assert.equal(await dialog.locator(".diff .gone").count(), 0);
  await dialog.getByLabel("Why", { exact: true }).fill("the gift system asks for it");
  await dialog.getByRole("button", { name: "Apply" }).click();
  await page.getByText("is in force now").waitFor();
  await page.getByRole("button", { name: "Change the limit of gift" }).filter({ hasText: "1,234" }).waitFor();
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
        await go(page, name);
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
  const table = (from, to) => {
    const part = source.slice(source.indexOf(from), source.indexOf(to));
    return new Map([...part.matchAll(/^ {2}"([^"]+)":\s+"((?:[^"\\]|\\.)*)",$/gm)].map(([, key, text]) => [key, text]));
  };
  return { en: table("const en = {", "export type Word"), zh: table("const zh:", "let lang") };
}

test("every word is there in Chinese", async () => {
  const { en, zh } = await words();
  assert.ok(en.size > 200);
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
    await go(page, name);
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
