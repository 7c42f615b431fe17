// A change that some processes try first: how it stands, live, and its end: made for all, or taken back.

import { useEffect, useId, useState } from "preact/hooks";
import { get, post, told } from "../api";
import { span, t, when, type Word } from "../i18n";
import { Badge, Card, Dialog, Fact, Failed, Field, Note, Table, useDoing, useLoaded, type Said } from "../parts";

export interface Difference {
  key: string;
  before: string | null;
  after: string | null;
}

export interface Process {
  process: string;
  state: "runs" | "behind" | "refuses" | "silent";
  source_failure: string | null;
  /** Whether it can try a change: it has consumers. */
  stages: boolean | null;
  staged: { since_ms: number; runs: boolean; given_up: string | null } | null;
}

export interface Guards {
  oldest_max_ms: number | null;
  failed_max_percent: number | null;
  lag_max_records: number | null;
}

export interface Trial {
  /** Tells this change from others. */
  since_ms: number;
  until_ms: number;
  processes: string[];
  state: "running" | "proven" | "failed";
  left_ms: number;
  reasons: string[];
  guards: Guards;
  differences: Difference[];
}

export interface Status {
  version: number | null;
  processes: Process[];
  staged: Trial | null;
}

type End = "promote" | "force" | "abort";

const LOOK_EVERY_MS = 2_000;
/** While nothing is staged. */
const LOOK_SELDOM_MS = 10_000;

/** What the processes report, again and again while the page can be seen. */
export function useStatus(): { status: Status | null; error: string | null; reload: () => void } {
  const [status, setStatus] = useState<Status | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    let isTried = false;
    const next = async () => {
      if (!document.hidden) {
        try {
          const found = await get<Status>("rules/status");
          if (isOver) return;
          isTried = found.staged !== null;
          setStatus(found);
          setError(null);
        } catch (failed) {
          if (isOver) return;
          setError(told(failed));
        }
      }
      if (!isOver) timer = window.setTimeout(next, isTried ? LOOK_EVERY_MS : LOOK_SELDOM_MS);
    };
    void next();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [round]);
  return { status, error, reload: () => setRound((at) => at + 1) };
}

