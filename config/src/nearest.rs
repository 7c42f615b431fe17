//! "Did you mean": the known name that a mistyped one is nearest to.

use std::borrow::Cow;

/// The known name within a third of `name`'s length in edits (one at least, and not every letter of it); the
/// first of equals. Of many known names, the first 512 are looked at.
pub(crate) fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
    // What is longer was not mistyped, and the distance costs the product of the two lengths.
    const LONGEST: usize = 64;
    // Each unknown name of a document is compared with all of these.
    const KNOWN_MAX: usize = 512;
    if name.len() > LONGEST {
        return None;
    }
    let reach = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .take(KNOWN_MAX)
        .filter(|candidate| candidate.len() <= LONGEST)
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= reach && *distance < name.len().max(candidate.len()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// `a`, `b`, `c`, … for a message; at most eight, so that it stays readable.
pub(crate) fn listed<'k>(known: impl IntoIterator<Item = &'k str>) -> String {
    const SHOWN_MAX: usize = 8;
    let mut known = known.into_iter();
    let shown: Vec<String> =
        known.by_ref().take(SHOWN_MAX).map(|name| format!("`{}`", shortened(name))).collect();
    let more = if known.next().is_some() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// At most 64 characters of what was found, so that a message stays one.
pub(crate) fn shortened(found: &str) -> Cow<'_, str> {
    match found.char_indices().nth(64) {
        Some((end, _)) => Cow::Owned(format!("{}…", found.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_cut_and_resembles_nothing() {
        let long = "µ".repeat(100);
        assert_eq!(shortened(&long).chars().count(), 65);
        assert_eq!(shortened("short"), "short");
        assert_eq!(nearest(&long, [long.as_str()]), None);
    }

    #[test]
    fn finds_what_was_meant_and_nothing_else() {
        let known = ["limits", "queues", "topics"];
        assert_eq!(nearest("limts", known).as_deref(), Some("limits"));
        assert_eq!(nearest("qeues", known).as_deref(), Some("queues"));
        assert_eq!(nearest("zebra", known), None);
        assert_eq!(nearest("b", ["a", "bb"]).as_deref(), Some("bb"));
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(listed(["a", "b"]), "`a`, `b`");
        assert!(listed(["a"; 9]).ends_with('…'));
    }
}
