// The live rules: as a form and as text, checked as one types, with the difference before and the history after.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, told, type Who } from "../api";
import type { TypeRule } from "../flow";
import { num, short, t, when, type Word } from "../i18n";
import { Badge, Card, Dialog, Field, Note, Page, Shown, Table, useLoaded, type Said } from "../parts";
import { setLimit, setOfType } from "../toml";
import { Apply, Diff, Problems, type Checked } from "./apply";
import { FuseBadge } from "./flow";
import { TrialCard, useStatus, type Status } from "./trial";

interface Shows {
  text: string;
  may_change: boolean;
  checked: Checked;
}

interface Change {
  version: number;
  at_ms: number;
  who: string;
  why: string;
  is_outside: boolean;
}

/** The texts before and after a change, which are loaded when somebody looks at them. */
interface Texts {
  before: string | null;
  after: string;
}

type Tab = "form" | "text" | "history";
type Fuse = "closed" | "pause" | "divert";

export function RulesPage({ user, query }: { user: Who; query: URLSearchParams }) {
  if (user.rules === "none") {
    return (
      <Page title={t("nav.rules")}>
        <Note level="info">{t("rul.none")}</Note>
      </Page>
    );
  }
  return <Rules type={query.get("type")} />;
}

function Rules({ type }: { type: string | null }) {
  const [tab, setTab] = useState<Tab>("form");
  const [said, setSaid] = useState<Said | null>(null);
  const shown = useLoaded(() => get<Shows>("rules"));
  const { status, error, reload } = useStatus();
  const known = useRef<number | null>(null);
  const onSaid = (next: Said) => {
    setSaid(next);
    shown.reload();
    reload();
  };
  const onEnded = (next: Said) => {
    // That this trial ends has been said.
    known.current = null;
    onSaid(next);
  };
  const since = status?.staged?.since_ms ?? null;
  useEffect(() => {
    if (!status) return;
    if (known.current !== null && since !== known.current) setSaid({ level: "warn", text: t("try.ended") });
    known.current = since;
  }, [since]);
  const onApplied = (text: string) => onSaid({ level: "good", text });
  const version = shown.value?.checked.form?.version ?? null;
  const newer = version !== null && status !== null && status.version !== null && status.version > version ? status.version : null;
  const tabs: Tab[] = ["form", "text", "history"];
  return (
    <Page
      title={t("nav.rules")}
      lead={
        version !== null
          ? t(newer === null ? "rul.version" : "rul.versionShown", { n: version })
          : shown.value
            ? t("rul.broken")
            : ""
      }
    >
      {said && <Note level={said.level}>{said.text}</Note>}
      {newer !== null && !shown.busy && (
        <Note level="info">
          {t("rul.newer", { n: newer })}{" "}
          <button type="button" class="link" onClick={shown.reload}>
            {t("rul.load", { n: newer })}
          </button>
        </Note>
      )}
      {shown.value && !shown.value.may_change && <Note level="info">{t("rul.readOnly")}</Note>}
      {error && <Note level="bad">{`${t("try.blind")} ${error}`}</Note>}
      {status?.staged && (
        <TrialCard
          key={status.staged.since_ms}
          trial={status.staged}
          processes={status.processes}
          mayChange={shown.value?.may_change ?? false}
          onSaid={onSaid}
          onEnded={onEnded}
        />
      )}
      <div class="tabs" role="tablist" aria-label={t("nav.rules")}>
        {tabs.map((one) => (
          <button
            key={one}
            type="button"
            role="tab"
            id={`tab-${one}`}
            aria-selected={tab === one}
            aria-controls="rules-panel"
            tabIndex={tab === one ? 0 : -1}
            onClick={() => setTab(one)}
            onKeyDown={(event) => {
              const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
              if (step === 0) return;
              const next = tabs[(tabs.indexOf(one) + step + tabs.length) % tabs.length] ?? "form";
              setTab(next);
              document.getElementById(`tab-${next}`)?.focus();
            }}
          >
            {t(`rul.${one}` as Word)}
          </button>
        ))}
      </div>
      <div id="rules-panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        <Shown of={shown}>
          {(value) => (
            <>
              {tab === "form" && <FormView shows={value} status={status} type={type} onApplied={onApplied} onSaid={onSaid} />}
              {tab === "text" && <TextView key={value.text} shows={value} status={status} onApplied={onApplied} onSaid={onSaid} />}
              {tab === "history" && <HistoryView shows={value} status={status} onApplied={onApplied} />}
            </>
          )}
        </Shown>
      </div>
    </Page>
  );
}

