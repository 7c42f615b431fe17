// The page's frame: who has signed in, which page is open, language and theme.

import { render } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, onSignedOut, signIn, signOut, told, who, type Who } from "./api";
import { Sample, type Newest } from "./flow";
import { firstLang, t, useLang, type Lang, type Word } from "./i18n";
import { ActsPage } from "./pages/acts";
import { ArchivePage } from "./pages/archive";
import { BudgetsPage } from "./pages/budgets";
import { FindPage } from "./pages/find";
import { FlowPage } from "./pages/flow";
import { HeldPage } from "./pages/held";
import { InstancesPage } from "./pages/instances";
import { PayoutsPage } from "./pages/payouts";
import { ReconcilePage } from "./pages/reconcile";
import { RulesPage } from "./pages/rules";
import { SchedulePage } from "./pages/schedule";
import { UserPage } from "./pages/user";
import { Field, Note } from "./parts";
import "uplot/dist/uPlot.min.css";
import "./style.css";

export type Theme = "auto" | "light" | "dark";

const PAGES = [
  "flow",
  "find",
  "user",
  "archive",
  "held",
  "payouts",
  "acts",
  "budgets",
  "reconcile",
  "rules",
  "schedule",
  "instances",
] as const;
type PageName = (typeof PAGES)[number];
const STALE_MS = 5_000;

function route(): { page: PageName; query: URLSearchParams } {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const page = PAGES.find((one) => one === path) ?? "flow";
  return { page, query: new URLSearchParams(query) };
}

/** A sample a second while the page can be seen. */
function useSample(isWanted: boolean): { sample: Sample | null; isStale: boolean; error: string | null } {
  const [sample, setSample] = useState<Sample | null>(null);
  const [isStale, setStale] = useState(false);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    if (!isWanted) return;
    let timer = 0;
    let isOver = false;
    let lastAt = 0;
    let freshAt = performance.now();
    const next = async () => {
      if (!document.hidden) {
        try {
          const newest = await get<Newest>("flow");
          if (isOver) return;
          if (newest.at_ms !== lastAt) freshAt = performance.now();
          lastAt = newest.at_ms;
          setSample(new Sample(newest));
          setError(null);
        } catch (failed) {
          if (isOver) return;
          setError(told(failed));
        }
        setStale(performance.now() - freshAt > STALE_MS);
      }
      if (!isOver) timer = window.setTimeout(next, 1_000);
    };
    void next();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [isWanted]);
  return { sample, isStale, error };
}

function App() {
  const [lang, setLang] = useState<Lang>(firstLang);
  const [theme, setTheme] = useState<Theme>(() => (localStorage.getItem("theme") as Theme | null) ?? "auto");
  const [user, setUser] = useState<Who | null | undefined>(undefined);
  const [away, setAway] = useState<string | null>(null);
  useLang(lang);
  useEffect(() => {
    localStorage.setItem("lang", lang);
  }, [lang]);
  useEffect(() => {
    localStorage.setItem("theme", theme);
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    onSignedOut(() => setUser(null));
    who()
      .then(setUser)
      .catch((error: unknown) => setAway(told(error)));
  }, []);
  const settings = <Settings lang={lang} setLang={setLang} theme={theme} setTheme={setTheme} />;
  if (away) return <Note level="bad">{away}</Note>;
  if (user === undefined) return <p class="muted pad">{t("state.loading")}</p>;
  if (user === null) return <SignIn settings={settings} onDone={setUser} />;
  return <Shell user={user} settings={settings} theme={theme} onSignOut={() => setUser(null)} />;
}

function Settings(props: {
  lang: Lang;
  setLang: (lang: Lang) => void;
  theme: Theme;
  setTheme: (theme: Theme) => void;
}) {
  return (
    <div class="settings">
      <select
        aria-label={t("app.lang")}
        value={props.lang}
        onChange={(event) => props.setLang(event.currentTarget.value as Lang)}
      >
        <option value="en">English</option>
        <option value="zh">中文</option>
      </select>
      <select
        aria-label={t("app.theme")}
        value={props.theme}
        onChange={(event) => props.setTheme(event.currentTarget.value as Theme)}
      >
        <option value="auto">{t("app.theme.auto")}</option>
        <option value="light">{t("app.theme.light")}</option>
        <option value="dark">{t("app.theme.dark")}</option>
      </select>
    </div>
  );
}

