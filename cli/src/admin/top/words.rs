//! Numbers and spans of time as a person reads them, in few columns.

const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// A number in at most six columns: `0`, `0.25`, `12.5`, `980`, `1.25k`, `12.5M`.
pub fn short(value: f64) -> String {
    let (mut value, mut at) = (if value.is_finite() { value } else { 0.0 }, 0);
    while value.abs() >= 999.5 && at + 1 < UNITS.len() {
        value /= 1_000.0;
        at += 1;
    }
    if value.abs() >= 999.5 {
        return ">999E".to_owned();
    }
    let digits = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{}{}", if text == "-0" { "0" } else { text }, UNITS[at])
}

/// A number of things.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn count(value: u64) -> String {
    short(value as f64)
}

/// What may not be known: `-`.
pub fn or_dash<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// A span of time in at most six columns: `0s`, `2.5ms`, `1.2s`, `3m20s`, `2h05m`, `3d04h`, `400d`.
pub fn span(ms: f64) -> String {
    let ms = if ms.is_finite() { ms.max(0.0) } else { 0.0 };
    if ms == 0.0 {
        return "0s".to_owned();
    }
    if ms < 999.5 {
        return format!("{}ms", short(ms));
    }
    if ms < 59_500.0 {
        return format!("{}s", short((ms / 100.0).round() / 10.0));
    }
    let seconds = whole(ms / 1_000.0);
    match seconds {
        0..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        86_400..8_640_000 => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
        _ => format!("{}d", count(seconds / 86_400)),
    }
}

/// A count that a metric shows; below 0 is none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is rounded, and ends at the bounds"
)]
pub fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_take_few_columns() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.25, "0.25"),
            (12.5, "12.5"),
            (100.0, "100"),
            (980.4, "980"),
            (999.6, "1k"),
            (1_250.0, "1.25k"),
            (12_499_000.0, "12.5M"),
            (1e20, "100E"),
            (1e30, ">999E"),
            (f64::NAN, "0"),
        ] {
            assert_eq!(short(value), text);
            assert!(text.len() <= 6);
        }
        assert_eq!(count(u64::MAX), "18.4E");
    }

    #[test]
    fn spans_of_any_length_take_few_columns() {
        for (ms, text) in [
            (0.0, "0s"),
            (0.5, "0.5ms"),
            (999.0, "999ms"),
            (1_000.0, "1s"),
            (1_249.0, "1.2s"),
            (59_499.0, "59.5s"),
            (59_999.0, "1m00s"),
            (200_000.0, "3m20s"),
            (7_500_000.0, "2h05m"),
            (273_600_000.0, "3d04h"),
            (3.456e10, "400d"),
            (f64::MAX, "214Td"),
        ] {
            let shown = span(ms);
            assert_eq!(shown, text);
            assert!(shown.len() <= 6, "{shown}");
        }
        assert_eq!(whole(-1.0), 0);
    }
}
