// Package windfall calls Windfall's services by gRPC: it sends rewards through a gateway, judges tokens, shows wallets and
// withdraws, and adds timers.
//
// [Open] prepares a [Connection]; [NewGateway], [NewTokens], [NewWallet] and [NewTimers] make calls over it, and [Call]
// makes the calls of every other service under the same rules. The typed scene helpers ([NewRedPacketRain], [NewCardDraw],
// [NewFireworks]) make the order numbers that the SDK makes, so that a reward is one order however it is sent.
//
// Connections are made when they are first needed and again when they break. A call that got no answer is repeated, at
// another endpoint if there is one, where a repeat is safe: orders and withdrawals count once. A call that is not answered in
// time is [ErrUnanswered]: whether it was done is not known, and the same call again settles it. Only an answer that carries
// retry_after_ms says that nothing was done ([ErrBusy]).
//
// [FiredIDs] is for the other end of a timer: it recognises one that is delivered again. The package token opens tokens
// without a network, by a verifier's copy of the key ring.
package windfall
