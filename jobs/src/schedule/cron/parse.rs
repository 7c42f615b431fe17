//! From the text of an expression to its calendar.

use super::calendar::{Calendar, FIRST_YEAR, LAST_YEAR, Years};
use super::days::{Both, DayTable, DaysOfMonth, DaysOfWeek};
use crate::schedule::{CronProblem, ItemProblem};

/// Reads an expression. It may still match no time.
pub(super) fn parse(expression: &str) -> Result<Calendar, CronProblem> {
    let expression = expression.trim().to_ascii_uppercase();
    let expression = if expression.starts_with('@') { nickname(&expression)? } else { &expression };
    let words: Vec<&str> = expression.split_ascii_whitespace().collect();
    let (dialect, second, [minute, hour, day, month, weekday], year) = match *words.as_slice() {
        [minute, hour, day, month, weekday] => (Dialect::Unix, "0", [minute, hour, day, month, weekday], "*"),
        [second, minute, hour, day, month, weekday] => {
            (Dialect::Quartz, second, [minute, hour, day, month, weekday], "*")
        }
        [second, minute, hour, day, month, weekday, year] => {
            (Dialect::Quartz, second, [minute, hour, day, month, weekday], year)
        }
        _ => return Err(CronProblem::FieldCount { count: words.len() }),
    };
    Ok(Calendar {
        seconds: SECOND.set(second, dialect)?,
        minutes: MINUTE.set(minute, dialect)?,
        hours: HOUR.set(hour, dialect)?,
        months: MONTH.set(month, dialect)?,
        days: days(day, weekday, dialect)?,
        years: years(year, dialect)?,
        is_interval: [second, minute, hour].iter().any(|field| field.contains(['*', '/'])),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Five fields.
    Unix,
    /// Six or seven fields.
    Quartz,
}

const MONTH_NAMES: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAY_NAMES: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const SECOND: Field = Field::plain("second", 0, 59);
const MINUTE: Field = Field::plain("minute", 0, 59);
const HOUR: Field = Field::plain("hour", 0, 23);
const DAY: Field = Field::plain("day of month", 1, 31);
const MONTH: Field = Field { names: &MONTH_NAMES, ..Field::plain("month", 1, 12) };
const UNIX_WEEKDAY: Field = Field { names: &WEEKDAY_NAMES, cycle: 7, ..Field::plain("day of week", 0, 7) };
const QUARTZ_WEEKDAY: Field = Field { names: &WEEKDAY_NAMES, ..Field::plain("day of week", 1, 7) };
const YEAR: Field = Field { wraps: false, ..Field::plain("year", FIRST_YEAR, LAST_YEAR) };

/// The numbers and names of a field.
struct Field {
    name: &'static str,
    low: u32,
    high: u32,
    /// Names of `low`, `low + 1` and so on.
    names: &'static [&'static str],
    /// How many different values there are.
    cycle: u32,
    /// Whether a range may go on over the end.
    wraps: bool,
}

impl Field {
    const fn plain(name: &'static str, low: u32, high: u32) -> Self {
        Self { name, low, high, names: &[], cycle: high - low + 1, wraps: true }
    }

    /// The values of a list, of at most 64 values.
    fn set(&self, list: &str, dialect: Dialect) -> Result<u64, CronProblem> {
        let mut set = 0;
        for item in list.split(',') {
            self.check_alone(list, item)?;
            self.item(item, dialect, |value| set |= 1 << value)?;
        }
        Ok(set)
    }

    /// Hands out the values of an item of a list.
    fn item(&self, item: &str, dialect: Dialect, add: impl FnMut(u32)) -> Result<(), CronProblem> {
        self.values(item, dialect, add).map_err(|problem| self.wrong(item, problem))
    }

    fn values(&self, item: &str, dialect: Dialect, add: impl FnMut(u32)) -> Result<(), ItemProblem> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(self.step(step)?)),
            None => (item, None),
        };
        let end_of_cycle = self.low + self.cycle - 1;
        let (start, end) = match range.split_once('-') {
            _ if range == "*" => (self.low, end_of_cycle),
            Some((start, end)) => (self.value(start)?, self.value(end)?),
            None => {
                let start = self.value(range)?;
                match (step, dialect) {
                    (None, _) => (start, start),
                    (Some(_), Dialect::Quartz) => (start, end_of_cycle),
                    (Some(step), Dialect::Unix) => {
                        return Err(ItemProblem::StepWithoutRange { start, high: self.high, step });
                    }
                }
            }
        };
        let distance = match end.checked_sub(start) {
            Some(distance) => distance,
            None if self.wraps => end + self.cycle - start,
            None => return Err(ItemProblem::Backwards),
        };
        let steps = (0..=distance).step_by(step.unwrap_or(1) as usize);
        steps.map(|passed| self.low + (start - self.low + passed) % self.cycle).for_each(add);
        Ok(())
    }

    fn step(&self, text: &str) -> Result<u32, ItemProblem> {
        number(text)
            .filter(|step| (1..=self.cycle).contains(step))
            .ok_or(ItemProblem::Step { max: self.cycle })
    }

    fn value(&self, text: &str) -> Result<u32, ItemProblem> {
        if text.is_empty() {
            return Err(ItemProblem::Empty);
        }
        let named = (self.low..).zip(self.names).find(|(_, name)| **name == text).map(|(value, _)| value);
        named
            .or_else(|| number(text))
            .filter(|value| (self.low..=self.high).contains(value))
            .ok_or_else(|| ItemProblem::Value { value: text.to_owned(), low: self.low, high: self.high })
    }

    /// A wildcard beside other items makes them pointless, so it is a mistake.
    fn check_alone(&self, list: &str, item: &str) -> Result<(), CronProblem> {
        if (item == "*" || item == "?") && item.len() < list.len() {
            return Err(self.wrong(item, ItemProblem::NotAlone));
        }
        Ok(())
    }

    fn wrong(&self, item: &str, problem: ItemProblem) -> CronProblem {
        CronProblem::Item { field: self.name, item: item.to_owned(), problem }
    }
}

