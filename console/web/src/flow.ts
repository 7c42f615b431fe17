// The newest sample of the fleet's metrics, and the rules' topology that came with it.

export type Labels = Record<string, string>;
export type Series = [name: string, labels: Labels, value: number];

export interface Instance {
  name: string;
  ok: boolean;
  why: string | null;
  rules_version: number | null;
  refuses_rules: boolean;
  missing: string[];
}

export interface TypeRule {
  name: string;
  rate_per_s: number;
  burst: number;
  fuse: "closed" | "pause" | "divert";
  priority: number;
}

export interface Form {
  version: number;
  /** The rules cannot be read now, and these were there last. */
  is_stale?: boolean;
  queues: { name: string; master: string; backup: string; ratio: number }[];
  topics: { name: string; broker: string; partitions: number }[];
  draining: { name: string; broker: string }[];
  types: TypeRule[];
  routes: { activity: string; scene: string; type: string; queue: string; requeue: string[] }[];
  global: { rate_per_s: number; burst: number };
  budgets: number;
}

export interface Newest {
  at_ms: number;
  is_cut: boolean;
  instances: Instance[];
  rules: Form | null;
  series: Series[];
}

export interface History {
  step_ms: number;
  at_ms: number[];
  series: [name: string, labels: Labels, values: (number | null)[]][];
}

/** Looks values up in a sample. */
export class Sample {
  private readonly byName = new Map<string, Series[]>();

  constructor(readonly newest: Newest) {
    for (const one of newest.series) {
      const there = this.byName.get(one[0]);
      if (there) there.push(one);
      else this.byName.set(one[0], [one]);
    }
  }

  all(name: string, where: Labels = {}): Series[] {
    const wanted = Object.entries(where);
    return (this.byName.get(name) ?? []).filter(([, labels]) => wanted.every(([key, value]) => labels[key] === value));
  }

  has(name: string): boolean {
    return this.byName.has(name);
  }

  sum(name: string, where: Labels = {}): number {
    return this.all(name, where).reduce((sum, [, , value]) => sum + value, 0);
  }

  max(name: string, where: Labels = {}): number {
    return this.all(name, where).reduce((most, [, , value]) => Math.max(most, value), 0);
  }

  /** Sums by the values of a label, largest first. */
  by(name: string, label: string, where: Labels = {}): [string, number][] {
    const sums = new Map<string, number>();
    for (const [, labels, value] of this.all(name, where)) {
      const key = labels[label] ?? "";
      sums.set(key, (sums.get(key) ?? 0) + value);
    }
    return [...sums].sort((one, other) => other[1] - one[1]);
  }

  /** Every value of a label among some metrics. */
  values(label: string, ...names: string[]): string[] {
    const found = new Set<string>();
    for (const name of names) {
      for (const [, labels] of this.byName.get(name) ?? []) {
        const value = labels[label];
        if (value !== undefined) found.add(value);
      }
    }
    return [...found].sort();
  }
}

export interface Lane {
  type: string;
  rate: number;
  limit: number;
  fuse: string;
  waiting: number;
  oldestMs: number;
  isBreakerOpen: boolean;
  archived: number;
  requeued: number;
}

/** The lanes of the consumers, by bonus type. */
export function lanes(sample: Sample): Lane[] {
  const types = new Set(sample.newest.rules?.types.map((one) => one.name) ?? []);
  for (const type of sample.values("type", "windfall_lane_events", "windfall_fuse_state")) {
    if (!type.startsWith("(")) types.add(type);
  }
  return [...types].sort().map((type) => {
    const rule = sample.newest.rules?.types.find((one) => one.name === type);
    const outcome = (name: string) => sample.sum("windfall_lane_finished_events_total", { type, outcome: name });
    const fuse = sample.all("windfall_fuse_state", { type }).find(([, , value]) => value > 0)?.[1].state;
    return {
      type,
      rate: outcome("credited"),
      limit: rule?.rate_per_s ?? sample.max("windfall_limit_rate_per_second", { type }),
      fuse: rule?.fuse ?? fuse ?? "closed",
      waiting: sample.sum("windfall_lane_events", { type }),
      oldestMs: sample.max("windfall_lane_oldest_milliseconds", { type }),
      isBreakerOpen: sample.max("windfall_lane_breaker_open", { type }) > 0,
      archived: outcome("archived"),
      requeued: outcome("requeued"),
    };
  });
}

export interface TopicRow {
  topic: string;
  queue: string;
  role: "master" | "backup" | "draining" | "";
  broker: string;
  isBreakerOpen: boolean;
  lag: number | null;
  lagS: number | null;
  oldestMs: number;
  stored: number;
  fetched: number;
  running: boolean | null;
  stuck: number;
}

