// Finds a reward by its order number, its user or its token: in the user's wallet, the archive and the reserved orders.

import { useState } from "preact/hooks";
import { call, told, type Who } from "../api";
import { num, t, when } from "../i18n";
import { Badge, Card, Field, Note, Page, Table } from "../parts";
import type { Entry } from "./archive";
import { nameOf, type Reserved } from "./held";

interface FlowLine {
  kind: string;
  reference: string;
  bonus_type: string;
  amount: string;
  activity: string;
  time_ms: string;
}

interface Wallet {
  balances: { bonus_type: string; credited: string; pending: string; total: string }[];
  flow: FlowLine[];
  tokens_complete: boolean;
}

interface Content {
  trade_no: string;
  activity: string;
  bonus_type: string;
  amount: string;
  award_time_ms: string;
}

interface Found {
  order: string;
  wallet: Wallet | null;
  walletError: string | null;
  archived: Entry[] | null;
  reserved: Reserved[] | null;
  verdict: { verdict: string; content?: Content } | null;
  errors: string[];
}

const RESERVED_PAGES_MAX = 5;

/** The user that an order number of the helpers' form names: activity/scene/number/type/user/count. */
export function userOf(order: string): string {
  const parts = order.split("/");
  const user = parts.length === 6 ? (parts[4] ?? "") : "";
  return /^[0-9]{1,19}$/.test(user) ? user : "";
}

export function FindPage({ query, user }: { query: URLSearchParams; user: Who }) {
  const [order, setOrder] = useState(query.get("order") ?? "");
  const [number, setNumber] = useState(query.get("user") ?? "");
  const [token, setToken] = useState("");
  const [found, setFound] = useState<Found | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    const own = number.trim() || userOf(order.trim());
    if (own !== number) setNumber(own);
    setFound(await find(order.trim(), own, token.trim(), user));
    setBusy(false);
  };
  return (
    <Page title={t("fnd.title")} lead={`${t("fnd.lead")} ${t("fnd.tokenNeeds")}`}>
      <Card>
        <form class="filters" onSubmit={submit}>
          <Field label={t("fnd.order")} value={order} onInput={setOrder} size="wide" />
          <Field label={t("fnd.user")} value={number} onInput={setNumber} />
          <Field label={t("fnd.token")} value={token} onInput={setToken} size="wide" />
          <button type="submit" class="primary" disabled={busy || (!order.trim() && !number.trim())}>
            {t("act.search")}
          </button>
        </form>
      </Card>
      {found && <Results found={found} mayVerify={user.roles.includes("verify")} />}
    </Page>
  );
}

async function find(order: string, own: string, token: string, user: Who): Promise<Found> {
  const found: Found = { order, wallet: null, walletError: null, archived: null, reserved: null, verdict: null, errors: [] };
  const tried = async (work: () => Promise<void>, failed: (text: string) => void) => {
    try {
      await work();
    } catch (error) {
      failed(told(error));
    }
  };
  const note = (text: string) => found.errors.push(text);
  const jobs: Promise<void>[] = [];
  if (user.roles.includes("observe")) {
    if (order) {
      jobs.push(
        tried(async () => {
          const listed = await call<{ entries: Entry[] }>("/v1/archive/list", { trade_no: order, page_size: 100 });
          found.archived = listed.entries;
        }, note),
      );
    }
    jobs.push(
      tried(async () => {
        found.reserved = await reservedOf(order, own);
      }, note),
    );
  }
  if (own) {
    jobs.push(
      tried(
        async () => {
          found.wallet = await call<Wallet>("/v1/wallet/get", { flow_limit: 500 }, own);
        },
        (text) => {
          found.walletError = text;
        },
      ),
    );
    if (token) {
      jobs.push(
        tried(async () => {
          const judged = await call<{ tokens: { verdict: string; content?: Content }[] }>("/v1/tokens/verify", { tokens: [token] }, own);
          found.verdict = judged.tokens[0] ?? null;
        }, note),
      );
    }
  }
  await Promise.all(jobs);
  return found;
}

