//! Times as people write them.

/// A duration: a whole number and `ms`, `s`, `m`, `h` or `d`.
pub fn duration_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no duration such as 500ms, 90s, 5m, 2h or 30d");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit_ms).ok_or_else(wrong)
}

/// A time: `2027-02-06T12:00:00Z`, or Unix milliseconds.
pub fn time_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time such as 2027-02-06T12:00:00Z, and no Unix milliseconds");
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| wrong());
    }
    utc_ms(text).ok_or_else(wrong)
}

fn utc_ms(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 20 || !text.is_ascii() {
        return None;
    }
    for (at, sign) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'Z')] {
        if bytes[at] != sign {
            return None;
        }
    }
    let number = |from: usize, to: usize| -> Option<u64> {
        let part = &text[from..to];
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if year < 1970 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    if !(1..=*lengths.get(month)?).contains(&day) {
        return None;
    }
    let of_years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let days = of_years + lengths[..month].iter().sum::<u64>() + day - 1;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::utc;

    #[test]
    fn a_time_is_read_as_it_is_shown() {
        for ms in
            [0, 951_782_400_000, 951_868_800_000, 1_801_915_199_000, 4_107_542_400_000, 253_402_300_799_000]
        {
            assert_eq!(time_ms(&utc(ms)), Ok(ms), "{}", utc(ms));
        }
        assert_eq!(time_ms("1795345200123"), Ok(1_795_345_200_123));
        for wrong in [
            "",
            "soon",
            "2027-02-06",
            "2027-02-30T12:00:00Z",
            "2026-02-29T12:00:00Z",
            "2027-13-01T12:00:00Z",
            "2027-00-01T12:00:00Z",
            "2027-02-06T24:00:00Z",
            "2027-02-06T12:00:00+",
            "1969-12-31T23:59:59Z",
            "2027-02-06T12:00:00é",
            "99999999999999999999",
        ] {
            assert!(time_ms(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_has_a_unit() {
        let read: Vec<_> = ["500ms", "90s", "5m", "2h", "30d", "0s"].map(duration_ms).into();
        assert_eq!(read, [500, 90_000, 300_000, 7_200_000, 2_592_000_000, 0].map(Ok));
        for wrong in
            ["", "5", "m", "5 m", "-5m", "1.5h", "5w", "99999999999999999999d", "18446744073709551615d"]
        {
            assert!(duration_ms(wrong).is_err(), "{wrong}");
        }
    }
}
