// Finds a reward by its order number, its user or its token: in the ledger and the archive, in the user's wallet, and among the
// reserved orders. Each key is shown what its roles may see, and what was looked at is told.

import type { LedgerOrder } from "./acts";
import { call, told, type Who } from "./api";
import { t } from "./i18n";
import type { Entry } from "./pages/archive";
import type { Reserved } from "./pages/held";

/** What a person gives. Each may be empty, but not all of them. */
export interface Wanted {
  order: string;
  /** Of the order; empty: any. */
  activity: string;
  user: string;
  token: string;
}

export interface FlowLine {
  kind: string;
  reference: string;
  bonus_type: string;
  amount: string;
  activity: string;
  time_ms: string;
}

export interface Wallet {
  balances: { bonus_type: string; credited: string; pending: string; total: string }[];
  flow: FlowLine[];
  tokens_complete: boolean;
}

/** What a token says of its reward. */
export interface Content {
  trade_no: string;
  activity: string;
  scene: string;
  bonus_type: string;
  amount: string;
  award_time_ms: string;
}

/** What a token is worth for its user; `NO_USER` and `NO_ROLE`: no service was asked. */
export interface Judged {
  verdict: string;
  content?: Content | null;
}

export interface Found {
  /** The order that was looked for: as it was given, or as the token says. */
  order: string;
  activity: string;
  /** The user, as given, as the ledger has it, or as the order number says. */
  user: string;
  /** The user that the ledger has for the order, where another one was given. */
  otherUser: string;
  /** Those of all activities; null: nobody looked. */
  orders: LedgerOrder[] | null;
  archived: Entry[] | null;
  reserved: Reserved[] | null;
  wallet: Wallet | null;
  judged: Judged | null;
  /** Where it was looked, in words. */
  looked: string[];
  errors: string[];
}

const FLOW_LIMIT = 500;
const RESERVED_PAGE_SIZE = 1_000;
const RESERVED_PAGES_MAX = 5;

/** The user that an order number of the helpers' form names: activity/scene/number/type/user/count. */
export function userOf(order: string): string {
  const parts = order.split("/");
  const user = parts.length === 6 ? (parts[4] ?? "") : "";
  return /^[0-9]{1,19}$/.test(user) ? user : "";
}

/** What is wrong with a token's text; null: nothing that can be seen without its key. */
export function wrongToken(text: string): string | null {
  return /^[A-Za-z0-9_-]{60,1366}$/.test(text) ? null : t("fnd.noToken");
}

/** Looks wherever the caller's key may look. */
export async function find({ order, activity, user, token }: Wanted, caller: Who): Promise<Found> {
  const found: Found = {
    order,
    activity,
    user,
    otherUser: "",
    orders: null,
    archived: null,
    reserved: null,
    wallet: null,
    judged: null,
    looked: [],
    errors: [],
  };
  const [mayObserve, mayVerify] = [caller.roles.includes("observe"), caller.roles.includes("verify")];
  const tried = async (work: (found: Found) => Promise<void>) => {
    try {
      await work(found);
    } catch (error) {
      // Services that are away or refuse the key say the same to each question.
      if (!found.errors.includes(told(error))) found.errors.push(told(error));
    }
  };
  if (order !== "" && mayObserve) await tried(lookIntoLedger);
  if (found.user === "") found.user = onlyUser(found.orders) || userOf(order);
  if (token !== "") {
    if (!mayVerify) found.judged = { verdict: "NO_ROLE" };
    else if (found.user === "") found.judged = { verdict: "NO_USER" };
    else await tried((into) => judge(token, into));
    // A token leads to its order.
    const content = found.judged?.content;
    if (content && order === "") {
      [found.order, found.activity] = [content.trade_no, content.activity];
      if (mayObserve) await tried(lookIntoLedger);
    }
  }
  const owner = onlyUser(found.orders);
  if (owner !== "" && owner !== found.user) found.otherUser = owner;
  const rest: Promise<void>[] = [];
  if (found.user !== "" && mayVerify) rest.push(tried(lookIntoWallet));
  // The ledger says of an order whether it is reserved.
  if (found.user !== "" && found.order === "" && mayObserve) rest.push(tried(lookAtReserved));
  await Promise.all(rest);
  return found;
}

/** The user of all these orders; empty: there is none, or more than one. */
function onlyUser(orders: LedgerOrder[] | null): string {
  const users = new Set(orders?.map((one) => one.user_id));
  const [user] = users;
  return users.size === 1 && user !== undefined ? user : "";
}

async function lookIntoLedger(found: Found): Promise<void> {
  const asked = { trade_no: found.order, activity: found.activity };
  const answer = await call<{ order?: LedgerOrder | null; others: LedgerOrder[]; archived: Entry[] }>("/v1/orders/get", asked);
  found.orders = answer.order ? [answer.order, ...answer.others] : [];
  found.archived = answer.archived;
  found.looked.push(
    found.activity === "" ? t("fnd.at.ledger") : t("fnd.at.ledgerOf", { activity: found.activity }),
    t("fnd.at.archive"),
  );
}

async function judge(token: string, found: Found): Promise<void> {
  const answer = await call<{ tokens: Judged[] }>("/v1/tokens/verify", { tokens: [token] }, found.user);
  found.judged = answer.tokens[0] ?? null;
  found.looked.push(t("fnd.at.token", { user: found.user }));
}

async function lookIntoWallet(found: Found): Promise<void> {
  found.wallet = await call<Wallet>("/v1/wallet/get", { flow_limit: FLOW_LIMIT }, found.user);
  found.looked.push(t("fnd.at.wallet", { user: found.user, n: FLOW_LIMIT }));
}

async function lookAtReserved(found: Found): Promise<void> {
  const all: Reserved[] = [];
  let after = "";
  let page = 0;
  do {
    const asked = { after, page_size: RESERVED_PAGE_SIZE };
    const listed = await call<{ orders: Reserved[]; next_after: string }>("/v1/reserved/list", asked);
    all.push(...listed.orders.filter((one) => one.user_id === found.user));
    after = listed.next_after;
    page += 1;
  } while (after !== "" && page < RESERVED_PAGES_MAX);
  found.reserved = all;
  const first = RESERVED_PAGE_SIZE * RESERVED_PAGES_MAX;
  found.looked.push(after === "" ? t("fnd.at.reserved") : t("fnd.at.reservedFirst", { n: first }));
}

/** What the wallet has of what was looked for. */
export function linesOf({ wallet, order, activity }: Found): FlowLine[] {
  const isIt = (line: FlowLine) =>
    order === "" || (line.reference === order && (activity === "" || line.activity === activity));
  return wallet?.flow.filter(isIt) ?? [];
}

/** Whether all that could be looked at has nothing. */
export function isNothing(found: Found): boolean {
  const count = (list: unknown[] | null) => list?.length ?? 0;
  const there = count(found.orders) + count(found.archived) + count(found.reserved) + linesOf(found).length;
  return found.looked.length > 0 && there === 0 && !found.judged?.content;
}