function Mark() {
  return <img src="/console/icon.svg" alt="" width="28" height="28" />;
}

function SignIn({ settings, onDone }: { settings: preact.ComponentChildren; onDone: (who: Who) => void }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      onDone(await signIn(key.trim()));
    } catch (failed) {
      setError(told(failed));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form class="card" onSubmit={submit}>
        <div class="brand">
          <Mark />
          <h1>{t("app.title")}</h1>
        </div>
        <Field label={t("in.key")} hint={t("in.hint")} value={key} onInput={setKey} isSecret isRequired size="wide" />
        {error && <Note level="bad">{error}</Note>}
        <button type="submit" class="primary" disabled={busy || key.trim() === ""}>
          {t("in.go")}
        </button>
        {settings}
      </form>
    </main>
  );
}

function Shell(props: { user: Who; settings: preact.ComponentChildren; theme: Theme; onSignOut: () => void }) {
  const { user, settings, theme, onSignOut } = props;
  const [at, setAt] = useState(route);
  const main = useRef<HTMLElement>(null);
  const mayObserve = user.roles.includes("observe");
  const { sample, isStale, error } = useSample(mayObserve);
  useEffect(() => {
    const moved = () => {
      setAt(route());
      main.current?.focus({ preventScroll: true });
      window.scrollTo(0, 0);
    };
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    // On a phone the pages are a row that is longer than the screen.
    document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [at.page]);
  const [stuck, setStuck] = useState<string | null>(null);
  const leave = useCallback(async () => {
    try {
      await signOut();
    } catch (failed) {
      // A session that has ended is what was asked for; any other one lives on, and that must be seen.
      if (!(failed instanceof ApiError && failed.status === 401)) {
        setStuck(told(failed));
        return;
      }
    }
    onSignOut();
  }, []);
  return (
    <div class="shell">
      <header class="top">
        <a
          class="skip"
          href={location.hash || "#/flow"}
          onClick={(event) => {
            event.preventDefault();
            main.current?.focus();
          }}
        >
          {t("app.skip")}
        </a>
        <a class="brand" href="#/flow">
          <Mark />
          <span>Windfall</span>
        </a>
        {mayObserve && (
          <span class={`pulse ${isStale || error ? "bad" : "good"}`} role="status">
            {isStale || error ? t("app.stale") : t("app.live")}
          </span>
        )}
        <span class="grow" />
        {settings}
        <span class="who" title={user.roles.join(", ")}>
          {user.name}
        </span>
        <button type="button" onClick={leave}>
          {t("app.signout")}
        </button>
      </header>
      <nav aria-label={t("app.nav")}>
        {PAGES.map((page) => (
          <a
            key={page}
            href={`#/${page}`}
            aria-current={at.page === page ? "page" : undefined}
          >
            {t(`nav.${page}` as Word)}
          </a>
        ))}
        <span class="grow" />
        <a class="version" href="/console/licences.txt" target="_blank" rel="noreferrer">
          {user.version}
        </a>
      </nav>
      <main ref={main} tabIndex={-1}>
        {stuck && <Note level="bad">{t("app.stuck", { why: stuck })}</Note>}
        {error && <Note level="bad">{error}</Note>}
        {at.page === "flow" && !mayObserve && <Note level="info">{t("flow.role")}</Note>}
        {at.page === "flow" && mayObserve && <FlowPage sample={sample} theme={theme} at={at.query.get("at")} />}
        {at.page === "find" && <FindPage key={at.query.toString()} query={at.query} user={user} />}
        {at.page === "user" && <UserPage key={at.query.toString()} query={at.query} user={user} />}
        {at.page === "archive" && <ArchivePage query={at.query} />}
        {at.page === "held" && <HeldPage user={user} />}
        {at.page === "payouts" && <PayoutsPage user={user} />}
        {at.page === "acts" && <ActsPage key={at.query.toString()} query={at.query} user={user} />}
        {at.page === "budgets" && <BudgetsPage />}
        {at.page === "reconcile" && <ReconcilePage user={user} />}
        {at.page === "rules" && <RulesPage user={user} query={at.query} />}
        {at.page === "schedule" && <SchedulePage sample={sample} user={user} />}
        {at.page === "instances" && <InstancesPage sample={sample} user={user} />}
      </main>
    </div>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
