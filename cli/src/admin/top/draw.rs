//! Draws a picture: a function of the picture, the view and the size alone. The text of `--once` is the same, with all rows.

use super::findings::Level;
use super::picture::{Picture, ProcessState, Senders, Topic, Type};
use super::view::{TableAt, View};
use super::words::{count, or_dash, short, span};
use crate::admin::utc;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Cell, Clear, HighlightSpacing, Paragraph, Row, StatefulWidget, Table, TableState, Widget, Wrap,
};

/// The columns that the picture needs.
pub const WIDTH_MIN: u16 = 80;
/// The rows that the picture needs.
pub const HEIGHT_MIN: u16 = 24;
/// The columns of printed text at most.
const PRINTED_MAX: u16 = 240;
/// The rows of each part of printed text at most.
const ROWS_PRINTED_MAX: usize = 1_000;
/// The columns of the names of a table where there is room for more, unless one needs them.
const NAME_COLUMNS: usize = 32;
/// The lines that are always there: two of the head, senders, grants, two of ends, what is selected, and the keys.
const LINES: u16 = 8;
/// The heads of both tables.
const HEADS: u16 = 2;

/// The rows that each part gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    topics: u16,
    types: u16,
    calls: u16,
    findings: u16,
}

/// The numbers' columns of both tables, with their widths; the name has the rest.
const TOPIC_COLUMNS: [(&str, u16); 7] =
    [("LAG", 6), ("LASTS", 6), ("IN/s", 6), ("OUT/s", 6), ("READERS", 7), ("OLDEST", 6), ("STATE", 12)];
const TYPE_COLUMNS: [(&str, u16); 8] = [
    ("RATE/s", 6),
    ("LIMIT/s", 7),
    ("USED", 5),
    ("FUSE", 6),
    ("WAITING", 7),
    ("LASTS", 6),
    ("OLDEST", 6),
    ("STATE", 10),
];

const HELP: &str = "\
q, Ctrl-C   quit                     p, space      pause the picture, and go on
Tab         the other table          up, down      select a row
s, S        sort by another column   ?             this help, and back

LASTS    how long what waits lasts at the present rate; - while nothing moves
READERS  processes that read the topic now
OLDEST   age of the oldest record in flight; of a type: of which events wait
USED     the rate in per cent of the limit
A rate is of the time between the last two readings; - before the second.
ENDS are counted since each process was started, and in brackets per
second. What WAITS is there now.";

/// Draws it on a screen.
pub fn screen(picture: &Picture, view: &View, area: Rect, buf: &mut Buffer) {
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let what = format!(
            "This terminal has {} columns and {} rows. windfall top needs {WIDTH_MIN} and {HEIGHT_MIN}: make it larger, \
             or use windfall top --once. q quits.",
            area.width, area.height
        );
        Paragraph::new(what).wrap(Wrap { trim: true }).render(area, buf);
        return;
    }
    let pen = Pen { picture, view, is_printed: false };
    pen.draw(plan(picture, area.height), area, buf);
    if view.is_help {
        help(area, buf);
    }
}

/// The same as text with all rows, for a pipe.
pub fn text(picture: &Picture) -> String {
    let rows = |count: usize| u16::try_from(count.clamp(1, ROWS_PRINTED_MAX)).unwrap_or(u16::MAX);
    let plan = Plan {
        topics: rows(picture.topics.len()),
        types: rows(picture.types.len()),
        calls: rows(picture.latencies.len()),
        findings: rows(picture.findings.len()),
    };
    let longest = picture.topics.iter().map(|topic| &topic.name);
    let longest =
        longest.chain(picture.types.iter().map(|one| &one.name)).map(|name| Span::raw(name).width());
    let view = View::new(false);
    let pen = Pen { picture, view: &view, is_printed: true };
    let sentences = [pen.head(WIDTH_MIN), pen.findings(usize::MAX), vec![pen.grants()]].concat();
    let sentences = sentences.iter().map(Line::width);
    let wide = longest.map(|name| name + 70).chain(sentences).max().unwrap_or(0);
    let width = u16::try_from(wide).unwrap_or(PRINTED_MAX).clamp(WIDTH_MIN, PRINTED_MAX);
    let height = LINES + HEADS + 1 + plan.topics + plan.types + plan.calls + plan.findings;
    let area = Rect::new(0, 0, width, height);
    let mut buf = Buffer::empty(area);
    pen.draw(plan, area, &mut buf);
    let line = |y: u16| -> String { (0..width).filter_map(|x| Some(buf.cell((x, y))?.symbol())).collect() };
    let lines: Vec<String> = (0..height).map(|y| line(y).trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned()
}

/// Shares the rows: what needs a look and calls get some, then the tables what they need, then the former the rest.
fn plan(picture: &Picture, height: u16) -> Plan {
    let rows = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).max(1);
    let [topics, types] = [picture.topics.len(), picture.types.len()].map(rows);
    let [all_calls, all_findings] = [picture.latencies.len(), picture.findings.len()].map(rows);
    let left = height.saturating_sub(LINES + HEADS + u16::from(picture.stale.is_some()));
    let (mut calls, mut findings) = (all_calls.min(2), all_findings.min(4));
    let for_tables = left.saturating_sub(calls + findings);
    let (topics, types) = if topics.saturating_add(types) <= for_tables {
        (topics, types)
    } else {
        let half = for_tables / 2;
        let topics = topics.min(half.max(for_tables.saturating_sub(types)));
        (topics, types.min(for_tables - topics))
    };
    let mut spare = for_tables - topics - types;
    let more = spare.min(all_findings - findings);
    findings += more;
    spare -= more;
    calls += spare.min(all_calls - calls);
    Plan { topics, types, calls, findings }
}

