// What each budget has given out, holds, and has left, and when it ends at the pace of the last minutes and of the last hour.

import { call, get, told } from "../api";
import { num, span, t } from "../i18n";
import { Badge, Card, Meter, Note, Page, Shown, Table, useLoaded } from "../parts";

interface Line {
  activity: string;
  scene: string;
  bonus_type: string;
  is_set: boolean;
  total: string;
  used: string;
  reserved: string;
}

/** What was used within a time, as far as it is known. */
interface Used {
  amount: number;
  known_s: number;
}

interface Forecast {
  /** There are more budgets than the console follows. */
  is_cut: boolean;
  known_min_s: number;
  budgets: { activity: string; scene: string; bonus_type: string; recent: Used; hour: Used }[];
}

const HOUR_S = 3_600;
/** What is known of an hour lacks a sample at its ends. */
const NEARLY_HOUR_S = HOUR_S - 60;
const DAY_MS = 86_400_000;
/** An alert of the deployment fires as long before the end. */
const SOON_MS = 1_800_000;

const left = (line: Line) => Number(line.total) - Number(line.used) - Number(line.reserved);

/** A budget's end must not be a reason to hide what it has left. */
async function forecast(): Promise<{ paces: Forecast | null; why: string | null }> {
  try {
    return { paces: await get<Forecast>("budgets"), why: null };
  } catch (error) {
    return { paces: null, why: told(error) };
  }
}

async function load() {
  const [{ budgets }, { paces, why }] = await Promise.all([call<{ budgets: Line[] }>("/v1/budgets/list", {}), forecast()]);
  return { budgets, paces, why };
}

/** When a budget ends that goes on being used so fast, in words. */
function Ends({ line, used, knownMinS }: { line: Line; used: Used | undefined; knownMinS: number }) {
  if (!line.is_set) return <>–</>;
  if (left(line) <= 0) return <Badge level="bad">{t("bud.gone")}</Badge>;
  if (!used || used.known_s < knownMinS) return <>{t("bud.notKnown")}</>;
  if (used.amount <= 0) {
    return <>{used.known_s >= NEARLY_HOUR_S ? t("bud.unusedHour") : t("bud.unused", { span: span(used.known_s * 1000) })}</>;
  }
  const afterMs = (left(line) / used.amount) * used.known_s * 1000;
  if (afterMs > DAY_MS) return <>{t("bud.notToday")}</>;
  const text = t("rep.in", { span: span(afterMs) });
  return afterMs < SOON_MS ? <Badge level="warn">{text}</Badge> : <>{text}</>;
}

export function BudgetsPage() {
  const listed = useLoaded(load);
  const share = (line: Line, part: string) => (Number(line.total) > 0 ? Number(part) / Number(line.total) : 0);
  return (
    <Page
      title={t("nav.budgets")}
      lead={t("bud.lead")}
      actions={
        <button type="button" onClick={listed.reload}>
          {t("act.refresh")}
        </button>
      }
    >
      <Card>
        <Shown of={listed}>
          {({ budgets, paces, why }) => {
            const paceOf = (line: Line) =>
              paces?.budgets.find(
                (one) => one.activity === line.activity && one.scene === line.scene && one.bonus_type === line.bonus_type,
              );
            const knownMinS = paces?.known_min_s ?? 0;
            return (
              <>
                {why !== null && <Note level="warn">{t("bud.noPace", { why })}</Note>}
                {paces?.is_cut && <Note level="warn">{t("bud.cut", { n: paces.budgets.length })}</Note>}
                <Table
                  label={t("nav.budgets")}
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
                    {
                      head: t("bud.endsRecent"),
                      cell: (line) => <Ends line={line} used={paceOf(line)?.recent} knownMinS={knownMinS} />,
                    },
                    {
                      head: t("bud.endsHour"),
                      cell: (line) => <Ends line={line} used={paceOf(line)?.hour} knownMinS={knownMinS} />,
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
                <p class="muted pad">{t("bud.note")}</p>
              </>
            );
          }}
        </Shown>
      </Card>
    </Page>
  );
}
