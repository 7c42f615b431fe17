//! Pictures on screens of several sizes.

use super::draw::{screen, text};
use super::findings::{Finding, Level};
use super::picture::{Latency, Picture, Stale};
use super::samples::{one_type, picture, topic};
use super::view::View;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

fn drawn(picture: &Picture, view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen(picture, view, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| -> String { (0..width).map(|x| buffer.cell((x, y)).unwrap().symbol()).collect() };
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn has(lines: &[String], what: &str) -> bool {
    lines.iter().any(|line| line.contains(what))
}

#[test]
fn a_small_screen_has_everything() {
    let lines = drawn(&picture(), &View::new(true), 80, 24);
    for what in [
        "windfall top  https://a.example:8080 and 1 more",
        "2027-02-06T11:59:59Z",
        "HEALTH   bad   1 of 2 ready, 1 away   rules version 17   limit of all 5k/s",
        "SENT     12.3k/s   full spool 0/s   refused 1.5/s   slots 40/4.1k",
        "breaker open",
        "pause",
        "at limit",
        "GRANTS   980/s   ledger 12 commits/s, 4 events wait for it",
        "p50 1.25ms   p99   48ms",
        "ENDS     archived 3  requeued 1.2k (15/s)",
        "WAITS    packs 3  tokens 7  held 2",
        "LOOK AT  !! The breaker of topic rain-backup is open.",
        "         !  The fuse of badge is at pause.",
        "> unknown: 8 partitions owned, 0 stuck",
        "q quit   p pause   s sort (by what waits)",
    ] {
        assert!(has(&lines, what), "{what:?} is not in\n{}", lines.join("\n"));
    }
    let cash = lines.iter().find(|line| line.contains("cash")).unwrap();
    let words: Vec<&str> = cash.split_whitespace().collect();
    assert_eq!(words, ["cash", "980", "1k", "98%", "closed", "500", "500ms", "20ms", "at", "limit"]);
}

#[test]
fn long_names_and_very_large_numbers_stay_in_their_columns() {
    let mut picture = picture();
    let long = "a-topic-with-a-name-that-nobody-can-read-at-night-because-it-does-not-end-0123456789";
    picture.topics =
        vec![topic(long, Some(u64::MAX), f64::MAX), topic("名字很长的主题名字很长的主题", Some(1), 0.1)];
    picture.types = vec![
        one_type("a_bonus_type_with_a_very_long_name_indeed", u64::MAX),
        one_type("bad\u{1b}[2Jname", 1),
    ];
    picture.findings = vec![Finding { level: Level::Bad, text: "x".repeat(500) }];
    for (width, height) in [(80, 24), (160, 50)] {
        let lines = drawn(&picture, &View::new(true), width, height);
        assert!(has(&lines, "18.4E") && has(&lines, ">999E"), "{}", lines.join("\n"));
        assert!(has(&lines, "0123456789: 8 partitions"), "the selected row has its whole name");
        assert!(!has(&lines, "\u{1b}"), "no name can write to the terminal");
        assert!(lines.iter().any(|line| line.contains('…')) || width > 80);
    }
    assert!(text(&picture).contains(long), "printed text is as wide as it needs");
}

#[test]
fn many_rows_are_cut_and_the_selected_one_is_in_sight() {
    let mut picture = picture();
    picture.topics = (0..40).map(|at| topic(&format!("topic-{at:02}"), Some(40 - at), 1.0)).collect();
    picture.types = (0..30).map(|at| one_type(&format!("type-{at:02}"), 30 - at)).collect();
    picture.findings =
        (0..20).map(|at| Finding { level: Level::Look, text: format!("Finding {at}.") }).collect();
    let mut view = View::new(false);
    let lines = drawn(&picture, &view, 80, 24);
    assert!(has(&lines, "TOPIC (") && has(&lines, "of 40)") && has(&lines, "of 30)"), "{}", lines.join("\n"));
    assert!(has(&lines, "(and 16 more)") && has(&lines, "> topic-00"), "{}", lines.join("\n"));
    view.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE), 40);
    let lines = drawn(&picture, &view, 80, 24);
    assert!(has(&lines, "> topic-39") && !has(&lines, "topic-00"), "{}", lines.join("\n"));
    let large = drawn(&picture, &view, 160, 50);
    let rows = |lines: &[String]| lines.iter().filter(|line| line.contains("topic-")).count();
    assert!(rows(&large) > rows(&lines) + 5, "a larger screen is used: {}", large.join("\n"));
    let printed = text(&picture);
    assert!(["topic-39", "type-29", "Finding 19."].iter().all(|what| printed.contains(what)), "{printed}");
}

#[test]
fn nothing_known_is_drawn_as_such() {
    for (width, height) in [(80, 24), (160, 50)] {
        let lines = drawn(&Picture::default(), &View::new(true), width, height);
        for what in [
            "HEALTH   well",
            "SENT     -/s",
            "none that the processes know",
            "CALLS    none",
            "LOOK AT  nothing",
        ] {
            assert!(has(&lines, what), "{what:?} is not in\n{}", lines.join("\n"));
        }
    }
}

#[test]
fn a_fleet_that_is_away_leaves_the_last_picture_and_says_since_when() {
    let before = picture();
    let stale = Stale { since_ms: before.at_ms, why: "it cannot be reached: refused".into() };
    let picture = before.stale(before.at_ms + 75_000, before.processes.clone(), stale);
    let lines = drawn(&picture, &View::new(true), 80, 24);
    assert!(has(&lines, "NO ANSWER since 2027-02-06T11:59:59Z, for 1m15s"), "{}", lines.join("\n"));
    assert!(has(&lines, "rain-backup") && has(&lines, "HEALTH   bad"));
    assert!(has(&text(&picture).lines().map(str::to_owned).collect::<Vec<_>>(), "it cannot be reached"));
}

#[test]
fn a_terminal_that_is_too_small_is_told_so() {
    for (width, height) in [(79, 24), (80, 23), (40, 10), (1, 1)] {
        let lines = drawn(&picture(), &View::new(true), width, height).join(" ");
        assert!(width < 40 || (lines.contains("needs 80") && lines.contains("q quits")), "{lines}");
        assert!(!lines.contains("HEALTH"));
    }
}

#[test]
fn help_pause_and_no_colours() {
    let mut view = View::new(false);
    for code in [KeyCode::Char('p'), KeyCode::Char('?')] {
        view.key(KeyEvent::new(code, KeyModifiers::NONE), 3);
    }
    let lines = drawn(&picture(), &view, 80, 24);
    assert!(has(&lines, "pause the picture") && has(&lines, "PAUSED"), "{}", lines.join("\n"));
    assert!(
        has(&lines, "What WAITS is there now."),
        "{}",
        lines.join(
            "
"
        )
    );
    let colours = |view: &View| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| screen(&picture(), view, frame.area(), frame.buffer_mut())).unwrap();
        let buffer = terminal.backend().buffer();
        buffer.content().iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(colours(&View::new(false)), 0);
    assert!(colours(&View::new(true)) > 0);
}

#[test]
fn many_calls_are_shown_where_there_is_room() {
    let mut picture = picture();
    picture.latencies = (0..10)
        .map(|at| Latency { name: format!("Service/Method{at}"), per_s: 1.0, p50_ms: 0.5, p99_ms: 100_000.0 })
        .collect();
    assert!(!has(&drawn(&picture, &View::new(true), 80, 24), "Method9"));
    assert!(has(&drawn(&picture, &View::new(true), 160, 50), "Method9"));
}
