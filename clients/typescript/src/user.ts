/**
 * The end user of a call: a signed assertion (JWT), as the user's front end holds it, or the user's number, which servers
 * believe of callers that may name users.
 */
export type EndUser = { signed: string } | { named: bigint };
