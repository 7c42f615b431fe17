//! A user's statement: what moved the user's accounts, page by page, with the balance after each line.
//!
//! Every account is a chain: its row names its newest transfer and its balance, and each transfer names the one before it. So
//! the statement is walked from its newest line back, each line found by its number, and a balance is that of the line
//! above it less what that line changed. Nothing is ever changed or taken out of a chain, so a walk that goes on later,
//! from its [`StatementCursor`], finds what it would have found at first. Pure; every database reads what is walked here.

use crate::contract::Read;
use crate::error::LedgerError;
use crate::journal::{Account, BUDGET, CLEARING, PENDING, SETTLEMENT, USER, VOID, flow_kind};
use crate::key::number_of;
use crate::reader::LedgerReader;
use crate::statement_reads::{AccountEnd, ChainRow};
use crate::withdrawal::{StoredWithdrawal, WithdrawalStatus};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use windfall_contract::accounts::{FlowLine, FlowPage};

/// How many lines one call passes over at most on the way to where its page begins.
pub const STATEMENT_SKIP_MAX: usize = 10_000;
/// How many lines of a user one page of withdrawals looks at, where each look-up of withdrawals counts as [`LOOK_UP_LINES`].
const WITHDRAWAL_LINES_MAX: usize = 10_000;
/// What a look-up of withdrawals counts for, in lines: a page of one status may need one for each withdrawal that it passes.
const LOOK_UP_LINES: usize = 100;
/// The most lines in a page.
const PAGE_MAX: u32 = 1_000;
/// How many lines of an account are read ahead.
const AHEAD_MAX: usize = 500;

/// Where a page of a statement begins.
#[derive(Debug, Clone, Copy)]
pub enum StatementFrom<'a> {
    /// At the newest line.
    Newest,
    /// In each account at its newest line that is not newer than this time, in Unix milliseconds: the statement, and the
    /// balances, as they were then.
    At(i64),
    /// Behind the page that returned this cursor.
    After(&'a StatementCursor),
}

/// A page of a user's statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The balances where the page begins, with its first lines counted in, by bonus type. An account that has no line
    /// from there on is left out.
    pub balances: Vec<(String, i64)>,
    /// Newest first, by time and then by number; of an account always in the order in which it was moved.
    pub lines: Vec<StatementLine>,
    /// Where the next page begins; `None`: there is none.
    pub next: Option<StatementCursor>,
}

/// A line of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementLine {
    /// The transfer that moved the account.
    pub line: FlowLine,
    /// The balance of its bonus type after it.
    pub balance: i64,
}

/// A page of a user's withdrawals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithdrawalsPage {
    /// As they stand now, the one that was held last first.
    pub withdrawals: Vec<StoredWithdrawal>,
    /// Where the next page begins, which may be empty; `None`: there is none.
    pub next: Option<StatementCursor>,
}

/// Where a walk through a user's accounts goes on: in each account at a transfer, and the balance after it. As text it has
/// digits, `-`, `:` and `/` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementCursor {
    user_id: i64,
    places: Vec<Place>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    bonus_type_id: i64,
    /// The number of the next line; 0: there is none.
    next: i64,
    /// The balance after it.
    balance: i64,
}

impl fmt::Display for StatementCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.user_id)?;
        self.places
            .iter()
            .try_for_each(|one| write!(f, "/{}:{}:{}", one.bonus_type_id, one.next, one.balance))
    }
}

impl FromStr for StatementCursor {
    type Err = LedgerError;

    fn from_str(text: &str) -> Result<Self, LedgerError> {
        let parse = || {
            let mut parts = text.split('/');
            let user_id = parts.next()?.parse().ok()?;
            let place = |part: &str| {
                let mut numbers = part.split(':').map(|number| number.parse::<i64>().ok());
                let place = Place {
                    bonus_type_id: numbers.next()??,
                    next: numbers.next()??,
                    balance: numbers.next()??,
                };
                numbers.next().is_none().then_some(place)
            };
            Some(Self { user_id, places: parts.map(place).collect::<Option<_>>()? })
        };
        parse().ok_or_else(|| LedgerError::Invalid(format!("{text:?} is no cursor that a page has returned")))
    }
}

/// Whether a transfer stands in a user's statement, as far as it says so itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Yes,
    No,
    /// What a payer has paid names no user: its order says whose it is.
    AskItsOrder,
}

impl ChainRow {
    /// What it changes in the account.
    fn change(&self) -> i64 {
        match (self.debit.kind, self.credit.kind) {
            (USER, _) => -self.amount,
            (_, USER) => self.amount,
            _ => 0,
        }
    }