fn nickname(expression: &str) -> Result<&'static str, CronProblem> {
    match expression {
        "@YEARLY" | "@ANNUALLY" => Ok("0 0 1 1 *"),
        "@MONTHLY" => Ok("0 0 1 * *"),
        "@WEEKLY" => Ok("0 0 * * 0"),
        "@DAILY" | "@MIDNIGHT" => Ok("0 0 * * *"),
        "@HOURLY" => Ok("0 * * * *"),
        _ => Err(CronProblem::Nickname),
    }
}

fn years(list: &str, dialect: Dialect) -> Result<Years, CronProblem> {
    if list == "*" {
        return Ok(Years::Every);
    }
    let mut years = Years::NONE;
    for item in list.split(',') {
        YEAR.check_alone(list, item)?;
        YEAR.item(item, dialect, |year| years.insert(year))?;
    }
    Ok(years)
}

fn days(day: &str, weekday: &str, dialect: Dialect) -> Result<DayTable, CronProblem> {
    let both = match dialect {
        Dialect::Quartz => {
            let is_restricted = |field: &str| field != "*" && field != "?";
            if day == "?" && weekday == "?" {
                return Err(CronProblem::NoDay);
            }
            if is_restricted(day) && is_restricted(weekday) {
                return Err(CronProblem::BothDays);
            }
            Both::And
        }
        Dialect::Unix if day.starts_with(['*', '?']) || weekday.starts_with(['*', '?']) => Both::And,
        Dialect::Unix => Both::Or,
    };
    Ok(DayTable::new(&days_of_month(day, dialect)?, &days_of_week(weekday, dialect)?, both))
}

fn days_of_month(list: &str, dialect: Dialect) -> Result<DaysOfMonth, CronProblem> {
    let mut days = DaysOfMonth::default();
    for item in list.split(',') {
        DAY.check_alone(list, item)?;
        if item == "L" {
            days.before_last |= 1;
        } else if item == "LW" {
            days.last_weekday = true;
        } else if let Some(text) = item.strip_prefix("L-") {
            let before = number(text).filter(|before| (1..=30).contains(before));
            days.before_last |= 1 << before.ok_or_else(|| DAY.wrong(item, ItemProblem::BeforeLast))?;
        } else if let Some(text) = item.strip_suffix('W') {
            let day = DAY.value(text).map_err(|problem| DAY.wrong(item, problem))?;
            days.closest_weekday |= 1 << day;
        } else {
            let item = if item == "?" { "*" } else { item };
            DAY.item(item, dialect, |day| days.days |= 1 << day)?;
        }
    }
    Ok(days)
}

fn days_of_week(list: &str, dialect: Dialect) -> Result<DaysOfWeek, CronProblem> {
    let field = match dialect {
        Dialect::Unix => UNIX_WEEKDAY,
        Dialect::Quartz => QUARTZ_WEEKDAY,
    };
    // Bit 0 is Sunday. With five fields, 7 is Sunday as well.
    let bit = |value: u32| 1 << ((value - field.low) % 7);
    let one = |item: &str, text: &str| -> Result<u8, CronProblem> {
        field.value(text).map(bit).map_err(|problem| field.wrong(item, problem))
    };
    let mut days = DaysOfWeek::default();
    for item in list.split(',') {
        field.check_alone(list, item)?;
        if item == "L" && dialect == Dialect::Quartz {
            days.each |= one(item, "SAT")?;
        } else if item == "L" {
            return Err(field.wrong(item, ItemProblem::LastOfWhat));
        } else if let Some(text) = item.strip_suffix('L') {
            days.last |= one(item, text)?;
        } else if let Some((text, nth)) = item.split_once('#') {
            let nth = number(nth).and_then(|nth| days.nth.get_mut((nth as usize).checked_sub(1)?));
            *nth.ok_or_else(|| field.wrong(item, ItemProblem::Nth))? |= one(item, text)?;
        } else {
            let item = if item == "?" { "*" } else { item };
            field.item(item, dialect, |value| days.each |= bit(value))?;
        }
    }
    Ok(days)
}

/// A number of at most four digits, without a sign.
fn number(text: &str) -> Option<u32> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}
