import { status } from "@grpc/grpc-js";
import type { SendBonusFailure } from "./generated/windfall/v1/send.js";
import type { Failure } from "./failure.js";

/** The reason of a withdrawal's FAILED_PRECONDITION that is not about the balance. */
const USER_FROZEN = "user_frozen";

/**
 * What to do next:
 * - `refused`: mend the call. Nothing was done.
 * - `denied`: mend the key, its roles, or the user's token. Nothing was done.
 * - `not-found`: there is no such thing.
 * - `no-route`: the live rules send this reward nowhere. Add a route, then call again. Nothing was taken.
 * - `busy`: the server cannot do it now, and nothing was done. Call again after `retryAfterMs` at the earliest.
 * - `too-little`: the balance is too small for the withdrawal. Nothing was kept; the id may be used again.
 * - `frozen`: two operators have frozen the user. Nothing was kept; the id may be used again when they have thawed the user.
 * - `taken`: the withdrawal's id was used for another user, type or amount. Take another one.
 * - `unanswered`: whether it was done is not known. Make the same call again, with the same order number or id.
 */
export type ErrorKind =
  | "refused"
  | "denied"
  | "not-found"
  | "no-route"
  | "busy"
  | "too-little"
  | "frozen"
  | "taken"
  | "unanswered";

/** A call was not answered with a result. */
export class WindfallError extends Error {
  override name = "WindfallError";
  readonly kind: ErrorKind;
  /** The least wait before the same call is made again. */
  readonly retryAfterMs: number;

  constructor(kind: ErrorKind, message: string, retryAfterMs = 0) {
    super(`${kind}: ${message}`);
    this.kind = kind;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Whether the same call may succeed later. */
export function isWorthRetrying(error: unknown): boolean {
  return error instanceof WindfallError && ["busy", "unanswered", "no-route"].includes(error.kind);
}

export function doesNotFit(): WindfallError {
  return new WindfallError("unanswered", "the answer does not fit the question");
}

export function callError(failure: Failure): WindfallError {
  switch (failure.code) {
    case status.UNAUTHENTICATED:
    case status.PERMISSION_DENIED:
      return as("denied", failure);
    case status.NOT_FOUND:
      return as("not-found", failure);
    case status.RESOURCE_EXHAUSTED:
      return as("busy", failure);
    case status.INVALID_ARGUMENT:
    case status.OUT_OF_RANGE:
    case status.FAILED_PRECONDITION:
    case status.ALREADY_EXISTS:
    case status.UNIMPLEMENTED:
      return as("refused", failure);
    default:
      return busyOrUnanswered(failure);
  }
}

/** A withdrawal that is refused for now may be held, so that nothing but its final answers is certain. */
export function withdrawError(failure: Failure): WindfallError {
  switch (failure.code) {
    case status.INVALID_ARGUMENT:
    case status.OUT_OF_RANGE:
    case status.NOT_FOUND:
    case status.UNIMPLEMENTED:
      return as("refused", failure);
    case status.UNAUTHENTICATED:
    case status.PERMISSION_DENIED:
      return as("denied", failure);
    case status.FAILED_PRECONDITION:
      // Services of earlier releases name no reason, for a frozen user neither.
      return as(failure.reason === USER_FROZEN ? "frozen" : "too-little", failure);
    case status.ALREADY_EXISTS:
      return as("taken", failure);
    default:
      return as("unanswered", failure);
  }
}

export function sendError(failure: Failure): WindfallError {
  switch (failure.code) {
    case status.INVALID_ARGUMENT:
    case status.OUT_OF_RANGE:
    case status.NOT_FOUND:
    case status.ALREADY_EXISTS:
    case status.PERMISSION_DENIED:
    case status.UNAUTHENTICATED:
    case status.UNIMPLEMENTED:
      return as("refused", failure);
    case status.FAILED_PRECONDITION:
      return as("no-route", failure);
    case status.RESOURCE_EXHAUSTED:
      return as("busy", failure);
    default:
      return busyOrUnanswered(failure);
  }
}

/** What the failure of one request of an answered batch means for it: nothing was taken. */
export function sendFailure(said: SendBonusFailure): WindfallError {
  const failure = { code: said.code, message: said.message, isOfServer: true, wasSent: true, retryAfterMs: 0 };
  const error = sendError(failure);
  const worth = isWorthRetrying(error);
  if (said.retryable !== worth) {
    // The gateway knows best, and a later one may know more.
    return as(said.retryable ? "busy" : "refused", failure);
  }
  return error;
}

function as(kind: ErrorKind, failure: Failure): WindfallError {
  return new WindfallError(kind, failure.message, failure.retryAfterMs);
}

/** A hint is the server's word that nothing was done; without it the code may be anybody's, at any time. */
function busyOrUnanswered(failure: Failure): WindfallError {
  return as(failure.retryAfterMs === undefined ? "unanswered" : "busy", failure);
}
