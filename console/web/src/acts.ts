// Acts of two operators: what they do, in words, and what they are about.

import { call } from "./api";
import { t, type Word } from "./i18n";

interface OfOrder {
  activity: string;
  trade_no: string;
}

/** What is to be done; one of these. */
export interface Deed {
  settle_order?: OfOrder & { paid: boolean };
  settle_withdrawal?: { user_id: string; withdrawal_id: string; paid: boolean };
  release_order?: OfOrder;
  reverse_order?: OfOrder & { take_what_is_there: boolean; keep?: string };
  adjust_account?: { user_id: string; activity: string; scene: string; bonus_type: string; amount: string; to_user: boolean };
  freeze_user?: { user_id: string };
  thaw_user?: { user_id: string };
}

export interface Act {
  id: string;
  status: string;
  deed?: Deed;
  reason: string;
  evidence: string;
  proposed_by: string;
  proposed_ms: string;
  expires_ms: string;
  ended_by: string;
  ended_ms: string;
  detail: string;
  amount: string;
  about: string;
}

/** What can be proposed. Each has its words, and what follows from it. */
export const SORTS = [
  "settle_order_paid",
  "settle_order_returned",
  "release_order",
  "settle_withdrawal_paid",
  "settle_withdrawal_returned",
  "reverse_order",
  "reverse_order_rest",
  "give_budget",
  "give_funding",
  "take_budget",
  "take_funding",
  "freeze_user",
  "thaw_user",
] as const;
export type Sort = (typeof SORTS)[number];

/** What a link from another page leaves to choose. */
export const GROUPS: Record<string, readonly Sort[]> = {
  settle_order: ["settle_order_paid", "settle_order_returned", "release_order"],
  settle_withdrawal: ["settle_withdrawal_paid", "settle_withdrawal_returned"],
  reverse_order: ["reverse_order", "reverse_order_rest"],
  give: ["give_budget", "give_funding"],
  take: ["take_budget", "take_funding"],
  freeze_user: ["freeze_user"],
  thaw_user: ["thaw_user"],
};

export const isOfOrder = (sort: Sort): boolean => sort.includes("_order");
export const isOfWithdrawal = (sort: Sort): boolean => sort.includes("_withdrawal");
export const isAdjustment = (sort: Sort): boolean => sort.startsWith("give_") || sort.startsWith("take_");

/** What a deed is; null: this page does not know it. */
export function sortOf(deed: Deed | undefined): Sort | null {
  if (deed?.settle_order) return deed.settle_order.paid ? "settle_order_paid" : "settle_order_returned";
  if (deed?.settle_withdrawal) return deed.settle_withdrawal.paid ? "settle_withdrawal_paid" : "settle_withdrawal_returned";
  if (deed?.release_order) return "release_order";
  // Its words here are those of an order that is taken back as a whole.
  if (deed?.reverse_order && BigInt(deed.reverse_order.keep ?? "0") !== 0n) return null;
  if (deed?.reverse_order) return deed.reverse_order.take_what_is_there ? "reverse_order_rest" : "reverse_order";
  if (deed?.adjust_account) {
    const { to_user, scene } = deed.adjust_account;
    return `${to_user ? "give" : "take"}_${scene === "" ? "funding" : "budget"}`;
  }
  if (deed?.freeze_user) return "freeze_user";
  if (deed?.thaw_user) return "thaw_user";
  return null;
}

/** What a person has typed. */
export interface Typed {
  order: string;
  activity: string;
  user: string;
  withdrawal: string;
  type: string;
  amount: string;
  scene: string;
}

export function deedOf(sort: Sort, typed: Typed): Deed {
  const order = { activity: typed.activity, trade_no: typed.order };
  const paid = sort.endsWith("_paid");
  if (sort.startsWith("settle_order")) return { settle_order: { ...order, paid } };
  if (sort === "release_order") return { release_order: order };
  if (isOfOrder(sort)) return { reverse_order: { ...order, take_what_is_there: sort === "reverse_order_rest" } };
  if (isOfWithdrawal(sort)) return { settle_withdrawal: { user_id: typed.user, withdrawal_id: typed.withdrawal, paid } };
  if (sort === "freeze_user") return { freeze_user: { user_id: typed.user } };
  if (sort === "thaw_user") return { thaw_user: { user_id: typed.user } };
  return {
    adjust_account: {
      user_id: typed.user,
      activity: typed.activity,
      scene: sort.endsWith("_budget") ? typed.scene : "",
      bonus_type: typed.type,
      amount: typed.amount,
      to_user: sort.startsWith("give_"),
    },
  };
}

/** What a deed is about, in one line. */
export function nameOf(deed: Deed): string {
  const order = deed.settle_order ?? deed.release_order ?? deed.reverse_order;
  if (order) return order.trade_no;
  if (deed.settle_withdrawal) return deed.settle_withdrawal.withdrawal_id;
  return "";
}

