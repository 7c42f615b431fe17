//! Between counts and real numbers. Counts here stay far below 2^53, so nothing is lost.

/// A count as a real number.
#[allow(clippy::cast_precision_loss)] // far below 2^53
pub(crate) const fn real(count: u64) -> f64 {
    count as f64
}

/// The whole number at or above; 0 for what is negative or no number.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates, which is what is meant
pub(crate) fn ceil(value: f64) -> u64 {
    // What a division leaves behind the comma is no reason for one more server.
    (value - 1e-9).ceil() as u64
}

/// The nearest whole number; 0 for what is negative or no number.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates, which is what is meant
pub(crate) fn round(value: f64) -> u64 {
    value.round() as u64
}

/// A count for a part that takes 32 bits.
pub(crate) fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A number as people read it: `3,500,000`, `12.3`, `0.65`.
pub(crate) fn text(value: f64) -> String {
    let magnitude = value.abs();
    let decimals = match magnitude {
        _ if magnitude >= 100.0 || magnitude.fract() == 0.0 => 0,
        _ if magnitude >= 10.0 => 1,
        _ => 2,
    };
    let plain = format!("{magnitude:.decimals$}");
    let (whole, rest) = plain.split_once('.').map_or((plain.as_str(), None), |(w, r)| (w, Some(r)));
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(rest) = rest {
        out.push('.');
        out.push_str(rest);
    }
    out
}

/// Bytes with the unit that people use: `896 MB`, `1.26 TB`.
pub(crate) fn bytes(value: f64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    format!("{} {}", text(value), UNITS[unit])
}

/// A time with the unit that people use: `1,290 s (21.5 min)`.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        _ if value >= 5_400.0 => format!("{} s ({} h)", text(value.round()), text(value / 3_600.0)),
        _ if value >= 120.0 => format!("{} s ({} min)", text(value.round()), text(value / 60.0)),
        _ => format!("{} s", text(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(text(3_500_000.0), "3,500,000");
        assert_eq!(text(12.34), "12.3");
        assert_eq!(text(0.654), "0.65");
        assert_eq!(text(999.0), "999");
        assert_eq!(bytes(896e6), "896 MB");
        assert_eq!(bytes(1_260.0), "1.26 kB");
        assert_eq!(seconds(1_290.0), "1,290 s (21.5 min)");
        assert_eq!((ceil(3.000_000_000_01), ceil(3.1), ceil(-1.0)), (3, 4, 0));
    }
}
