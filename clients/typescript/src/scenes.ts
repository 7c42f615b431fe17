import type { SendBonusReply, SendBonusRequest } from "./generated/windfall/v1/send.js";
import type { User } from "./generated/windfall/v1/bonus.js";
import type { CallOptions } from "./connection.js";
import type { Init } from "./init.js";

const NAME = /^[!-~]{1,64}$/;
const BONUS_TYPE = /^[a-z0-9_.-]{1,32}$/;
const TRADE_NO_MAX_BYTES = 128;
const U32_MAX = 2 ** 32 - 1;
const I64_MAX = 2n ** 63n - 1n;

/** An argument of a scene helper is wrong. */
export class InvalidArgument extends Error {
  override name = "InvalidArgument";
}

/** Takes rewards: a `Gateway`, or a stand-in for it in tests. */
export interface Sender {
  sendBonus(request: Init<SendBonusRequest>, options?: CallOptions): Promise<SendBonusReply>;
}

/** What was won: an amount in the type's smallest unit, 1 or more, and what the user reads. */
export interface Prize {
  amount: bigint;
  description?: string;
}

/** What all scenes share: fixed names, and order numbers of round, user and a number within the round. */
class Scene {
  readonly #sender: Sender;
  readonly #name: string;
  readonly #activity: string;
  readonly #bonusType: string;
  readonly #prefix: string;

  constructor(sender: Sender, name: string, shortName: string, activity: string, bonusType: string) {
    if (!NAME.test(activity)) {
      throw new InvalidArgument(`the activity ${JSON.stringify(activity)} is not 1 to 64 visible ASCII characters`);
    }
    if (!BONUS_TYPE.test(bonusType)) {
      throw new InvalidArgument(`the bonus type ${JSON.stringify(bonusType)} is not 1 to 32 of a-z, 0-9, _, - and .`);
    }
    this.#sender = sender;
    this.#name = name;
    this.#activity = activity;
    this.#bonusType = bonusType;
    this.#prefix = `${activity}/${shortName}/`;
    // No call can fail for the length of its number if the longest one fits.
    if (this.tradeNo(U32_MAX, I64_MAX, U32_MAX).length > TRADE_NO_MAX_BYTES) {
      throw new InvalidArgument(
        `with this activity and bonus type an order number can have more than ${TRADE_NO_MAX_BYTES} bytes`,
      );
    }
  }

  /**
   * The order number of a user's reward, in the format of docs/order-numbers.md: a number that differs from it pays twice.
   * The round is the rain's round, the day of the draw or the show; the number is the user's packet in that round, the draw of
   * that day or the burst of that show.
   * @throws InvalidArgument
   */
  tradeNo(round: number, userId: bigint, number: number): string {
    checkU32("round", round);
    checkU32("number", number);
    // A `number` could have lost its last digits before it came here.
    if (typeof userId !== "bigint" || userId < 1n || userId > I64_MAX) {
      throw new InvalidArgument(`the user id ${userId} is not a bigint of 1 to ${I64_MAX}`);
    }
    return `${this.#prefix}${round.toString().padStart(10, "0")}/${this.#bonusType}/${userId}/${number}`;
  }

  /**
   * What `send` sends, for those who send many rewards in one call.
   * @throws InvalidArgument
   */
  request(round: number, user: Init<User>, number: number, prize: Prize): Init<SendBonusRequest> {
    return {
      tradeNo: this.tradeNo(round, user.userId ?? 0n, number),
      user,
      activity: this.#activity,
      scene: this.#name,
      bonus: { type: this.#bonusType, amount: prize.amount, description: prize.description ?? "" },
    };
  }

  /**
   * Sends a user's reward and returns the token. The same arguments again are the same order, which credits once.
   * @throws InvalidArgument, WindfallError
   */
  async send(round: number, user: Init<User>, number: number, prize: Prize, options: CallOptions = {}): Promise<string> {
    const reply = await this.#sender.sendBonus(this.request(round, user, number, prize), options);
    return reply.token;
  }
}

/** Red-packet rain: users tap packets that fall in rounds. */
export class RedPacketRain extends Scene {
  /** @throws InvalidArgument */
  constructor(sender: Sender, activity: string, bonusType: string) {
    super(sender, "red-packet-rain", "rain", activity, bonusType);
  }
}

/** Card draw: a user draws, and each draw of a day has its number. */
export class CardDraw extends Scene {
  /** @throws InvalidArgument */
  constructor(sender: Sender, activity: string, bonusType: string) {
    super(sender, "card-draw", "draw", activity, bonusType);
  }
}

/** Fireworks: a show goes up, and everyone who watches gets something of each burst. */
export class Fireworks extends Scene {
  /** @throws InvalidArgument */
  constructor(sender: Sender, activity: string, bonusType: string) {
    super(sender, "fireworks", "show", activity, bonusType);
  }
}

function checkU32(what: string, value: number): void {
  if (!Number.isInteger(value) || value < 0 || value > U32_MAX) {
    throw new InvalidArgument(`the ${what} ${value} is not an integer of 0 to ${U32_MAX}`);
  }
}
