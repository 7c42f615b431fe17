//! How the picture is looked at, which the keys change: which table, in which order, which row, and whether it stands still.

use super::picture::{Picture, Topic, Type};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::cmp::Ordering;

/// How the picture is looked at.
#[derive(Debug, Clone)]
pub struct View {
    /// The table that the keys are for.
    pub table: TableAt,
    /// The orders of both tables.
    orders: [Order; 2],
    /// The selected rows of both tables.
    selected: [usize; 2],
    /// Whether the picture stands still.
    pub is_paused: bool,
    /// Whether the help is shown.
    pub is_help: bool,
    /// Whether there are colours; words say the same without them.
    pub has_colours: bool,
}

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableAt {
    /// The topics of the queues.
    Topics,
    /// The bonus types.
    Types,
}

/// The order of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By name.
    Name,
    /// By what waits: lag, or the events in a lane; the most first.
    Waiting,
    /// By rate, the highest first.
    Rate,
    /// By the age of the oldest, the oldest first.
    Oldest,
}

/// What a key asks the loop for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// To go on.
    GoOn,
    /// To end.
    Quit,
}

impl Order {
    const ALL: [Self; 4] = [Self::Waiting, Self::Rate, Self::Oldest, Self::Name];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Waiting => "what waits",
            Self::Rate => "rate",
            Self::Oldest => "oldest",
        }
    }

    fn moved(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}

impl View {
    /// The view at the start: by what waits, nothing paused.
    pub const fn new(has_colours: bool) -> Self {
        Self {
            table: TableAt::Topics,
            orders: [Order::Waiting; 2],
            selected: [0; 2],
            is_paused: false,
            is_help: false,
            has_colours,
        }
    }

    /// The order of a table.
    pub const fn order(&self, table: TableAt) -> Order {
        self.orders[table as usize]
    }

    /// The selected row of a table of so many rows.
    pub fn selected(&self, table: TableAt, rows: usize) -> Option<usize> {
        (table == self.table && rows > 0).then(|| self.selected[table as usize].min(rows - 1))
    }

    /// Takes a key. `rows` are those of the table that the keys are for.
    pub fn key(&mut self, key: KeyEvent, rows: usize) -> Asked {
        if key.kind == KeyEventKind::Release {
            return Asked::GoOn;
        }
        let at = self.table as usize;
        let (selected, last) = (self.selected[at].min(rows.saturating_sub(1)), rows.saturating_sub(1));
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Asked::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.is_help = !self.is_help,
            // Any other key closes the help first, but for q, which always ends.
            KeyCode::Char('q') => return Asked::Quit,
            _ if self.is_help => self.is_help = false,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') | KeyCode::Right => self.orders[at] = self.orders[at].moved(1),
            KeyCode::Char('S') | KeyCode::Left => {
                self.orders[at] = self.orders[at].moved(Order::ALL.len() - 1);
            }
            KeyCode::Tab | KeyCode::BackTab => {
                self.table = match self.table {
                    TableAt::Topics => TableAt::Types,
                    TableAt::Types => TableAt::Topics,
                };
            }
            KeyCode::Up | KeyCode::Char('k') => self.selected[at] = selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected[at] = (selected + 1).min(last),
            KeyCode::PageUp => self.selected[at] = selected.saturating_sub(10),
            KeyCode::PageDown => self.selected[at] = (selected + 10).min(last),
            KeyCode::Home => self.selected[at] = 0,
            KeyCode::End => self.selected[at] = last,
            _ => {}
        }
        Asked::GoOn
    }

    /// The topics in their order.
    pub fn topics<'a>(&self, picture: &'a Picture) -> Vec<&'a Topic> {
        let mut rows: Vec<&Topic> = picture.topics.iter().collect();
        let order = self.order(TableAt::Topics);
        rows.sort_by(|one, other| {
            let by = match order {
                Order::Name => Ordering::Equal,
                // One whose broker does not say may hold anything.
                Order::Waiting => other.lag.unwrap_or(u64::MAX).cmp(&one.lag.unwrap_or(u64::MAX)),
                Order::Rate => {
                    most_first(larger(one.in_per_s, one.out_per_s), larger(other.in_per_s, other.out_per_s))
                }
                Order::Oldest => most_first(one.oldest_ms, other.oldest_ms),
            };
            by.then_with(|| one.name.cmp(&other.name))
        });
        rows
    }

    /// The bonus types in their order.
    pub fn types<'a>(&self, picture: &'a Picture) -> Vec<&'a Type> {
        let mut rows: Vec<&Type> = picture.types.iter().collect();
        let order = self.order(TableAt::Types);
        rows.sort_by(|one, other| {
            let by = match order {
                Order::Name => Ordering::Equal,
                Order::Waiting => other.waiting.cmp(&one.waiting),
                Order::Rate => most_first(one.rate_per_s, other.rate_per_s),
                Order::Oldest => most_first(one.oldest_ms, other.oldest_ms),
            };
            by.then_with(|| one.name.cmp(&other.name))
        });
        rows
    }
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

