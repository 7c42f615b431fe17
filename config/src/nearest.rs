//! "Did you mean": the known name that a mistyped one is nearest to.

/// The known name within a third of `name`'s length in edits (one at least, and not every letter of it); the
/// first of equals.
pub(crate) fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
    let reach = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= reach && *distance < name.len().max(candidate.len()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// `a`, `b`, `c`, … for a message; at most eight, so that it stays readable.
pub(crate) fn listed<'k>(known: impl IntoIterator<Item = &'k str>) -> String {
    const SHOWN_MAX: usize = 8;
    let mut known = known.into_iter();
    let shown: Vec<String> = known.by_ref().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let more = if known.next().is_some() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

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
