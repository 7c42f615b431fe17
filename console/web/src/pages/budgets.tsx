// What each budget has given out, holds, and has left.

import { call } from "../api";
import { num, t } from "../i18n";
import { Badge, Card, Meter, Page, Shown, Table, useLoaded } from "../parts";

interface Line {
  activity: string;
  scene: string;
  bonus_type: string;
  is_set: boolean;
  total: string;
  used: string;
  reserved: string;
}

export function BudgetsPage() {
  const listed = useLoaded(() => call<{ budgets: Line[] }>("/v1/budgets/list", {}));
  const left = (line: Line) => Number(line.total) - Number(line.used) - Number(line.reserved);
  const share = (line: Line, part: string) => (Number(line.total) > 0 ? Number(part) / Number(line.total) : 0);
  return (
    <Page
      title={t("bud.title")}
      lead={t("bud.lead")}
      actions={
        <button type="button" onClick={listed.reload}>
          {t("act.refresh")}
        </button>
      }
    >
      <Card>
        <Shown of={listed}>
          {({ budgets }) => (
            <Table
              label={t("bud.title")}
              rows={budgets}
              rowKey={(line) => `${line.activity}/${line.scene}/${line.bonus_type}`}
              columns={[
                {
                  head: t("col.activity"),
                  cell: (line) => (
                    <>
                      {line.activity} <span class="muted">{line.scene}</span>
                    </>
                  ),
                },
                { head: t("col.type"), cell: (line) => line.bonus_type },
                { head: t("bud.used"), cell: (line) => num(Number(line.used)), isNumber: true },
                { head: t("bud.reserved"), cell: (line) => num(Number(line.reserved)), isNumber: true, isMinor: true },
                {
                  head: t("bud.left"),
                  cell: (line) => (line.is_set ? num(left(line)) : <Badge level="plain">{t("bud.unset")}</Badge>),
                  isNumber: true,
                },
                { head: t("bud.total"), cell: (line) => (line.is_set ? num(Number(line.total)) : "–"), isNumber: true, isMinor: true },
                {
                  head: t("bud.share"),
                  cell: (line) =>
                    line.is_set ? (
                      <span class="with-meter">
                        {num((share(line, line.used) + share(line, line.reserved)) * 100)} %
                        <Meter
                          label={`${line.activity} ${line.scene} ${line.bonus_type}`}
                          share={share(line, line.used)}
                          over={share(line, line.reserved)}
                        />
                      </span>
                    ) : (
                      "–"
                    ),
                },
              ]}
            />
          )}
        </Shown>
      </Card>
    </Page>
  );
}