    /// Whether it stands in the statement of this user.
    fn standing(&self, user_id: i64) -> Standing {
        let is_of_user = |side: Account| side.kind == USER && side.holder == user_id;
        match (self.debit.kind, self.credit.kind) {
            // What is held, and what is held no more, moves nothing.
            _ if [PENDING, VOID].contains(&self.kind) => Standing::No,
            (BUDGET, SETTLEMENT) | (SETTLEMENT, BUDGET) => Standing::AskItsOrder,
            _ if is_of_user(self.debit) || is_of_user(self.credit) => Standing::Yes,
            _ => Standing::No,
        }
    }

    /// Whether it holds a withdrawal.
    const fn is_hold(&self) -> bool {
        self.debit.kind == USER && self.credit.kind == CLEARING
    }
}

/// Whether a transfer is in a user's account, among the [`STATEMENT_SKIP_MAX`] newest ones: what each line leads to is the user's.
fn is_in_chain(read: &dyn Read, user_id: i64, bonus_type_id: i64, wanted: i64) -> Result<bool, LedgerError> {
    let ends = read.accounts(user_id)?;
    let mut next = ends.iter().find(|end| end.bonus_type_id == bonus_type_id).map_or(0, |end| end.last);
    let mut passed = 0;
    while next != 0 && passed < STATEMENT_SKIP_MAX {
        let rows = read.chain(bonus_type_id, next, AHEAD_MAX)?;
        let Some(last) = rows.last() else { return Ok(false) };
        if rows.iter().any(|row| row.id == wanted) {
            return Ok(true);
        }
        next = last.prev;
        passed += rows.len();
    }
    Ok(next == wanted && next != 0)
}

/// An account, as far as it was walked.
struct Track {
    place: Place,
    bonus_type: String,
    ahead: VecDeque<ChainRow>,
    /// Whether its next line is known to be the user's: it is not where only a cursor says so. Lines lead to each other.
    is_known: bool,
}

/// A walk through a user's accounts.
struct Walk<'r> {
    read: &'r dyn Read,
    user_id: i64,
    /// Whether it began at a cursor, whose numbers a caller may have changed.
    is_resumed: bool,
    tracks: Vec<Track>,
}

impl<'r> Walk<'r> {
    fn begin(read: &'r dyn Read, user_id: i64, after: Option<&StatementCursor>) -> Result<Self, LedgerError> {
        let ends = read.accounts(user_id)?;
        let Some(cursor) = after else {
            let track = |end: AccountEnd| Track {
                place: Place { bonus_type_id: end.bonus_type_id, next: end.last, balance: end.balance },
                bonus_type: end.bonus_type,
                ahead: VecDeque::new(),
                is_known: true,
            };
            return Ok(Self {
                read,
                user_id,
                is_resumed: false,
                tracks: ends.into_iter().map(track).collect(),
            });
        };
        let mut tracks = Vec::with_capacity(cursor.places.len());
        // In the order of the accounts; one that began behind the cursor has no place in it.
        for end in ends {
            if let Some(place) = cursor.places.iter().find(|place| place.bonus_type_id == end.bonus_type_id) {
                tracks.push(Track {
                    place: *place,
                    bonus_type: end.bonus_type,
                    ahead: VecDeque::new(),
                    is_known: false,
                });
            }
        }
        if cursor.user_id != user_id || tracks.len() != cursor.places.len() {
            return Err(LedgerError::Invalid(format!("the cursor is of no page of user {user_id}")));
        }
        Ok(Self { read, user_id, is_resumed: true, tracks })
    }

    /// The account whose next line is the newest. Each line is peeked at, for numbers do not tell: writers of PostgreSQL draw
    /// theirs in blocks.
    fn newest(&mut self, wanted: usize) -> Result<Option<usize>, LedgerError> {
        let mut newest = None;
        for at in 0..self.tracks.len() {
            if self.tracks[at].place.next != 0 {
                let row = self.peek(at, wanted)?;
                newest = newest.max(Some((row.time_ms, row.id, at)));
            }
        }
        Ok(newest.map(|(.., at)| at))
    }

