// What two operators do: one proposes an act, and another one approves it.

import { useState } from "preact/hooks";
import {
  GROUPS,
  SORTS,
  allActs,
  deedOf,
  isAdjustment,
  isOfOrder,
  isOfWithdrawal,
  isOwn,
  nameOf,
  said,
  sortOf,
  subjectOf,
  type Act,
  type Deed,
  type Sort,
  type Subject,
  type Typed,
} from "../acts";
import { call, told, type Who } from "../api";
import { tooLong, wrongAmount, wrongName, wrongText, wrongUser } from "../checks";
import { t, when, whole, type Word } from "../i18n";
import { Badge, Card, Dialog, Fact, Failed, Field, Note, Page, Pager, Select, Shown, Sum, Table, useDoing, useLoaded, type Said } from "../parts";

const SHOWN = 50;
const TEXT_BYTES_MAX = 1_000;
const NAME_BYTES_MAX = 128;
const ACTOR_BYTES_MAX = 64;
/** Hours that an act can be approved in. */
const VALID_H = ["24", "168", "720"];

export function ActsPage({ query, user }: { query: URLSearchParams; user: Who }) {
  const [filter, setFilter] = useState("open");
  const [page, setPage] = useState(["0"]);
  const [opened, setOpened] = useState<string | null>(query.get("act"));
  const [late, setLate] = useState<Said | null>(null);
  const mayObserve = user.roles.includes("observe");
  const listed = useLoaded(
    () => (mayObserve ? allActs(filter === "open") : Promise.resolve({ acts: [], isCut: false })),
    filter,
    mayObserve,
  );
  const onLate = (said: Said) => {
    setLate(said);
    listed.reload();
  };
  if (!mayObserve) {
    return (
      <Page title={t("act.title")} lead={t("act.lead")}>
        <Note level="info">{t("role.needs", { role: "observe" })}</Note>
      </Page>
    );
  }
  return (
    <Page
      title={t("act.title")}
      lead={t("act.lead")}
      actions={
        <button type="button" onClick={listed.reload}>
          {t("act.refresh")}
        </button>
      }
    >
      {late && <Note level={late.level}>{late.text}</Note>}
      <Card title={t("act.list")}>
        <div class="filters">
          <Select
            label={t("act.filter")}
            value={filter}
            options={[
              ["open", t("act.filter.open")],
              ["all", t("act.filter.all")],
            ]}
            onChange={(next) => {
              setFilter(next);
              setPage(["0"]);
            }}
          />
        </div>
        <Shown of={listed}>
          {({ acts, isCut }) => {
            const from = Number(page.at(-1));
            return (
              <>
                {isCut && <Note level="warn">{t("act.cut", { n: acts.length })}</Note>}
                <Table
                  label={t("act.list")}
                  rows={acts.slice(from, from + SHOWN)}
                  empty={t(filter === "open" ? "act.noneOpen" : "state.none")}
                  rowKey={(act) => act.id}
                  columns={[
                    {
                      head: t("act.number"),
                      cell: (act) => (
                        <button type="button" class="link" onClick={() => setOpened(act.id)}>
                          {t("act.named", { id: act.id })}
                        </button>
                      ),
                    },
                    { head: t("act.what"), cell: (act) => <What act={act} /> },
                    {
                      head: t("col.state"),
                      cell: (act) => (
                        <>
                          <State act={act} />
                          {act.status === "ACT_STATUS_OPEN" && isOwn(act, user.name) && (
                            <>
                              {" "}
                              <Badge level="plain">{t("act.own")}</Badge>
                            </>
                          )}
                        </>
                      ),
                    },
                    { head: t("act.reason"), cell: (act) => act.reason, isMinor: true },
                    { head: t("act.evidence"), cell: (act) => act.evidence, isMinor: true },
                    { head: t("act.proposedBy"), cell: (act) => act.proposed_by },
                    { head: t("act.until"), cell: (act) => when(act.expires_ms), isMinor: true },
                  ]}
                />
                {acts.length > SHOWN && (
                  <Pager at={page} next={from + SHOWN < acts.length ? String(from + SHOWN) : ""} onMove={setPage} />
                )}
              </>
            );
          }}
        </Shown>
      </Card>
      {user.roles.includes("operate") ? (
        <Propose query={query} onLate={onLate} onProposed={listed.reload} />
      ) : (
        <Note level="info">{t("act.needsOperate")}</Note>
      )}
      {opened && (
        <ActDialog
          id={opened}
          user={user}
          onLate={onLate}
          onClose={() => {
            setOpened(null);
            listed.reload();
          }}
        />
      )}
    </Page>
  );
}

