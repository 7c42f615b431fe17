// Withdrawals that a front end pays out elsewhere, and the word that it has done so.

import { useState } from "preact/hooks";
import { call, type Who } from "../api";
import { wrongText } from "../checks";
import { span, t, when, whole } from "../i18n";
import { Card, Dialog, Fact, Failed, Field, Note, Page, Pager, Select, Shown, Sum, Table, useDoing, useLoaded, type Said } from "../parts";

interface Payout {
  user_id: string;
  withdrawal_id: string;
  bonus_type: string;
  amount: string;
  payout_key: string;
  created_ms: string;
}

interface Held {
  withdrawal_id: string;
  user_id: string;
  bonus_type: string;
  amount: string;
  held_ms: string;
  payer: string;
}

/** The payer of withdrawals that no connector pays out. */
export const FRONT_END = "front end";

const PAGE_SIZE = 1_000;
const PAGES_MAX = 10;
const SHOWN = 50;
const REASON_BYTES_MAX = 200;
const AGES_MS = ["0", "600000", "3600000", "86400000"];

async function all(mayPayOut: boolean, olderThanMs: string): Promise<{ payouts: Payout[]; isCut: boolean }> {
  const payouts: Payout[] = [];
  const asked = { older_than_ms: olderThanMs, page_size: PAGE_SIZE };
  let after = "";
  for (let page = 0; page < PAGES_MAX; page++) {
    if (mayPayOut) {
      const listed = await call<{ payouts: Payout[]; next_after: string }>("/v1/payouts/list", { ...asked, after });
      payouts.push(...listed.payouts);
      after = listed.next_after;
    } else {
      const listed = await call<{ withdrawals: Held[]; next_after: string }>("/v1/withdrawals/held", { ...asked, after });
      const own = listed.withdrawals.filter((one) => one.payer === FRONT_END);
      payouts.push(...own.map((one) => ({ ...one, payout_key: "", created_ms: one.held_ms })));
      after = listed.next_after;
    }
    if (after === "") break;
  }
  payouts.sort((one, other) => Number(one.created_ms) - Number(other.created_ms));
  return { payouts, isCut: after !== "" };
}

export function PayoutsPage({ user }: { user: Who }) {
  const [age, setAge] = useState("0");
  const [page, setPage] = useState(["0"]);
  const [chosen, setChosen] = useState<Payout | null>(null);
  const [late, setLate] = useState<Said | null>(null);
  const mayPayOut = user.roles.includes("pay_out");
  const maySee = mayPayOut || user.roles.includes("observe");
  const listed = useLoaded(() => (maySee ? all(mayPayOut, age) : Promise.resolve({ payouts: [], isCut: false })), maySee, mayPayOut, age);
  return (
    <Page
      title={t("nav.payouts")}
      lead={t("pout.lead")}
      actions={
        maySee && (
          <button type="button" onClick={listed.reload}>
            {t("act.refresh")}
          </button>
        )
      }
    >
      {late && <Note level={late.level}>{late.text}</Note>}
      {!mayPayOut && <Note level="info">{t(maySee ? "pout.needsPayOut" : "pout.needsEither")}</Note>}
      {maySee && (
        <Card title={t("pout.list")}>
          <div class="filters">
            <Select
              label={t("pout.older")}
              value={age}
              options={AGES_MS.map((ms): [string, string] => [ms, ms === "0" ? t("pout.anyAge") : span(Number(ms))])}
              onChange={(next) => {
                setAge(next);
                setPage(["0"]);
              }}
            />
          </div>
          <Shown of={listed}>
            {({ payouts, isCut }) => {
              const from = Number(page.at(-1));
              const now = Date.now();
              return (
                <>
                  {isCut && <Note level="warn">{t("pout.cut", { n: payouts.length })}</Note>}
                  <Table
                    label={t("pout.list")}
                    rows={payouts.slice(from, from + SHOWN)}
                    empty={t("pout.none")}
                    rowKey={(one) => `${one.user_id} ${one.withdrawal_id}`}
                    columns={[
                      { head: t("held.id"), cell: (one) => one.withdrawal_id, isMono: true },
                      { head: t("col.user"), cell: (one) => <a href={`#/user?user=${one.user_id}`}>{one.user_id}</a> },
                      { head: t("col.type"), cell: (one) => one.bonus_type },
                      { head: t("col.amount"), cell: (one) => whole(one.amount), isNumber: true },
                      { head: t("pout.age"), cell: (one) => span(Math.max(0, now - Number(one.created_ms))), isNumber: true },
                      { head: t("col.time"), cell: (one) => when(one.created_ms), isMinor: true },
                      ...(mayPayOut
                        ? [
                            {
                              head: t("pout.acknowledge"),
                              cell: (one: Payout) => (
                                <button
                                  type="button"
                                  aria-label={`${t("pout.acknowledge")} ${one.withdrawal_id} ${t("act.ofUser", { user: one.user_id })}`}
                                  onClick={() => setChosen(one)}
                                >
                                  {t("pout.acknowledge")}
                                </button>
                              ),
                            },
                          ]
                        : []),
                    ]}
                  />
                  {payouts.length > 0 && <p class="muted pad">{t("pout.count", { n: payouts.length })}</p>}
                  {payouts.length > SHOWN && (
                    <Pager at={page} next={from + SHOWN < payouts.length ? String(from + SHOWN) : ""} onMove={setPage} />
                  )}
                </>
              );
            }}
          </Shown>
        </Card>
      )}
      {chosen && (
        <Acknowledge
          payout={chosen}
          onLate={(said) => {
            setLate(said);
            listed.reload();
          }}
          onClose={() => {
            setChosen(null);
            listed.reload();
          }}
        />
      )}
    </Page>
  );
}