    /// The next line of an account that has one; where it has to be read, up to `wanted` are.
    fn peek(&mut self, at: usize, wanted: usize) -> Result<&ChainRow, LedgerError> {
        let track = &mut self.tracks[at];
        let Place { bonus_type_id, next, .. } = track.place;
        if track.ahead.is_empty() {
            track.ahead = self.read.chain(bonus_type_id, next, wanted.clamp(1, AHEAD_MAX))?.into();
        }
        let mut found = track.ahead.front().filter(|row| row.id == next);
        let standing = found.map_or(Standing::No, |row| row.standing(self.user_id));
        let is_of_user = match (standing, found) {
            (Standing::AskItsOrder, Some(row)) if !track.is_known => {
                let orders = self.read.orders_of_number(number_of(&row.reference))?;
                match orders.iter().find(|order| order.key == row.reference) {
                    Some(order) => order.user_id == self.user_id,
                    // It was detached.
                    None => is_in_chain(self.read, self.user_id, bonus_type_id, next)?,
                }
            }
            (standing, _) => standing != Standing::No,
        };
        track.is_known = is_of_user;
        found = found.filter(|_| is_of_user);
        found.ok_or_else(|| {
            let what = format!("transfer {next} is not in an account of user {}", self.user_id);
            if self.is_resumed { LedgerError::Invalid(what) } else { LedgerError::Damaged(what) }
        })
    }

    /// Takes the line that was peeked at, with the balance after it.
    fn take(&mut self, at: usize) -> Result<Option<(ChainRow, i64)>, LedgerError> {
        let track = &mut self.tracks[at];
        let Some(row) = track.ahead.pop_front() else { return Ok(None) };
        let balance = track.place.balance;
        track.place.next = row.prev;
        track.place.balance = balance
            .checked_sub(row.change())
            .ok_or_else(|| LedgerError::Invalid("a balance is beyond 64 bits".into()))?;
        Ok(Some((row, balance)))
    }

    /// Passes over lines in each account, up to the first that is not newer than this time.
    fn skip(&mut self, time_ms: i64) -> Result<(), LedgerError> {
        let mut passed = 0;
        for at in 0..self.tracks.len() {
            while self.tracks[at].place.next != 0 && self.peek(at, AHEAD_MAX)?.time_ms > time_ms {
                if passed == STATEMENT_SKIP_MAX {
                    return Err(LedgerError::Invalid(format!(
                        "user {} has more than {STATEMENT_SKIP_MAX} lines that are newer: read the statement from its \
                         newest line on, each page behind the cursor of the page before",
                        self.user_id
                    )));
                }
                self.take(at)?;
                passed += 1;
            }
        }
        self.tracks.retain(|track| track.place.next != 0);
        Ok(())
    }

    fn balances(&self) -> Vec<(String, i64)> {
        self.tracks.iter().map(|track| (track.bonus_type.clone(), track.place.balance)).collect()
    }

    /// Where it stands; `None` at its end.
    fn cursor(&self) -> Option<StatementCursor> {
        let places: Vec<Place> =
            self.tracks.iter().map(|track| track.place).filter(|place| place.next != 0).collect();
        (!places.is_empty()).then_some(StatementCursor { user_id: self.user_id, places })
    }

    fn line(&mut self, wanted: usize) -> Result<Option<StatementLine>, LedgerError> {
        let Some(at) = self.newest(wanted)? else { return Ok(None) };
        let Some((row, balance)) = self.take(at)? else { return Ok(None) };
        let line = FlowLine {
            transfer: row.id,
            kind: flow_kind(row.debit.kind, row.credit.kind),
            trade_no: number_of(&row.reference).to_owned(),
            bonus_type: self.tracks[at].bonus_type.clone(),
            activity: row.activity,
            amount: row.amount,
            time_ms: row.time_ms,
        };
        Ok(Some(StatementLine { line, balance }))
    }

    /// The next lines, at most so many.
    fn lines(&mut self, limit: usize) -> Result<Vec<StatementLine>, LedgerError> {
        let mut lines = Vec::new();
        while lines.len() < limit
            && let Some(line) = self.line(limit - lines.len())?
        {
            lines.push(line);
        }
        Ok(lines)
    }

    /// The keys of the next withdrawals that were held, at most `wanted`, among at most `lines` lines, of which it takes off
    /// those that it has looked at.
    fn holds(&mut self, wanted: usize, lines: &mut usize) -> Result<Vec<String>, LedgerError> {
        let mut keys = Vec::new();
        while keys.len() < wanted && *lines > 0 {
            let Some(at) = self.newest(*lines)? else { break };
            *lines -= 1;
            let taken = self.take(at)?.filter(|(row, _)| row.is_hold());
            keys.extend(taken.map(|(row, _)| row.reference));
        }
        Ok(keys)
    }
}