function What({ act }: { act: Act }) {
  const sort = sortOf(act.deed);
  if (!sort || !act.deed) return <span class="mono">{JSON.stringify(act.deed ?? {})}</span>;
  const { adjust_account: adjusted, settle_withdrawal, freeze_user, thaw_user } = act.deed;
  const user = adjusted?.user_id ?? settle_withdrawal?.user_id ?? freeze_user?.user_id ?? thaw_user?.user_id;
  return (
    <>
      {said(sort)}
      {adjusted && `: ${whole(adjusted.amount)} ${adjusted.bonus_type}`}
      {user && `, ${t("act.ofUser", { user })}`}
      {nameOf(act.deed) && <div class="mono muted">{nameOf(act.deed)}</div>}
    </>
  );
}

function State({ act }: { act: Act }) {
  const state = act.status.replace("ACT_STATUS_", "");
  const level = state === "OPEN" ? "warn" : state === "DONE" ? "good" : state === "NOT_DONE" ? "bad" : "plain";
  return <Badge level={level}>{t(`act.state.${state}` as Word)}</Badge>;
}

/** Whose money, how much of it, of which type: what every confirmation repeats. */
function sum({ user, amount, type }: Subject): string {
  return amount === "" ? t("user.named", { user }) : t("act.sum", { amount: whole(amount), type, user });
}

function Means({ sort, subject }: { sort: Sort; subject: Subject }) {
  const { user, type, amount } = subject;
  return <p>{t(`act.means.${sort}` as Word, { user, type, amount: whole(amount) })}</p>;
}

function SubjectFacts({ subject }: { subject: Subject }) {
  return (
    <>
      <Fact name={t("col.order")} value={subject.order} isMono />
      <Fact name={t("held.id")} value={subject.withdrawal} isMono />
      <Fact name={t("col.user")} value={subject.user} />
      <Fact name={t("col.amount")} value={subject.amount && whole(subject.amount)} />
      <Fact name={t("col.type")} value={subject.type} />
      <Fact name={t("col.activity")} value={[subject.activity, subject.scene].filter(Boolean).join(" / ")} />
      <Fact name={t("col.payer")} value={subject.payer} />
      <Fact name={t("act.now")} value={subject.state} />
    </>
  );
}

const NO_ERRORS: Partial<Record<keyof Typed | "reason" | "evidence" | "actor", string | null>> = {};