/** Who and how much a deed is about. */
export interface Subject {
  order: string;
  withdrawal: string;
  user: string;
  /** Empty where no money moves. */
  amount: string;
  type: string;
  activity: string;
  scene: string;
  payer: string;
  /** How it stands now, as the ledger says it. */
  state: string;
}

const NOTHING: Subject = { order: "", withdrawal: "", user: "", amount: "", type: "", activity: "", scene: "", payer: "", state: "" };

/** An order as the ledger has it. */
export interface LedgerOrder {
  trade_no: string;
  user_id: string;
  activity: string;
  scene: string;
  bonus_type: string;
  amount: string;
  status: string;
  reason: string;
  payer: string;
  created_ms: string;
  /** 0: it is reserved. */
  decided_ms: string;
}

export interface LedgerWithdrawal {
  withdrawal_id: string;
  user_id: string;
  bonus_type: string;
  amount: string;
  status: string;
  payer: string;
  reason: string;
  held_ms: string;
  decided_ms: string;
}

export interface Withdrawals {
  withdrawals: LedgerWithdrawal[];
  next_after: string;
}

const WITHDRAWAL_PAGES_MAX = 20;

/** Looks up what a deed is about. An error where there is no such thing, or more than one. */
export async function subjectOf(deed: Deed): Promise<Subject> {
  const order = deed.settle_order ?? deed.release_order ?? deed.reverse_order;
  if (order) return orderOf(order);
  if (deed.settle_withdrawal) return withdrawalOf(deed.settle_withdrawal);
  if (deed.adjust_account) {
    const { user_id, amount, bonus_type, activity, scene } = deed.adjust_account;
    return { ...NOTHING, user: user_id, amount, type: bonus_type, activity, scene };
  }
  return { ...NOTHING, user: deed.freeze_user?.user_id ?? deed.thaw_user?.user_id ?? "" };
}

async function orderOf({ activity, trade_no }: OfOrder): Promise<Subject> {
  const found = await call<{ order?: LedgerOrder | null; others: LedgerOrder[] }>("/v1/orders/get", { trade_no, activity });
  if (!found.order) throw new Error(t("act.noOrder"));
  if (found.others.length > 0) {
    const all = [found.order, ...found.others].map((one) => one.activity);
    throw new Error(t("act.manyOrders", { all: all.join(", ") }));
  }
  const { user_id, amount, bonus_type, scene, payer, status, reason } = found.order;
  const state = `${plain(status, "ORDER_STATUS_")}${reason ? `: ${reason}` : ""}`;
  return { ...NOTHING, order: trade_no, user: user_id, amount, type: bonus_type, activity: found.order.activity, scene, payer, state };
}

async function withdrawalOf(wanted: { user_id: string; withdrawal_id: string }): Promise<Subject> {
  let after = "";
  for (let page = 0; page < WITHDRAWAL_PAGES_MAX; page++) {
    const listed = await call<Withdrawals>("/v1/withdrawals/list", { user_id: wanted.user_id, after, page_size: 1_000 });
    const found = listed.withdrawals.find((one) => one.withdrawal_id === wanted.withdrawal_id);
    if (found) {
      const { amount, bonus_type, payer, status, withdrawal_id, user_id } = found;
      return { ...NOTHING, withdrawal: withdrawal_id, user: user_id, amount, type: bonus_type, payer, state: plain(status, "WITHDRAWAL_STATUS_") };
    }
    after = listed.next_after;
    if (after === "") break;
  }
  throw new Error(t("act.noWithdrawal"));
}

/** What a name of an enumeration says, without its prefix. */
export function plain(name: string, prefix: string): string {
  return name.replace(prefix, "").toLowerCase().replaceAll("_", " ");
}

/** The words of a sort of act. */
export function said(sort: Sort): string {
  return t(`act.do.${sort}` as Word);
}

/** Whether this caller has proposed it, and so cannot approve it. What follows the name's colon a person has typed. */
export function isOwn(act: Act, caller: string): boolean {
  return act.proposed_by === caller || act.proposed_by.startsWith(`${caller}: `);
}

const ACTS_PAGE_SIZE = 500;
const ACTS_PAGES_MAX = 20;

/** All acts, the newest first, or those that can be approved; `isCut`: there are more, which are newer. */
export async function allActs(isOpen: boolean): Promise<{ acts: Act[]; isCut: boolean }> {
  const acts: Act[] = [];
  let after = "0";
  for (let page = 0; page < ACTS_PAGES_MAX; page++) {
    const listed = await call<{ acts: Act[]; next_after: string }>("/v1/acts/list", { open: isOpen, after, page_size: ACTS_PAGE_SIZE });
    acts.push(...listed.acts);
    after = listed.next_after;
    if (after === "0") return { acts: acts.reverse(), isCut: false };
  }
  return { acts: acts.reverse(), isCut: true };
}