/// What is not known comes last.
fn most_first(one: Option<f64>, other: Option<f64>) -> Ordering {
    other.unwrap_or(-1.0).total_cmp(&one.unwrap_or(-1.0))
}

#[cfg(test)]
mod tests {
    use super::super::samples::picture;
    use super::*;

    fn press(view: &mut View, code: KeyCode, rows: usize) -> Asked {
        view.key(KeyEvent::new(code, KeyModifiers::NONE), rows)
    }

    #[test]
    fn keys_pause_sort_select_and_end() {
        let mut view = View::new(true);
        assert_eq!(press(&mut view, KeyCode::Char('q'), 3), Asked::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(interrupt, 3), Asked::Quit);
        assert_eq!(press(&mut view, KeyCode::Char('p'), 3), Asked::GoOn);
        assert!(view.is_paused);
        for _ in 0..5 {
            press(&mut view, KeyCode::Down, 3);
        }
        assert_eq!(view.selected(TableAt::Topics, 3), Some(2), "there are three rows");
        assert_eq!(view.selected(TableAt::Topics, 2), Some(1), "one of them is gone");
        assert_eq!((view.selected(TableAt::Topics, 0), view.selected(TableAt::Types, 9)), (None, None));
        press(&mut view, KeyCode::Tab, 3);
        assert_eq!((view.table, view.selected(TableAt::Types, 9)), (TableAt::Types, Some(0)));
        press(&mut view, KeyCode::Char('s'), 9);
        assert_eq!((view.order(TableAt::Types), view.order(TableAt::Topics)), (Order::Rate, Order::Waiting));
        press(&mut view, KeyCode::Left, 9);
        assert_eq!(view.order(TableAt::Types), Order::Waiting);
        press(&mut view, KeyCode::Char('?'), 9);
        assert!(view.is_help);
        press(&mut view, KeyCode::Char('p'), 9);
        assert!(!view.is_help && view.is_paused, "a key closes the help and does nothing else");
    }

    #[test]
    fn rows_are_in_the_order_that_was_chosen() {
        let picture = picture();
        let mut view = View::new(true);
        let names = |view: &View| -> Vec<String> {
            view.topics(&picture).into_iter().map(|topic| topic.name.clone()).collect()
        };
        assert_eq!(names(&view), ["unknown", "rain-backup", "rain"], "what is not known may be anything");
        press(&mut view, KeyCode::Char('s'), 3);
        assert_eq!(names(&view), ["rain", "rain-backup", "unknown"]);
        press(&mut view, KeyCode::Char('S'), 3);
        press(&mut view, KeyCode::Char('S'), 3);
        assert_eq!(
            (names(&view), view.order(TableAt::Topics)),
            (["rain", "rain-backup", "unknown"].map(str::to_owned).to_vec(), Order::Name)
        );
        let types: Vec<_> = view.types(&picture).into_iter().map(|one| one.name.as_str()).collect();
        assert_eq!(types, ["cash", "badge"]);
    }
}
