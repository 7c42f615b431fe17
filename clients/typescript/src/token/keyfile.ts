import { createHash, createPublicKey, type KeyObject } from "node:crypto";
import { closeSync, fstatSync, openSync, readFileSync } from "node:fs";

/** The largest key file that is read. A thousand keys take a third of it. */
const FILE_MAX_BYTES = 1 << 20;
const TITLE = "# Windfall key ring. It holds secrets: chmod 600, and change it with `windfall keys` alone.";
const FORMAT = 1;

/** A key file cannot be used. */
export class KeyFileError extends Error {
  override name = "KeyFileError";
}

/** A key that opens tokens. */
export interface Key {
  seal: Buffer;
  public: KeyObject;
}

/** Reads a verifier's copy that only its owner may read: whoever has it can read every user's tokens. */
export function readKeyFile(path: string): string {
  let file: number;
  try {
    file = openSync(path, "r");
  } catch (cause) {
    throw new KeyFileError(`cannot open ${path}`, { cause });
  }
  try {
    const { mode, size } = fstatSync(file);
    if ((mode & 0o077) !== 0) {
      throw new KeyFileError(`others may read ${path} (mode ${(mode & 0o777).toString(8)}); run: chmod 600 '${path}'`);
    }
    if (size > FILE_MAX_BYTES) {
      throw damaged("longer than 1 MiB");
    }
    return readFileSync(file, "utf8");
  } finally {
    closeSync(file);
  }
}

/** Reads the text of a verifier's copy, and checks it as a whole. A key that is pending or destroyed opens nothing. */
export function parseKeys(text: string): Map<number, Key> {
  const [first, second, third] = text.split("\n", 3);
  if (first !== TITLE) {
    throw damaged("the first line is not that of a key ring");
  }
  const format = /^format = ([0-9]+)$/.exec(second ?? "")?.[1];
  if (format === undefined) {
    throw damaged("no format number");
  }
  if (format !== String(FORMAT)) {
    throw new KeyFileError(`the key file has format ${format}, and this release knows ${FORMAT}; use a newer release`);
  }
  const body = text.slice(`${first}\n${second}\n${third}\n`.length);
  if (third !== `digest = "${createHash("sha256").update(body).digest("base64")}"`) {
    throw damaged("it is not what its digest says: cut or altered");
  }
  const keys = new Map<number, Key>();
  let last = 0;
  for (const table of body.split("[[key]]\n").slice(1)) {
    const { id, key } = parseKey(table);
    if (id <= last) {
      throw damaged("key numbers out of order");
    }
    last = id;
    if (key !== undefined) {
      keys.set(id, key);
    }
  }
  if (last === 0) {
    throw damaged("no key");
  }
  return keys;
}

/** Reads a key's table, as `windfall keys` writes it: a line for each value. */
export function parseKey(table: string): { id: number; key: Key | undefined } {
  const values = new Map<string, string>();
  for (const line of table.split("\n").filter((line) => line !== "")) {
    const parts = /^([a-z_]+) = "?([^"]*)"?$/.exec(line);
    if (parts === null || values.has(parts[1] as string)) {
      throw damaged("a line that is no value");
    }
    values.set(parts[1] as string, parts[2] as string);
  }
  const id = Number(values.get("id"));
  if (!Number.isInteger(id) || id < 1 || id >= 2 ** 32) {
    throw damaged("a key without a number");
  }
  if (values.has("signing_secret")) {
    throw new KeyFileError(
      `key ${id} has its signing secret, with which tokens can be made; verifiers need a copy without it: ` +
        "windfall keys export-verifier",
    );
  }
  const state = values.get("state") ?? "";
  if (["pending", "destroyed"].includes(state)) {
    return { id, key: undefined };
  }
  const seal = secretOf(values.get("seal_secret"));
  const point = secretOf(values.get("public_key"));
  if (!["primary", "verify-only"].includes(state) || values.get("algorithm") !== "ed25519" || !seal || !point) {
    throw damaged("a key that does not verify");
  }
  const jwk = { kty: "OKP", crv: "Ed25519", x: point.toString("base64url") };
  return { id, key: { seal, public: createPublicKey({ key: jwk, format: "jwk" }) } };
}

function secretOf(text: string | undefined): Buffer | undefined {
  const bytes = Buffer.from(text ?? "", "base64");
  return bytes.length === 32 && bytes.toString("base64") === text ? bytes : undefined;
}

function damaged(what: string): KeyFileError {
  return new KeyFileError(`the key file is damaged or none (${what}); export it again`);
}
