import type { CallOptions, Connection, Repeat } from "./connection.js";
import { doesNotFit } from "./errors.js";
import {
  type AddTimerReply, AddTimerRequest, type AddTimerResult, AddTimersRequest, CancelTimerRequest, type ChangeTimerReply,
  GetTimerRequest, type NewTimer, type Timer, TimersService, UpdateTimerRequest,
} from "./generated/windfall/v1/schedule.js";
import type { Init } from "./init.js";

/** Adds, changes, cancels and shows timers. The scheduler's calls that are not here are made by `Connection.call`. */
export class Timers {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /**
   * Adds a timer. Without a key it is never repeated by itself, since a call that was not answered may have stored it: made
   * again, there would be two.
   * @throws WindfallError
   */
  add(request: Init<AddTimerRequest>, options: CallOptions = {}): Promise<AddTimerReply> {
    const whole = AddTimerRequest.fromPartial(request);
    const repeat = repeatOf(whole.timer === undefined ? [] : [whole.timer]);
    return this.#connection.call(TimersService.add, whole, { ...options, repeat });
  }

  /**
   * Adds up to 1,000 timers, with one answer for each, in order. It is repeated by itself only where each of them has a key.
   * @throws WindfallError
   */
  async addBatch(request: Init<AddTimersRequest>, options: CallOptions = {}): Promise<AddTimerResult[]> {
    const whole = AddTimersRequest.fromPartial(request);
    const call = { ...options, repeat: repeatOf(whole.timers) };
    const { results } = await this.#connection.call(TimersService.addBatch, whole, call);
    if (results.length !== whole.timers.length) {
      throw doesNotFit();
    }
    return results;
  }

  /**
   * Gives a waiting timer another time, another payload, or both.
   * @throws WindfallError
   */
  update(request: Init<UpdateTimerRequest>, options: CallOptions = {}): Promise<ChangeTimerReply> {
    const call = { ...options, repeat: "safe" as const };
    return this.#connection.call(TimersService.update, UpdateTimerRequest.fromPartial(request), call);
  }

  /**
   * Cancels a waiting timer.
   * @throws WindfallError
   */
  cancel(request: Init<CancelTimerRequest>, options: CallOptions = {}): Promise<ChangeTimerReply> {
    const call = { ...options, repeat: "safe" as const };
    return this.#connection.call(TimersService.cancel, CancelTimerRequest.fromPartial(request), call);
  }

  /**
   * One timer.
   * @throws WindfallError; `not-found` where it never was, or is over and gone.
   */
  async get(request: Init<GetTimerRequest>, options: CallOptions = {}): Promise<Timer> {
    const call = { ...options, repeat: "safe" as const };
    const { timer } = await this.#connection.call(TimersService.get, GetTimerRequest.fromPartial(request), call);
    if (timer === undefined) {
      throw doesNotFit();
    }
    return timer;
  }
}

/** Timers with keys may be added again, because the second one is not stored. */
function repeatOf(timers: NewTimer[]): Repeat {
  return timers.every((timer) => timer.key !== "") ? "safe" : "never";
}
