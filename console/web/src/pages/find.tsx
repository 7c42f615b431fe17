// Finds a reward by its order number, its user or its token, and shows where it stands and where to look on.

import { useEffect, useRef, useState } from "preact/hooks";
import { plain, type LedgerOrder } from "../acts";
import type { Who } from "../api";
import { wrongName, wrongUser } from "../checks";
import { find, isNothing, linesOf, wrongToken, type Found, type Judged } from "../find";
import { num, span, t, when, whole, type Word } from "../i18n";
import { Badge, Card, Fact, Field, Note, Page, Table } from "../parts";
import { nameOf } from "./held";

interface Wrong {
  order: string | null;
  activity: string | null;
  user: string | null;
  token: string | null;
}

const NOTHING_WRONG: Wrong = { order: null, activity: null, user: null, token: null };
const STATES = ["CREDITED", "RESERVED", "REJECTED"];
const VERDICTS = ["VALID", "UNKNOWN", "ILLEGAL", "UNAVAILABLE", "NO_USER", "NO_ROLE"];
/** The verdicts by which nobody has seen what is in the token. */
const OPENED_ELSEWHERE = ["UNKNOWN", "NO_USER", "NO_ROLE"];

export function FindPage({ query, user }: { query: URLSearchParams; user: Who }) {
  const [order, setOrder] = useState(query.get("order") ?? "");
  const [activity, setActivity] = useState(query.get("activity") ?? "");
  const [number, setNumber] = useState(query.get("user") ?? "");
  const [token, setToken] = useState("");
  const [wrong, setWrong] = useState<Wrong>(NOTHING_WRONG);
  const [found, setFound] = useState<Found | null>(null);
  const [busy, setBusy] = useState(false);
  // The user that the last search has filled in: the next order may have another one.
  const filled = useRef("");
  const search = async () => {
    const own = order.trim() !== "" && number.trim() === filled.current ? "" : number.trim();
    // A token that is copied from a letter or a log has line breaks.
    const wanted = { order: order.trim(), activity: activity.trim(), user: own, token: token.replace(/\s+/g, "") };
    const next: Wrong = {
      order: wanted.order === "" ? null : wrongName(wanted.order),
      activity: wanted.activity === "" ? null : wrongName(wanted.activity),
      user: own === "" ? null : wrongUser(own),
      token: wanted.token === "" ? null : wrongToken(wanted.token),
    };
    setWrong(next);
    if (Object.values(next).some((one) => one !== null)) return;
    setBusy(true);
    const all = await find(wanted, user);
    filled.current = own === "" ? all.user : "";
    setNumber(all.user);
    if (wanted.order === "" && all.judged?.content) setOrder(all.order);
    setFound(all);
    setBusy(false);
  };
  useEffect(() => {
    // A link from another page names what is looked for.
    if (order !== "" || number !== "") void search();
  }, []);
  const isEmpty = [order, number, token].every((one) => one.trim() === "");
  return (
    <Page title={t("nav.find")} lead={`${t("fnd.lead")} ${t("fnd.is.NO_USER")}`}>
      <Card>
        <form
          class="filters"
          noValidate
          onSubmit={(event) => {
            event.preventDefault();
            void search();
          }}
        >
          <Field label={t("fnd.order")} value={order} onInput={setOrder} error={wrong.order} size="wide" />
          <Field label={t("col.activity")} hint={t("fnd.activityHint")} value={activity} onInput={setActivity} error={wrong.activity} />
          <Field label={t("fnd.user")} value={number} onInput={setNumber} error={wrong.user} />
          <Field label={t("fnd.token")} value={token} onInput={setToken} error={wrong.token} size="wide" />
          <button type="submit" class="primary" disabled={busy || isEmpty}>
            {t("act.search")}
          </button>
        </form>
      </Card>
      {busy && <p class="muted pad">{t("state.loading")}</p>}
      {found && !busy && <Results found={found} caller={user} />}
    </Page>
  );
}

