// A chart of the last hour.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { num, short, t } from "./i18n";

export interface Line {
  name: string;
  values: (number | null)[];
}

const HEIGHT = 170;
/** Lines that have a colour of their own. */
export const LINES_MAX = 6;

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function Chart({ title, atMs, lines, theme }: { title: string; atMs: number[]; lines: Line[]; theme: string }) {
  const box = useRef<HTMLDivElement>(null);
  const names = lines.map((line) => line.name).join("\n");
  const time = t("col.time");
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const holder = box.current;
    if (!holder || lines.length === 0) return;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const own = new uPlot(
      {
        width: holder.clientWidth,
        height: HEIGHT,
        padding: [8, 8, 0, 0],
        cursor: { y: false, points: { size: 6 } },
        legend: { live: true },
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        axes: [
          { ...axis, font: "11px system-ui", size: 26, values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis, font: "11px system-ui", size: 48, values: (_, all) => all.map((value) => short(value)) },
        ],
        series: [
          { label: time, value: (_, at) => (at === null || Number.isNaN(at) ? "–" : new Date(at * 1000).toLocaleTimeString()) },
          ...lines.map((line, at) => ({
            label: line.name,
            stroke: colour(`--line-${(at % LINES_MAX) + 1}`),
            width: 1.6,
            points: { show: false },
            value: (_: uPlot, value: number | null) => (value === null || value === undefined ? "–" : num(value)),
          })),
        ],
      },
      [[], ...lines.map(() => [])] as unknown as uPlot.AlignedData,
      holder,
    );
    plot.current = own;
    const watcher = new ResizeObserver(() => own.setSize({ width: holder.clientWidth, height: HEIGHT }));
    watcher.observe(holder);
    return () => {
      watcher.disconnect();
      own.destroy();
      plot.current = null;
    };
  }, [names, theme, time]);
  useEffect(() => {
    const own = plot.current;
    if (!own) return;
    own.setData([atMs.map((at) => at / 1000), ...lines.map((line) => line.values)] as uPlot.AlignedData);
    // The newest values stand in the legend until somebody points at others.
    if ((own.cursor.left ?? -1) < 0) own.setLegend({ idx: atMs.length - 1 });
  });
  const last = lines.map((line) => `${line.name} ${num(line.values.at(-1) ?? 0)}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      {lines.length === 0 ? (
        <p class="muted pad">{t("chart.none")}</p>
      ) : (
        <div ref={box} role="img" aria-label={`${title}: ${last}`} />
      )}
    </figure>
  );
}
