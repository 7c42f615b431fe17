//! An expression as bit sets, and the search for the next local time that it matches.

use super::days::DayTable;
use jiff::civil::{Date, DateTime, Time};

/// The first year that an expression may name.
pub(super) const FIRST_YEAR: u32 = 1970;
/// The last year that an expression may name, and the last that is searched.
pub(super) const LAST_YEAR: u32 = 2199;

const YEAR_WORDS: usize = (LAST_YEAR - FIRST_YEAR) as usize / 64 + 1;

/// The local times that an expression matches. Bit `n` of a set stands for the value `n`.
#[derive(Debug, Clone)]
pub(super) struct Calendar {
    pub seconds: u64,
    pub minutes: u64,
    pub hours: u64,
    pub months: u64,
    pub days: DayTable,
    pub years: Years,
    /// Whether seconds, minutes or hours hold a `*` or a step.
    pub is_interval: bool,
}

impl Calendar {
    /// The first local time at `from` or later that matches, without regard to changes of the clock.
    pub(super) fn at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let date = self.date_at_or_after(from.date())?;
        if date > from.date() {
            return Some(date.to_datetime(self.time_at_or_after(Time::midnight())?));
        }
        if let Some(time) = self.time_at_or_after(from.time()) {
            return Some(date.to_datetime(time));
        }
        let date = self.date_at_or_after(date.tomorrow().ok()?)?;
        Some(date.to_datetime(self.time_at_or_after(Time::midnight())?))
    }

    fn date_at_or_after(&self, from: Date) -> Option<Date> {
        let from_year = u32::try_from(from.year()).ok()?;
        let mut next_year = self.years.at_or_after(from_year);
        while let Some(year) = next_year {
            let first_month = if year == from_year { u32::try_from(from.month()).ok()? } else { 1 };
            let mut next_month = next_bit(self.months, first_month);
            while let Some(month) = next_month {
                let first = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, 1).ok()?;
                let is_start = year == from_year && month == first_month && from.month() == first.month();
                let first_day = if is_start { u32::try_from(from.day()).ok()? } else { 1 };
                if let Some(day) = next_bit(u64::from(self.days.of_month(first)), first_day) {
                    return first.with().day(i8::try_from(day).ok()?).build().ok();
                }
                next_month = next_bit(self.months, month + 1);
            }
            next_year = self.years.at_or_after(year + 1);
        }
        None
    }

    fn time_at_or_after(&self, from: Time) -> Option<Time> {
        let from_hour = u32::try_from(from.hour()).ok()?;
        let from_minute = u32::try_from(from.minute()).ok()?;
        let hour = next_bit(self.hours, from_hour)?;
        if hour > from_hour {
            return self.time(hour, 0, 0);
        }
        let from_second = u32::try_from(from.second()).ok()?;
        self.time(hour, from_minute, from_second).or_else(|| self.time(next_bit(self.hours, hour + 1)?, 0, 0))
    }

    /// The first time that matches within an hour.
    fn time(&self, hour: u32, from_minute: u32, from_second: u32) -> Option<Time> {
        let mut minute = next_bit(self.minutes, from_minute)?;
        let mut second = if minute == from_minute {
            next_bit(self.seconds, from_second)
        } else {
            next_bit(self.seconds, 0)
        };
        if second.is_none() {
            minute = next_bit(self.minutes, minute + 1)?;
            second = next_bit(self.seconds, 0);
        }
        Time::new(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, i8::try_from(second?).ok()?, 0).ok()
    }
}

/// The years that an expression matches.
#[derive(Debug, Clone)]
pub(super) enum Years {
    /// Every year to the last that is searched.
    Every,
    /// Bit `n` stands for the year `FIRST_YEAR + n`.
    Some([u64; YEAR_WORDS]),
}

impl Years {
    /// No year yet.
    pub(super) const NONE: Self = Self::Some([0; YEAR_WORDS]);

    /// Adds a year from `FIRST_YEAR` to `LAST_YEAR`.
    pub(super) fn insert(&mut self, year: u32) {
        let index = year - FIRST_YEAR;
        if let Self::Some(words) = self {
            words[(index / 64) as usize] |= 1 << (index % 64);
        }
    }

    fn at_or_after(&self, from: u32) -> Option<u32> {
        (from.max(FIRST_YEAR)..=LAST_YEAR).find(|year| self.contains(*year))
    }

    fn contains(&self, year: u32) -> bool {
        let index = year - FIRST_YEAR;
        match self {
            Self::Every => true,
            Self::Some(words) => words[(index / 64) as usize] >> (index % 64) & 1 == 1,
        }
    }
}

/// The lowest value of a set that is at least `from`.
fn next_bit(set: u64, from: u32) -> Option<u32> {
    let rest = set.checked_shr(from)?;
    (rest != 0).then(|| from + rest.trailing_zeros())
}