function Results({ found, caller }: { found: Found; caller: Who }) {
  const { order, user, otherUser, orders, archived, reserved, judged } = found;
  return (
    <>
      {found.errors.map((error) => (
        <Note key={error} level="bad">
          {error}
        </Note>
      ))}
      {otherUser !== "" && <Note level="warn">{t("fnd.otherUser", { has: otherUser, given: user })}</Note>}
      {isNothing(found) && (
        <Note level="warn">
          {t("fnd.nowhere", { where: found.looked.join(t("fnd.and")) })} {order !== "" && t("fnd.onItsWay")}
        </Note>
      )}
      {judged && <TokenCard judged={judged} user={user} />}
      {orders?.map((one) => (
        <OrderCard key={`${one.activity} ${one.trade_no}`} order={one} hasArchived={(archived?.length ?? 0) > 0} caller={caller} />
      ))}
      {archived && archived.length > 0 && <ArchivedCard found={found} />}
      {reserved && reserved.length > 0 && (
        <Card title={t("fnd.reserved")}>
          <Table
            label={t("fnd.reserved")}
            rows={reserved}
            rowKey={nameOf}
            columns={[
              { head: t("col.order"), cell: (one) => <OrderLink order={one.trade_no} activity={one.activity} />, isMono: true },
              { head: t("col.activity"), cell: (one) => one.activity },
              { head: t("col.type"), cell: (one) => one.bonus_type },
              { head: t("col.amount"), cell: (one) => whole(one.amount), isNumber: true },
              { head: t("col.payer"), cell: (one) => one.payer || t("held.awaitsEvent") },
            ]}
          />
        </Card>
      )}
      <WalletCard found={found} caller={caller} />
    </>
  );
}

function OrderLink({ order, activity }: { order: string; activity: string }) {
  return <a href={`#/find?order=${encodeURIComponent(order)}&activity=${encodeURIComponent(activity)}`}>{order}</a>;
}

/** What a token is worth, in words, and the reward that it is about. */
function TokenCard({ judged, user }: { judged: Judged; user: string }) {
  const verdict = judged.verdict.replace("TOKEN_VERDICT_", "");
  const { content } = judged;
  return (
    <Card title={t("fnd.verdict")}>
      <Note level={verdict === "VALID" ? "good" : "warn"}>
        {VERDICTS.includes(verdict) ? t(`fnd.is.${verdict}` as Word, { user }) : plain(verdict, "")}{" "}
        {OPENED_ELSEWHERE.includes(verdict) && t("fnd.opens")}
      </Note>
      {content && (
        <dl class="facts pad">
          <Fact name={t("col.order")} value={content.trade_no} isMono />
          <Fact name={t("col.user")} value={user} />
          <Fact name={t("col.activity")} value={content.activity} />
          <Fact name={t("col.scene")} value={content.scene} />
          <Fact name={t("col.type")} value={content.bonus_type} />
          <Fact name={t("col.amount")} value={whole(content.amount)} />
          <Fact name={t("fnd.awarded")} value={when(content.award_time_ms)} />
        </dl>
      )}
    </Card>
  );
}

const stateOf = (order: LedgerOrder): string => order.status.replace("ORDER_STATUS_", "");

/** How an order stands, in a sentence. */
function sentence(order: LedgerOrder): string {
  const { user_id, bonus_type, payer, reason } = order;
  const args = { amount: whole(order.amount), type: bonus_type, user: user_id, payer, reason };
  switch (stateOf(order)) {
    case "CREDITED":
      return t(payer === "" ? "fnd.says.credited" : "fnd.says.paid", args);
    case "RESERVED":
      return t(payer === "" ? "fnd.says.awaitsEvent" : "fnd.says.awaitsPayer", args);
    case "REJECTED":
      return t("fnd.says.rejected", args);
    default:
      return plain(order.status, "ORDER_STATUS_");
  }
}

function OrderCard({ order, hasArchived, caller }: { order: LedgerOrder; hasArchived: boolean; caller: Who }) {
  const state = stateOf(order);
  const level = state === "CREDITED" ? "good" : "warn";
  const isDecided = order.decided_ms !== "0";
  const tookMs = Number(order.decided_ms) - Number(order.created_ms);
  return (
    <Card title={t("fnd.ledger", { activity: order.activity })}>
      <Note level={level}>{sentence(order)}</Note>
      <dl class="facts pad">
        <Fact name={t("col.order")} value={order.trade_no} isMono />
        <dt>{t("col.state")}</dt>
        <dd>
          <Badge level={level}>{STATES.includes(state) ? t(`fnd.state.${state}` as Word) : plain(state, "")}</Badge>
        </dd>
        <Fact name={t("col.user")} value={order.user_id} />
        <Fact name={t("col.activity")} value={order.activity} />
        <Fact name={t("col.scene")} value={order.scene} />
        <Fact name={t("col.type")} value={order.bonus_type} />
        <Fact name={t("col.amount")} value={whole(order.amount)} />
        <Fact name={t("fnd.made")} value={when(order.created_ms)} />
        <Fact name={t("fnd.decided")} value={isDecided ? when(order.decided_ms) : t("fnd.notYet")} />
        <Fact name={t("fnd.took")} value={!isDecided ? "" : tookMs === 0 ? t("fnd.atOnce") : span(tookMs)} />
        <Fact name={t("col.payer")} value={order.payer === "" ? t("pay.ledger") : order.payer} />
        <Fact name={t("col.reason")} value={order.reason} />
      </dl>
      <OrderLinks order={order} hasArchived={hasArchived} caller={caller} />
    </Card>
  );
}

