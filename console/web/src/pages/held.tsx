// Orders that hold budget, and withdrawals whose payer has not answered.

import { useState } from "preact/hooks";
import { call, told, type Who } from "../api";
import { num, t, when } from "../i18n";
import { Badge, Card, Dialog, Field, Note, Page, Shown, Table, useLoaded } from "../parts";
import { FRONT_END } from "./payouts";

export interface Reserved {
  trade_no: string;
  user_id: string;
  activity: string;
  scene: string;
  bonus_type: string;
  amount: string;
  reserved_ms: string;
  awaits_event: boolean;
  payer: string;
}

interface Held {
  withdrawal_id: string;
  user_id: string;
  bonus_type: string;
  amount: string;
  held_ms: string;
  payer: string;
}

/** An order number counts within its activity. Neither has a space. */
export const nameOf = (order: Reserved): string => `${order.activity} ${order.trade_no}`;

const OLDER_THAN_MS = 60_000;
const PAGE_SIZE = 200;

export function HeldPage({ user }: { user: Who }) {
  const mayPropose = user.roles.includes("operate");
  const reserved = useLoaded(() =>
    call<{ orders: Reserved[]; next_after: string }>("/v1/reserved/list", { older_than_ms: OLDER_THAN_MS, page_size: PAGE_SIZE }),
  );
  const held = useLoaded(() =>
    call<{ withdrawals: Held[]; next_after: string }>("/v1/withdrawals/held", { older_than_ms: OLDER_THAN_MS, page_size: PAGE_SIZE }),
  );
  const [releasing, setReleasing] = useState<Reserved | null>(null);
  return (
    <Page
      title={t("nav.held")}
      lead={t("held.lead")}
      actions={
        <button
          type="button"
          onClick={() => {
            reserved.reload();
            held.reload();
          }}
        >
          {t("act.refresh")}
        </button>
      }
    >
      <Card title={t("held.reserved")}>
        <Shown of={reserved}>
          {({ orders, next_after }) => (
            <>
              <Table
                label={t("held.reserved")}
                rows={orders}
                rowKey={nameOf}
                columns={[
                  { head: t("col.order"), cell: (order) => order.trade_no, isMono: true },
                  { head: t("col.activity"), cell: (order) => order.activity },
                  { head: t("col.user"), cell: (order) => order.user_id, isMinor: true },
                  { head: t("col.type"), cell: (order) => order.bonus_type },
                  { head: t("col.amount"), cell: (order) => num(Number(order.amount)), isNumber: true },
                  { head: t("col.time"), cell: (order) => when(order.reserved_ms), isMinor: true },
                  {
                    head: t("col.state"),
                    cell: (order) => (
                      <Badge level="warn">{order.awaits_event ? t("held.awaitsEvent") : `${t("held.awaitsPayer")} ${order.payer}`}</Badge>
                    ),
                  },
                  {
                    head: t("held.release"),
                    // Its payer may have paid it: two operators decide that.
                    cell: (order) =>
                      order.awaits_event ? (
                        <button type="button" onClick={() => setReleasing(order)}>
                          {t("held.release")}
                        </button>
                      ) : (
                        mayPropose && (
                          <a
                            href={`#/acts?deed=settle_order&order=${encodeURIComponent(order.trade_no)}&activity=${encodeURIComponent(order.activity)}`}
                            aria-label={`${t("held.propose")} ${order.trade_no}`}
                          >
                            {t("held.propose")}
                          </a>
                        )
                      ),
                  },
                ]}
              />
              {next_after !== "" && <p class="muted pad">… {num(PAGE_SIZE)}+</p>}
            </>
          )}
        </Shown>
      </Card>
      <Card title={t("held.withdrawals")}>
        <Shown of={held}>
          {({ withdrawals, next_after }) => (
            <>
              <Table
                label={t("held.withdrawals")}
                rows={withdrawals}
                rowKey={(one) => `${one.user_id} ${one.withdrawal_id}`}
                columns={[
                  { head: t("held.id"), cell: (one) => one.withdrawal_id, isMono: true },
                  { head: t("col.user"), cell: (one) => <a href={`#/user?user=${one.user_id}`}>{one.user_id}</a> },
                  { head: t("col.type"), cell: (one) => one.bonus_type },
                  { head: t("col.amount"), cell: (one) => num(Number(one.amount)), isNumber: true },
                  { head: t("col.time"), cell: (one) => when(one.held_ms), isMinor: true },
                  { head: t("col.payer"), cell: (one) => one.payer },
                  {
                    head: t("act.list"),
                    cell: (one) =>
                      one.payer === FRONT_END ? (
                        <a href="#/payouts" aria-label={`${t("pout.acknowledge")} ${one.withdrawal_id}`}>
                          {t("pout.acknowledge")}
                        </a>
                      ) : (
                        mayPropose && (
                          <a
                            href={`#/acts?deed=settle_withdrawal&user=${one.user_id}&withdrawal=${encodeURIComponent(one.withdrawal_id)}`}
                            aria-label={`${t("held.propose")} ${one.withdrawal_id}`}
                          >
                            {t("held.propose")}
                          </a>
                        )
                      ),
                  },
                ]}
              />
              {next_after !== "" && <p class="muted pad">… {num(PAGE_SIZE)}+</p>}
            </>
          )}
        </Shown>
      </Card>
      {releasing && (
        <Release
          order={releasing}
          onClose={() => {
            setReleasing(null);
            reserved.reload();
          }}
        />
      )}
    </Page>
  );
}

function Release({ order, onClose }: { order: Reserved; onClose: () => void }) {
  const [typed, setTyped] = useState("");
  const [actor, setActor] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const release = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await call("/v1/reserved/release", { activity: order.activity, trade_no: order.trade_no, actor: actor.trim() });
      onClose();
    } catch (failed) {
      setError(told(failed));
      setBusy(false);
    }
  };
  return (
    <Dialog title={t("held.release")} onClose={onClose}>
      <form onSubmit={release}>
        <p class="mono">
          {order.activity} {order.trade_no}
        </p>
        <p class="muted">{t("held.releaseLead")}</p>
        <Field label={t("held.typeOrder")} value={typed} onInput={setTyped} isRequired size="wide" />
        <Field label={t("arc.actor")} value={actor} onInput={setActor} max={64} size="wide" />
        {error && <Note level="bad">{error}</Note>}
        <div class="buttons">
          <button type="button" onClick={onClose}>
            {t("act.cancel")}
          </button>
          <button type="submit" class="danger" disabled={busy || typed !== order.trade_no}>
            {t("held.release")}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
