// The path of rewards, live: five stages, what needs a look, an hour of charts, and the tables behind each stage.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { Chart, LINES_MAX, type Line } from "../chart";
import { findings, lanes, topics, type History, type Lane, type Sample, type TopicRow } from "../flow";
import { num, short, span, t, type Word } from "../i18n";
import { Badge, Card, Meter, Note, Page, Table } from "../parts";

const HISTORY_EVERY_MS = 10_000;

function useHistory(): History | null {
  const [history, setHistory] = useState<History | null>(null);
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const next = async () => {
      if (!document.hidden) {
        // A chart that is late is no reason for a message: the sample tells whether the console answers.
        const found = await get<History>("history").catch(() => null);
        if (isOver) return;
        if (found) setHistory(found);
      }
      if (!isOver) timer = window.setTimeout(next, HISTORY_EVERY_MS);
    };
    void next();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  return history;
}

/** The sums of a metric by a label; beyond the colours, the smallest are one line. */
function linesOf(history: History, metric: string, label: string, where: Record<string, string> = {}): Line[] {
  const sums = new Map<string, (number | null)[]>();
  for (const [name, labels, values] of history.series) {
    if (name !== metric || !Object.entries(where).every(([key, value]) => labels[key] === value)) continue;
    const key = labels[label] ?? "";
    const there = sums.get(key);
    if (!there) sums.set(key, [...values]);
    else values.forEach((value, at) => (there[at] = value === null ? (there[at] ?? null) : (there[at] ?? 0) + value));
  }
  const weight = (values: (number | null)[]) => values.reduce<number>((sum, value) => sum + (value ?? 0), 0);
  const all = [...sums].map(([name, values]) => ({ name, values, weight: weight(values) }));
  const shown = all.sort((one, other) => other.weight - one.weight).slice(0, LINES_MAX);
  return shown.sort((one, other) => one.name.localeCompare(other.name));
}

function total(history: History, name: string, metric: string, where: Record<string, string> = {}): Line[] {
  const [first, ...rest] = linesOf(history, metric, "\u0000", where);
  return first && rest.length === 0 ? [{ name, values: first.values }] : [];
}

export function FlowPage({ sample, theme, at }: { sample: Sample | null; theme: string; at: string | null }) {
  const history = useHistory();
  const isThere = sample !== null;
  useEffect(() => {
    if (!at || !isThere) return;
    const card = document.getElementById(`at-${at}`);
    card?.scrollIntoView({ block: "start" });
    card?.focus({ preventScroll: true });
  }, [at, isThere]);
  return (
    <Page title={t("nav.flow")} lead={t("flow.lead")}>
      {!sample && <p class="muted pad">{t("state.loading")}</p>}
      {sample && (
        <>
          <Stages sample={sample} />
          <Findings sample={sample} />
        </>
      )}
      {history && (
        <Card title={t("flow.charts")}>
          <div class="charts">
            <Chart
              title={t("chart.rate")}
              theme={theme}
              atMs={history.at_ms}
              lines={[
                ...total(history, t("chart.sent"), "windfall_sent_events_total"),
                ...total(history, t("chart.credited"), "windfall_lane_finished_events_total", { outcome: "credited" }),
                ...total(history, t("chart.archived"), "windfall_archived_events_total"),
              ]}
            />
            <Chart
              title={t("chart.lag")}
              theme={theme}
              atMs={history.at_ms}
              lines={linesOf(history, "windfall_queue_lag_records", "topic")}
            />
            <Chart
              title={t("chart.lanes")}
              theme={theme}
              atMs={history.at_ms}
              lines={linesOf(history, "windfall_lane_events", "type")}
            />
            <Chart
              title={t("chart.end")}
              theme={theme}
              atMs={history.at_ms}
              lines={linesOf(history, "windfall_grants_total", "answer")}
            />
          </div>
        </Card>
      )}
      {sample && (
        <>
          <Card id="at-queues" title={t("flow.queues")}>
            <TopicTable rows={topics(sample)} />
          </Card>
          <Card id="at-lanes" title={t("flow.lanes")}>
            <LaneTable rows={lanes(sample)} />
          </Card>
          <Payers sample={sample} />
        </>
      )}
    </Page>
  );
}