async function reservedOf(order: string, own: string): Promise<Reserved[]> {
  const all: Reserved[] = [];
  let after = "";
  for (let page = 0; page < RESERVED_PAGES_MAX; page++) {
    const listed = await call<{ orders: Reserved[]; next_after: string }>("/v1/reserved/list", { after, page_size: 1_000 });
    all.push(...listed.orders.filter((one) => (order ? one.trade_no === order : one.user_id === own)));
    after = listed.next_after;
    if (after === "") break;
  }
  return all;
}

function Results({ found, mayVerify }: { found: Found; mayVerify: boolean }) {
  const { order, wallet, archived, reserved, verdict } = found;
  const lines = wallet?.flow.filter((line) => !order || line.reference === order) ?? [];
  return (
    <>
      {found.errors.map((error) => (
        <Note key={error} level="bad">
          {error}
        </Note>
      ))}
      {verdict && (
        <Card title={t("fnd.verdict")}>
          <p class="pad">
            <Badge level={verdict.verdict === "TOKEN_VERDICT_VALID" ? "good" : "warn"}>
              {verdict.verdict.replace("TOKEN_VERDICT_", "").toLowerCase()}
            </Badge>{" "}
            {verdict.content && `${verdict.content.trade_no} · ${verdict.content.bonus_type} ${num(Number(verdict.content.amount))}`}
          </p>
        </Card>
      )}
      <Card title={t("fnd.credited")}>
        {found.walletError && <Note level="warn">{found.walletError}</Note>}
        {!wallet && !mayVerify && <p class="muted pad">{t("fnd.wallet")}</p>}
        {wallet && !wallet.tokens_complete && <Note level="warn">{t("fnd.incomplete")}</Note>}
        {wallet && !order && (
          <p class="chips pad">
            {wallet.balances.map((one) => (
              <span key={one.bonus_type} class="chip">
                {one.bonus_type} <b>{num(Number(one.credited))}</b>
                {Number(one.pending) > 0 && ` + ${num(Number(one.pending))} ${t("fnd.pending")}`}
              </span>
            ))}
          </p>
        )}
        {wallet && (
          <Table
            label={t("fnd.credited")}
            rows={lines}
            rowKey={(line) => `${line.kind} ${line.activity} ${line.reference}`}
            columns={[
              { head: t("col.state"), cell: (line) => <Badge level={line.kind === "FLOW_KIND_PENDING" ? "warn" : "good"}>{line.kind.replace("FLOW_KIND_", "").toLowerCase()}</Badge> },
              { head: t("col.order"), cell: (line) => line.reference, isMono: true },
              { head: t("col.activity"), cell: (line) => line.activity },
              { head: t("col.type"), cell: (line) => line.bonus_type },
              { head: t("col.amount"), cell: (line) => num(Number(line.amount)), isNumber: true },
              { head: t("col.time"), cell: (line) => when(line.time_ms), isMinor: true },
            ]}
          />
        )}
      </Card>
      {archived && (
        <Card title={t("fnd.archived")}>
          <Table
            label={t("fnd.archived")}
            rows={archived}
            empty={t("fnd.nothing", { where: t("nav.archive") })}
            rowKey={(entry) => entry.id}
            columns={[
              {
                head: t("col.order"),
                cell: (entry) => <a href={`#/archive?open=no&order=${encodeURIComponent(entry.trade_no)}`}>{entry.trade_no}</a>,
                isMono: true,
              },
              { head: t("col.reason"), cell: (entry) => <Badge level="warn">{entry.reason}</Badge> },
              { head: t("arc.replay"), cell: (entry) => entry.replay?.outcome ?? "–" },
              { head: t("col.time"), cell: (entry) => when(entry.time_ms), isMinor: true },
            ]}
          />
        </Card>
      )}
      {reserved && (
        <Card title={t("fnd.reserved")}>
          <Table
            label={t("fnd.reserved")}
            rows={reserved}
            empty={t("fnd.nothing", { where: t("held.reserved") })}
            rowKey={nameOf}
            columns={[
              { head: t("col.order"), cell: (one) => one.trade_no, isMono: true },
              { head: t("col.activity"), cell: (one) => one.activity },
              { head: t("col.type"), cell: (one) => one.bonus_type },
              { head: t("col.amount"), cell: (one) => num(Number(one.amount)), isNumber: true },
              { head: t("col.payer"), cell: (one) => one.payer || t("held.awaitsEvent") },
            ]}
          />
        </Card>
      )}
    </>
  );
}