type Result = "" | "PAID" | "REFUSED";

function Acknowledge({ payout, onClose, onLate }: { payout: Payout; onClose: () => void; onLate: (said: Said) => void }) {
  const [result, setResult] = useState<Result>("");
  const [reason, setReason] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [isAsked, setAsked] = useState(false);
  const doing = useDoing<{ is_new: boolean }>(t("pout.lost"), onLate);
  const { user_id: user, bonus_type: type, withdrawal_id: id } = payout;
  const amount = whole(payout.amount);
  const said = ({ is_new }: { is_new: boolean }): Said => ({
    level: is_new ? "good" : "warn",
    text: t(is_new ? "pout.done" : "pout.doneBefore", { id, user, result: t(result === "PAID" ? "user.status.PAID" : "pout.refused") }),
  });
  const look = (event: Event) => {
    event.preventDefault();
    const wrong = result === "REFUSED" ? wrongText(reason, REASON_BYTES_MAX) : null;
    setError(wrong);
    if (result !== "" && wrong === null) setAsked(true);
  };
  const acknowledge = () =>
    doing.run(
      () =>
        call<{ is_new: boolean }>("/v1/payouts/acknowledge", {
          user_id: user,
          withdrawal_id: id,
          result: `PAYOUT_RESULT_${result}`,
          reason: result === "REFUSED" ? reason.trim() : "",
        }),
      said,
    );
  const done = doing.done && said(doing.done);
  return (
    <Dialog title={t("pout.acknowledgeNamed", { id })} onClose={onClose} isWide>
      <Sum step={done ? "done" : String(isAsked)}>{t("act.sum", { amount, type, user })}</Sum>
      <dl class="facts">
        <Fact name={t("held.id")} value={id} isMono />
        <Fact name={t("col.user")} value={user} />
        <Fact name={t("col.amount")} value={amount} />
        <Fact name={t("col.type")} value={type} />
        <Fact name={t("pout.key")} value={payout.payout_key} isMono />
        <Fact name={t("col.time")} value={when(payout.created_ms)} />
        <Fact name={t("act.reason")} value={isAsked && result === "REFUSED" ? reason.trim() : ""} />
      </dl>
      {!isAsked ? (
        <form onSubmit={look} noValidate>
          <Select
            label={t("pout.result")}
            value={result}
            options={[
              ["", t("act.choose")],
              ["PAID", t("user.status.PAID")],
              ["REFUSED", t("pout.refused")],
            ]}
            onChange={(next) => setResult(next as Result)}
            size="wide"
          />
          {result === "REFUSED" && (
            <Field label={t("act.reason")} hint={t("pout.reasonHint")} value={reason} onInput={setReason} error={error} size="wide" />
          )}
          <div class="buttons">
            <button type="button" onClick={onClose}>
              {t("act.cancel")}
            </button>
            <button type="submit" class="primary" disabled={result === ""}>
              {t("act.look")}
            </button>
          </div>
        </form>
      ) : (
        <>
          {!done && <Note level="warn">{t(result === "PAID" ? "pout.paidMeans" : "pout.refusedMeans", { amount, type, user })}</Note>}
          <Failed of={doing} lost={t("pout.lost")} />
          {done && <Note level={done.level}>{done.text}</Note>}
          <div class="buttons">
            {done ? (
              <button type="button" onClick={onClose}>
                {t("act.close")}
              </button>
            ) : (
              <>
                <button type="button" disabled={doing.busy} onClick={() => setAsked(false)}>
                  {t("act.back")}
                </button>
                <button type="button" class={result === "PAID" ? "primary" : "danger"} disabled={doing.busy} onClick={acknowledge}>
                  {t(result === "PAID" ? "pout.sayPaid" : "pout.sayRefused", { amount, type, user })}
                </button>
              </>
            )}
          </div>
        </>
      )}
    </Dialog>
  );
}
