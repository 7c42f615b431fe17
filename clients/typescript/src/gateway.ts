import { status } from "@grpc/grpc-js";
import type { CallOptions, Connection } from "./connection.js";
import { doesNotFit, sendError, sendFailure, WindfallError } from "./errors.js";
import { type SendBonusReply, SendBonusRequest, type SendBonusResult, SendService } from "./generated/windfall/v1/send.js";
import type { Init } from "./init.js";

/** The number of requests in one call at most. */
const BATCH_MAX = 512;
/** The bytes of one call at most: well below what a server takes by default. */
const BATCH_MAX_BYTES = 1 << 20;

/** What became of one request of a batch. */
export type Sent = { token: string } | { error: WindfallError };

/** Sends rewards. */
export class Gateway {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /**
   * Sends a reward. When it returns, the event is on its way and survives the death of the process that took it; the reply
   * holds the user's token. The same request again is harmless: the order number credits once.
   * @throws WindfallError
   */
  async sendBonus(request: Init<SendBonusRequest>, options: CallOptions = {}): Promise<SendBonusReply> {
    const call = { ...options, repeat: "safe" as const };
    const answer = await this.#connection.ask(SendService.sendBonus, whole(request), call);
    if ("failure" in answer) {
      throw sendError(answer.failure);
    }
    return answer.message;
  }

  /** Sends several rewards and returns one answer for each request, in order. Some may be taken and others not. */
  async sendBonusBatch(requests: Init<SendBonusRequest>[], options: CallOptions = {}): Promise<Sent[]> {
    const answers: Sent[] = [];
    let part: SendBonusRequest[] = [];
    let bytes = 0;
    for (const request of requests.map(whole)) {
      const size = SendBonusRequest.encode(request).finish().length;
      if (part.length === BATCH_MAX || (bytes + size > BATCH_MAX_BYTES && part.length > 0)) {
        answers.push(...(await this.#sendPart(part, options)));
        part = [];
        bytes = 0;
      }
      bytes += size;
      part.push(request);
    }
    if (part.length > 0) {
      answers.push(...(await this.#sendPart(part, options)));
    }
    return answers;
  }

  async #sendPart(requests: SendBonusRequest[], options: CallOptions): Promise<Sent[]> {
    const call = { ...options, repeat: "safe" as const };
    const answer = await this.#connection.ask(SendService.sendBonusBatch, { requests }, call);
    if ("failure" in answer) {
      return requests.map(() => ({ error: sendError(answer.failure) }));
    }
    const { results } = answer.message;
    if (results.length !== requests.length) {
      return requests.map(() => ({ error: doesNotFit() }));
    }
    return results.map((result) => read(result, answer.inDoubt));
  }
}

function read({ result }: SendBonusResult, inDoubt: boolean): Sent {
  if (result === undefined) {
    return { error: new WindfallError("unanswered", "the gateway's answer says neither yes nor no") };
  }
  if (result.$case === "token") {
    return { token: result.value };
  }
  // An earlier attempt was told the same where the request itself is wrong; else it may have been taken.
  if (inDoubt && result.value.code !== status.INVALID_ARGUMENT) {
    const message = `an earlier attempt was not answered; the last one: ${result.value.message}`;
    return { error: new WindfallError("unanswered", message) };
  }
  return { error: sendFailure(result.value) };
}

/** Sets what is left out to zero. A program without types may have a `number` where it would name another user or amount. */
function whole(request: Init<SendBonusRequest>): SendBonusRequest {
  for (const number of [request.user?.userId, request.bonus?.amount, request.awardTimeMs, request.notBeforeMs]) {
    if (number !== undefined && typeof number !== "bigint") {
      throw new TypeError("numbers of 64 bits are bigint: userId, amount, awardTimeMs and notBeforeMs");
    }
  }
  return SendBonusRequest.fromPartial(request);
}