export function TrialCard(props: {
  trial: Trial;
  processes: Process[];
  mayChange: boolean;
  onSaid: (said: Said) => void;
  onEnded: (said: Said) => void;
}) {
  const { trial, processes, mayChange } = props;
  const [end, setEnd] = useState<End | null>(null);
  const hint = useId();
  const level = { running: "warn", proven: "good", failed: "bad" } as const;
  return (
    <Card title={t("try.title")}>
      <p class="pad">
        <span role="status">
          <Badge level={level[trial.state]}>{t(`try.state.${trial.state}` as Word)}</Badge>
        </span>{" "}
        <span id={hint}>{standsHow(trial)}</span>
      </p>
      {trial.reasons.length > 0 && (
        <div class="note bad" role="alert">
          <ul class="bare">
            {trial.reasons.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ul>
        </div>
      )}
      <dl class="facts">
        <dt>{t("try.what")}</dt>
        <dd>
          <Differences of={trial.differences} />
        </dd>
        <Origin sinceMs={trial.since_ms} />
        <Fact name={t("try.since")} value={when(trial.since_ms)} />
        <Fact name={t("try.until")} value={when(trial.until_ms)} />
        <Fact name={t("try.guards")} value={guardsOf(trial.guards)} />
      </dl>
      <h3>{t("try.processes")}</h3>
      <Table
        label={t("try.processes")}
        rows={trial.processes.map((name) => ({ name, ...doing(trial, name, processes) }))}
        rowKey={(one) => one.name}
        columns={[
          { head: t("ins.process"), cell: (one) => one.name, isMono: true },
          { head: t("col.state"), cell: (one) => <Badge level={one.level}>{t(one.word)}</Badge> },
          { head: t("col.why"), cell: (one) => one.why },
        ]}
      />
      {mayChange && (
        <div class="buttons">
          <button type="button" onClick={() => setEnd("abort")}>
            {t("try.abort")}
          </button>
          {trial.state !== "proven" && (
            <button type="button" onClick={() => setEnd("force")}>
              {t("try.forceStep")}
            </button>
          )}
          <button
            type="button"
            class="primary"
            disabled={trial.state !== "proven"}
            aria-describedby={hint}
            onClick={() => setEnd("promote")}
          >
            {t("try.promote")}
          </button>
        </div>
      )}
      {end && <EndDialog trial={trial} end={end} onClose={() => setEnd(null)} onSaid={props.onSaid} onEnded={props.onEnded} />}
    </Card>
  );
}

function standsHow(trial: Trial): string {
  if (trial.state === "failed") {
    const isOver = Date.now() >= trial.until_ms;
    return isOver ? t("try.over") : t("try.failed", { until: when(trial.until_ms) });
  }
  if (trial.state === "proven") return t("try.proven", { until: when(trial.until_ms) });
  return trial.left_ms === 0 ? t("try.unheard") : t("try.left", { left: span(trial.left_ms) });
}

function guardsOf(guards: Guards): string {
  const all = [
    guards.oldest_max_ms !== null && t("try.guard.oldest", { max: span(guards.oldest_max_ms) }),
    guards.failed_max_percent !== null && t("try.guard.failed", { max: guards.failed_max_percent }),
    guards.lag_max_records !== null && t("try.guard.lag", { max: guards.lag_max_records }),
  ].filter((one) => one !== false);
  return all.length === 0 ? t("try.guard.none") : all.join("; ");
}

/** What one process of the trial does. */
function doing(trial: Trial, name: string, processes: Process[]): { level: "good" | "bad" | "warn"; word: Word; why: string } {
  const one = processes.find((process) => process.process === name);
  const own = one?.staged?.since_ms === trial.since_ms ? one.staged : null;
  if (own && own.given_up !== null) return { level: "bad", word: "try.is.gaveUp", why: own.given_up };
  if (!one || one.state === "silent") return { level: "bad", word: "ins.silent", why: "" };
  if (one.state === "refuses") return { level: "bad", word: "ins.refuses", why: "" };
  return own?.runs ? { level: "good", word: "try.is.tries", why: "" } : { level: "warn", word: "try.is.not", why: "" };
}

function Differences({ of }: { of: Difference[] }) {
  return (
    <ul class="bare">
      {of.map((one) => (
        <li key={one.key} class="mono">
          {one.key}: {one.before ?? "–"} → {one.after ?? "–"}
        </li>
      ))}
    </ul>
  );
}

/** What taking a change back does. */
function back({ key, before, after }: Difference): Difference {
  return { key, before: after, after: before };
}

/** Who has staged the change, and why: the history says it, with the step before the reason. */
function Origin({ sinceMs }: { sinceMs: number }) {
  const STEP = "stage: ";
  const { value } = useLoaded(
    () => get<{ changes: { at_ms: number; who: string; why: string }[] }>("rules/history"),
    sinceMs,
  );
  const found = value?.changes.filter((one) => one.at_ms >= sinceMs && one.why.startsWith(STEP)).at(-1);
  return (
    <>
      <Fact name={t("try.by")} value={found?.who ?? ""} />
      <Fact name={t("col.why")} value={found?.why.slice(STEP.length) ?? ""} />
    </>
  );
}

function EndDialog(props: {
  trial: Trial;
  end: End;
  onClose: () => void;
  onSaid: (said: Said) => void;
  onEnded: (said: Said) => void;
}) {
  const { trial, end, onClose, onSaid, onEnded } = props;
  const [why, setWhy] = useState("");
  const [actor, setActor] = useState("");
  const [isSure, setSure] = useState(false);
  // An answer that comes after this dialog was closed may say that the trial has ended, too.
  const onLate = (said: Said) => (said.level === "good" ? onEnded : onSaid)(said);
  const doing = useDoing<{ version: number }>(t("try.lost"), onLate);
  const done = ({ version }: { version: number }): Said => ({
    level: "good",
    text: t(end === "abort" ? "try.aborted" : "try.promoted", { n: version }),
  });
  const go = async (event: Event) => {
    event.preventDefault();
    const step = { since_ms: trial.since_ms, why: why.trim(), actor: actor.trim() };
    await doing.run(
      () => (end === "abort" ? post("rules/abort", step) : post("rules/promote", { ...step, force: end === "force" })),
      done,
    );
  };
  useEffect(() => {
    if (!doing.done) return;
    onEnded(done(doing.done));
    onClose();
  }, [doing.done]);
  return (
    <Dialog title={t(`try.${end}` as Word)} onClose={onClose}>
      <form onSubmit={go}>
        <p class="muted">{t(`try.means.${end}` as Word, { names: trial.processes.join(", ") })}</p>
        <Differences of={end === "abort" ? trial.differences.map(back) : trial.differences} />
        {end === "force" && (
          <>
            <Note level="warn">{[standsHow(trial), ...trial.reasons].join(" ")}</Note>
            <label class="check">
              <input type="checkbox" checked={isSure} onChange={(event) => setSure(event.currentTarget.checked)} />
              {t("try.sure")}
            </label>
          </>
        )}
        <Field label={t("col.why")} hint={t("rul.whyHint")} value={why} onInput={setWhy} isRequired max={1000} size="wide" />
        <Field label={t("arc.actor")} value={actor} onInput={setActor} max={64} size="wide" />
        <Failed of={doing} lost={t("try.lost")} />
        <div class="buttons">
          <button type="button" onClick={onClose}>
            {t("act.cancel")}
          </button>
          <button
            type="submit"
            class={end === "force" ? "danger" : "primary"}
            disabled={doing.busy || why.trim() === "" || (end === "force" && !isSure)}
          >
            {t(`try.${end}` as Word)}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
