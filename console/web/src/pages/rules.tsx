// The live rules: as a form and as text, checked as one types, with the difference before and the history after.

import { useEffect, useState } from "preact/hooks";
import { get, post, told, type Who } from "../api";
import { diff } from "../diff";
import type { Form, TypeRule } from "../flow";
import { num, short, t, when, type Word } from "../i18n";
import { Badge, Card, Dialog, Field, Note, Page, Shown, Table, useLoaded } from "../parts";
import { setLimit, setOfType } from "../toml";
import { FuseBadge } from "./flow";

interface Problem {
  line: number | null;
  key: string;
  what: string;
}

interface Checked {
  ok: boolean;
  problems: Problem[];
  form: Form | null;
}

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

const CHECK_AFTER_MS = 300;

export function RulesPage({ user, query }: { user: Who; query: URLSearchParams }) {
  if (user.rules === "none") {
    return (
      <Page title={t("rul.title")}>
        <Note level="info">{t("rul.none")}</Note>
      </Page>
    );
  }
  return <Rules type={query.get("type")} />;
}

function Rules({ type }: { type: string | null }) {
  const [tab, setTab] = useState<Tab>("form");
  const [said, setSaid] = useState<string | null>(null);
  const shown = useLoaded(() => get<Shows>("rules"));
  const onApplied = (text: string) => {
    setSaid(text);
    shown.reload();
  };
  const tabs: Tab[] = ["form", "text", "history"];
  return (
    <Page
      title={t("rul.title")}
      lead={
        shown.value?.checked.form
          ? t("rul.version", { n: shown.value.checked.form.version })
          : shown.value
            ? t("rul.broken")
            : ""
      }
    >
      {said && <Note level="good">{said}</Note>}
      {shown.value && !shown.value.may_change && <Note level="info">{t("rul.readOnly")}</Note>}
      <div class="tabs" role="tablist" aria-label={t("rul.title")}>
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
              {tab === "form" && <FormView shows={value} type={type} onApplied={onApplied} />}
              {tab === "text" && <TextView key={value.text} shows={value} onApplied={onApplied} />}
              {tab === "history" && <HistoryView shows={value} onApplied={onApplied} />}
            </>
          )}
        </Shown>
      </div>
    </Page>
  );
}

function Problems({ checked }: { checked: Checked }) {
  if (checked.ok) return <Note level="good">{t("rul.valid")}</Note>;
  return (
    <div class="note bad" role="status">
      <b>{t("rul.problems", { n: checked.problems.length })}</b>
      <ul class="bare">
        {checked.problems.map((one) => (
          <li key={`${one.line} ${one.key} ${one.what}`}>
            {one.line !== null && <span class="mono">{t("rul.line", { n: one.line })} </span>}
            {one.key && <span class="mono">{one.key} </span>}
            {one.what}
          </li>
        ))}
      </ul>
    </div>
  );
}

function FormView({ shows, type, onApplied }: { shows: Shows; type: string | null; onApplied: (text: string) => void }) {
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
      <Card title={t("rul.queues")}>
        <Table
          label={t("rul.queues")}
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
          rule={limited}
          onClose={() => setLimited(null)}
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
            after={setOfType(shows.text, wanted.type, "fuse", `"${wanted.fuse}"`)}
            isWanted={(found) => found.types.find((one) => one.name === wanted.type)?.fuse === wanted.fuse}
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

function LimitDialog(props: { shows: Shows; rule: TypeRule; onClose: () => void; onApplied: (text: string) => void }) {
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
        after={isRight && !isSame ? setLimit(shows.text, rule.name, Number(rate), Number(burst)) : shows.text}
        isWanted={(found) => {
          const own = found.types.find((one) => one.name === rule.name);
          return own?.rate_per_s === Number(rate) && own.burst === Number(burst);
        }}
        onApplied={props.onApplied}
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

/** Shows a change, has it checked, asks why, and makes it. */
function Apply(props: {
  before: string;
  after: string;
  isWanted?: (form: Form) => boolean;
  onApplied: (text: string) => void;
}) {
  const { before, after } = props;
  const [why, setWhy] = useState("");
  const [actor, setActor] = useState("");
  const [checked, setChecked] = useState<Checked | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    setChecked(null);
    let isWanted = true;
    const timer = setTimeout(() => {
      post<Checked>("rules/check", { text: after })
        .then((found) => isWanted && setChecked(found))
        .catch((failed: unknown) => isWanted && setError(told(failed)));
    }, CHECK_AFTER_MS);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [after]);
  // In a dialog, whose title is a heading of the second level, or on the page itself.
  const Head = props.isWanted ? "h3" : "h2";
  const isSame = before === after;
  const isRight = checked?.ok === true && (props.isWanted === undefined || (checked.form !== null && props.isWanted(checked.form)));
  const apply = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const done = await post<{ version: number; changed: boolean }>("rules/set", { text: after, why: why.trim(), actor: actor.trim() });
      props.onApplied(t(done.changed ? "rul.applied" : "rul.unchanged", { n: done.version }));
    } catch (failed) {
      setError(told(failed));
    }
    setBusy(false);
  };
  return (
    <form onSubmit={apply}>
      {checked && <Problems checked={checked} />}
      <Head>{t("rul.changed")}</Head>
      <Diff before={before} after={after} />
      <Field label={t("rul.why")} hint={t("rul.whyHint")} value={why} onInput={setWhy} isRequired max={1000} size="wide" />
      <Field label={t("arc.actor")} value={actor} onInput={setActor} max={64} size="wide" />
      {error && <Note level="bad">{error}</Note>}
      <div class="buttons">
        <button type="submit" class="primary" disabled={busy || isSame || !isRight || why.trim() === ""}>
          {t("rul.apply")}
        </button>
      </div>
    </form>
  );
}

function Diff({ before, after }: { before: string; after: string }) {
  const lines = diff(before, after);
  if (lines.length === 0) return <p class="muted">{t("rul.same")}</p>;
  const sign = { same: " ", gone: "−", new: "+", skip: " " };
  return (
    <pre class="diff" tabIndex={0} aria-label={t("rul.changed")}>
      {lines.map((line, at) => (
        <span key={at} class={line.kind}>
          {`${sign[line.kind]} ${line.text}\n`}
        </span>
      ))}
    </pre>
  );
}

function TextView({ shows, onApplied }: { shows: Shows; onApplied: (text: string) => void }) {
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
          <Apply before={shows.text} after={text} onApplied={onApplied} />
        </>
      )}
      {!shows.checked.ok && text === shows.text && <Problems checked={shows.checked} />}
    </Card>
  );
}

function HistoryView({ shows, onApplied }: { shows: Shows; onApplied: (text: string) => void }) {
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
          {back && <Rollback shows={shows} change={back} onClose={() => setBack(null)} onApplied={onApplied} />}
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

function Rollback(props: { shows: Shows; change: Change; onClose: () => void; onApplied: (text: string) => void }) {
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
        <Field label={t("rul.why")} value={why} onInput={setWhy} isRequired max={1000} size="wide" />
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