function Propose({ query, onLate, onProposed }: { query: URLSearchParams; onLate: (said: Said) => void; onProposed: () => void }) {
  const sorts = GROUPS[query.get("deed") ?? ""] ?? SORTS;
  const [sort, setSort] = useState<Sort | "">((sorts.length === 1 && sorts[0]) || "");
  const [typed, setTyped] = useState<Typed>({
    order: query.get("order") ?? "",
    activity: query.get("activity") ?? "",
    user: query.get("user") ?? "",
    withdrawal: query.get("withdrawal") ?? "",
    type: query.get("type") ?? "",
    amount: "",
    scene: "",
  });
  const [reason, setReason] = useState("");
  const [evidence, setEvidence] = useState("");
  const [actor, setActor] = useState("");
  const [validH, setValidH] = useState("168");
  const [errors, setErrors] = useState(NO_ERRORS);
  const [proposal, setProposal] = useState<Proposal | null>(null);
  const field = (name: keyof Typed, label: string, hint?: string) => (
    <Field
      size={name === "order" ? "wide" : undefined}
      label={label}
      hint={hint}
      value={typed[name]}
      onInput={(value) => setTyped({ ...typed, [name]: value })}
      error={errors[name]}
    />
  );
  const look = (event: Event) => {
    event.preventDefault();
    if (sort === "") return;
    const clean: Typed = { ...typed };
    for (const name of Object.keys(clean) as (keyof Typed)[]) clean[name] = clean[name].trim();
    const wrong: typeof errors = { reason: wrongText(reason, TEXT_BYTES_MAX), evidence: wrongText(evidence, TEXT_BYTES_MAX), actor: tooLong(actor, ACTOR_BYTES_MAX) };
    if (isOfOrder(sort)) {
      wrong.order = wrongName(clean.order);
      wrong.activity = tooLong(clean.activity, NAME_BYTES_MAX);
    } else {
      wrong.user = wrongUser(clean.user);
    }
    if (isOfWithdrawal(sort)) wrong.withdrawal = wrongName(clean.withdrawal);
    if (isAdjustment(sort)) {
      wrong.type = wrongText(clean.type, NAME_BYTES_MAX);
      wrong.amount = wrongAmount(clean.amount);
      wrong.activity = wrongText(clean.activity, NAME_BYTES_MAX);
      if (sort.endsWith("_budget")) wrong.scene = wrongText(clean.scene, NAME_BYTES_MAX);
    }
    setErrors(wrong);
    if (Object.values(wrong).some((one) => one)) return;
    setProposal({
      sort,
      deed: deedOf(sort, clean),
      reason: reason.trim(),
      evidence: evidence.trim(),
      actor: actor.trim(),
      valid_s: Number(validH) * 3_600,
    });
  };
  return (
    <Card title={t("act.propose")}>
      <form onSubmit={look} noValidate>
        <div class="filters">
          <Select
            label={t("act.what")}
            value={sort}
            options={[["", t("act.choose")], ...sorts.map((one): [string, string] => [one, said(one)])]}
            onChange={(next) => {
              setSort(next as Sort | "");
              setErrors(NO_ERRORS);
            }}
          />
          {sort !== "" && isOfOrder(sort) && (
            <>
              {field("order", t("fnd.order"))}
              {field("activity", t("col.activity"), t("act.activityHint"))}
            </>
          )}
          {sort !== "" && !isOfOrder(sort) && field("user", t("fnd.user"))}
          {sort !== "" && isOfWithdrawal(sort) && field("withdrawal", t("held.id"))}
          {sort !== "" && isAdjustment(sort) && (
            <>
              {field("type", t("lane.type"))}
              {field("amount", t("col.amount"), t("act.amountHint"))}
              {field("activity", t("col.activity"))}
              {sort.endsWith("_budget") && field("scene", t("col.scene"))}
            </>
          )}
        </div>
        {sort !== "" && (
          <>
            <div class="filters">
              <Field label={t("act.reason")} hint={t("act.reasonHint")} value={reason} onInput={setReason} error={errors.reason} size="wide" />
              <Field label={t("act.evidence")} hint={t("act.evidenceHint")} value={evidence} onInput={setEvidence} error={errors.evidence} size="wide" />
            </div>
            <div class="filters">
              <Field label={t("arc.actor")} value={actor} onInput={setActor} error={errors.actor} />
              <Select
                label={t("act.valid")}
                value={validH}
                options={VALID_H.map((hours): [string, string] => [hours, t(`act.valid.${hours}` as Word)])}
                onChange={setValidH}
              />
              <span class="grow" />
              <button type="submit" class="primary">
                {t("act.look")}
              </button>
            </div>
          </>
        )}
      </form>
      {proposal && (
        <ProposeDialog
          proposal={proposal}
          onLate={onLate}
          onClose={() => {
            setProposal(null);
            onProposed();
          }}
        />
      )}
    </Card>
  );
}

interface Proposal {
  sort: Sort;
  deed: Deed;
  reason: string;
  evidence: string;
  actor: string;
  valid_s: number;
}

/** The deed with the activity that its order turned out to have. */
function resolved(deed: Deed, { activity }: Subject): Deed {
  const own = { ...deed };
  if (own.settle_order) own.settle_order = { ...own.settle_order, activity };
  if (own.release_order) own.release_order = { ...own.release_order, activity };
  if (own.reverse_order) own.reverse_order = { ...own.reverse_order, activity };
  return own;
}

interface Proposed {
  act: Act;
  is_repeat: boolean;
}

function saidOfProposed({ act, is_repeat }: Proposed): Said {
  if (!is_repeat) return { level: "good", text: t("act.proposed", { id: act.id, until: when(act.expires_ms) }) };
  return { level: "warn", text: t("act.repeat", { id: act.id, state: t(`act.state.${act.status.replace("ACT_STATUS_", "")}` as Word) }) };
}

