import type { CallOptions, Connection } from "./connection.js";
import {
  AcknowledgePayoutRequest, type ListToPayOutReply, ListToPayOutRequest, PayoutsService,
} from "./generated/windfall/v1/payouts.js";
import type { Init } from "./init.js";

/** Lists the withdrawals that a front end pays out elsewhere, and takes its acknowledgements. */
export class Payouts {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /**
   * A page of what nobody has acknowledged.
   * @throws WindfallError
   */
  list(request: Init<ListToPayOutRequest> = {}, options: CallOptions = {}): Promise<ListToPayOutReply> {
    const call = { ...options, repeat: "safe" as const };
    return this.#connection.call(PayoutsService.listToPayOut, ListToPayOutRequest.fromPartial(request), call);
  }

  /**
   * Says how a payout ended, and answers whether this was new. It is safe to repeat, and is repeated where no answer comes.
   * @throws WindfallError
   */
  async acknowledge(request: Init<AcknowledgePayoutRequest>, options: CallOptions = {}): Promise<boolean> {
    const call = { ...options, repeat: "safe" as const };
    const whole = AcknowledgePayoutRequest.fromPartial(request);
    return (await this.#connection.call(PayoutsService.acknowledgePayout, whole, call)).isNew;
  }
}
