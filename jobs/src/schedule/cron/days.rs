//! The days that the two day fields of an expression match together.

use jiff::civil::Date;

/// What the day-of-month field matches.
#[derive(Debug, Clone, Default)]
pub(super) struct DaysOfMonth {
    /// Bit `n`: day `n`.
    pub days: u32,
    /// Bit `n`: the day that lies `n` days before the last one.
    pub before_last: u32,
    /// Bit `n`: the weekday closest to day `n`.
    pub closest_weekday: u32,
    /// The last day from Monday to Friday.
    pub last_weekday: bool,
}

/// What the day-of-week field matches. Bit 0 stands for Sunday.
#[derive(Debug, Clone, Default)]
pub(super) struct DaysOfWeek {
    /// Each such weekday.
    pub each: u8,
    /// The last such weekday of the month.
    pub last: u8,
    /// By position: the first, second, … such weekday of the month.
    pub nth: [u8; 5],
}

/// How the two day fields go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Both {
    /// A day matches if both fields match.
    And,
    /// A day matches if either field matches.
    Or,
}

/// The days that match, for each of the 28 months that exist as far as days are concerned: seven weekdays on which
/// a month may start, and four lengths. Bit `n` of a set stands for day `n`.
#[derive(Debug, Clone)]
pub(super) struct DayTable {
    months: [u32; 28],
}

impl DayTable {
    pub(super) fn new(of_month: &DaysOfMonth, of_week: &DaysOfWeek, both: Both) -> Self {
        let mut months = [0; 28];
        for (length, lengths) in (28..).zip(months.chunks_mut(7)) {
            for (first_weekday, days) in (0..).zip(lengths) {
                let shape = Shape { length, first_weekday };
                for day in 1..=length {
                    let by_month = shape.matches_day(of_month, day);
                    let by_week = shape.matches_weekday(of_week, day);
                    let matches = match both {
                        Both::And => by_month && by_week,
                        Both::Or => by_month || by_week,
                    };
                    *days |= u32::from(matches) << day;
                }
            }
        }
        Self { months }
    }

    /// The days that match in the month that starts at `first`.
    pub(super) fn of_month(&self, first: Date) -> u32 {
        let length = usize::try_from(first.days_in_month()).unwrap_or_default();
        let weekday = usize::try_from(first.weekday().to_sunday_zero_offset()).unwrap_or_default();
        self.months.get(length.saturating_sub(28) * 7 + weekday).copied().unwrap_or_default()
    }
}

/// A month by its length and the weekday of its first day.
#[derive(Clone, Copy)]
struct Shape {
    length: u32,
    first_weekday: u32,
}

impl Shape {
    /// 0 is Sunday.
    fn weekday(self, day: u32) -> u32 {
        (self.first_weekday + day - 1) % 7
    }

    fn matches_day(self, field: &DaysOfMonth, day: u32) -> bool {
        let before_last = self.length - day;
        field.days >> day & 1 == 1
            || field.before_last >> before_last & 1 == 1
            || (field.last_weekday && day == self.closest_weekday(self.length))
            || (1..=self.length)
                .any(|near| field.closest_weekday >> near & 1 == 1 && self.closest_weekday(near) == day)
    }

    fn matches_weekday(self, field: &DaysOfWeek, day: u32) -> bool {
        let weekday = self.weekday(day);
        let has = |weekdays: u8| weekdays >> weekday & 1 == 1;
        let nth = field.nth.get(((day - 1) / 7) as usize).copied().unwrap_or_default();
        has(field.each) || has(nth) || (has(field.last) && day + 7 > self.length)
    }

    /// The day from Monday to Friday that is closest to `day`, within the month.
    fn closest_weekday(self, day: u32) -> u32 {
        match self.weekday(day) {
            6 if day > 1 => day - 1,
            6 => day + 2,
            0 if day < self.length => day + 1,
            0 => day - 2,
            _ => day,
        }
    }
}
