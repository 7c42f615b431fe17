// What a change of the rules would have done with the traffic of the last hour, beside what the rules in force do in the same model,
// and when budgets would end.

import { num, short, span, t } from "../i18n";
import { Note, Table } from "../parts";

/** What becomes of one bonus type. */
interface Outcome {
  name: string;
  came: number;
  came_max_per_s: number;
  waiting_max: number;
  waited_max_s: number;
  waiting: number;
  /** None: never. */
  drained_s: number | null;
}

/** When a budget would end, in seconds; null: never. */
interface BudgetEnds {
  activity: string;
  scene: string;
  bonus_type: string;
  in_force_s: number | null;
  wanted_s: number | null;
}

export interface Replayed {
  ok: boolean;
  from_ms: number | null;
  to_ms: number | null;
  /** None where the document in force is no rules. */
  in_force: Outcome[] | null;
  wanted: Outcome[];
  /** Those of which an end can be estimated. */
  budgets: BudgetEnds[];
  /** By topic, records that wait and of which nobody knows the types. */
  unknown: Record<string, number>;
}

interface Row {
  before: Outcome | null;
  after: Outcome;
}

const drained = (of: Outcome) =>
  of.drained_s === null ? t("rep.never") : of.drained_s === 0 ? t("rep.gone") : t("rep.in", { span: span(of.drained_s * 1000) });

/** An event more or less is what the model does not know. */
const differs = ({ before, after }: Row) =>
  before === null ||
  Math.abs(before.waiting_max - after.waiting_max) > 1 ||
  Math.abs(before.waited_max_s - after.waited_max_s) >= 1 ||
  drained(before) !== drained(after);

const DAY_S = 86_400;

const ends = (afterS: number | null) =>
  afterS === null || afterS > DAY_S
    ? t(afterS === null ? "rep.never" : "bud.notToday")
    : afterS === 0
      ? t("bud.gone")
      : t("rep.in", { span: span(afterS * 1000) });

/** The budgets that the change lets end at another time, as far as a day shows it. */
function Budgets({ of }: { of: BudgetEnds[] }) {
  const changed = of.filter((one) => ends(one.in_force_s) !== ends(one.wanted_s));
  if (changed.length === 0) return null;
  return (
    <>
      <Table
        label={t("rep.budgets")}
        rows={changed}
        rowKey={(one) => `${one.activity}/${one.scene}/${one.bonus_type}`}
        columns={[
          {
            head: t("rep.budget"),
            cell: (one) => (
              <>
                {one.activity} <span class="muted">{one.scene}</span> {one.bonus_type}
              </>
            ),
          },
          { head: t("rep.budgetEnds"), cell: (one) => `${ends(one.in_force_s)} → ${ends(one.wanted_s)}`, isNumber: true },
        ]}
      />
      <p class="muted">{t("rep.budgetsNote")}</p>
    </>
  );
}

export function Replay({ of }: { of: Replayed | null }) {
  if (!of?.ok) return null;
  const rows = of.wanted.map((after) => ({ before: of.in_force?.find((one) => one.name === after.name) ?? null, after }));
  const changed = rows.filter(differs);
  const length = span(Math.max((of.to_ms ?? 0) - (of.from_ms ?? 0), 1000));
  const topics = Object.entries(of.unknown ?? {}).map(([topic, records]) => `${topic} (${num(Math.round(records))})`);
  const unknown = topics.length > 0 && <Note level="warn">{t("rep.unknown", { topics: topics.join(", ") })}</Note>;
  if (changed.length === 0) {
    return (
      <>
        {unknown}
        <Note level="info">{t(rows.length === 0 ? "rep.none" : "rep.same", { span: length })}</Note>
        <Budgets of={of.budgets ?? []} />
        <p class="muted">{t("rep.note")}</p>
      </>
    );
  }
  const change = (row: Row, show: (one: Outcome) => string) => {
    const [before, after] = [row.before && show(row.before), show(row.after)];
    return before === null || before === after ? after : `${before} → ${after}`;
  };
  return (
    <section aria-label={t("rep.title", { span: length })}>
      <p class="label">{t("rep.title", { span: length })}</p>
      {unknown}
      <Table
        label={t("rep.title", { span: length })}
        rows={changed}
        rowKey={({ after }) => after.name}
        columns={[
          { head: t("lane.type"), cell: ({ after }) => after.name },
          { head: t("rep.peak"), cell: ({ after }) => num(after.came_max_per_s, 0), isNumber: true, isMinor: true },
          { head: t("rep.waiting"), cell: (row) => change(row, (one) => short(Math.round(one.waiting_max))), isNumber: true },
          {
            head: t("rep.waited"),
            cell: (row) => change(row, (one) => (one.waited_max_s < 1 ? t("rep.not") : span(one.waited_max_s * 1000))),
            isNumber: true,
          },
          { head: t("rep.drained"), cell: (row) => change(row, drained), isNumber: true },
        ]}
      />
      <Budgets of={of.budgets ?? []} />
      <p class="muted">{t("rep.note")}</p>
    </section>
  );
}
