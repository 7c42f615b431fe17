// What differs in the ledger, as its auditor has found it, and how far the auditor has come.

import { useState } from "preact/hooks";
import { call, isNowhere, type Who } from "../api";
import { tooLong, wrongText } from "../checks";
import { num, t, when, whole, type Word } from "../i18n";
import { Badge, Card, Dialog, Fact, Failed, Field, Note, Page, Pager, Select, Shown, Table, useDoing, useLoaded, type Said } from "../parts";

interface Audit {
  transfers: string;
  unread: string;
  is_behind: boolean;
  oldest_unread_ms: string;
  read_ms: string;
  compared_ms: string;
  sweeps: string;
  swept_ms: string;
  differences: { kind: string; open: string; acknowledged: string }[];
  resolved: string;
}

interface Remark {
  actor: string;
  note: string;
  time_ms: string;
}

interface Difference {
  id: string;
  kind: string;
  subject: string;
  detail: string;
  first_seen_ms: string;
  last_seen_ms: string;
  seen: string;
  state: string;
  acknowledged?: Remark | null;
  resolved?: Remark | null;
}

/** The page of the runbook that says what each kind means and what to do. */
const RUNBOOK = "https://github.com/windfall-rewards/windfall/blob/main/docs/runbook/WindfallAuditDifference.md";
/** How old the last comparison may be. Rounds are seconds apart. */
const COMPARED_AGE_MAX_MS = 600_000;
const PAGE_SIZE = 50;
const NOTE_BYTES_MAX = 1_000;
const ACTOR_BYTES_MAX = 64;
const STATES = ["OPEN", "ACKNOWLEDGED", "RESOLVED", "UNSPECIFIED"];
const KINDS = [
  "wrong_balance",
  "overdrawn",
  "order_without_transfer",
  "transfer_without_order",
  "double_credit",
  "transfer_mismatch",
  "wrong_pending",
  "wrong_total",
  "wrong_used",
  "wrong_reserved",
  "budget_over",
  "wrong_withdrawal",
  "movement_without_withdrawal",
  "transfer_without_act",
  "more_than_listed",
];

/** Why nobody knows whether anything differs at present; null: it is known. As `windfall reconcile` says it. */
function notKnown(audit: Audit): string | null {
  const compared = Number(audit.compared_ms);
  if (audit.is_behind) return t("rec.unknown.behind");
  if (compared === 0) return t("rec.unknown.never");
  // One that lies in the future was made by a clock that is wrong, or this one is.
  if (Math.abs(Date.now() - compared) >= COMPARED_AGE_MAX_MS) return t("rec.unknown.old", { at: when(compared) });
  if (audit.sweeps === "0") return t("rec.unknown.sweep");
  return null;
}

function Verdict({ audit }: { audit: Audit }) {
  const why = notKnown(audit);
  const count = (of: "open" | "acknowledged") => audit.differences.reduce((sum, one) => sum + Number(one[of]), 0);
  const differ = t("rec.differ", { open: count("open"), acknowledged: count("acknowledged") });
  if (audit.differences.length > 0) {
    return <Note level="bad">{why === null ? `${differ}.` : `${differ}${t("rec.andUnknown", { why })}`}</Note>;
  }
  if (why !== null) return <Note level="bad">{t("rec.notKnown", { why })}</Note>;
  return <Note level="good">{t("rec.clean", { at: when(audit.compared_ms) })}</Note>;
}

