// A user: what moved the accounts, with the balance after each line; withdrawals; whether operators have frozen the user.

import { useState } from "preact/hooks";
import { allActs, isOwn, plain, type Act, type LedgerWithdrawal, type Withdrawals } from "../acts";
import { call, type Who } from "../api";
import { wrongUser } from "../checks";
import { t, when, whole, type Word } from "../i18n";
import { Badge, Card, Field, Note, Page, Pager, Select, Shown, Table, useLoaded } from "../parts";

interface Line {
  transfer: string;
  kind: string;
  reference: string;
  bonus_type: string;
  amount: string;
  activity: string;
  time_ms: string;
  balance: string;
}

interface Statement {
  balances: { bonus_type: string; balance: string }[];
  lines: Line[];
  next_after: string;
}

interface Asked {
  user: string;
  /** Unix milliseconds; empty: now. */
  atMs: string;
}

const PAGE_SIZE = 50;
/** A page of withdrawals may be empty though another one follows: so many are asked for at most. */
const ASKS_MAX = 20;
const STATUSES = ["UNSPECIFIED", "HELD", "PAID", "REFUSED"];

/** The end of the second that a person has typed, in Unix milliseconds; null: it is no time. */
function endOfSecond(text: string): string | null {
  const ms = new Date(text).getTime();
  return Number.isFinite(ms) ? String(Math.max(1, ms + 999)) : null;
}

export function UserPage({ query, user }: { query: URLSearchParams; user: Who }) {
  const [number, setNumber] = useState(query.get("user") ?? "");
  const [at, setAt] = useState("");
  const [asked, setAsked] = useState<Asked | null>(() => (wrongUser(number) === null ? { user: number, atMs: "" } : null));
  const [errors, setErrors] = useState<{ user: string | null; at: string | null }>({ user: null, at: null });
  if (!user.roles.includes("observe")) {
    return (
      <Page title={t("nav.user")} lead={t("user.lead")}>
        <Note level="info">{t("role.needs", { role: "observe" })}</Note>
      </Page>
    );
  }
  const submit = (event: Event) => {
    event.preventDefault();
    const own = number.trim();
    const atMs = at === "" ? "" : endOfSecond(at);
    const isHalf = (event.currentTarget as HTMLFormElement).querySelector<HTMLInputElement>("input[type=datetime-local]")?.validity.badInput;
    const wrong = { user: wrongUser(own), at: atMs === null || isHalf ? t("wrong.time") : null };
    setErrors(wrong);
    if (wrong.user === null && wrong.at === null) setAsked({ user: own, atMs: atMs ?? "" });
  };
  return (
    <Page title={t("nav.user")} lead={t("user.lead")}>
      <Card>
        <form class="filters" onSubmit={submit} noValidate>
          <Field label={t("fnd.user")} value={number} onInput={setNumber} error={errors.user} />
          <Field label={t("user.at")} hint={t("user.atHint")} value={at} onInput={setAt} error={errors.at} isTime />
          <button type="submit" class="primary">
            {t("act.search")}
          </button>
        </form>
      </Card>
      {asked && <OfUser key={`${asked.user} ${asked.atMs}`} asked={asked} caller={user} />}
    </Page>
  );
}

function OfUser({ asked, caller }: { asked: Asked; caller: Who }) {
  const { user, atMs } = asked;
  const mayPropose = caller.roles.includes("operate");
  return (
    <>
      <Freeze user={user} caller={caller} />
      <StatementCard user={user} atMs={atMs} mayPropose={mayPropose} />
      <WithdrawalsCard user={user} mayPropose={mayPropose} />
    </>
  );
}

/** The newest act that froze the user or ended that, and what the ledger says of the user now. */
async function frozen(user: string): Promise<{ about: string; act: string | null; open: Act[]; isCut: boolean }> {
  const { acts, isCut } = await allActs(false);
  const own = acts.filter(({ deed }) => (deed?.freeze_user ?? deed?.thaw_user)?.user_id === user);
  const open = own.filter((act) => act.status === "ACT_STATUS_OPEN");
  const newest = own[0];
  if (!newest) return { about: "", act: null, open, isCut };
  const { act } = await call<{ act: Act }>("/v1/acts/get", { id: newest.id });
  return { about: act.about, act: /frozen by act ([0-9]+)$/.exec(act.about)?.[1] ?? null, open, isCut };
}

