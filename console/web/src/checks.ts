// Checks of what a person types, before anything is sent. Services check it again.

import { t } from "./i18n";

const USER_MAX = 9_223_372_036_854_775_807n;
/** The largest amount of an order or an act. */
const AMOUNT_MAX = BigInt(Number.MAX_SAFE_INTEGER);

function isWhole(text: string, max: bigint): boolean {
  return /^[0-9]{1,19}$/.test(text) && BigInt(text) >= 1n && BigInt(text) <= max;
}

/** What is wrong with a user's number; null: nothing. */
export function wrongUser(text: string): string | null {
  return isWhole(text, USER_MAX) ? null : t("wrong.user");
}

/** What is wrong with an amount; null: nothing. */
export function wrongAmount(text: string): string | null {
  return isWhole(text, AMOUNT_MAX) ? null : t("wrong.amount");
}

/** What is wrong with the name of an order, a withdrawal, an activity or a type; null: nothing. */
export function wrongName(text: string): string | null {
  return /^[\x21-\x7e]+$/.test(text) ? null : t(text === "" ? "wrong.empty" : "wrong.name");
}

/** What is wrong with a text that must be there, and of so many bytes at most; null: nothing. */
export function wrongText(text: string, bytesMax: number): string | null {
  if (text.trim() === "") return t("wrong.empty");
  return tooLong(text, bytesMax);
}

/** What is wrong with a text that may be empty; null: nothing. */
export function tooLong(text: string, bytesMax: number): string | null {
  const bytes = new TextEncoder().encode(text.trim()).length;
  return bytes > bytesMax ? t("wrong.long", { n: bytes, max: bytesMax }) : null;
}

/** What is wrong with a whole number in a field; null: nothing. */
export function between(text: string, min: number, max: number): string | null {
  const isRight = /^[0-9]{1,16}$/.test(text.trim()) && Number(text) >= min && Number(text) <= max;
  return isRight ? null : t("wrong.between", { min, max });
}