export function ReconcilePage({ user }: { user: Who }) {
  const mayObserve = user.roles.includes("observe");
  const [state, setState] = useState("OPEN");
  const [page, setPage] = useState(["0"]);
  const [opened, setOpened] = useState<Difference | null>(null);
  const [late, setLate] = useState<Said | null>(null);
  const after = page.at(-1) ?? "0";
  const audit = useLoaded(async () => {
    if (!mayObserve) return "nobody" as const;
    try {
      return await call<Audit>("/v1/audits/get", {});
    } catch (error) {
      if (isNowhere(error)) return "nowhere" as const;
      throw error;
    }
  }, mayObserve);
  const isThere = typeof audit.value === "object" && audit.value !== null;
  const listed = useLoaded(
    async () => {
      const none = { differences: [] as Difference[], next_after: "0" };
      if (!isThere) return none;
      const asked = { state: `DIFFERENCE_STATE_${state}`, after, limit: PAGE_SIZE };
      return call<typeof none>("/v1/audits/differences/list", asked);
    },
    isThere,
    state,
    after,
  );
  const reload = () => {
    audit.reload();
    listed.reload();
  };
  return (
    <Page
      title={t("nav.reconcile")}
      lead={t("rec.lead")}
      actions={
        mayObserve && (
          <button type="button" onClick={reload}>
            {t("act.refresh")}
          </button>
        )
      }
    >
      {late && <Note level={late.level}>{late.text}</Note>}
      {/* What was known before is not known any more. */}
      {audit.error ? (
        <Note level="bad">{t("rec.notKnown", { why: audit.error })}</Note>
      ) : (
        <Shown of={audit}>
          {(found) => {
            if (found === "nobody") return <Note level="info">{t("role.needs", { role: "observe" })}</Note>;
            if (found === "nowhere") return <Note level="bad">{t("rec.nowhere")}</Note>;
            return (
              <>
                <Verdict audit={found} />
                <Progress audit={found} />
                {found.differences.length > 0 && <Kinds audit={found} />}
                <Card title={t("rec.differences")}>
                  <div class="filters">
                    <Select
                      label={t("col.state")}
                      value={state}
                      options={STATES.map((one): [string, string] => [one, t(`rec.state.${one}` as Word)])}
                      onChange={(next) => {
                        setState(next);
                        setPage(["0"]);
                      }}
                    />
                  </div>
                  <Shown of={listed}>
                    {({ differences, next_after }) => (
                      <>
                        <Table
                          label={t("rec.differences")}
                          rows={differences}
                          empty={t(state === "OPEN" ? "rec.noneOpen" : "state.none")}
                          rowKey={(one) => one.id}
                          columns={[
                            {
                              head: t("act.number"),
                              cell: (one) => (
                                <button type="button" class="link" onClick={() => setOpened(one)}>
                                  {t("rec.named", { id: one.id })}
                                </button>
                              ),
                            },
                            { head: t("rec.kind"), cell: (one) => <Badge level="bad">{one.kind}</Badge> },
                            { head: t("rec.subject"), cell: (one) => one.subject, isMono: true },
                            { head: t("col.detail"), cell: (one) => one.detail, isMinor: true },
                            { head: t("rec.first"), cell: (one) => when(one.first_seen_ms), isMinor: true },
                            {
                              head: t("col.state"),
                              cell: (one) => <State state={one.state} />,
                            },
                          ]}
                        />
                        <Pager at={page} next={next_after} onMove={setPage} />
                      </>
                    )}
                  </Shown>
                </Card>
              </>
            );
          }}
        </Shown>
      )}
      {opened && (
        <DifferenceDialog
          difference={opened}
          user={user}
          onLate={(said) => {
            setLate(said);
            reload();
          }}
          onClose={() => {
            setOpened(null);
            reload();
          }}
        />
      )}
    </Page>
  );
}

function State({ state }: { state: string }) {
  const own = state.replace("DIFFERENCE_STATE_", "");
  return <Badge level={own === "OPEN" ? "bad" : own === "ACKNOWLEDGED" ? "warn" : "plain"}>{t(`rec.state.${own}` as Word)}</Badge>;
}

function Progress({ audit }: { audit: Audit }) {
  return (
    <Card title={t("rec.progress")}>
      <dl class="facts">
        <Fact name={t("rec.read")} value={whole(audit.transfers)} />
        <Fact name={t("rec.unread")} value={whole(audit.unread)} />
        <Fact name={t("rec.oldest")} value={audit.oldest_unread_ms === "0" ? "" : when(audit.oldest_unread_ms)} />
        <Fact name={t("rec.readAt")} value={audit.read_ms === "0" ? t("rec.never") : when(audit.read_ms)} />
        <Fact name={t("rec.compared")} value={audit.compared_ms === "0" ? t("rec.never") : when(audit.compared_ms)} />
        <Fact name={t("rec.sweeps")} value={whole(audit.sweeps)} />
        <Fact name={t("rec.swept")} value={audit.swept_ms === "0" ? t("rec.never") : when(audit.swept_ms)} />
        <Fact name={t("rec.resolved")} value={whole(audit.resolved)} />
      </dl>
    </Card>
  );
}

function Runbook() {
  return (
    <a href={RUNBOOK} target="_blank" rel="noreferrer">
      {t("rec.runbook")}
    </a>
  );
}

function meaning(kind: string): string {
  return KINDS.includes(kind) ? t(`rec.kind.${kind}` as Word) : "";
}

