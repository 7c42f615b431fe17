//! The keys of orders and withdrawals: what the ledger stores them under, and what the journal refers to. What a payer is
//! given follows from the key alone, or is stored beside it. Neither ever changes once the row is there, for a payer that is
//! asked under another key pays a second time.
//!
//! An order number counts within its activity, and a withdrawal's id belongs to its user. So a key is the number and the
//! activity, or the id and the user, with a space between: neither number nor id has one. Before schema version 6 the number
//! or the id alone was the key; what was made then keeps it. Keys sort like their numbers, so a page may go on behind any.

use windfall_contract::accounts::StoredOrder;

/// The name of an order: its number counts within its activity (I1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId<'a> {
    /// The campaign.
    pub activity: &'a str,
    /// The order number.
    pub trade_no: &'a str,
}

/// The name of a withdrawal: its id belongs to its user (I1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WithdrawalId<'a> {
    /// The user whose balance it leaves.
    pub user_id: i64,
    /// The caller's id.
    pub id: &'a str,
}

const SEPARATOR: char = ' ';
/// The character behind the separator: every key of a number is below the number with this one.
const BEHIND: char = '!';

impl OrderId<'_> {
    /// The key of an order that is made now.
    pub(crate) fn key(&self) -> String {
        format!("{}{SEPARATOR}{}", self.trade_no, self.activity)
    }
}

impl WithdrawalId<'_> {
    /// The key of a withdrawal that is held now.
    pub(crate) fn key(&self) -> String {
        format!("{}{SEPARATOR}{}", self.id, self.user_id)
    }
}

/// The key that the payer of this order is given. An order that was made before version 6 keeps its number, whatever payer
/// is asked for it later. The word in front keeps all others apart from those, and from withdrawals.
pub fn payer_key(order: &StoredOrder) -> String {
    if is_bare(&order.key) {
        order.trade_no.clone()
    } else {
        format!("order {} {}", order.activity, order.trade_no)
    }
}

/// What a payer's key says it is for, by the key under which the ledger has it, if it has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PayerKeyOf {
    /// An order.
    Order(String),
    /// A withdrawal. More than one payer's key leads to it: the tenant's name stands in the payer's key alone.
    Withdrawal(String),
    /// Neither: Windfall has never made such a key.
    Neither,
}

/// What a key is for that a payer was given.
pub(crate) fn of_payer_key(key: &str) -> PayerKeyOf {
    let of_order = |rest: &str| {
        let (activity, trade_no) = rest.rsplit_once(SEPARATOR).filter(|(_, number)| is_number(number))?;
        (!activity.is_empty()).then(|| PayerKeyOf::Order(OrderId { activity, trade_no }.key()))
    };
    let of_withdrawal = |rest: &str| {
        if is_number(rest) {
            return Some(PayerKeyOf::Withdrawal(rest.to_owned()));
        }
        let (rest, id) = rest.rsplit_once(SEPARATOR).filter(|(_, id)| is_number(id))?;
        let user_id = rest.rsplit_once(SEPARATOR)?.1.parse().ok()?;
        Some(PayerKeyOf::Withdrawal(WithdrawalId { user_id, id }.key()))
    };
    let known = match key.split_once(SEPARATOR) {
        None => is_number(key).then(|| PayerKeyOf::Order(key.to_owned())),
        Some(("order", rest)) => of_order(rest),
        Some(("withdrawal", rest)) => of_withdrawal(rest),
        Some(_) => None,
    };
    known.unwrap_or(PayerKeyOf::Neither)
}

/// The order number, or the withdrawal's id, of a key; of the reference of an act its name.
pub(crate) fn number_of(key: &str) -> &str {
    match key.split_once(SEPARATOR) {
        None => key,
        Some(("", act)) => act,
        Some((number, _)) => number,
    }
}

/// What the reference of each transfer that belongs to an act alone begins with. No key begins with a space, since no number
/// and no id is empty.
pub(crate) const ACT: &str = " act ";