function Stages({ sample }: { sample: Sample }) {
  const rows = topics(sample);
  const all = lanes(sample);
  const used = sample.sum("windfall_spool_slots", { state: "in_use" });
  const slots = sample.sum("windfall_spool_slots", { state: "all" });
  const lag = rows.reduce((sum, row) => sum + (row.lag ?? 0), 0);
  const lagS = rows.reduce((most, row) => Math.max(most, row.lagS ?? 0), 0);
  const breakers = rows.filter((row) => row.isBreakerOpen).length;
  const fuses = all.filter((lane) => lane.fuse !== "closed").length;
  const oldest = sample.max("windfall_window_oldest_milliseconds");
  const archived = sample.sum("windfall_archived_events_total");
  const refused = sample.sum("windfall_refused_calls_total");
  const open = sample.max("windfall_reserved_orders") + sample.max("windfall_held_withdrawals");
  const perS = (value: number) => t("flow.perS", { n: short(value) });
  return (
    <ol class="stages" aria-label={t("nav.flow")}>
      <Stage
        to="#/flow?at=senders"
        id="at-senders"
        title={t("flow.senders")}
        value={perS(sample.sum("windfall_sent_events_total"))}
        unit={t("flow.sent")}
        notes={[
          refused > 0 ? { level: "bad", text: t("flow.refused", { n: refused }) } : null,
          slots > 0 ? { level: used / slots > 0.8 ? "warn" : "plain", text: t("flow.spool", { n: Math.round((used / slots) * 100) }) } : null,
        ]}
      />
      <Stage
        to="#/flow?at=queues"
        title={t("flow.queues")}
        value={short(lag)}
        unit={t("flow.lag")}
        notes={[
          { level: breakers > 0 ? "bad" : "plain", text: breakers > 0 ? t("flow.breakers", { n: breakers }) : t("flow.noBreakers") },
          lagS >= 1 ? { level: lagS > 60 ? "warn" : "plain", text: t("flow.lagS", { n: span(lagS * 1000) }) } : null,
        ]}
      />
      <Stage
        to="#/flow?at=lanes"
        title={t("flow.lanes")}
        value={short(all.reduce((sum, lane) => sum + lane.waiting, 0))}
        unit={t("flow.waiting")}
        notes={[
          { level: fuses > 0 ? "warn" : "plain", text: fuses > 0 ? t("flow.fuses", { n: fuses }) : t("flow.noFuses") },
          oldest > 0 ? { level: oldest > 60_000 ? "warn" : "plain", text: t("flow.oldest", { n: span(oldest) }) } : null,
        ]}
      />
      <Stage
        to={archived > 0 ? "#/archive" : "#/flow?at=lanes"}
        title={t("flow.grants")}
        value={perS(all.reduce((sum, lane) => sum + lane.rate, 0))}
        unit={t("flow.credited")}
        notes={[{ level: archived > 0 ? "warn" : "plain", text: t("flow.archived", { n: archived }) }]}
      />
      <Stage
        to={open > 0 ? "#/held" : "#/flow?at=payers"}
        title={t("flow.payers")}
        value={perS(sample.sum("windfall_ledger_commits_total"))}
        unit={t("flow.commits")}
        notes={[
          { level: "plain", text: t("flow.inLedger", { n: sample.sum("windfall_ledger_waiting_events") }) },
          open > 0 ? { level: "warn", text: t("flow.open", { n: open }) } : null,
        ]}
      />
    </ol>
  );
}

function Stage(props: {
  to: string;
  id?: string;
  title: string;
  value: string;
  unit: string;
  notes: ({ level: "bad" | "warn" | "plain"; text: string } | null)[];
}) {
  return (
    <li id={props.id} tabIndex={props.id ? -1 : undefined}>
      <a href={props.to}>
        <span class="stage-title">{props.title}</span>
        <span class="stage-value">{props.value}</span>
        <span class="stage-unit">{props.unit}</span>
        <span class="stage-notes">
          {props.notes.map(
            (note) =>
              note && (
                <span key={note.text} class={`stage-note ${note.level}`}>
                  {note.text}
                </span>
              ),
          )}
        </span>
      </a>
    </li>
  );
}

function Findings({ sample }: { sample: Sample }) {
  const found = findings(sample);
  return (
    <Card title={t("flow.look")}>
      {sample.newest.is_cut && <Note level="warn">{t("find.cut")}</Note>}
      {sample.newest.rules?.is_stale && <Note level="bad">{t("find.stale", { n: sample.newest.rules.version })}</Note>}
      {found.length === 0 ? (
        <p class="well pad">{t("flow.well")}</p>
      ) : (
        <ul class="findings">
          {found.map((one) => {
            const text = t(one.text as Word, one.args);
            return (
              <li key={text}>
                <a href={one.to} class={one.level}>
                  {text}
                </a>
              </li>
            );
          })}
        </ul>
      )}
    </Card>
  );
}