impl LedgerReader {
    /// A page of a user's statement, newest line first, 1 to 1,000 lines. What a payer has settled stands in it, too,
    /// and changes no balance.
    ///
    /// It costs a look-up by number for each line, and for each further bonus type at most as many, wherever the page
    /// begins behind a cursor. [`StatementFrom::At`] reads all newer lines besides, for the balances are counted back over
    /// these.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where more than [`STATEMENT_SKIP_MAX`] lines are newer than where the page is to begin, or
    /// the cursor is not one of this user; all others.
    pub fn statement(
        &self,
        user_id: i64,
        from: StatementFrom<'_>,
        limit: u32,
    ) -> Result<Statement, LedgerError> {
        let after = if let StatementFrom::After(cursor) = from { Some(cursor) } else { None };
        let mut walk = Walk::begin(self.read.as_ref(), user_id, after)?;
        match from {
            StatementFrom::Newest | StatementFrom::After(_) => {}
            StatementFrom::At(time_ms) => walk.skip(time_ms)?,
        }
        let balances = walk.balances();
        let lines = walk.lines(usize::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(1))?;
        Ok(Statement { balances, lines, next: walk.cursor() })
    }

    /// A page of a user's movements, newest first, at most `limit`: the lines of the statement without the balances. Of a limit
    /// of 0 the answer has no line, and its cursor leads to the newest one.
    ///
    /// A ledger in PostgreSQL whose tables have schema version 3 has no statements. There the newest movements are all that can
    /// be read, and no cursor follows them.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where the cursor is not one of this user, or leads to a line that a payer paid for an order that was
    /// detached, behind more than [`STATEMENT_SKIP_MAX`] newer ones of its bonus type; all others.
    pub fn flow_page(
        &self,
        user_id: i64,
        after: Option<&StatementCursor>,
        limit: usize,
    ) -> Result<FlowPage, LedgerError> {
        let mut walk = match Walk::begin(self.read.as_ref(), user_id, after) {
            Err(LedgerError::NotMigrated(_)) if after.is_none() => {
                return Ok(FlowPage { lines: self.read.flow(user_id, limit)?, next: String::new() });
            }
            begun => begun?,
        };
        let lines = walk.lines(limit)?.into_iter().map(|one| one.line).collect();
        let next = walk.cursor().map_or_else(String::new, |cursor| cursor.to_string());
        Ok(FlowPage { lines, next })
    }

    /// A page of a user's withdrawals, or of those of one status, the one that was held last first, 1 to 1,000 of them. A page
    /// may have fewer, and none, though another one follows: it looks at 10,000 lines of the user's statement at most, since
    /// these lead to the withdrawals, and no index does, and at fewer where many of them are withdrawals of another status.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where the cursor is not one of this user; all others.
    pub fn withdrawals_of(
        &self,
        user_id: i64,
        status: Option<WithdrawalStatus>,
        after: Option<&StatementCursor>,
        limit: u32,
    ) -> Result<WithdrawalsPage, LedgerError> {
        let mut walk = Walk::begin(self.read.as_ref(), user_id, after)?;
        let limit = usize::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(1);
        let (mut withdrawals, mut lines) = (Vec::new(), WITHDRAWAL_LINES_MAX);
        loop {
            let keys = walk.holds(limit - withdrawals.len(), &mut lines)?;
            if keys.is_empty() {
                return Ok(WithdrawalsPage { withdrawals, next: walk.cursor() });
            }
            lines = lines.saturating_sub(LOOK_UP_LINES);
            let found = self.read.withdrawals(&keys)?.into_iter();
            let mut found: HashMap<String, _> = found.map(|one| (one.key.clone(), one)).collect();
            for key in keys {
                let stored = found.remove(&key).ok_or_else(|| {
                    LedgerError::Damaged(format!("withdrawal {key} has a transfer, and is missing"))
                })?;
                if status.is_none_or(|status| status == stored.status) {
                    withdrawals.push(stored);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let place = |bonus_type_id, next, balance| Place { bonus_type_id, next, balance };
        for places in [vec![], vec![place(1, 7, -3), place(i64::MAX, i64::MIN, 0)]] {
            let cursor = StatementCursor { user_id: -5, places };
            assert_eq!(cursor.to_string().parse::<StatementCursor>().unwrap(), cursor);
        }
        for text in ["", "a", "1/", "1/2:3", "1/2:3:4:5", "1/2:3:x", "1 /2:3:4", "1/2:3:9223372036854775808"]
        {
            assert!(matches!(text.parse::<StatementCursor>(), Err(LedgerError::Invalid(_))), "{text}");
        }
    }
}
