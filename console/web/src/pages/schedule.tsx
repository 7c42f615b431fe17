// Timers by tenant and target, task queues, and jobs.

import { useState } from "preact/hooks";
import { call, told, type Who } from "../api";
import type { Sample } from "../flow";
import { num, span, t, when } from "../i18n";
import { Badge, Card, Dialog, Field, Note, Page, Shown, Table, useLoaded } from "../parts";

interface Dead {
  id: string;
  target: string;
  due_ms: string;
  died_ms: string;
  attempts: number;
  reason: string;
}

interface Job {
  name: string;
  version: string;
  paused: boolean;
  next_ms: string;
  last_ms: string;
  missed: string;
}

export function SchedulePage({ sample, user }: { sample: Sample | null; user: Who }) {
  const maySchedule = user.roles.includes("schedule");
  return (
    <Page title={t("sch.title")}>
      {sample && <Timers sample={sample} />}
      {sample && <Queues sample={sample} />}
      {maySchedule && <DeadTimers />}
      {maySchedule && <Jobs />}
      {!maySchedule && <p class="muted">{t("sch.role")}</p>}
    </Page>
  );
}

function Timers({ sample }: { sample: Sample }) {
  const tenants = sample.values("tenant", "windfall_scheduler_waiting_tasks");
  const targets = new Map<string, { tenant: string; target: string }>();
  for (const name of ["windfall_scheduler_due_tasks", "windfall_scheduler_target_away"]) {
    for (const [, { tenant = "", target = "" }] of sample.all(name)) targets.set(`${tenant}/${target}`, { tenant, target });
  }
  const late = sample.sum("windfall_scheduler_late_tasks_total");
  return (
    <Card
      title={t("sch.timers")}
      actions={<Badge level={late > 0 ? "warn" : "plain"}>{t("sch.late", { n: late })}</Badge>}
    >
      <Table
        label={t("sch.timers")}
        rows={tenants}
        rowKey={(tenant) => tenant}
        columns={[
          { head: t("sch.tenant"), cell: (tenant) => tenant },
          {
            head: t("lane.waiting"),
            cell: (tenant) => (
              <>
                {num(sample.max("windfall_scheduler_waiting_tasks", { tenant }))}{" "}
                <span class="muted">{t("sch.of", { n: sample.max("windfall_scheduler_waiting_tasks_max", { tenant }) })}</span>
              </>
            ),
            isNumber: true,
          },
        ]}
      />
      <Table
        label={t("sch.target")}
        rows={[...targets.values()]}
        empty=" "
        rowKey={({ tenant, target }) => `${tenant}/${target}`}
        columns={[
          { head: t("sch.tenant"), cell: (one) => one.tenant },
          { head: t("sch.target"), cell: (one) => one.target },
          { head: t("sch.due"), cell: (one) => num(sample.sum("windfall_scheduler_due_tasks", { ...one })), isNumber: true },
          { head: t("sch.retrying"), cell: (one) => num(sample.sum("windfall_scheduler_retrying_tasks", { ...one })), isNumber: true },
          {
            head: t("col.state"),
            cell: (one) =>
              sample.max("windfall_scheduler_target_away", { ...one }) > 0 ? (
                <Badge level="bad">{t("sch.away")}</Badge>
              ) : (
                <Badge level="good">{t("sch.active")}</Badge>
              ),
          },
        ]}
      />
    </Card>
  );
}

function Queues({ sample }: { sample: Sample }) {
  const queues = new Map<string, { pool: string; namespace: string; queue: string }>();
  for (const [, { pool = "", namespace = "", queue = "" }] of sample.all("windfall_taskqueue_jobs")) {
    queues.set(`${pool}/${namespace}/${queue}`, { pool, namespace, queue });
  }
  if (queues.size === 0) return null;
  return (
    <Card title={t("sch.queues")}>
      <Table
        label={t("sch.queues")}
        rows={[...queues.values()]}
        rowKey={(one) => `${one.pool}/${one.namespace}/${one.queue}`}
        columns={[
          { head: t("sch.pool"), cell: (one) => one.pool },
          { head: t("topic.queue"), cell: (one) => `${one.namespace} / ${one.queue}` },
          { head: t("sch.ready"), cell: (one) => num(sample.max("windfall_taskqueue_jobs", { ...one, state: "ready" })), isNumber: true },
          { head: t("sch.delayed"), cell: (one) => num(sample.max("windfall_taskqueue_jobs", { ...one, state: "delayed" })), isNumber: true },
          { head: t("sch.deadJobs"), cell: (one) => num(sample.max("windfall_taskqueue_jobs", { ...one, state: "dead" })), isNumber: true },
          {
            head: t("sch.oldest"),
            cell: (one) => span(sample.max("windfall_taskqueue_oldest_ready_milliseconds", { ...one })),
            isNumber: true,
            isMinor: true,
          },
        ]}
      />
    </Card>
  );
}

