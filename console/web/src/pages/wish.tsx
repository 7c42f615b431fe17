// Which processes try a change, for how long, and within which bounds: as a person types it, and as the console takes it.

import { between } from "../checks";
import { t } from "../i18n";
import { Field, Select } from "../parts";
import type { Process } from "./trial";

/** As it is typed. A guard that is empty bounds nothing. */
export interface Wish {
  by: "percent" | "names";
  percent: string;
  names: string[];
  minutes: string;
  oldestS: string;
  failedPercent: string;
  lag: string;
}

export const FIRST_WISH: Wish = { by: "percent", percent: "10", names: [], minutes: "10", oldestS: "", failedPercent: "", lag: "" };

const MINUTES_MAX = 10_080;

/** The processes that could try a change, as the console chooses among them. */
function able(processes: Process[]): string[] {
  const isAble = (one: Process) =>
    one.stages === true && (one.state === "runs" || one.state === "behind") && one.source_failure === null;
  return processes.filter(isAble).map((one) => one.process);
}

/** What is wrong with each field; null: nothing. */
function wrong(wish: Wish) {
  const guard = (text: string, min: number, max: number) => (text.trim() === "" ? null : between(text, min, max));
  return {
    percent: wish.by === "percent" ? between(wish.percent, 1, 100) : null,
    names: wish.by === "names" && wish.names.length === 0 ? t("try.nobody") : null,
    minutes: between(wish.minutes, 1, MINUTES_MAX),
    oldestS: guard(wish.oldestS, 1, 86_400),
    failedPercent: guard(wish.failedPercent, 0, 99),
    lag: guard(wish.lag, 1, Number.MAX_SAFE_INTEGER),
  };
}

/** What the console is asked for; null: something is typed wrong. */
export function askedFor(wish: Wish): object | null {
  if (Object.values(wrong(wish)).some((one) => one !== null)) return null;
  const guard = (text: string, unit: number) => (text.trim() === "" ? null : Number(text) * unit);
  return {
    ...(wish.by === "percent" ? { percent: Number(wish.percent) } : { processes: wish.names }),
    proven_after_ms: Number(wish.minutes) * 60_000,
    guards: {
      oldest_max_ms: guard(wish.oldestS, 1_000),
      failed_max_percent: guard(wish.failedPercent, 1),
      lag_max_records: guard(wish.lag, 1),
    },
  };
}

export function WishFields(props: { wish: Wish; processes: Process[]; onChange: (wish: Wish) => void }) {
  const { wish } = props;
  const set = (part: Partial<Wish>) => props.onChange({ ...wish, ...part });
  const wrongs = wrong(wish);
  return (
    <>
      <p class="muted pad">{t("try.means")}</p>
      <div class="filters">
        <Select
          label={t("try.by.label")}
          value={wish.by}
          options={[
            ["percent", t("try.by.percent")],
            ["names", t("try.by.names")],
          ]}
          onChange={(by) => set({ by: by === "names" ? "names" : "percent" })}
        />
        {wish.by === "percent" && (
          <Field label={t("try.percent")} value={wish.percent} onInput={(percent) => set({ percent })} error={wrongs.percent} />
        )}
        <Field label={t("try.minutes")} value={wish.minutes} onInput={(minutes) => set({ minutes })} error={wrongs.minutes} />
      </div>
      {wish.by === "names" && (
        <Names all={able(props.processes)} chosen={wish.names} error={wrongs.names} onChange={(names) => set({ names })} />
      )}
      <fieldset>
        <legend class="label">{t("try.giveUp")}</legend>
        <div class="filters">
          <Field label={t("try.oldest")} value={wish.oldestS} onInput={(oldestS) => set({ oldestS })} error={wrongs.oldestS} />
          <Field
            label={t("try.failedMax")}
            value={wish.failedPercent}
            onInput={(failedPercent) => set({ failedPercent })}
            error={wrongs.failedPercent}
          />
          <Field label={t("try.lag")} value={wish.lag} onInput={(lag) => set({ lag })} error={wrongs.lag} />
        </div>
        {`${wish.oldestS}${wish.failedPercent}${wish.lag}`.trim() === "" && <p class="muted">{t("try.noGuard")}</p>}
      </fieldset>
    </>
  );
}

function Names(props: { all: string[]; chosen: string[]; error: string | null; onChange: (names: string[]) => void }) {
  const { all, chosen } = props;
  // One that was chosen and is away stays to be seen, and to be taken out.
  const shown = [...all, ...chosen.filter((name) => !all.includes(name))];
  return (
    <fieldset class="names">
      <legend class="label">{t("try.processes")}</legend>
      {shown.length === 0 && <p class="muted">{t("try.noProcess")}</p>}
      {shown.map((name) => (
        <label key={name} class="check mono">
          <input
            type="checkbox"
            checked={chosen.includes(name)}
            onChange={(event) => {
              const others = chosen.filter((one) => one !== name);
              props.onChange(event.currentTarget.checked ? [...others, name] : others);
            }}
          />
          {name}
        </label>
      ))}
      {props.error && shown.length > 0 && (
        <p class="wrong" role="alert">
          {props.error}
        </p>
      )}
    </fieldset>
  );
}
