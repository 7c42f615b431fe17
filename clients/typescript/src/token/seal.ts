import { createCipheriv, createDecipheriv } from "node:crypto";

export const PREFIX_BYTES = 12;
export const NONCE_BYTES = 24;
export const TAG_BYTES = 16;

/**
 * Opens XAES-256-GCM (https://c2sp.org/XAES-256-GCM): the nonce's first half picks a derived key, and its second half is the
 * nonce of AES-256-GCM under that key. `undefined` where the tag does not fit.
 */
export function unseal(secret: Buffer, nonce: Buffer, sealed: Buffer, associated: Buffer): Buffer | undefined {
  const key = derive(secret, nonce.subarray(0, PREFIX_BYTES));
  const cipher = createDecipheriv("aes-256-gcm", key, nonce.subarray(PREFIX_BYTES), { authTagLength: TAG_BYTES });
  cipher.setAAD(associated);
  cipher.setAuthTag(sealed.subarray(sealed.length - TAG_BYTES));
  const inside = cipher.update(sealed.subarray(0, sealed.length - TAG_BYTES));
  try {
    return Buffer.concat([inside, cipher.final()]);
  } catch {
    return undefined;
  }
}

/** The key that the nonce's first half picks: two blocks of CMAC. */
function derive(secret: Buffer, prefix: Buffer): Buffer {
  const encrypt = (block: Buffer) => createCipheriv("aes-256-ecb", secret, null).setAutoPadding(false).update(block);
  const k1 = encrypt(Buffer.alloc(16));
  let carry = 0;
  for (let at = 15; at >= 0; at--) {
    const byte = k1[at] as number;
    k1[at] = (byte << 1) | carry;
    carry = byte >> 7;
  }
  // The field's polynomial goes back in where the top bit fell out.
  k1[15] = (k1[15] as number) ^ (0x87 * carry);
  const half = (count: number) => {
    const message = Buffer.from([0, count, 0x58, 0, ...prefix]);
    return encrypt(message.map((byte, at) => byte ^ (k1[at] as number)) as Buffer);
  };
  return Buffer.concat([half(1), half(2)]);
}
