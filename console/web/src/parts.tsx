// The parts that pages are made of.

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useId, useRef, useState } from "preact/hooks";
import { isLost, told } from "./api";
import { t } from "./i18n";

export type Loaded<T> = { value: T | null; error: string | null; busy: boolean; reload: () => void };

/** Loads a value when the page opens, and when what it depends on changes. */
export function useLoaded<T>(load: () => Promise<T>, ...on: unknown[]): Loaded<T> {
  const [state, setState] = useState<{ value: T | null; error: string | null; busy: boolean }>({
    value: null,
    error: null,
    busy: true,
  });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((at) => at + 1), []);
  useEffect(() => {
    let isWanted = true;
    setState((now) => ({ ...now, busy: true }));
    load()
      .then((value) => isWanted && setState({ value, error: null, busy: false }))
      .catch((error: unknown) => isWanted && setState((now) => ({ ...now, error: told(error), busy: false })));
    return () => {
      isWanted = false;
    };
  }, [round, ...on]);
  return { ...state, reload };
}

export function Page({
  title,
  lead,
  actions,
  children,
}: {
  title: string;
  lead?: string;
  actions?: ComponentChildren;
  children: ComponentChildren;
}) {
  useEffect(() => {
    document.title = `${title} · Windfall`;
  }, [title]);
  return (
    <>
      <header class="page-head">
        <div>
          <h1>{title}</h1>
          {lead && <p class="lead">{lead}</p>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

export function Card({
  title,
  id,
  actions,
  children,
}: {
  title?: string;
  id?: string;
  actions?: ComponentChildren;
  children: ComponentChildren;
}) {
  const own = useId();
  return (
    <section class="card" id={id} aria-labelledby={title ? own : undefined} tabIndex={id ? -1 : undefined}>
      {title && (
        <div class="card-head">
          <h2 id={own}>{title}</h2>
          {actions}
        </div>
      )}
      {children}
    </section>
  );
}

/** Shows what was loaded, that it is being loaded, or why it cannot be. */
export function Shown<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }) {
  return (
    <>
      {of.error && <Note level="bad">{`${t("state.failed")} ${of.error}`}</Note>}
      {of.value === null && !of.error && <p class="muted pad">{t("state.loading")}</p>}
      {of.value !== null && children(of.value)}
    </>
  );
}

export function Note({ level, children }: { level: "bad" | "warn" | "good" | "info"; children: ComponentChildren }) {
  return (
    <p class={`note ${level}`} role={level === "bad" ? "alert" : "status"}>
      {children}
    </p>
  );
}

export function Badge({ level, children }: { level: "bad" | "warn" | "good" | "plain"; children: ComponentChildren }) {
  return <span class={`badge ${level}`}>{children}</span>;
}

export interface Column<T> {
  head: string;
  cell: (row: T) => ComponentChildren;
  isNumber?: boolean;
  /** Hidden where the screen is narrow. */
  isMinor?: boolean;
  isMono?: boolean;
}

export function Table<T>({
  label,
  columns,
  rows,
  empty,
  rowKey,
}: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  empty?: string;
  rowKey: (row: T) => string;
}) {
  if (rows.length === 0) return <p class="muted pad">{empty ?? t("state.none")}</p>;
  const kind = (column: Column<T>) =>
    [column.isNumber && "num", column.isMinor && "minor", column.isMono && "mono"].filter(Boolean).join(" ") || undefined;
  return (
    <div class="scroll" role="group" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.head} scope="col" class={kind(column)}>
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>
              {columns.map((column) => (
                <td key={column.head} class={kind(column)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The pages of a list that are known by their cursors alone, the first one by an empty text or what it begins behind. */
export function Pager({ at, next, onMove }: { at: string[]; next: string; onMove: (at: string[]) => void }) {
  return (
    <div class="pager">
      <span class="grow" />
      <button type="button" aria-label={t("act.before")} disabled={at.length === 1} onClick={() => onMove(at.slice(0, -1))}>
        ←
      </button>
      <span>{at.length}</span>
      <button type="button" aria-label={t("act.more")} disabled={next === "" || next === "0"} onClick={() => onMove([...at, next])}>
        →
      </button>
    </div>
  );
}

/** A name and its value among facts; nothing where there is none. */
export function Fact({ name, value, isMono }: { name: string; value: string; isMono?: boolean }) {
  if (value === "") return null;
  return (
    <>
      <dt>{name}</dt>
      <dd class={isMono ? "mono" : undefined}>{value}</dd>
    </>
  );
}

/** What a call that changes something came to, for whoever has closed its dialog meanwhile. */
export interface Said {
  level: "bad" | "good" | "warn";
  text: string;
}

export interface Doing<T> {
  busy: boolean;
  done: T | null;
  failed: { text: string; isLost: boolean } | null;
  run: (work: () => Promise<T>, said: (value: T) => Said) => Promise<void>;
}

/** A call that changes something, once at a time. What it came to is told to the page where the dialog is closed before. */
export function useDoing<T>(lost: string, onLate: (said: Said) => void): Doing<T> {
  const [state, setState] = useState<{ busy: boolean; done: T | null; failed: Doing<T>["failed"] }>({
    busy: false,
    done: null,
    failed: null,
  });
  const isOver = useRef(false);
  useEffect(
    () => () => {
      isOver.current = true;
    },
    [],
  );
  const run: Doing<T>["run"] = async (work, said) => {
    setState({ busy: true, done: null, failed: null });
    try {
      const done = await work();
      if (isOver.current) onLate(said(done));
      else setState({ busy: false, done, failed: null });
    } catch (error) {
      const failed = { text: told(error), isLost: isLost(error) };
      if (isOver.current) onLate({ level: "bad", text: failed.isLost ? `${t("lost.title")} ${lost} (${failed.text})` : failed.text });
      else setState({ busy: false, done: null, failed });
    }
  };
  return { ...state, run };
}

/** Why a call that changes something failed; where its answer was lost, that nobody knows, and how to find out. */
export function Failed<T>({ of, lost }: { of: Doing<T>; lost: string }) {
  if (!of.failed) return null;
  return (
    <Note level="bad">
      {of.failed.isLost ? (
        <>
          <b>{t("lost.title")}</b> {lost} ({of.failed.text})
        </>
      ) : (
        of.failed.text
      )}
    </Note>
  );
}

/** What a dialog is about, in one line. It takes the focus where a step ends, whose button is gone by then. */
export function Sum({ step, children }: { step: string; children: ComponentChildren }) {
  const line = useRef<HTMLParagraphElement>(null);
  const last = useRef(step);
  useEffect(() => {
    if (last.current !== step) line.current?.focus();
    last.current = step;
  }, [step]);
  return (
    <p class="sum" tabIndex={-1} ref={line}>
      {children}
    </p>
  );
}

/** A dialog that the browser keeps the keyboard in, and closes on Escape. */
export function Dialog({
  title,
  onClose,
  isWide,
  children,
}: {
  title: string;
  onClose: () => void;
  isWide?: boolean;
  children: ComponentChildren;
}) {
  const box = useRef<HTMLDialogElement>(null);
  const own = useId();
  useEffect(() => {
    const dialog = box.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog ref={box} class={isWide ? "wide" : undefined} aria-labelledby={own} onClose={onClose}>
      <div class="card-head">
        <h2 id={own}>{title}</h2>
        <button type="button" class="icon" aria-label={t("act.close")} onClick={onClose}>
          ✕
        </button>
      </div>
      {children}
    </dialog>
  );
}

export function Field({
  label,
  value,
  onInput,
  hint,
  isRequired,
  isSecret,
  isTime,
  error,
  max,
  size,
}: {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: string;
  isRequired?: boolean;
  isSecret?: boolean;
  /** A local time, to the second. */
  isTime?: boolean;
  /** What is wrong with the value. */
  error?: string | null;
  max?: number;
  size?: "wide";
}) {
  const own = useId();
  const shared = {
    id: own,
    value,
    required: isRequired ?? false,
    maxLength: max,
    autocomplete: "off" as const,
    spellcheck: false,
    "aria-describedby": [hint && `${own}-hint`, error && `${own}-error`].filter(Boolean).join(" ") || undefined,
    "aria-invalid": error ? true : undefined,
    onInput: (event: InputEvent) => onInput((event.currentTarget as HTMLInputElement).value),
  };
  return (
    <div class={size === "wide" ? "field wide" : "field"}>
      <label for={own}>{label}</label>
      {isSecret && <input type="password" {...shared} />}
      {isTime && <input type="datetime-local" step="1" {...shared} />}
      {!isSecret && !isTime && <input type="text" {...shared} />}
      {hint && (
        <p class="hint" id={`${own}-hint`}>
          {hint}
        </p>
      )}
      {error && (
        <p class="wrong" id={`${own}-error`} role="alert">
          {error}
        </p>
      )}
    </div>
  );
}

/** One of several, by its name. */
export function Select({
  label,
  value,
  options,
  onChange,
  isRequired,
  size,
}: {
  label: string;
  value: string;
  options: [value: string, shown: string][];
  onChange: (value: string) => void;
  isRequired?: boolean;
  size?: "wide";
}) {
  const own = useId();
  return (
    <div class={size === "wide" ? "field wide" : "field"}>
      <label for={own}>{label}</label>
      <select id={own} value={value} required={isRequired ?? false} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map(([one, shown]) => (
          <option key={one} value={one}>
            {shown}
          </option>
        ))}
      </select>
    </div>
  );
}

/** How full something is. */
export function Meter({ label, share, over }: { label: string; share: number; over?: number }) {
  const bar = useRef<HTMLSpanElement>(null);
  const rest = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (bar.current) bar.current.style.width = `${Math.min(100, share * 100)}%`;
    if (rest.current) rest.current.style.width = `${Math.min(100, (over ?? 0) * 100)}%`;
  });
  const level = share + (over ?? 0) >= 0.98 ? "bad" : share + (over ?? 0) >= 0.85 ? "warn" : "";
  const percent = Math.round((share + (over ?? 0)) * 100);
  return (
    <span class={`meter ${level}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}>
      <span class="fill" ref={bar} />
      <span class="fill over" ref={rest} />
    </span>
  );
}