function TopicTable({ rows }: { rows: TopicRow[] }) {
  const role = (row: TopicRow) => (row.role === "" ? "" : t(`topic.${row.role}` as Word));
  return (
    <Table
      label={t("flow.queues")}
      rows={rows}
      rowKey={(row) => `${row.queue}/${row.topic}/${row.role}`}
      columns={[
        { head: t("topic.queue"), cell: (row) => row.queue || "–" },
        {
          head: t("topic.topic"),
          cell: (row) => (
            <>
              <span class="mono">{row.topic}</span> <span class="muted">{role(row)}</span>
            </>
          ),
        },
        { head: t("topic.broker"), cell: (row) => row.broker, isMinor: true },
        {
          head: t("topic.breaker"),
          cell: (row) =>
            row.isBreakerOpen ? <Badge level="bad">{t("topic.open")}</Badge> : <Badge level="good">{t("topic.closed")}</Badge>,
        },
        { head: t("topic.lag"), cell: (row) => (row.lag === null ? "–" : num(row.lag)), isNumber: true },
        { head: t("topic.lagS"), cell: (row) => (row.lagS === null ? "–" : row.lagS === 0 ? "0" : span(row.lagS * 1000)), isNumber: true },
        { head: t("topic.oldest"), cell: (row) => (row.oldestMs ? span(row.oldestMs) : "–"), isNumber: true, isMinor: true },
        { head: t("topic.stored"), cell: (row) => num(row.stored), isNumber: true, isMinor: true },
        { head: t("topic.fetched"), cell: (row) => num(row.fetched), isNumber: true, isMinor: true },
      ]}
    />
  );
}

export function FuseBadge({ fuse }: { fuse: string }) {
  return <Badge level={fuse === "closed" ? "good" : "warn"}>{t(`fuse.${fuse}` as Word)}</Badge>;
}

function LaneTable({ rows }: { rows: Lane[] }) {
  return (
    <Table
      label={t("flow.lanes")}
      rows={rows}
      rowKey={(row) => row.type}
      columns={[
        { head: t("lane.type"), cell: (row) => <a href={`#/rules?type=${encodeURIComponent(row.type)}`}>{row.type}</a> },
        { head: t("lane.rate"), cell: (row) => num(row.rate), isNumber: true },
        {
          head: t("lane.limit"),
          cell: (row) => (
            <span class="with-meter">
              {short(row.limit)}
              <Meter label={`${row.type}: ${t("lane.limit")}`} share={row.limit > 0 ? row.rate / row.limit : 1} />
            </span>
          ),
          isNumber: true,
        },
        { head: t("lane.fuse"), cell: (row) => <FuseBadge fuse={row.fuse} /> },
        { head: t("lane.waiting"), cell: (row) => num(row.waiting), isNumber: true },
        { head: t("lane.oldest"), cell: (row) => (row.oldestMs ? span(row.oldestMs) : "–"), isNumber: true },
        { head: t("lane.requeued"), cell: (row) => num(row.requeued), isNumber: true, isMinor: true },
        { head: t("lane.archived"), cell: (row) => num(row.archived), isNumber: true, isMinor: true },
        {
          head: t("col.state"),
          cell: (row) => (row.isBreakerOpen ? <Badge level="bad">{t("lane.breaker")}</Badge> : ""),
          isMinor: true,
        },
      ]}
    />
  );
}

function Payers({ sample }: { sample: Sample }) {
  const names = sample.values("connector", "windfall_connector_answers_total");
  const rows = [
    { name: t("pay.ledger"), answers: sample.by("windfall_grants_total", "answer") },
    ...names.map((name) => ({ name, answers: sample.by("windfall_connector_answers_total", "answer", { connector: name }) })),
  ];
  return (
    <Card id="at-payers" title={t("flow.payers")}>
      <Table
        label={t("flow.payers")}
        rows={rows}
        rowKey={(row) => row.name}
        columns={[
          { head: t("col.payer"), cell: (row) => row.name },
          {
            head: t("pay.answers"),
            cell: (row) => (
              <span class="chips">
                {row.answers
                  .filter(([, rate]) => rate > 0)
                  .map(([answer, rate]) => (
                    <span class="chip" key={answer}>
                      {answer} <b>{num(rate)}</b>
                    </span>
                  ))}
              </span>
            ),
          },
        ]}
      />
    </Card>
  );
}