function FormView(props: {
  shows: Shows;
  status: Status | null;
  type: string | null;
  onApplied: (text: string) => void;
  onSaid: (said: Said) => void;
}) {
  const { shows, status, type, onApplied, onSaid } = props;
  const [wanted, setWanted] = useState<{ type: string; fuse: Fuse } | null>(null);
  const [limited, setLimited] = useState<TypeRule | null>(null);
  const form = shows.checked.form;
  if (!form) return <Problems checked={shows.checked} />;
  return (
    <>
      <Card title={t("rul.types")}>
        <p class="muted pad">{t("rul.global", { rate: form.global.rate_per_s, burst: form.global.burst })}</p>
        <Table
          label={t("rul.types")}
          rows={form.types}
          rowKey={(one) => one.name}
          columns={[
            { head: t("lane.type"), cell: (one) => (one.name === type ? <mark>{one.name}</mark> : one.name) },
            {
              head: t("lane.limit"),
              cell: (one) =>
                shows.may_change ? (
                  <button
                    type="button"
                    class="link"
                    aria-label={`${t("rul.limitTitle", { type: one.name })}: ${num(one.rate_per_s)}`}
                    onClick={() => setLimited(one)}
                  >
                    {num(one.rate_per_s)}
                  </button>
                ) : (
                  num(one.rate_per_s)
                ),
              isNumber: true,
            },
            { head: t("rul.burst"), cell: (one) => short(one.burst), isNumber: true, isMinor: true },
            { head: t("rul.priority"), cell: (one) => one.priority, isNumber: true, isMinor: true },
            {
              head: t("lane.fuse"),
              cell: (one) =>
                shows.may_change ? (
                  <FuseSwitch type={one.name} fuse={one.fuse} onWant={(fuse) => setWanted({ type: one.name, fuse })} />
                ) : (
                  <FuseBadge fuse={one.fuse} />
                ),
            },
          ]}
        />
      </Card>
      <Card title={t("flow.queues")}>
        <Table
          label={t("flow.queues")}
          rows={form.queues}
          rowKey={(one) => one.name}
          columns={[
            { head: t("topic.queue"), cell: (one) => one.name },
            { head: t("topic.master"), cell: (one) => one.master, isMono: true },
            { head: t("topic.backup"), cell: (one) => one.backup, isMono: true },
            { head: t("rul.ratio"), cell: (one) => `${one.ratio} %`, isNumber: true },
          ]}
        />
      </Card>
      <Card title={t("rul.routes")}>
        <Table
          label={t("rul.routes")}
          rows={form.routes}
          rowKey={(one) => `${one.activity}/${one.scene}/${one.type}`}
          columns={[
            { head: t("col.activity"), cell: (one) => one.activity },
            { head: t("col.scene"), cell: (one) => one.scene },
            { head: t("col.type"), cell: (one) => one.type },
            { head: t("topic.queue"), cell: (one) => one.queue },
            { head: t("rul.requeue"), cell: (one) => one.requeue.join(", "), isMinor: true },
          ]}
        />
      </Card>
      {limited && (
        <LimitDialog
          shows={shows}
          status={status}
          rule={limited}
          onClose={() => setLimited(null)}
          onSaid={onSaid}
          onApplied={(text) => {
            setLimited(null);
            onApplied(text);
          }}
        />
      )}
      {wanted && (
        <Dialog
          title={t("rul.fuseTitle", { type: wanted.type, state: t(`rul.fuse.${wanted.fuse}` as Word) })}
          onClose={() => setWanted(null)}
        >
          <p class="muted">{t(`rul.fuseMeans.${wanted.fuse}` as Word)}</p>
          <Apply
            before={shows.text}
            version={form.version}
            status={status}
            after={setOfType(shows.text, wanted.type, "fuse", `"${wanted.fuse}"`)}
            isWanted={(found) => found.types.find((one) => one.name === wanted.type)?.fuse === wanted.fuse}
            onLate={onSaid}
            onApplied={(text) => {
              setWanted(null);
              onApplied(text);
            }}
          />
        </Dialog>
      )}
    </>
  );
}

function LimitDialog(props: {
  shows: Shows;
  status: Status | null;
  rule: TypeRule;
  onClose: () => void;
  onApplied: (text: string) => void;
  onSaid: (said: Said) => void;
}) {
  const { shows, rule } = props;
  const [rate, setRate] = useState(String(rule.rate_per_s));
  const [burst, setBurst] = useState(String(rule.burst));
  const isNumber = (text: string) => /^[0-9]{1,9}$/.test(text.trim());
  const isRight = isNumber(rate) && isNumber(burst);
  const isSame = Number(rate) === rule.rate_per_s && Number(burst) === rule.burst;
  return (
    <Dialog title={t("rul.limitTitle", { type: rule.name })} onClose={props.onClose}>
      <p class="muted">{t("rul.limitMeans")}</p>
      <div class="filters">
        <Field label={t("rul.rate")} value={rate} onInput={setRate} />
        <Field label={t("rul.burst")} value={burst} onInput={setBurst} />
      </div>
      <Apply
        before={shows.text}
        version={shows.checked.form?.version ?? null}
        status={props.status}
        after={isRight && !isSame ? setLimit(shows.text, rule.name, Number(rate), Number(burst)) : shows.text}
        isWanted={(found) => {
          const own = found.types.find((one) => one.name === rule.name);
          return own?.rate_per_s === Number(rate) && own.burst === Number(burst);
        }}
        onApplied={props.onApplied}
        onLate={props.onSaid}
      />
    </Dialog>
  );
}

