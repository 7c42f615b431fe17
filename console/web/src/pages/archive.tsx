// The failure archive: filter, inspect, replay, with a count before anything is granted.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, told } from "../api";
import { num, t, when } from "../i18n";
import { Badge, Card, Dialog, Fact, Field, Note, Page, Shown, Table, useLoaded } from "../parts";

export interface Event {
  trade_no: string;
  user?: { user_id: string; device_id: string; app_id: string };
  activity: string;
  scene: string;
  bonus?: { type: string; amount: string; description: string };
  award_time_ms: string;
}

interface Replay {
  actor: string;
  time_ms: string;
  outcome: string;
}

export interface Entry {
  id: string;
  trade_no: string;
  reason: string;
  detail: string;
  time_ms: string;
  payload_bytes: number;
  event?: Event;
  replay?: Replay;
}

interface Listed {
  entries: Entry[];
  next_after: string;
}

export const REASONS = [
  "budget_exhausted",
  "over_order_cap",
  "over_type_cap",
  "activity_closed",
  "unbudgeted",
  "conflict",
  "downstream_refused",
  "max_failures",
  "unknown_type",
  "foreign_app",
  "malformed",
  "quarantined",
  "unverified",
  "released",
];
const PAGE_SIZE = 50;
const COUNT_PAGE_SIZE = 1_000;
/** A count reads so many pages at most. */
const COUNT_PAGES_MAX = 10;

interface Filter {
  reason: string;
  trade_no: string;
  open: boolean;
}

export function ArchivePage({ query }: { query: URLSearchParams }) {
  const [filter, setFilter] = useState<Filter>({
    reason: query.get("reason") ?? "",
    trade_no: query.get("order") ?? "",
    open: query.get("open") !== "no",
  });
  const [order, setOrder] = useState(filter.trade_no);
  const [after, setAfter] = useState<string[]>(["0"]);
  const [chosen, setChosen] = useState<Map<string, Entry>>(new Map());
  const [inspected, setInspected] = useState<string | null>(null);
  const [dry, setDry] = useState<{ entries: Entry[]; isCut: boolean } | null>(null);
  const [counting, setCounting] = useState<string | null>(null);
  const [stopped, setStopped] = useState<string | null>(null);
  const filterNow = useRef(filter);
  filterNow.current = filter;
  const listed = useLoaded(
    () => call<Listed>("/v1/archive/list", { ...filter, page_size: PAGE_SIZE, after: after.at(-1) }),
    filter,
    after,
  );
  const change = (next: Partial<Filter>) => {
    setFilter({ ...filter, ...next });
    setAfter(["0"]);
    setChosen(new Map());
  };
  const choose = (entries: Entry[], isOn: boolean) => {
    const next = new Map(chosen);
    for (const entry of entries) {
      if (isOn) next.set(entry.id, entry);
      else next.delete(entry.id);
    }
    setChosen(next);
  };
  const count = async () => {
    setCounting(t("state.loading"));
    try {
      const counted = await countAll(filter);
      // What was counted is no longer what the page shows.
      if (filterNow.current === filter) setDry(counted);
      setCounting(null);
    } catch (error) {
      setCounting(told(error));
    }
  };
  const entries = listed.value?.entries ?? [];
  const next = listed.value?.next_after ?? "0";
  return (
    <Page
      title={t("nav.archive")}
      lead={t("arc.lead")}
      actions={
        <button type="button" onClick={listed.reload}>
          {t("act.refresh")}
        </button>
      }
    >
      {stopped && <Note level="warn">{stopped}</Note>}
      <Card>
        <form
          class="filters"
          onSubmit={(event) => {
            event.preventDefault();
            change({ trade_no: order.trim() });
          }}
        >
          <div class="field">
            <label for="reason">{t("col.reason")}</label>
            <select id="reason" value={filter.reason} onChange={(event) => change({ reason: event.currentTarget.value })}>
              <option value="">{t("arc.anyReason")}</option>
              {REASONS.map((reason) => (
                <option key={reason} value={reason}>
                  {reason}
                </option>
              ))}
            </select>
          </div>
          <Field label={t("col.order")} value={order} onInput={setOrder} />
          <label class="check">
            <input type="checkbox" checked={filter.open} onChange={(event) => change({ open: event.currentTarget.checked })} />
            {t("arc.open")}
          </label>
          <button type="submit">{t("act.search")}</button>
        </form>
        {counting && <Note level="info">{counting}</Note>}
        <Shown of={listed}>
          {() => (
            <>
              <Table
                label={t("nav.archive")}
                rows={entries}
                rowKey={(entry) => entry.id}
                columns={[
                  {
                    head: t("act.select"),
                    cell: (entry) => (
                      <input
                        type="checkbox"
                        aria-label={`${t("act.select")} ${entry.id}`}
                        checked={chosen.has(entry.id)}
                        onChange={(event) => choose([entry], event.currentTarget.checked)}
                      />
                    ),
                  },
                  { head: t("col.time"), cell: (entry) => when(entry.time_ms), isMinor: true },
                  {
                    head: t("col.order"),
                    isMono: true,
                    cell: (entry) => (
                      <button type="button" class="link" onClick={() => setInspected(entry.id)}>
                        {entry.trade_no || `#${entry.id}`}
                      </button>
                    ),
                  },
                  { head: t("col.type"), cell: (entry) => entry.event?.bonus?.type ?? "–" },
                  { head: t("col.amount"), cell: (entry) => (entry.event?.bonus ? num(Number(entry.event.bonus.amount)) : "–"), isNumber: true },
                  { head: t("col.reason"), cell: (entry) => <Badge level="warn">{entry.reason}</Badge> },
                  { head: t("arc.replay"), cell: (entry) => entry.replay?.outcome ?? "–", isMinor: true },
                ]}
              />
              <div class="pager">
                <button type="button" disabled={entries.length === 0} onClick={() => choose(entries, !entries.every((entry) => chosen.has(entry.id)))}>
                  {t("act.all")}
                </button>
                <button type="button" onClick={count}>
                  {t("arc.count")}
                </button>
                <button
                  type="button"
                  class="primary"
                  disabled={chosen.size === 0}
                  onClick={() => setDry({ entries: [...chosen.values()], isCut: false })}
                >
                  {t("arc.replayN", { n: chosen.size })}
                </button>
                <span class="grow" />
                <button type="button" aria-label={t("act.before")} disabled={after.length === 1} onClick={() => setAfter(after.slice(0, -1))}>
                  ←
                </button>
                <span>{after.length}</span>
                <button type="button" aria-label={t("act.more")} disabled={next === "0"} onClick={() => setAfter([...after, next])}>
                  →
                </button>
              </div>
            </>
          )}
        </Shown>
      </Card>
      {inspected && (
        <Inspect
          id={inspected}
          onClose={() => setInspected(null)}
          onReplay={(entry) => {
            setInspected(null);
            setDry({ entries: [entry], isCut: false });
          }}
        />
      )}
      {dry && (
        <ReplayDialog
          entries={dry.entries}
          isCut={dry.isCut}
          onClose={() => {
            setDry(null);
            setChosen(new Map());
            listed.reload();
          }}
          onStopped={(said) => {
            setStopped(said);
            listed.reload();
          }}
        />
      )}
    </Page>
  );
}

