// The processes: what they run, what they refuse, what they work without.

import { call, get, type Who } from "../api";
import type { Sample } from "../flow";
import { t, when, type Word } from "../i18n";
import { Badge, Card, Note, Page, Shown, Table, useLoaded } from "../parts";

interface Process {
  process: string;
  version: number;
  at_ms: number;
  state: "runs" | "behind" | "refuses" | "silent";
  refuses: { version: number | null; why: string } | null;
  source_failure: string | null;
}

interface Mark {
  went_back: boolean;
  payouts_stopped: boolean;
  why: string;
}

export function InstancesPage({ sample, user }: { sample: Sample | null; user: Who }) {
  return (
    <Page title={t("nav.instances")} lead={t("ins.lead")}>
      <Card title={t("ins.console")}>
        <Table
          label={t("ins.console")}
          rows={sample?.newest.instances ?? []}
          empty={t("state.loading")}
          rowKey={(one) => one.name}
          columns={[
            { head: t("col.name"), cell: (one) => one.name },
            {
              head: t("col.state"),
              cell: (one) => (
                <>
                  <Badge level={one.ok ? "good" : "bad"}>{t(one.ok ? "ins.answers" : "ins.away")}</Badge> {one.why}
                </>
              ),
            },
            { head: t("nav.rules"), cell: (one) => one.rules_version ?? "–", isNumber: true },
            { head: t("ins.missing"), cell: (one) => one.missing.join(", ") || "–" },
          ]}
        />
      </Card>
      {user.rules !== "none" && <Reports />}
      <LedgerMark />
    </Page>
  );
}

function Reports() {
  const listed = useLoaded(() => get<{ version: number | null; processes: Process[] }>("rules/status"));
  const level = (one: Process) => (one.state === "runs" ? "good" : one.state === "refuses" ? "bad" : "warn");
  return (
    <Card
      title={t("ins.reports")}
      actions={
        <button type="button" onClick={listed.reload}>
          {t("act.refresh")}
        </button>
      }
    >
      <Shown of={listed}>
        {({ processes }) => (
          <Table
            label={t("ins.reports")}
            rows={processes}
            rowKey={(one) => one.process}
            columns={[
              { head: t("ins.process"), cell: (one) => one.process, isMono: true },
              { head: t("col.version"), cell: (one) => one.version, isNumber: true },
              { head: t("col.state"), cell: (one) => <Badge level={level(one)}>{t(`ins.${one.state}` as Word)}</Badge> },
              { head: t("ins.reported"), cell: (one) => when(one.at_ms), isMinor: true },
              { head: t("col.why"), cell: (one) => one.refuses?.why ?? one.source_failure ?? "", isMinor: true },
            ]}
          />
        )}
      </Shown>
    </Card>
  );
}

function LedgerMark() {
  const mark = useLoaded(() => call<Mark>("/v1/ledger/mark", {}));
  return (
    <Card title={t("ins.mark")}>
      {mark.error ? (
        <p class="muted pad">{mark.error}</p>
      ) : (
        <Shown of={mark}>
          {(found) =>
            found.went_back ? (
              <Note level="bad">{`${t("find.back")} ${found.why}`}</Note>
            ) : found.payouts_stopped ? (
              <Note level="bad">{t("find.stopped")}</Note>
            ) : (
              <p class="pad">{t("ins.markHolds")}</p>
            )
          }
        </Shown>
      )}
    </Card>
  );
}