function FuseSwitch({ type, fuse, onWant }: { type: string; fuse: Fuse; onWant: (fuse: Fuse) => void }) {
  return (
    <span class="switch" role="group" aria-label={`${t("lane.fuse")} ${type}`}>
      {(["closed", "pause", "divert"] as const).map((one) => (
        <button key={one} type="button" class={one} aria-pressed={fuse === one} onClick={() => fuse !== one && onWant(one)}>
          {t(`rul.fuse.${one}` as Word)}
        </button>
      ))}
    </span>
  );
}

function TextView(props: {
  shows: Shows;
  status: Status | null;
  onApplied: (text: string) => void;
  onSaid: (said: Said) => void;
}) {
  const { shows, status, onApplied, onSaid } = props;
  const [text, setText] = useState(shows.text);
  return (
    <Card>
      <label for="rules-text" class="label">
        {t("rul.text")}
      </label>
      <textarea
        id="rules-text"
        class="editor"
        spellcheck={false}
        rows={28}
        value={text}
        readOnly={!shows.may_change}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      {shows.may_change && text !== shows.text && (
        <>
          <button type="button" onClick={() => setText(shows.text)}>
            {t("rul.reset")}
          </button>
          <Apply
            before={shows.text}
            version={shows.checked.form?.version ?? null}
            status={status}
            after={text}
            onApplied={onApplied}
          onLate={onSaid}
          />
        </>
      )}
      {!shows.checked.ok && text === shows.text && <Problems checked={shows.checked} />}
    </Card>
  );
}

function HistoryView(props: { shows: Shows; status: Status | null; onApplied: (text: string) => void }) {
  const { shows, onApplied } = props;
  const isTried = Boolean(props.status?.staged);
  const listed = useLoaded(() => get<{ changes: Change[]; unreadable: string[] }>("rules/history"), shows.text);
  const [back, setBack] = useState<Change | null>(null);
  const current = shows.checked.form?.version;
  return (
    <Shown of={listed}>
      {({ changes, unreadable }) => (
        <>
          {unreadable.map((one) => (
            <Note key={one} level="warn">
              {one}
            </Note>
          ))}
          <ol class="history">
            {changes.map((one) => {
              return (
                <li key={one.version} class="card">
                  <div class="card-head">
                    <h2>
                      {t("col.version")} {one.version}
                    </h2>
                    {one.version === current && <Badge level="good">✓</Badge>}
                    {one.is_outside && <Badge level="warn">{t("rul.outside")}</Badge>}
                    <span class="grow" />
                    {shows.may_change && one.version !== current && (
                      <button type="button" onClick={() => setBack(one)}>
                        {t("rul.rollback", { n: one.version })}
                      </button>
                    )}
                  </div>
                  <p>
                    <b>{one.who}</b> · {when(one.at_ms)}
                    <br />
                    {one.why}
                  </p>
                  <WhatChanged version={one.version} />
                </li>
              );
            })}
          </ol>
          {back && (
            <Rollback shows={shows} change={back} isTried={isTried} onClose={() => setBack(null)} onApplied={onApplied} />
          )}
        </>
      )}
    </Shown>
  );
}

function useTexts(version: number) {
  return useLoaded(() => get<Texts>(`rules/version?version=${version}`), version);
}

function WhatChanged({ version }: { version: number }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{t("rul.changed")}</summary>
      {isOpen && <TextsOf version={version} />}
    </details>
  );
}

function TextsOf({ version }: { version: number }) {
  return (
    <Shown of={useTexts(version)}>
      {({ before, after }) =>
        before === null ? <p class="muted">{t("rul.first")}</p> : <Diff before={before} after={after} />
      }
    </Shown>
  );
}

function Rollback(props: {
  shows: Shows;
  change: Change;
  /** Whether some processes try a change now. */
  isTried: boolean;
  onClose: () => void;
  onApplied: (text: string) => void;
}) {
  const { shows, change, onClose, onApplied } = props;
  const texts = useTexts(change.version);
  const [why, setWhy] = useState("");
  const [actor, setActor] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const go = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const done = await post<{ version: number }>("rules/rollback", {
        version: change.version,
        based_on: shows.checked.form?.version ?? null,
        why: why.trim(),
        actor: actor.trim(),
      });
      onApplied(t("rul.applied", { n: done.version }));
      onClose();
    } catch (failed) {
      setError(told(failed));
      setBusy(false);
    }
  };
  return (
    <Dialog title={t("rul.rollback", { n: change.version })} onClose={onClose} isWide>
      <form onSubmit={go}>
        <Shown of={texts}>{({ after }) => <Diff before={shows.text} after={after} />}</Shown>
        {props.isTried && <Note level="warn">{t("try.endsByRollback")}</Note>}
        <Field label={t("col.why")} value={why} onInput={setWhy} isRequired max={1000} size="wide" />
        <Field label={t("arc.actor")} value={actor} onInput={setActor} max={64} size="wide" />
        {error && <Note level="bad">{error}</Note>}
        <div class="buttons">
          <button type="button" onClick={onClose}>
            {t("act.cancel")}
          </button>
          <button type="submit" class="primary" disabled={busy || texts.value === null || why.trim() === ""}>
            {t("rul.rollback", { n: change.version })}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