async function countAll(filter: Filter): Promise<{ entries: Entry[]; isCut: boolean }> {
  const entries: Entry[] = [];
  let after = "0";
  for (let page = 0; page < COUNT_PAGES_MAX; page++) {
    const listed = await call<Listed>("/v1/archive/list", { ...filter, page_size: COUNT_PAGE_SIZE, after });
    entries.push(...listed.entries);
    after = listed.next_after;
    if (after === "0") return { entries, isCut: false };
  }
  return { entries, isCut: true };
}

function Inspect(props: { id: string; onClose: () => void; onReplay: (entry: Entry) => void }) {
  const found = useLoaded(
    () => call<{ entry: Entry; payload: string; replays: Replay[] }>("/v1/archive/get", { id: props.id }),
    props.id,
  );
  return (
    <Dialog title={t("arc.inspect", { id: props.id })} onClose={props.onClose} isWide>
      <Shown of={found}>
        {({ entry, payload, replays }) => (
          <>
            <dl class="facts">
              <Fact name={t("col.order")} value={entry.trade_no} />
              <Fact name={t("col.reason")} value={entry.reason} />
              <Fact name={t("col.detail")} value={entry.detail} />
              <Fact name={t("col.time")} value={when(entry.time_ms)} />
              {entry.event && (
                <>
                  <Fact name={t("col.user")} value={entry.event.user?.user_id ?? ""} />
                  <Fact name={t("col.activity")} value={`${entry.event.activity} / ${entry.event.scene}`} />
                  <Fact name={t("col.type")} value={entry.event.bonus?.type ?? ""} />
                  <Fact name={t("col.amount")} value={num(Number(entry.event.bonus?.amount ?? 0))} />
                </>
              )}
            </dl>
            <h3>{t("arc.replays")}</h3>
            <Table
              label={t("arc.replays")}
              rows={replays}
              empty={t("arc.noReplays")}
              rowKey={(replay) => `${replay.time_ms}/${replay.outcome}`}
              columns={[
                { head: t("col.time"), cell: (replay) => when(replay.time_ms) },
                { head: t("col.who"), cell: (replay) => replay.actor },
                { head: t("arc.result"), cell: (replay) => replay.outcome },
              ]}
            />
            <details>
              <summary>{t("arc.payload", { n: entry.payload_bytes })}</summary>
              <pre tabIndex={0}>{hex(payload)}</pre>
            </details>
            <div class="buttons">
              <button type="button" class="primary" onClick={() => props.onReplay(entry)}>
                {t("arc.replay")}
              </button>
            </div>
          </>
        )}
      </Shown>
    </Dialog>
  );
}

