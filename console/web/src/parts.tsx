// The parts that pages are made of.

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useId, useRef, useState } from "preact/hooks";
import { told } from "./api";
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
  max,
  size,
}: {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: string;
  isRequired?: boolean;
  isSecret?: boolean;
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
    "aria-describedby": hint ? `${own}-hint` : undefined,
    onInput: (event: InputEvent) => onInput((event.currentTarget as HTMLInputElement).value),
  };
  return (
    <div class={size === "wide" ? "field wide" : "field"}>
      <label for={own}>{label}</label>
      {isSecret ? <input type="password" {...shared} /> : <input type="text" {...shared} />}
      {hint && (
        <p class="hint" id={`${own}-hint`}>
          {hint}
        </p>
      )}
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
