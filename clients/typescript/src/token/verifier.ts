import { verify } from "node:crypto";
import { BonusToken } from "../generated/windfall/v1/bonus.js";
import { type Key, KeyFileError, parseKeys, readKeyFile } from "./keyfile.js";
import { NONCE_BYTES, TAG_BYTES, unseal } from "./seal.js";

export { KeyFileError };

/** The length of the longest token text. */
const TEXT_MAX_BYTES = 1_024;
const VERSION = 1;
const HEADER_BYTES = 1 + 4 + NONCE_BYTES;
const SIGNATURE_BYTES = 64;
const PURPOSE = "bonus-token";
const SIGNATURE_DOMAIN = "windfall bonus token signature\0";
const DOMAIN_BLOCK_BYTES = 64;

/** The text is not a token of this user. It says no more, whatever the cause. */
export class IllegalToken extends Error {
  override name = "IllegalToken";

  constructor() {
    super("illegal token");
  }
}

/**
 * Opens tokens of one tenant, which is the app that a fleet serves, without a network: it proves that Windfall made a token, for
 * whom and over how much.
 *
 * It needs a verifier's copy of the key ring, which `windfall keys export-verifier` writes from a ring of Ed25519 keys. Such a
 * copy cannot make tokens. A ring of HMAC keys, which is the default, has no such copy, because whoever verifies with it can also
 * mint: ask `Tokens.verify` then.
 *
 * A token that opens is genuine, no more: only the token store knows whether its reward is still on its way, and the wallet
 * alone pays. Show it to the user as "on its way or arrived", and never hand out money for it.
 */
export class TokenVerifier {
  readonly #keys: Map<number, Key>;
  readonly #tenant: Buffer;

  /**
   * Takes the text of a verifier's copy, for those who keep it elsewhere than in a file.
   * @throws KeyFileError
   */
  constructor(text: string, tenant: string) {
    this.#keys = parseKeys(text);
    this.#tenant = Buffer.from(tenant);
  }

  /**
   * Reads a verifier's copy, which only its owner may be able to read. After a change of the key ring, export the copy and load
   * it again.
   * @throws KeyFileError
   */
  static load(path: string, tenant: string): TokenVerifier {
    return new TokenVerifier(readKeyFile(path), tenant);
  }

  /**
   * Opens a token that this user presents.
   * @throws IllegalToken
   */
  open(text: string, userId: bigint): BonusToken {
    // The length comes first: a text of 10 MB costs one comparison.
    const raw = text.length <= TEXT_MAX_BYTES ? Buffer.from(text, "base64url") : Buffer.alloc(0);
    // One token has one text: the decoder passes over what it does not know, and the comparison does not.
    if (raw.length < HEADER_BYTES + TAG_BYTES || raw.toString("base64url") !== text || raw[0] !== VERSION) {
      throw new IllegalToken();
    }
    // The key's number alone fixes the key and its algorithms: nothing is tried in turn.
    const key = this.#keys.get(raw.readUInt32BE(1));
    const token = key && this.#unseal(key, raw);
    if (token === undefined || token.userId !== userId) {
      throw new IllegalToken();
    }
    return token;
  }

  #unseal(key: Key, raw: Buffer): BonusToken | undefined {
    const header = raw.subarray(0, HEADER_BYTES);
    const associated = Buffer.concat([Buffer.from(PURPOSE), raw.subarray(0, 5), this.#tenant]);
    const inside = unseal(key.seal, header.subarray(5), raw.subarray(HEADER_BYTES), associated);
    if (inside === undefined || inside.length < SIGNATURE_BYTES) {
      return undefined;
    }
    const content = inside.subarray(0, inside.length - SIGNATURE_BYTES);
    const message = Buffer.concat([domainOf(this.#tenant), header, content]);
    if (!verify(null, message, key.public, inside.subarray(content.length))) {
      return undefined;
    }
    // Only now are the bytes known to come from a minter; nothing was parsed before.
    return decode(content);
  }
}

/** Reads strictly: one token has one encoding. */
function decode(content: Buffer): BonusToken | undefined {
  try {
    const token = BonusToken.decode(content);
    return content.equals(BonusToken.encode(token).finish()) ? token : undefined;
  } catch {
    return undefined;
  }
}

/** What a tenant's signed messages begin with, filled up to a whole block of SHA-256. */
function domainOf(tenant: Buffer): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(tenant.length));
  const domain = Buffer.concat([Buffer.from(SIGNATURE_DOMAIN), length, tenant]);
  const whole = Math.ceil(domain.length / DOMAIN_BLOCK_BYTES) * DOMAIN_BLOCK_BYTES;
  return Buffer.concat([domain, Buffer.alloc(whole - domain.length)]);
}