function Freeze({ user, caller }: { user: string; caller: Who }) {
  const found = useLoaded(() => frozen(user), user);
  const mayPropose = caller.roles.includes("operate");
  return (
    <Card title={t("user.named", { user })}>
      <Shown of={found}>
        {({ about, act, open, isCut }) => (
          <>
            {act ? (
              <Note level="warn">
                {t("user.frozen")} <a href={`#/acts?act=${act}`}>{t("act.named", { id: act })}</a>
              </Note>
            ) : isCut ? (
              <Note level="warn">{t("user.frozenUnknown")}</Note>
            ) : (
              <p class="pad">
                <Badge level="good">{t("user.notFrozen")}</Badge>
              </p>
            )}
            {about && <p class="muted pad">{about}</p>}
            {open.map((one) => (
              <p key={one.id} class="pad">
                <a href={`#/acts?act=${one.id}`}>{t("act.named", { id: one.id })}</a>{" "}
                {t(one.deed?.freeze_user ? "user.freezeWaits" : "user.thawWaits")} {isOwn(one, caller.name) && t("act.own")}
              </p>
            ))}
            {mayPropose && (
              <p class="links pad">
                <a href={`#/acts?deed=${act ? "thaw_user" : "freeze_user"}&user=${user}`}>{t(act ? "user.thaw" : "user.freeze")}</a>
                <a href={`#/acts?deed=give&user=${user}`}>{t("user.give")}</a>
                <a href={`#/acts?deed=take&user=${user}`}>{t("user.take")}</a>
              </p>
            )}
          </>
        )}
      </Shown>
    </Card>
  );
}

/** What a line changes in the balance; in brackets what changes none. */
function amount(line: Line): string {
  switch (line.kind) {
    case "FLOW_KIND_CREDIT":
    case "FLOW_KIND_RETURN":
      return `+${whole(line.amount)}`;
    case "FLOW_KIND_WITHDRAWAL":
    case "FLOW_KIND_TAKEN_BACK":
      return `−${whole(line.amount)}`;
    default:
      return `(${whole(line.amount)})`;
  }
}

function kindOf(kind: string): string {
  const own = kind.replace("FLOW_KIND_", "");
  const known = ["CREDIT", "WITHDRAWAL", "RETURN", "SETTLED", "TAKEN_BACK", "SETTLED_TAKEN_BACK"].includes(own);
  return known ? t(`user.kind.${own}` as Word) : plain(kind, "FLOW_KIND_");
}

function Reference({ line, user }: { line: Line; user: string }) {
  const act = /^act ([0-9]+)$/.exec(line.reference)?.[1];
  if (act) return <a href={`#/acts?act=${act}`}>{line.reference}</a>;
  if (line.activity === "") return <>{line.reference}</>;
  const order = `order=${encodeURIComponent(line.reference)}&activity=${encodeURIComponent(line.activity)}`;
  return <a href={`#/find?${order}&user=${user}`}>{line.reference}</a>;
}

function StatementCard({ user, atMs, mayPropose }: { user: string; atMs: string; mayPropose: boolean }) {
  const [page, setPage] = useState([""]);
  const after = page.at(-1) ?? "";
  const listed = useLoaded(
    () =>
      call<Statement>("/v1/statements/get", {
        user_id: user,
        page_size: PAGE_SIZE,
        // A cursor knows the time that its first page began at.
        ...(after === "" ? { at_ms: atMs === "" ? "0" : atMs } : { after }),
      }),
    user,
    atMs,
    after,
  );
  return (
    <Card
      title={atMs === "" ? t("user.statement") : t("user.statementAt", { at: when(atMs) })}
      actions={
        <button type="button" onClick={listed.reload}>
          {t("act.refresh")}
        </button>
      }
    >
      <Shown of={listed}>
        {({ balances, lines, next_after }) => (
          <>
            <p class="chips pad">
              {balances.map((one) => (
                <span key={one.bonus_type} class="chip">
                  {t(page.length === 1 ? "user.balance" : "user.balanceHere")} {one.bonus_type} <b>{whole(one.balance)}</b>
                </span>
              ))}
            </p>
            <Table
              label={t("user.statement")}
              rows={lines}
              rowKey={(line) => `${line.transfer} ${line.bonus_type} ${line.kind}`}
              columns={[
                { head: t("col.time"), cell: (line) => when(line.time_ms) },
                { head: t("user.kind"), cell: (line) => kindOf(line.kind) },
                { head: t("col.amount"), cell: (line) => amount(line), isNumber: true },
                { head: t("col.type"), cell: (line) => line.bonus_type },
                { head: t("user.after"), cell: (line) => whole(line.balance), isNumber: true },
                { head: t("user.reference"), cell: (line) => <Reference line={line} user={user} />, isMono: true },
                { head: t("col.activity"), cell: (line) => line.activity, isMinor: true },
                { head: t("user.transfer"), cell: (line) => line.transfer, isNumber: true, isMinor: true },
                ...(mayPropose
                  ? [
                      {
                        head: t("act.list"),
                        cell: (line: Line) =>
                          (line.kind === "FLOW_KIND_CREDIT" || line.kind === "FLOW_KIND_SETTLED") && line.activity !== "" ? (
                            <a
                              href={`#/acts?deed=reverse_order&order=${encodeURIComponent(line.reference)}&activity=${encodeURIComponent(line.activity)}`}
                              aria-label={`${t("user.reverse")} ${line.reference}`}
                            >
                              {t("user.reverse")}
                            </a>
                          ) : null,
                      },
                    ]
                  : []),
              ]}
            />
            <Pager at={page} next={next_after} onMove={setPage} />
          </>
        )}
      </Shown>
    </Card>
  );
}