struct Pen<'a> {
    picture: &'a Picture,
    view: &'a View,
    is_printed: bool,
}

impl Pen<'_> {
    fn draw(&self, plan: Plan, area: Rect, buf: &mut Buffer) {
        let mut y = area.y;
        let mut line = |line: Line<'_>, buf: &mut Buffer| {
            buf.set_line(area.x, y, &line, area.width);
            y += 1;
        };
        self.head(area.width).into_iter().for_each(|one| line(one, buf));
        line(self.senders(), buf);
        y = self.topics(Rect { y, height: plan.topics + 1, ..area }, buf);
        y = self.types(Rect { y, height: plan.types + 1, ..area }, buf);
        let mut line = |line: Line<'_>, buf: &mut Buffer| {
            buf.set_line(area.x, y, &line, area.width);
            y += 1;
        };
        line(self.grants(), buf);
        self.calls(plan.calls.into()).into_iter().for_each(|one| line(one, buf));
        self.ends().into_iter().for_each(|one| line(one, buf));
        self.findings(plan.findings.into()).into_iter().for_each(|one| line(one, buf));
        if !self.is_printed {
            let bottom = area.bottom();
            buf.set_line(area.x, bottom.saturating_sub(2), &self.selected(area.width), area.width);
            buf.set_line(area.x, bottom.saturating_sub(1), &self.keys(), area.width);
        }
    }

    fn head(&self, width: u16) -> Vec<Line<'static>> {
        let picture = self.picture;
        let first = picture.processes.first().map_or_else(String::new, |process| process.name.clone());
        let name = match picture.processes.len() {
            0 | 1 => first,
            more => format!("{first} and {} more", more - 1),
        };
        let time = utc(picture.at_ms);
        let left = fit(&format!("windfall top  {name}"), usize::from(width).saturating_sub(time.len() + 12));
        let paused = if self.view.is_paused { "PAUSED  " } else { "" };
        let gap = usize::from(width).saturating_sub(Span::raw(&left).width() + paused.len() + time.len());
        let mut lines = vec![Line::from(vec![
            Span::styled(left, bold()),
            Span::raw(" ".repeat(gap)),
            Span::styled(paused, bold()),
            Span::raw(time),
        ])];
        let of = |state| picture.processes.iter().filter(|process| process.state == state).count();
        let mut said = format!("   {} of {} ready", of(ProcessState::Ready), picture.processes.len());
        for (state, word) in [(ProcessState::NotReady, "not ready"), (ProcessState::Away, "away")] {
            if of(state) > 0 {
                said += &format!(", {} {word}", of(state));
            }
        }
        said +=
            &format!("   rules version {}", or_dash(picture.rules_version, |version| version.to_string()));
        said += &format!("   limit of all {}/s", or_dash(picture.limit_per_s, short));
        lines.push(Line::from(vec![
            label("HEALTH"),
            Span::styled(picture.health.word(), self.level(picture.health)),
            Span::raw(said),
        ]));
        lines.extend(picture.stale.as_ref().map(|stale| {
            #[expect(clippy::cast_precision_loss, reason = "it is shown in seconds")]
            let for_ms = picture.at_ms.saturating_sub(stale.since_ms) as f64;
            let since = utc(stale.since_ms);
            let text = format!(
                "NO ANSWER since {since}, for {}, and this is from before: {}",
                span(for_ms),
                stale.why
            );
            Line::from(Span::styled(text, self.level(Level::Bad)))
        }));
        lines
    }

    fn senders(&self) -> Line<'static> {
        let senders = &self.picture.senders;
        let rate = |value| or_dash(value, short);
        let used = match senders.slots {
            0 => "-".to_owned(),
            slots => format!("{}/{}", count(senders.slots_used), count(slots)),
        };
        Line::from(vec![
            label("SENT"),
            Span::raw(format!(
                "{}/s   full spool {}/s   refused {}/s   slots {used}",
                rate(senders.sent_per_s),
                rate(senders.full_per_s),
                rate(senders.refused_per_s),
            )),
        ])
    }

    fn topics(&self, area: Rect, buf: &mut Buffer) -> u16 {
        let rows: Vec<_> = self
            .view
            .topics(self.picture)
            .into_iter()
            .map(|topic| (topic.name.as_str(), cells_of_topic(topic)))
            .collect();
        self.table(TableAt::Topics, "TOPIC", &TOPIC_COLUMNS, &rows, area, buf)
    }

    fn types(&self, area: Rect, buf: &mut Buffer) -> u16 {
        let rows: Vec<_> = self
            .view
            .types(self.picture)
            .into_iter()
            .map(|one| (one.name.as_str(), cells_of_type(one)))
            .collect();
        self.table(TableAt::Types, "BONUS TYPE", &TYPE_COLUMNS, &rows, area, buf)
    }

    /// Draws a table, and says where the next part begins.
    fn table<const N: usize>(
        &self,
        at: TableAt,
        title: &str,
        columns: &[(&str, u16); N],
        rows: &[(&str, [Cells; N])],
        area: Rect,
        buf: &mut Buffer,
    ) -> u16 {
        let taken: u16 = columns.iter().map(|(_, width)| width + 1).sum();
        let mark = if self.is_printed { 0 } else { 2 };
        let room = usize::from(area.width.saturating_sub(taken + mark));
        let longest = rows.iter().map(|(name, _)| Span::raw(*name).width()).max().unwrap_or(0);
        // Numbers far away from their names are hard to read.
        let name_width = longest.max(NAME_COLUMNS).min(room);
        let shown = usize::from(area.height.saturating_sub(1));
        let title = match rows.len() {
            all if all > shown => format!("{title} ({shown} of {all})"),
            _ => title.to_owned(),
        };
        let cell = |text: String, style: Style, is_last: bool| {
            // The state is words, and begins where its column begins.
            let side = if is_last { Alignment::Left } else { Alignment::Right };
            Cell::from(Line::from(Span::styled(text, style)).alignment(side))
        };
        let head =
            columns.iter().enumerate().map(|(at, (name, _))| cell((*name).to_owned(), bold(), at + 1 == N));
        let head =
            Row::new(std::iter::once(Cell::from(Span::styled(fit(&title, name_width), bold()))).chain(head));
        let rows_shown = rows.iter().map(|(name, cells)| {
            let cells = cells
                .iter()
                .enumerate()
                .map(|(at, one)| cell(one.text.clone(), self.level(one.level), at + 1 == N));
            Row::new(std::iter::once(Cell::from(fit(name, name_width))).chain(cells))
        });
        let widths = std::iter::once(Constraint::Length(u16::try_from(name_width).unwrap_or(u16::MAX)));
        let widths = widths.chain(columns.iter().map(|(_, width)| Constraint::Length(*width)));
        let spacing = if self.is_printed { HighlightSpacing::Never } else { HighlightSpacing::Always };
        let is_used = self.view.table == at;
        let table = Table::new(rows_shown, widths)
            .header(if is_used && !self.is_printed {
                head.style(Style::new().add_modifier(Modifier::UNDERLINED))
            } else {
                head
            })
            .highlight_symbol("> ")
            .highlight_spacing(spacing)
            .row_highlight_style(bold());
        let selected = self.view.selected(at, rows.len()).filter(|_| !self.is_printed);
        let mut state = TableState::new().with_selected(selected);
        StatefulWidget::render(table, area, buf, &mut state);
        if rows.is_empty() {
            buf.set_string(area.x + mark, area.y + 1, "none that the processes know", Style::new());
        }
        area.bottom()
    }

    fn grants(&self) -> Line<'static> {
        let grants = &self.picture.grants;
        let answers = grants.answers.iter().filter(|answer| answer.per_s.is_some_and(|per_s| per_s > 0.0));
        let answers: Vec<String> =
            answers.map(|answer| format!("{} {}", answer.answer, or_dash(answer.per_s, short))).collect();
        let answers = if answers.is_empty() { String::new() } else { format!(" ({})", answers.join(", ")) };
        Line::from(vec![
            label("GRANTS"),
            Span::raw(format!(
                "{}/s{answers}   ledger {} commits/s, {} events wait for it",
                or_dash(grants.per_s, short),
                or_dash(grants.commits_per_s, short),
                count(grants.waiting),
            )),
        ])
    }

    fn calls(&self, lines: usize) -> Vec<Line<'static>> {
        let calls = &self.picture.latencies;
        if calls.is_empty() {
            return vec![Line::from(vec![label("CALLS"), Span::raw("none between the last two readings")])];
        }
        let line = |(at, call): (usize, &super::picture::Latency)| {
            let name = fit(&call.name, 30);
            let gap = " ".repeat(31_usize.saturating_sub(Span::raw(&name).width()));
            Line::from(vec![
                label(if at == 0 { "CALLS" } else { "" }),
                Span::raw(format!(
                    "{name}{gap}{:>6}/s   p50 {:>6}   p99 {:>6}",
                    short(call.per_s),
                    span(call.p50_ms),
                    span(call.p99_ms)
                )),
            ])
        };
        calls.iter().take(lines).enumerate().map(line).collect()
    }

    /// What has come to such an end, and what waits: each a line.
    fn ends(&self) -> [Line<'static>; 2] {
        let line = |name: &str, is_counted: bool| {
            let ends = self.picture.ends.iter().filter(|end| end.is_counted == is_counted).map(|end| {
                let growth = end.per_s.filter(|per_s| *per_s > 0.0);
                let growth = growth.map_or_else(String::new, |per_s| format!(" ({}/s)", short(per_s)));
                format!("{} {}{growth}", end.name, count(end.count))
            });
            let Senders { packs, tokens, .. } = &self.picture.senders;
            let first = [format!("packs {}", count(*packs)), format!("tokens {}", count(*tokens))];
            let all = first.into_iter().filter(|_| !is_counted).chain(ends);
            Line::from(vec![label(name), Span::raw(all.collect::<Vec<_>>().join("  "))])
        };
        [line("ENDS", true), line("WAITS", false)]
    }

    fn findings(&self, lines: usize) -> Vec<Line<'static>> {
        let findings = &self.picture.findings;
        if findings.is_empty() {
            return vec![Line::from(vec![label("LOOK AT"), Span::raw("nothing")])];
        }
        let hidden = findings.len().saturating_sub(lines);
        let line = |(at, finding): (usize, &super::findings::Finding)| {
            let sign = if finding.level == Level::Bad { "!! " } else { "!  " };
            let more =
                if at + 1 == lines && hidden > 0 { format!("  (and {hidden} more)") } else { String::new() };
            Line::from(vec![
                label(if at == 0 { "LOOK AT" } else { "" }),
                Span::styled(format!("{sign}{}{more}", finding.text), self.level(finding.level)),
            ])
        };
        findings.iter().take(lines).enumerate().map(line).collect()
    }

    /// What the selected row's columns have no room for: its whole name first.
    fn selected(&self, width: u16) -> Line<'static> {
        let selected = match self.view.table {
            TableAt::Topics => {
                let rows = self.view.topics(self.picture);
                let topic =
                    self.view.selected(TableAt::Topics, rows.len()).and_then(|at| rows.get(at).copied());
                topic.map(|topic| {
                    let said = format!(": {} partitions owned, {} stuck", topic.partitions, topic.stuck);
                    (topic.name.as_str(), said)
                })
            }
            TableAt::Types => {
                let rows = self.view.types(self.picture);
                let one = self.view.selected(TableAt::Types, rows.len()).and_then(|at| rows.get(at).copied());
                one.map(|one| {
                    (one.name.as_str(), format!(": requeued {}/s", or_dash(one.requeued_per_s, short)))
                })
            }
        };
        let line = |(name, said): (&str, String)| {
            format!("> {}{said}", fit(name, usize::from(width).saturating_sub(said.len() + 2)))
        };
        Line::from(selected.map_or_else(String::new, line))
    }

    fn keys(&self) -> Line<'static> {
        let order = self.view.order(self.view.table).word();
        let pause = if self.view.is_paused { "go on" } else { "pause" };
        Line::from(format!(
            "q quit   p {pause}   s sort (by {order})   Tab other table   up, down select   ? help"
        ))
    }

    /// Colours are beside words, never instead of them.
    fn level(&self, level: Level) -> Style {
        match level {
            Level::Well => Style::new(),
            Level::Look if self.view.has_colours => Style::new().fg(Color::Yellow),
            Level::Bad if self.view.has_colours => bold().fg(Color::Red),
            Level::Look => Style::new(),
            Level::Bad => bold(),
        }
    }
}