/** Where to look on, and what can be done about it. */
function OrderLinks({ order, hasArchived, caller }: { order: LedgerOrder; hasArchived: boolean; caller: Who }) {
  const named = `order=${encodeURIComponent(order.trade_no)}&activity=${encodeURIComponent(order.activity)}`;
  const mayPropose = caller.roles.includes("operate");
  const state = stateOf(order);
  return (
    <p class="links pad">
      <a href={`#/user?user=${order.user_id}`}>{t("fnd.toUser", { user: order.user_id })}</a>
      {hasArchived && <a href={`#/archive?open=no&order=${encodeURIComponent(order.trade_no)}`}>{t("fnd.toArchive")}</a>}
      {state === "RESERVED" && <a href="#/held">{t("nav.held")}</a>}
      {state === "RESERVED" && order.payer !== "" && mayPropose && (
        <a href={`#/acts?deed=settle_order&${named}`}>{t("held.propose")}</a>
      )}
      {state === "CREDITED" && mayPropose && <a href={`#/acts?deed=reverse_order&${named}`}>{t("user.reverse")}</a>}
    </p>
  );
}

function ArchivedCard({ found: { archived } }: { found: Found }) {
  return (
    <Card title={t("fnd.archived")}>
      <Table
        label={t("fnd.archived")}
        rows={archived ?? []}
        rowKey={(entry) => entry.id}
        columns={[
          {
            head: t("col.order"),
            cell: (entry) => <a href={`#/archive?open=no&order=${encodeURIComponent(entry.trade_no)}`}>{entry.trade_no}</a>,
            isMono: true,
          },
          { head: t("col.activity"), cell: (entry) => entry.event?.activity ?? "–", isMinor: true },
          { head: t("col.user"), cell: (entry) => entry.event?.user?.user_id ?? "–" },
          { head: t("col.reason"), cell: (entry) => <Badge level="warn">{entry.reason}</Badge> },
          { head: t("arc.replay"), cell: (entry) => entry.replay?.outcome ?? "–" },
          { head: t("col.time"), cell: (entry) => when(entry.time_ms), isMinor: true },
        ]}
      />
    </Card>
  );
}

function WalletCard({ found, caller }: { found: Found; caller: Who }) {
  const { order, user, wallet } = found;
  const mayVerify = caller.roles.includes("verify");
  const isOfUser = user !== "" && order === "" && caller.roles.includes("observe");
  return (
    <Card title={t("fnd.credited")}>
      {isOfUser && (
        <p class="links pad">
          <a href={`#/user?user=${user}`}>{t("fnd.toUser", { user })}</a>
        </p>
      )}
      {!mayVerify && <p class="muted pad">{t("fnd.wallet")}</p>}
      {mayVerify && user === "" && <p class="muted pad">{t("fnd.noUser")}</p>}
      {wallet && !wallet.tokens_complete && <Note level="warn">{t("fnd.incomplete")}</Note>}
      {wallet && order === "" && (
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
          rows={linesOf(found)}
          rowKey={(line) => `${line.kind} ${line.activity} ${line.reference}`}
          columns={[
            {
              head: t("col.state"),
              cell: (line) => (
                <Badge level={line.kind === "FLOW_KIND_PENDING" ? "warn" : "good"}>{plain(line.kind, "FLOW_KIND_")}</Badge>
              ),
            },
            { head: t("col.order"), cell: (line) => line.reference, isMono: true },
            { head: t("col.activity"), cell: (line) => line.activity },
            { head: t("col.type"), cell: (line) => line.bonus_type },
            { head: t("col.amount"), cell: (line) => num(Number(line.amount)), isNumber: true },
            { head: t("col.time"), cell: (line) => when(line.time_ms), isMinor: true },
          ]}
        />
      )}
    </Card>
  );
}
