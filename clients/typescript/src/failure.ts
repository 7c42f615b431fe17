import { type ServiceError, status } from "@grpc/grpc-js";

/** Metadata of an answer that nothing was done, with the wait after which it may be: milliseconds. */
const RETRY_AFTER_MS = "retry-after-ms";

/** Metadata of a refusal whose code has several reasons. */
const REASON = "reason";

/** How an attempt failed. */
export interface Failure {
  code: status;
  message: string;
  /**
   * Whether a server said it. What breaks on the way gets a code from gRPC, too, at any time of the call: a connection that is
   * reset "to calm down" is a RESOURCE_EXHAUSTED of a call that may be done.
   */
  isOfServer: boolean;
  /** Whether anything of the call may have reached a server. */
  wasSent: boolean;
  /** The wait that a server asks for. It also promises that nothing was done. */
  retryAfterMs?: number | undefined;
  /** The server's word for why, where the code has several reasons. */
  reason?: string | undefined;
}

export function failureOf(error: ServiceError): Failure {
  // A server ends a call that failed with one block of headers, which has a content type at least; what this side makes of a
  // call that broke has none. Where a server says nothing but its code, the call counts as broken.
  const isOfServer = Object.keys(error.metadata.getMap()).length > 0;
  const failure: Failure = { code: error.code, message: error.details, isOfServer, wasSent: true };
  const [hint] = error.metadata.get(RETRY_AFTER_MS);
  if (isOfServer && typeof hint === "string" && /^[0-9]{1,9}$/.test(hint)) {
    failure.retryAfterMs = Number(hint);
  }
  const [reason] = error.metadata.get(REASON);
  if (isOfServer && typeof reason === "string") {
    failure.reason = reason;
  }
  return failure;
}

/** There was no connection to send the call over. */
export function neverSent(message: string): Failure {
  return { code: status.UNAVAILABLE, message, isOfServer: false, wasSent: false };
}

/** Final: the call was not made. */
export function ownRefusal(message: string): Failure {
  return { code: status.INVALID_ARGUMENT, message, isOfServer: true, wasSent: false };
}

/** Whether another attempt may get another answer. */
export function mayHelp(failure: Failure): boolean {
  switch (failure.code) {
    case status.UNAVAILABLE:
    case status.DEADLINE_EXCEEDED:
    case status.CANCELLED:
    case status.ABORTED:
    case status.UNKNOWN:
    case status.RESOURCE_EXHAUSTED:
      return true;
    default:
      // A connection that broke may have any code. The servers' refusals, and our own, are final.
      return !failure.isOfServer;
  }
}

/** Whether the call may have been done all the same. */
export function leavesDoubt(failure: Failure): boolean {
  if (!failure.isOfServer) {
    return failure.wasSent;
  }
  return failure.code !== status.RESOURCE_EXHAUSTED && failure.retryAfterMs === undefined;
}

/** What the caller is told, to whom a code means what a server means by it. */
export function lastWord(failure: Failure, inDoubt: boolean): Failure {
  const isCertain = !mayHelp(failure) || !leavesDoubt(failure);
  if (inDoubt && isCertain) {
    return unanswered(failure);
  }
  return failure.isOfServer ? failure : { ...failure, code: status.UNAVAILABLE };
}

/**
 * What the last attempt says is true of that attempt; an earlier one may have been done. Without a hint, which would be word
 * that nothing was. What is wrong in the call itself, every attempt was told.
 */
function unanswered(failure: Failure): Failure {
  if (failure.code === status.INVALID_ARGUMENT || failure.code === status.UNIMPLEMENTED) {
    return failure;
  }
  const message = `an earlier attempt was not answered; the last one: ${status[failure.code]}: ${failure.message}`;
  return { code: status.UNAVAILABLE, message, isOfServer: false, wasSent: true };
}