async function withdrawalsOf(user: string, status: string, from: string): Promise<Withdrawals> {
  const withdrawals: LedgerWithdrawal[] = [];
  let after = from;
  for (let ask = 0; ask < ASKS_MAX && withdrawals.length < PAGE_SIZE; ask++) {
    const asked = { user_id: user, status: `WITHDRAWAL_STATUS_${status}`, after, page_size: PAGE_SIZE - withdrawals.length };
    const listed = await call<Withdrawals>("/v1/withdrawals/list", asked);
    withdrawals.push(...listed.withdrawals);
    after = listed.next_after;
    if (after === "") break;
  }
  return { withdrawals, next_after: after };
}

function WithdrawalsCard({ user, mayPropose }: { user: string; mayPropose: boolean }) {
  const [status, setStatus] = useState("UNSPECIFIED");
  const [page, setPage] = useState([""]);
  const after = page.at(-1) ?? "";
  const listed = useLoaded(() => withdrawalsOf(user, status, after), user, status, after);
  const shown = (one: LedgerWithdrawal) => one.status.replace("WITHDRAWAL_STATUS_", "");
  return (
    <Card
      title={t("user.withdrawals")}
      actions={
        <button type="button" onClick={listed.reload}>
          {t("act.refresh")}
        </button>
      }
    >
      <div class="filters">
        <Select
          label={t("col.state")}
          value={status}
          options={STATUSES.map((one): [string, string] => [one, t(`user.status.${one}` as Word)])}
          onChange={(next) => {
            setStatus(next);
            setPage([""]);
          }}
        />
      </div>
      <Shown of={listed}>
        {({ withdrawals, next_after }) => (
          <>
            <Table
              label={t("user.withdrawals")}
              rows={withdrawals}
              rowKey={(one) => one.withdrawal_id}
              columns={[
                { head: t("held.id"), cell: (one) => one.withdrawal_id, isMono: true },
                {
                  head: t("col.state"),
                  cell: (one) => (
                    <Badge level={shown(one) === "PAID" ? "good" : shown(one) === "HELD" ? "warn" : "plain"}>
                      {t(`user.status.${shown(one)}` as Word)}
                    </Badge>
                  ),
                },
                { head: t("col.amount"), cell: (one) => whole(one.amount), isNumber: true },
                { head: t("col.type"), cell: (one) => one.bonus_type },
                { head: t("user.heldAt"), cell: (one) => when(one.held_ms) },
                { head: t("user.endedAt"), cell: (one) => when(one.decided_ms), isMinor: true },
                { head: t("col.payer"), cell: (one) => one.payer, isMinor: true },
                { head: t("col.reason"), cell: (one) => one.reason, isMinor: true },
                ...(mayPropose
                  ? [
                      {
                        head: t("act.list"),
                        cell: (one: LedgerWithdrawal) =>
                          shown(one) === "HELD" ? (
                            <a
                              href={`#/acts?deed=settle_withdrawal&user=${user}&withdrawal=${encodeURIComponent(one.withdrawal_id)}`}
                              aria-label={`${t("user.settle")} ${one.withdrawal_id}`}
                            >
                              {t("user.settle")}
                            </a>
                          ) : null,
                      },
                    ]
                  : []),
              ]}
            />
            <Pager at={page} next={next_after} onMove={setPage} />
          </>
        )}
      </Shown>
    </Card>
  );
}