/// A cell: its text, and whether it needs a look.
struct Cells {
    text: String,
    level: Level,
}

fn plain(text: String) -> Cells {
    Cells { text, level: Level::Well }
}

fn marked(text: String, level: Level) -> Cells {
    Cells { text, level }
}

fn cells_of_topic(topic: &Topic) -> [Cells; 7] {
    let (state, level) = match topic {
        Topic { is_breaker_open: true, .. } => ("breaker open".to_owned(), Level::Bad),
        Topic { consumers: Some(0), .. } => ("not read".to_owned(), Level::Bad),
        Topic { stuck: 1.., .. } => (format!("stuck {}", count(topic.stuck)), Level::Bad),
        Topic { is_draining: true, .. } => ("draining".to_owned(), Level::Look),
        _ => ("ok".to_owned(), Level::Well),
    };
    [
        plain(or_dash(topic.lag, count)),
        plain(or_dash(topic.lag_s, |seconds| span(seconds * 1_000.0))),
        plain(or_dash(topic.in_per_s, short)),
        plain(or_dash(topic.out_per_s, short)),
        plain(or_dash(topic.consumers, count)),
        plain(or_dash(topic.oldest_ms, span)),
        marked(state, level),
    ]
}

fn cells_of_type(one: &Type) -> [Cells; 8] {
    let used =
        one.limit_per_s.filter(|limit| *limit > 0.0).zip(one.rate_per_s).map(|(limit, rate)| rate / limit);
    let (state, level) = match (one.limit_per_s, used) {
        _ if one.is_breaker_open => ("payer away", Level::Bad),
        (Some(0.0), _) => ("limit is 0", Level::Look),
        (_, Some(used)) if used >= 0.95 && one.waiting > 0 => ("at limit", Level::Look),
        _ => ("ok", Level::Well),
    };
    let fuse = if one.fuse == "closed" { Level::Well } else { Level::Look };
    [
        plain(or_dash(one.rate_per_s, short)),
        plain(or_dash(one.limit_per_s, short)),
        plain(or_dash(used, |used| format!("{}%", short((used * 100.0).min(999.0).round())))),
        marked(one.fuse.clone(), fuse),
        plain(count(one.waiting)),
        plain(or_dash(one.clears_s, |seconds| span(seconds * 1_000.0))),
        plain(or_dash(one.oldest_ms, span)),
        marked(state.to_owned(), level),
    ]
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// The name of a line, in a column of its own.
fn label(text: &str) -> Span<'static> {
    Span::styled(format!("{text:<8} "), bold())
}

/// A name in so many columns: what is too long loses its middle.
fn fit(name: &str, width: usize) -> String {
    if Span::raw(name).width() <= width {
        return name.to_owned();
    }
    let columns = |signs: &[char]| Span::raw(signs.iter().collect::<String>()).width();
    let signs: Vec<char> = name.chars().filter(|sign| !sign.is_control()).collect();
    let (mut head, mut tail) = (signs.len() / 2, signs.len() / 2);
    while (head > 0 || tail < signs.len()) && columns(&signs[..head]) + 1 + columns(&signs[tail..]) > width {
        // The end of a name tells more than its middle.
        if head > signs.len() - tail { head -= 1 } else { tail += 1 }
    }
    let text: String = signs[..head].iter().chain(&['…']).chain(&signs[tail..]).collect();
    if width == 0 { String::new() } else { text }
}

fn help(area: Rect, buf: &mut Buffer) {
    let height = u16::try_from(HELP.lines().count()).unwrap_or(0) + 2;
    let place = Rect::new(area.x + 1, area.y + 4, WIDTH_MIN - 2, height).intersection(area);
    Clear.render(place, buf);
    Paragraph::new(HELP).block(Block::bordered().title(" Help ")).render(place, buf);
}