function Kinds({ audit }: { audit: Audit }) {
  return (
    <Card title={t("rec.kinds")} actions={<Runbook />}>
      <Table
        label={t("rec.kinds")}
        rows={audit.differences}
        rowKey={(one) => one.kind}
        columns={[
          { head: t("rec.kind"), cell: (one) => <Badge level="bad">{one.kind}</Badge> },
          { head: t("rec.means"), cell: (one) => meaning(one.kind) },
          { head: t("rec.state.OPEN"), cell: (one) => num(Number(one.open)), isNumber: true },
          { head: t("rec.state.ACKNOWLEDGED"), cell: (one) => num(Number(one.acknowledged)), isNumber: true },
        ]}
      />
    </Card>
  );
}

type Mark = "" | "ACKNOWLEDGED" | "RESOLVED";

function DifferenceDialog(props: { difference: Difference; user: Who; onClose: () => void; onLate: (said: Said) => void }) {
  const { difference: one, user, onClose, onLate } = props;
  const [mark, setMark] = useState<Mark>("");
  const [note, setNote] = useState("");
  const [actor, setActor] = useState("");
  const [errors, setErrors] = useState<{ note: string | null; actor: string | null }>({ note: null, actor: null });
  const doing = useDoing<object>(t("rec.lost"), onLate);
  const said = (): Said => ({ level: "good", text: t(mark === "RESOLVED" ? "rec.resolvedNow" : "rec.acknowledgedNow", { id: one.id }) });
  const submit = (event: Event) => {
    event.preventDefault();
    const wrong = { note: wrongText(note, NOTE_BYTES_MAX), actor: tooLong(actor, ACTOR_BYTES_MAX) };
    setErrors(wrong);
    if (mark === "" || wrong.note !== null || wrong.actor !== null) return;
    const asked = { id: one.id, state: `DIFFERENCE_STATE_${mark}`, note: note.trim(), actor: actor.trim() };
    void doing.run(() => call<object>("/v1/audits/differences/mark", asked), said);
  };
  const isResolved = one.state === "DIFFERENCE_STATE_RESOLVED";
  const mayMark = user.roles.includes("operate");
  return (
    <Dialog title={t("rec.named", { id: one.id })} onClose={onClose} isWide>
      <p class="pad">
        <Badge level="bad">{one.kind}</Badge> <State state={one.state} />
      </p>
      <p class="pad">
        {meaning(one.kind)} <Runbook />
      </p>
      <dl class="facts">
        <Fact name={t("rec.subject")} value={one.subject} isMono />
        <Fact name={t("col.detail")} value={one.detail} />
        <Fact name={t("rec.see")} value={KINDS.includes(one.kind) ? t(`rec.see.${one.kind}` as Word) : ""} />
        <Fact name={t("rec.first")} value={when(one.first_seen_ms)} />
        <Fact name={t("rec.last")} value={`${when(one.last_seen_ms)} (${t("rec.times", { n: Number(one.seen) })})`} />
        <Fact name={t("rec.state.ACKNOWLEDGED")} value={word(one.acknowledged)} />
        <Fact name={t("rec.state.RESOLVED")} value={word(one.resolved)} />
      </dl>
      {!mayMark && !isResolved && <Note level="info">{t("rec.needsOperate")}</Note>}
      {mayMark && !isResolved && !doing.done && (
        <form onSubmit={submit} noValidate>
          <Select
            label={t("rec.mark")}
            value={mark}
            options={[
              ["", t("act.choose")],
              ["ACKNOWLEDGED", t("rec.acknowledge")],
              ["RESOLVED", t("rec.resolve")],
            ]}
            onChange={(next) => setMark(next as Mark)}
            size="wide"
          />
          {mark !== "" && (
            <>
              <p class="muted">{t(mark === "RESOLVED" ? "rec.resolveMeans" : "rec.acknowledgeMeans")}</p>
              <Field label={t("rec.note")} hint={t("rec.noteHint")} value={note} onInput={setNote} error={errors.note} size="wide" />
              <Field label={t("arc.actor")} value={actor} onInput={setActor} error={errors.actor} size="wide" />
            </>
          )}
          <Failed of={doing} lost={t("rec.lost")} />
          <div class="buttons">
            <button type="button" onClick={onClose}>
              {t("act.cancel")}
            </button>
            <button type="submit" class="primary" disabled={mark === "" || doing.busy}>
              {t(mark === "RESOLVED" ? "rec.resolveNow" : "rec.acknowledgeNow")}
            </button>
          </div>
        </form>
      )}
      {doing.done && <Note level="good">{said().text}</Note>}
      {(!mayMark || isResolved || doing.done) && (
        <div class="buttons">
          <button type="button" onClick={onClose}>
            {t("act.close")}
          </button>
        </div>
      )}
    </Dialog>
  );
}

function word(said: Remark | null | undefined): string {
  return said ? `${when(said.time_ms)}, ${said.actor}: ${said.note}` : "";
}
