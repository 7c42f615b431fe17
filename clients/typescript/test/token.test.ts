import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { IllegalToken, KeyFileError, TokenVerifier } from "../src/index.js";
import { parseKey } from "../src/token/keyfile.js";
import { unseal } from "../src/token/seal.js";
import { docs } from "./docs.js";

interface Vectors {
  tenant: string;
  verifier_file: string[];
  tokens: { what: string; token: string; user_id: string; content?: Record<string, string> }[];
}

const known: Vectors = JSON.parse(readFileSync(docs("token-vectors.json"), "utf8"));
const file = `${known.verifier_file.join("\n")}\n`;
const verifier = new TokenVerifier(file, known.tenant);

test("tokens are judged as Windfall judges them", () => {
  for (const { what, token, user_id, content } of known.tokens) {
    if (content === undefined) {
      assert.throws(() => verifier.open(token, BigInt(user_id)), IllegalToken, what);
      continue;
    }
    const said = verifier.open(token, BigInt(user_id));
    const named = Object.entries(said).map(([name, value]) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      String(value),
    ]);
    assert.deepEqual(Object.fromEntries(named), content, what);
  }
});

test("every flipped bit, every other length and every other tenant is illegal", () => {
  const { token, user_id } = known.tokens[0]!;
  const owner = BigInt(user_id);
  const raw = Buffer.from(token, "base64url");
  for (let bit = 0; bit < raw.length * 8; bit++) {
    raw[bit >> 3]! ^= 1 << (bit & 7);
    assert.throws(() => verifier.open(raw.toString("base64url"), owner), IllegalToken, `bit ${bit}`);
    raw[bit >> 3]! ^= 1 << (bit & 7);
  }
  for (let length = 0; length < token.length; length++) {
    assert.throws(() => verifier.open(token.slice(0, length), owner), IllegalToken, `length ${length}`);
  }
  for (const tenant of ["", "Windfall", "windfal", "windfall2", "windfall\0"]) {
    assert.throws(() => new TokenVerifier(file, tenant).open(token, owner), IllegalToken, tenant);
  }
});

test("a key file that is damaged or could mint is refused", () => {
  for (const [what, text] of [
    ["empty", ""],
    ["cut", file.slice(0, -1)],
    ["altered", file.replace("verify-only", "primary")],
    ["another title", file.replace("Windfall", "windfall")],
    ["a newer one", file.replace("format = 1", "format = 2")],
  ] as const) {
    assert.throws(() => new TokenVerifier(text, "windfall"), KeyFileError, what);
  }
  const mints = 'id = 1\nalgorithm = "ed25519"\nstate = "primary"\nsigning_secret = "AAAA"\n';
  assert.throws(() => parseKey(mints), /export-verifier/);

  const folder = mkdtempSync(join(tmpdir(), "windfall-"));
  const path = join(folder, "verifier.toml");
  writeFileSync(path, file, { mode: 0o644 });
  assert.throws(() => TokenVerifier.load(path, "windfall"), /chmod 600/);
  chmodSync(path, 0o600);
  TokenVerifier.load(path, "windfall");
  assert.throws(() => TokenVerifier.load(`${path}.none`, "windfall"), KeyFileError);
  rmSync(folder, { recursive: true });
});

// Both vectors of https://c2sp.org/XAES-256-GCM; the top bit of the first block is 0 in the first and 1 in the second.
test("XAES-256-GCM gives the published results", () => {
  for (const [key, associated, sealed] of [
    [1, "", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"],
    [3, "c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"],
  ] as const) {
    const nonce = Buffer.from("ABCDEFGHIJKLMNOPQRSTUVWX");
    const plain = unseal(Buffer.alloc(32, key), nonce, Buffer.from(sealed, "hex"), Buffer.from(associated));
    assert.equal(plain?.toString(), "XAES-256-GCM");
  }
});
