/**
 * Calls Windfall's services by gRPC: sends rewards through a gateway, judges and opens tokens, shows wallets and withdraws, and
 * adds timers. See the README for what the errors mean.
 */
export { Connection, type CallOptions, type Method, type Repeat } from "./connection.js";
export { type ErrorKind, WindfallError, isWorthRetrying } from "./errors.js";
export { FiredIds, type Seen } from "./fired.js";
export { Gateway, type Sent } from "./gateway.js";
export { type Init } from "./init.js";
export { OptionError, type Options } from "./options.js";
export { CardDraw, Fireworks, InvalidArgument, type Prize, RedPacketRain, type Sender } from "./scenes.js";
export { Payouts } from "./payouts.js";
export { Timers } from "./timers.js";
export { IllegalToken, KeyFileError, TokenVerifier } from "./token/verifier.js";
export { type EndUser } from "./user.js";
export { Tokens, Wallet } from "./wallet.js";
export { BonusToken, User } from "./generated/windfall/v1/bonus.js";
export { PayoutResult } from "./generated/windfall/v1/payouts.js";
export { SendBonusReply, SendBonusRequest } from "./generated/windfall/v1/send.js";
export { TokenVerdict } from "./generated/windfall/v1/token.js";
export { WithdrawOutcome } from "./generated/windfall/v1/wallet.js";