function hex(base64: string): string {
  const bytes = Uint8Array.from(atob(base64.replace(/-/g, "+").replace(/_/g, "/")), (sign) => sign.charCodeAt(0));
  const lines: string[] = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const shown = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}

interface GrantReply {
  outcome: string;
  reason: string;
}

function ReplayDialog(props: {
  entries: Entry[];
  isCut: boolean;
  onClose: () => void;
  /** The dialog was closed while it replayed: how far it came. */
  onStopped: (said: string) => void;
}) {
  const { entries, isCut, onClose, onStopped } = props;
  const [actor, setActor] = useState("");
  const [despite, setDespite] = useState("");
  const [done, setDone] = useState<{ count: number; outcomes: Map<string, number>; error: string | null } | null>(null);
  const [busy, setBusy] = useState(false);
  const hasUnverified = entries.some((entry) => entry.reason === "unverified");
  const groups = new Map<string, { reason: string; type: string; count: number; amount: number }>();
  for (const entry of entries) {
    const type = entry.event?.bonus?.type ?? "–";
    const key = `${entry.reason}/${type}`;
    const group = groups.get(key) ?? { reason: entry.reason, type, count: 0, amount: 0 };
    group.count += 1;
    group.amount += Number(entry.event?.bonus?.amount ?? 0);
    groups.set(key, group);
  }
  const isOver = useRef(false);
  useEffect(
    () => () => {
      isOver.current = true;
    },
    [],
  );
  // One after the other: a grant is a write, and whoever closes the dialog wants it to stop.
  const run = async () => {
    setBusy(true);
    const outcomes = new Map<string, number>();
    let count = 0;
    let failed = "";
    for (const entry of entries) {
      if (isOver.current) break;
      try {
        const { reply } = await call<{ reply?: GrantReply }>("/v1/archive/replay", {
          id: entry.id,
          actor: actor.trim(),
          despite_signature: entry.reason === "unverified" ? despite.trim() : "",
        });
        const outcome = outcomeOf(reply);
        outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
        count += 1;
        setDone({ count, outcomes: new Map(outcomes), error: null });
      } catch (error) {
        failed = `${entry.trade_no || entry.id}: ${told(error)}`;
        setDone({ count, outcomes: new Map(outcomes), error: failed });
        break;
      }
    }
    setBusy(false);
    if (isOver.current) onStopped(`${t("arc.stopped", { done: count, n: entries.length })} ${failed}`.trim());
  };
  return (
    <Dialog title={t("arc.replay")} onClose={onClose}>
      <p>{t(isCut ? "arc.countedCut" : "arc.counted", { n: entries.length })}</p>
      {!done && <p class="muted">{t("arc.dry")}</p>}
      <Table
        label={t("arc.dry")}
        rows={[...groups.values()]}
        rowKey={(group) => `${group.reason}/${group.type}`}
        columns={[
          { head: t("col.reason"), cell: (group) => group.reason },
          { head: t("col.type"), cell: (group) => group.type },
          { head: t("col.count"), cell: (group) => num(group.count), isNumber: true },
          { head: t("col.amount"), cell: (group) => num(group.amount), isNumber: true },
        ]}
      />
      {!done && entries.length > 0 && (
        <>
          <Field label={t("arc.actor")} value={actor} onInput={setActor} max={64} size="wide" />
          {hasUnverified && <Field label={t("arc.despite")} value={despite} onInput={setDespite} max={200} size="wide" />}
        </>
      )}
      {done && (
        <>
          <p role="status">{t("arc.running", { done: done.count, n: entries.length })}</p>
          <ul class="bare">
            {[...done.outcomes].map(([outcome, count]) => (
              <li key={outcome}>
                {outcome}: <b>{num(count)}</b>
              </li>
            ))}
          </ul>
          {done.error && <Note level="bad">{done.error}</Note>}
        </>
      )}
      <div class="buttons">
        <button type="button" onClick={onClose}>
          {busy ? t("act.stop") : done ? t("act.close") : t("act.cancel")}
        </button>
        {!done && (
          <button type="button" class="primary" disabled={busy || entries.length === 0} onClick={run}>
            {t("arc.replayN", { n: entries.length })}
          </button>
        )}
      </div>
    </Dialog>
  );
}

function outcomeOf(reply: GrantReply | undefined): string {
  const outcome = (reply?.outcome ?? "").replace("GRANT_OUTCOME_", "").toLowerCase();
  if (outcome === "retry") return `${t("arc.retryLater")}${reply?.reason ? `: ${reply.reason}` : ""}`;
  return reply?.reason ? `${outcome}: ${reply.reason}` : outcome;
}