/// The reference of transfers that belong to an act alone.
pub(crate) fn act_reference(act: i64) -> String {
    format!("{ACT}{act}")
}

/// Whether it is a key of before version 6: the number or the id alone.
pub(crate) fn is_bare(key: &str) -> bool {
    !key.contains(SEPARATOR)
}

/// Whether a number or an id can be told from its key.
pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && is_bare(text) && !text.contains('\0')
}

/// The keys that a number may have: the number alone, and all from the first of these up to the second, without it.
pub(crate) fn keys_of(number: &str) -> (String, String) {
    (format!("{number}{SEPARATOR}"), format!("{number}{BEHIND}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_proto::order::{NAME_MAX_BYTES, TRADE_NO_MAX_BYTES};

    #[test]
    fn keys_sort_like_their_numbers_and_name_one_order() {
        let id = |activity, trade_no| OrderId { activity, trade_no };
        let keys: Vec<String> =
            [id("b", "1"), id("a", "1!"), id("a", "10"), id("z", "2")].map(|id| id.key()).into();
        assert!(keys.is_sorted(), "{keys:?}");
        // Whatever an activity is called, another number has another key.
        assert_ne!(id("b c", "a").key(), id("c", "a b").key().replace("a b", "a"));
        assert_eq!(keys.iter().map(|key| number_of(key)).collect::<Vec<_>>(), ["1", "1!", "10", "2"]);
        assert_eq!((number_of("old"), is_bare("old"), is_bare("old a")), ("old", true, false));
        // An act is no order "act" of an activity "5", nor a withdrawal "act" of user 5.
        assert_eq!((act_reference(5).as_str(), number_of(&act_reference(5))), (" act 5", "act 5"));
        assert_ne!(act_reference(5), id("5", "act").key());
        assert!(!is_number("a b") && !is_number("") && is_number("a!b"));
        let (from, below) = keys_of("1");
        let within = |key: &str| key >= from.as_str() && key < below.as_str();
        assert!(within(&keys[0]) && !keys[1..].iter().any(|key| within(key)) && !within("1"));
    }

    #[test]
    fn the_key_of_a_payer_leads_back_to_the_key_of_the_ledger() {
        let id = OrderId { activity: "a b", trade_no: "x/1" };
        let order = |key: &str| PayerKeyOf::Order(key.to_owned());
        assert_eq!(of_payer_key("order a b x/1"), order(&id.key()));
        assert_eq!(of_payer_key("x/1"), order("x/1"));
        let id = WithdrawalId { user_id: -7, id: "w-1" };
        let withdrawal = |key: &str| PayerKeyOf::Withdrawal(key.to_owned());
        assert_eq!(of_payer_key(&crate::withdrawal::payer_key(id, "app")), withdrawal(&id.key()));
        assert_eq!(of_payer_key(&crate::withdrawal::bare_payer_key("w-1")), withdrawal("w-1"));
        for other in
            ["", "order", "order ", "order x", "order  x", "order a ", "withdrawal ", "withdrawal 7 w", "a b"]
        {
            let known = of_payer_key(other);
            // A word alone is what the order number of a key of before version 6 may be.
            assert_eq!(known == PayerKeyOf::Neither, other != "order", "{other:?}: {known:?}");
        }
        assert_eq!(of_payer_key("withdrawal app x w"), PayerKeyOf::Neither);
    }

    /// What payers are told of the length of keys (docs/upgrade.md, downstream.proto).
    #[test]
    fn the_longest_key_of_a_payer_has_225_characters() {
        let (name, number) = ("a".repeat(NAME_MAX_BYTES), "n".repeat(TRADE_NO_MAX_BYTES));
        let id = WithdrawalId { user_id: i64::MIN, id: &number };
        assert_eq!(crate::withdrawal::payer_key(id, &name).len(), 225);
        assert!(format!("order {name} {number}").len() < 225);
    }
}