/** The topics of the queues, master before backup. */
export function topics(sample: Sample): TopicRow[] {
  const rules = sample.newest.rules;
  const named: [string, string, TopicRow["role"]][] = [];
  for (const queue of rules?.queues ?? []) {
    named.push([queue.master, queue.name, "master"], [queue.backup, queue.name, "backup"]);
  }
  for (const old of rules?.draining ?? []) named.push([old.name, "", "draining"]);
  for (const topic of sample.values("topic", "windfall_queue_lag_records", "windfall_consumer_running")) {
    if (!named.some(([name]) => name === topic)) named.push([topic, "", ""]);
  }
  return named.map(([topic, queue, role]) => {
    const lag = sample.all("windfall_queue_lag_records", { topic })[0]?.[2] ?? null;
    const fetched = sample.sum("windfall_fetched_records_total", { topic });
    const running = sample.all("windfall_consumer_running", { topic });
    const broker = [...(rules?.topics ?? []), ...(rules?.draining ?? [])].find((one) => one.name === topic)?.broker ?? "";
    const oldestMs = sample.max("windfall_window_oldest_milliseconds", { topic });
    return {
      topic,
      queue,
      role,
      broker,
      isBreakerOpen: sample.max("windfall_queue_breaker_open", { topic }) > 0,
      lag,
      lagS: lag === null ? null : lag === 0 ? 0 : fetched > 0 ? Math.max(lag / fetched, 0) : null,
      oldestMs,
      stored: sample.sum("windfall_queue_records_total", { topic, fate: "stored" }),
      fetched,
      running: running.length === 0 ? null : running.some(([, , value]) => value > 0),
      stuck: sample.sum("windfall_stuck_partitions", { topic }),
    };
  });
}

/** Something that needs a person's look, and where to look. */
export interface Finding {
  level: "bad" | "warn";
  text: string;
  args: Record<string, string | number>;
  to: string;
}

export function findings(sample: Sample): Finding[] {
  const found: Finding[] = [];
  const add = (level: Finding["level"], text: string, to: string, args: Finding["args"] = {}) =>
    found.push({ level, text, to, args });
  for (const one of sample.newest.instances) {
    if (!one.ok) add("bad", "find.away", "#/instances", { name: one.name });
    if (one.refuses_rules) add("bad", "find.refuses", "#/instances", { name: one.name });
    for (const part of one.missing) add("bad", "find.missing", "#/instances", { name: one.name, part });
  }
  if (sample.max("windfall_ledger_back_in_time") > 0) add("bad", "find.back", "#/instances");
  else if (sample.max("windfall_ledger_payouts_stopped") > 0) add("bad", "find.stopped", "#/instances");
  if (sample.max("windfall_ledger_closed") > 0) add("bad", "find.closed", "#/instances");
  if (sample.max("windfall_ledger_rules_behind") > 0) add("bad", "find.behind", "#/instances");
  const differences = sample.sum("windfall_audit_differences", { state: "open" });
  if (differences > 0) add("bad", "find.differs", "#/reconcile", { count: differences });
  for (const row of topics(sample)) {
    if (row.isBreakerOpen) add("bad", "find.breaker", "#/flow?at=queues", { topic: row.topic });
    if (row.stuck > 0) add("bad", "find.stuck", "#/flow?at=queues", { topic: row.topic, count: row.stuck });
    if (row.running === false) add("bad", "find.reads", "#/flow?at=queues", { topic: row.topic });
  }
  for (const lane of lanes(sample)) {
    if (lane.fuse !== "closed") add("warn", "find.fuse", "#/rules", { type: lane.type, state: lane.fuse });
    if (lane.limit === 0) add("warn", "find.zero", "#/rules", { type: lane.type });
    if (lane.isBreakerOpen) add("bad", "find.lane", "#/flow?at=payers", { type: lane.type });
    if (lane.waiting > 0 && lane.limit > 0 && lane.rate >= lane.limit * 0.95) {
      add("warn", "find.limit", "#/rules", { type: lane.type, limit: lane.limit });
    }
  }
  const refused = sample.sum("windfall_refused_calls_total");
  if (refused > 0) add("bad", "find.spool", "#/flow?at=senders", { rate: refused });
  if (sample.sum("windfall_salvage_pending_records") > 0) {
    add("warn", "find.salvage", "#/flow?at=queues", { count: sample.sum("windfall_salvage_pending_records") });
  }
  const archived = sample.sum("windfall_archived_events_total");
  if (archived > 0) add("warn", "find.archived", "#/archive", { rate: archived });
  const reserved = sample.max("windfall_reserved_orders");
  if (reserved > 0) add("warn", "find.reserved", "#/held", { count: reserved });
  const held = sample.max("windfall_held_withdrawals");
  if (held > 0) add("warn", "find.held", "#/held", { count: held });
  const undecided = sample.max("windfall_undecided_orders") + sample.max("windfall_undecided_withdrawals");
  if (undecided > 0) add("bad", "find.undecided", "#/held", { count: undecided });
  const unacknowledged = sample.max("windfall_payouts_to_acknowledge");
  if (unacknowledged > 0) add("bad", "find.unacknowledged", "#/payouts", { count: unacknowledged });
  for (const [, labels, value] of sample.all("windfall_scheduler_target_away")) {
    if (value > 0) add("warn", "find.target", "#/schedule", { target: labels.target ?? "" });
  }
  return found.sort((one, other) => Number(one.level === "warn") - Number(other.level === "warn"));
}