function ProposeDialog({ proposal, onClose, onLate }: { proposal: Proposal; onClose: () => void; onLate: (said: Said) => void }) {
  const { sort, deed, reason, evidence, actor, valid_s } = proposal;
  const subject = useLoaded(() => subjectOf(deed), deed);
  const doing = useDoing<Proposed>(t("act.lostProposal"), onLate);
  const propose = (found: Subject) =>
    doing.run(
      () => call<Proposed>("/v1/acts/propose", { deed: resolved(deed, found), reason, evidence, actor, valid_s }),
      saidOfProposed,
    );
  const done = doing.done && saidOfProposed(doing.done);
  return (
    <Dialog title={t("act.proposeNamed", { what: said(sort) })} onClose={onClose} isWide>
      <Shown of={subject}>
        {(found) => (
          <>
            <Sum step={doing.done ? "done" : "look"}>{sum(found)}</Sum>
            <dl class="facts">
              <SubjectFacts subject={found} />
              <Fact name={t("act.reason")} value={reason} />
              <Fact name={t("act.evidence")} value={evidence} />
            </dl>
            <h3>{t("act.follows")}</h3>
            <Means sort={sort} subject={found} />
            <p class="muted">{t("act.proposeMeans")}</p>
            <Failed of={doing} lost={t("act.lostProposal")} />
            {done && <Note level={done.level}>{done.text}</Note>}
            {doing.done?.act.about && <p class="muted">{doing.done.act.about}</p>}
            <div class="buttons">
              <button type="button" onClick={onClose}>
                {t(doing.done ? "act.close" : "act.cancel")}
              </button>
              {!doing.done && (
                <button type="button" class="primary" disabled={doing.busy} onClick={() => propose(found)}>
                  {t(doing.failed ? "act.proposeAgain" : "act.propose")}
                </button>
              )}
            </div>
          </>
        )}
      </Shown>
    </Dialog>
  );
}

interface EndedAct {
  act: Act;
  was_ended: boolean;
}

function saidOfEnded({ act, was_ended }: EndedAct): Said {
  const state = act.status.replace("ACT_STATUS_", "");
  const text = `${t("act.ended", { id: act.id, state: t(`act.state.${state}` as Word) })} ${act.detail}`.trim();
  if (was_ended) return { level: "warn", text: `${t("act.wasEnded")} ${text}` };
  return { level: state === "NOT_DONE" ? "bad" : "good", text };
}

function ActDialog({ id, user, onClose, onLate }: { id: string; user: Who; onClose: () => void; onLate: (said: Said) => void }) {
  const found = useLoaded(async () => {
    const { act } = await call<{ act: Act }>("/v1/acts/get", { id });
    // An act is shown also where what it is about cannot be looked up; it is not approved then.
    const subject = sortOf(act.deed) && act.deed ? await subjectOf(act.deed).catch(told) : null;
    return { act, subject };
  }, id);
  return (
    <Dialog title={t("act.named", { id })} onClose={onClose} isWide>
      <Shown of={found}>
        {({ act, subject }) => <ActShown act={act} subject={subject} user={user} onClose={onClose} onLate={onLate} />}
      </Shown>
    </Dialog>
  );
}

type Step = "look" | "approve" | "refuse";

