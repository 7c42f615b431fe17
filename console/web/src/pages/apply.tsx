// A change of the rules before it is made: shown, checked, with its reason, for all processes or for some that try it first.

import { useEffect, useState } from "preact/hooks";
import { post, told } from "../api";
import { diff } from "../diff";
import type { Form } from "../flow";
import { t } from "../i18n";
import { Failed, Field, Note, Select, useDoing, type Said } from "../parts";
import { Replay, type Replayed } from "./replay";
import type { Status } from "./trial";
import { FIRST_WISH, WishFields, askedFor } from "./wish";

interface Problem {
  line: number | null;
  key: string;
  what: string;
}

export interface Checked {
  ok: boolean;
  problems: Problem[];
  form: Form | null;
}

/** What some processes would try. */
interface Tried {
  ok: boolean;
  problems: Problem[];
  processes: string[];
}

const CHECK_AFTER_MS = 300;

/** What the console says about a change when nothing was typed for a moment. */
function useChecked<T>(path: string, body: object | null, ...on: unknown[]): { value: T | null; error: string | null } {
  const [state, setState] = useState<{ value: T | null; error: string | null }>({ value: null, error: null });
  useEffect(() => {
    setState({ value: null, error: null });
    if (!body) return;
    let isWanted = true;
    const timer = setTimeout(() => {
      post<T>(path, body)
        .then((value) => isWanted && setState({ value, error: null }))
        .catch((failed: unknown) => isWanted && setState({ value: null, error: told(failed) }));
    }, CHECK_AFTER_MS);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, on);
  return state;
}

export function Problems({ checked }: { checked: { ok: boolean; problems: Problem[] } }) {
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

/** Shows a change, has it checked, asks why and for whom, and makes it. */
export function Apply(props: {
  before: string;
  /** The version of the text before; none where that is no rules. */
  version: number | null;
  after: string;
  status: Status | null;
  isWanted?: (form: Form) => boolean;
  onApplied: (text: string) => void;
  /** What is said when the answer comes after all this is gone. */
  onLate: (said: Said) => void;
}) {
  const { before, after, version } = props;
  const [why, setWhy] = useState("");
  const [actor, setActor] = useState("");
  const [isForSome, setForSome] = useState(false);
  const [wish, setWish] = useState(FIRST_WISH);
  const lost = t(isForSome ? "try.lostStage" : "rul.lost");
  const doing = useDoing<string>(lost, props.onLate);
  // In a dialog, whose title is a heading of the second level, or on the page itself.
  const Head = props.isWanted ? "h3" : "h2";
  const isSame = before === after;
  const asked = isForSome && !isSame ? askedFor(wish) : null;
  const staging = asked && { ...asked, text: after, based_on: version };
  const checked = useChecked<Checked>("rules/check", { text: after }, after);
  // Whether it can be tried changes with what is staged.
  const since = props.status?.staged?.since_ms;
  const tried = useChecked<Tried>("rules/stage/check", staging, after, version, since, JSON.stringify(asked));
  const form = checked.value?.ok ? checked.value.form : null;
  const replayed = useChecked<Replayed>("rules/replay", form && !isSame ? { text: after } : null, after, form !== null);
  const isRight = form !== null && (props.isWanted === undefined || props.isWanted(form)) && (!isForSome || tried.value?.ok === true);
  const make = async () => {
    const remarks = { why: why.trim(), actor: actor.trim() };
    if (staging) {
      const done = await post<{ version: number; processes: string[] }>("rules/stage", { ...staging, ...remarks });
      return t("try.staged", { n: done.version, names: done.processes.join(", ") });
    }
    const done = await post<{ version: number; changed: boolean }>("rules/set", { text: after, ...remarks });
    return t(done.changed ? "rul.applied" : "rul.unchanged", { n: done.version });
  };
  const apply = async (event: Event) => {
    event.preventDefault();
    await doing.run(make, (text) => ({ level: "good", text }));
  };
  useEffect(() => {
    if (doing.done !== null) props.onApplied(doing.done);
  }, [doing.done]);
  const failed = checked.error ?? tried.error ?? replayed.error;
  return (
    <form onSubmit={apply}>
      {checked.value && !(isForSome && checked.value.ok) && <Problems checked={checked.value} />}
      <Head>{t("rul.changed")}</Head>
      <Diff before={before} after={after} />
      <Replay of={replayed.value} />
      {version !== null && (
        <Select
          label={t("try.who")}
          value={isForSome ? "some" : "all"}
          options={[
            ["all", t("try.all")],
            ["some", t("try.some")],
          ]}
          onChange={(who) => setForSome(who === "some")}
          size="wide"
        />
      )}
      {props.status?.staged && !isForSome && <Note level="info">{t("try.ends")}</Note>}
      {isForSome && <WishFields wish={wish} processes={props.status?.processes ?? []} onChange={setWish} />}
      {tried.value?.ok && <Note level="good">{t("try.would", { names: tried.value.processes.join(", ") })}</Note>}
      {tried.value && !tried.value.ok && <Problems checked={tried.value} />}
      <Field label={t("col.why")} hint={t("rul.whyHint")} value={why} onInput={setWhy} isRequired max={1000} size="wide" />
      <Field label={t("arc.actor")} value={actor} onInput={setActor} max={64} size="wide" />
      {failed && <Note level="bad">{failed}</Note>}
      <Failed of={doing} lost={lost} />
      <div class="buttons">
        <button type="submit" class="primary" disabled={doing.busy || isSame || !isRight || why.trim() === ""}>
          {t(isForSome ? "try.go" : "rul.apply")}
        </button>
      </div>
    </form>
  );
}

export function Diff({ before, after }: { before: string; after: string }) {
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