function DeadTimers() {
  const listed = useLoaded(() => call<{ timers: Dead[]; next_after: string }>("/v1/timers/dead/list", { page_size: 100 }));
  const [error, setError] = useState<string | null>(null);
  const timers = listed.value?.timers ?? [];
  const again = async () => {
    if (!confirm(t("sch.again?", { n: timers.length }))) return;
    try {
      await call("/v1/timers/dead/end", { ids: timers.map((one) => one.id), end: "DEAD_TIMER_END_SEND_AGAIN" });
      setError(null);
    } catch (failed) {
      setError(told(failed));
    }
    listed.reload();
  };
  return (
    <Card
      title={t("sch.dead")}
      actions={
        <button type="button" disabled={timers.length === 0} onClick={again}>
          {t("sch.again")}
        </button>
      }
    >
      {error && <Note level="bad">{error}</Note>}
      <Shown of={listed}>
        {() => (
          <Table
            label={t("sch.dead")}
            rows={timers}
            rowKey={(one) => one.id}
            columns={[
              { head: "id", cell: (one) => one.id, isMono: true },
              { head: t("sch.target"), cell: (one) => one.target },
              { head: t("col.time"), cell: (one) => when(one.died_ms), isMinor: true },
              { head: t("sch.tries"), cell: (one) => one.attempts, isNumber: true, isMinor: true },
              { head: t("col.reason"), cell: (one) => one.reason },
            ]}
          />
        )}
      </Shown>
    </Card>
  );
}

interface Run {
  run: string;
  due_ms: string;
  at_ms: string;
  cause: string;
  attempt: number;
  state: string;
  outcome: string;
  executor: string;
  message: string;
}

const RUNS_SHOWN = 50;

/** What a name of an enumeration says, without its prefix. */
function plain(name: string, prefix: string): string {
  return name.replace(prefix, "").toLowerCase().replaceAll("_", " ");
}

function JobDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const [why, setWhy] = useState("");
  const [said, setSaid] = useState<{ level: "good" | "bad"; text: string } | null>(null);
  const [busy, setBusy] = useState(false);
  const runs = useLoaded(
    () => call<{ runs: Run[] }>("/v1/jobs/runs/list", { name: job.name, after: "0", page_size: RUNS_SHOWN }),
    job.name,
  );
  const tried = async (work: () => Promise<void>) => {
    setBusy(true);
    try {
      await work();
    } catch (error) {
      setSaid({ level: "bad", text: told(error) });
    }
    setBusy(false);
  };
  const runNow = () =>
    tried(async () => {
      const started = await call<{ run: string }>("/v1/jobs/run", { name: job.name });
      setSaid({ level: "good", text: t("sch.started", { n: Number(started.run) }) });
      runs.reload();
    });
  const pause = () =>
    tried(async () => {
      await call("/v1/jobs/set-paused", { name: job.name, paused: !job.paused, why: why.trim() });
      onClose();
    });
  return (
    <Dialog title={t("sch.runs", { name: job.name })} onClose={onClose} isWide>
      <div class="filters">
        <Field label={t("col.why")} value={why} onInput={setWhy} max={200} />
        <button type="button" disabled={busy || why.trim() === ""} onClick={pause}>
          {t(job.paused ? "sch.resume" : "sch.pause")}
        </button>
        <span class="grow" />
        <button type="button" class="primary" disabled={busy} onClick={runNow}>
          {t("sch.runNow")}
        </button>
      </div>
      {said && <Note level={said.level}>{said.text}</Note>}
      <Shown of={runs}>
        {(listed) => (
          <Table
            label={t("sch.runs", { name: job.name })}
            rows={listed.runs}
            rowKey={(run) => run.run}
            columns={[
              { head: "id", cell: (run) => run.run, isNumber: true },
              { head: t("col.time"), cell: (run) => when(run.due_ms) },
              { head: t("sch.cause"), cell: (run) => plain(run.cause, "JOB_RUN_CAUSE_"), isMinor: true },
              {
                head: t("col.state"),
                cell: (run) => {
                  if (run.state !== "JOB_RUN_STATE_ENDED") return plain(run.state, "JOB_RUN_STATE_");
                  const isGood = run.outcome === "JOB_RUN_OUTCOME_SUCCEEDED";
                  return <Badge level={isGood ? "good" : "bad"}>{plain(run.outcome, "JOB_RUN_OUTCOME_")}</Badge>;
                },
              },
              { head: t("sch.executor"), cell: (run) => run.executor, isMinor: true },
              { head: t("sch.message"), cell: (run) => run.message },
            ]}
          />
        )}
      </Shown>
    </Dialog>
  );
}

function Jobs() {
  const [opened, setOpened] = useState<Job | null>(null);
  const listed = useLoaded(() => call<{ jobs: Job[]; next_after: string }>("/v1/jobs/list", { page_size: 200 }));
  return (
    <Card title={t("sch.jobs")}>
      {listed.error ? (
        <p class="muted pad">{t("sch.noJobs")}</p>
      ) : (
        <Shown of={listed}>
          {({ jobs }) => (
            <Table
              label={t("sch.jobs")}
              rows={jobs}
              rowKey={(job) => job.name}
              columns={[
                {
                  head: t("col.name"),
                  cell: (job) => (
                    <button type="button" class="link" onClick={() => setOpened(job)}>
                      {job.name}
                    </button>
                  ),
                },
                {
                  head: t("col.state"),
                  cell: (job) => <Badge level={job.paused ? "warn" : "good"}>{t(job.paused ? "sch.paused" : "sch.active")}</Badge>,
                },
                { head: t("sch.next"), cell: (job) => when(job.next_ms) },
                { head: t("sch.last"), cell: (job) => when(job.last_ms), isMinor: true },
                { head: t("sch.missed"), cell: (job) => num(Number(job.missed)), isNumber: true, isMinor: true },
              ]}
            />
          )}
        </Shown>
      )}
      {opened && (
        <JobDialog
          job={opened}
          onClose={() => {
            setOpened(null);
            listed.reload();
          }}
        />
      )}
    </Card>
  );
}
