import type { CallOptions, Connection } from "./connection.js";
import { doesNotFit, withdrawError } from "./errors.js";
import { type ListTokensReply, ListTokensRequest, TokensService, type VerifiedToken } from "./generated/windfall/v1/token.js";
import {
  type GetWalletReply, GetWalletRequest, WalletService, type WithdrawReply, WithdrawRequest,
} from "./generated/windfall/v1/wallet.js";
import type { Init } from "./init.js";
import type { EndUser } from "./user.js";

/** Lists and judges users' tokens. */
export class Tokens {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /**
   * A page of the user's tokens.
   * @throws WindfallError
   */
  list(user: EndUser, request: Init<ListTokensRequest> = {}, options: CallOptions = {}): Promise<ListTokensReply> {
    const call = { ...options, repeat: "safe" as const, user };
    return this.#connection.call(TokensService.listTokens, ListTokensRequest.fromPartial(request), call);
  }

  /**
   * Judges at most 512 token texts: one answer per text, in order.
   * @throws WindfallError
   */
  async verify(user: EndUser, tokens: string[], options: CallOptions = {}): Promise<VerifiedToken[]> {
    const call = { ...options, repeat: "safe" as const, user };
    const reply = await this.#connection.call(TokensService.verifyTokens, { tokens }, call);
    if (reply.tokens.length !== tokens.length) {
      throw doesNotFit();
    }
    return reply.tokens;
  }
}

/** Shows users' wallets and withdraws. */
export class Wallet {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /**
   * Balances and a page of movements, the newest first, with the pending rewards on the first page. For the page behind it,
   * give the reply's `flowNext` as `flowAfter`; where that is empty, the history has ended.
   * @throws WindfallError
   */
  get(user: EndUser, request: Init<GetWalletRequest> = {}, options: CallOptions = {}): Promise<GetWalletReply> {
    const call = { ...options, repeat: "safe" as const, user };
    return this.#connection.call(WalletService.getWallet, GetWalletRequest.fromPartial(request), call);
  }

  /**
   * Takes money off the balance, once for the withdrawal's id: it is safe to repeat, and is repeated where no answer comes. Of its errors
   * `unanswered` alone leaves open what became of the withdrawal.
   * @throws WindfallError
   */
  async withdraw(user: EndUser, request: Init<WithdrawRequest>, options: CallOptions = {}): Promise<WithdrawReply> {
    if (typeof request.amount !== "bigint") {
      throw new TypeError("the amount is a bigint");
    }
    const call = { ...options, repeat: "safe" as const, user };
    const answer = await this.#connection.ask(WalletService.withdraw, WithdrawRequest.fromPartial(request), call);
    if ("failure" in answer) {
      throw withdrawError(answer.failure);
    }
    return answer.message;
  }
}