function ActShown(props: { act: Act; subject: Subject | string | null; user: Who; onClose: () => void; onLate: (said: Said) => void }) {
  const { act, user, onClose, onLate } = props;
  const subject = typeof props.subject === "string" ? null : props.subject;
  const sort = sortOf(act.deed);
  const [step, setStep] = useState<Step>("look");
  const [actor, setActor] = useState("");
  const [why, setWhy] = useState("");
  const doing = useDoing<EndedAct>(t("act.lostEnd"), onLate);
  const isOpen = act.status === "ACT_STATUS_OPEN";
  const isMine = isOwn(act, user.name);
  const mayApprove = user.roles.includes("approve");
  const mayRefuse = user.roles.includes("operate");
  const wrongActor = tooLong(actor, ACTOR_BYTES_MAX);
  const wrongWhy = tooLong(why, TEXT_BYTES_MAX);
  const approve = () => doing.run(() => call<EndedAct>("/v1/acts/approve", { id: act.id, actor: actor.trim() }), saidOfEnded);
  const refuse = () =>
    doing.run(() => call<EndedAct>("/v1/acts/refuse", { id: act.id, actor: actor.trim(), reason: why.trim() }), saidOfEnded);
  const done = doing.done && saidOfEnded(doing.done);
  return (
    <>
      <Sum step={doing.done ? "done" : step}>{[sort ? said(sort) : t("act.what"), subject && sum(subject)].filter(Boolean).join(": ")}</Sum>
      <p class="pad">
        <State act={doing.done?.act ?? act} />
      </p>
      <dl class="facts">
        {subject && <SubjectFacts subject={subject} />}
        {!sort && <Fact name={t("act.what")} value={JSON.stringify(act.deed ?? {})} isMono />}
        <Fact name={t("act.about")} value={act.about} />
        <Fact name={t("act.reason")} value={act.reason} />
        <Fact name={t("act.evidence")} value={act.evidence} />
        <Fact name={t("act.proposedBy")} value={`${act.proposed_by}, ${when(act.proposed_ms)}`} />
        <Fact name={t("act.until")} value={when(act.expires_ms)} />
        <Fact name={t("act.endedBy")} value={act.ended_ms === "0" ? "" : `${act.ended_by}, ${when(act.ended_ms)}`} />
        <Fact name={t("col.detail")} value={act.detail} />
      </dl>
      {isOpen && sort && subject && (
        <>
          <h3>{t("act.follows")}</h3>
          <Means sort={sort} subject={subject} />
        </>
      )}
      {isOpen && !doing.done && (
        <>
          {isMine && <Note level="info">{t("act.ownMeans", { name: user.name })}</Note>}
          {!isMine && !mayApprove && <Note level="info">{t("act.needsApprove")}</Note>}
          {!isMine && mayApprove && !sort && <Note level="warn">{t("act.unknown")}</Note>}
          {typeof props.subject === "string" && <Note level="bad">{`${t("act.noSubject")} ${props.subject}`}</Note>}
          {!mayRefuse && <p class="muted">{t("act.needsOperateToRefuse")}</p>}
        </>
      )}
      {step === "approve" && !doing.done && subject && (
        <>
          <Note level="warn">{`${t("act.approveMeans", { id: act.id })} ${sum(subject)}`}</Note>
          <Field label={t("arc.actor")} value={actor} onInput={setActor} error={wrongActor} size="wide" />
        </>
      )}
      {step === "refuse" && !doing.done && (
        <>
          <Note level="info">{t("act.refuseMeans", { id: act.id })}</Note>
          <Field label={t("act.reason")} value={why} onInput={setWhy} error={wrongWhy} size="wide" />
          <Field label={t("arc.actor")} value={actor} onInput={setActor} error={wrongActor} size="wide" />
        </>
      )}
      <Failed of={doing} lost={t("act.lostEnd")} />
      {done && <Note level={done.level}>{done.text}</Note>}
      <div class="buttons">
        {step === "look" || doing.done ? (
          <button type="button" onClick={onClose}>
            {t("act.close")}
          </button>
        ) : (
          <button type="button" disabled={doing.busy} onClick={() => setStep("look")}>
            {t("act.back")}
          </button>
        )}
        {isOpen && step === "look" && mayRefuse && (
          <button type="button" onClick={() => setStep("refuse")}>
            {t("act.refuseStep")}
          </button>
        )}
        {isOpen && step === "look" && !isMine && mayApprove && subject && (
          <button type="button" class="primary" onClick={() => setStep("approve")}>
            {t("act.approveStep")}
          </button>
        )}
        {step === "approve" && !doing.done && (
          <button type="button" class="danger" disabled={doing.busy || wrongActor !== null} onClick={approve}>
            {t("act.approve", { id: act.id })}
          </button>
        )}
        {step === "refuse" && !doing.done && (
          <button type="button" class="primary" disabled={doing.busy || wrongActor !== null || wrongWhy !== null} onClick={refuse}>
            {t("act.refuse", { id: act.id })}
          </button>
        )}
      </div>
    </>
  );
}
