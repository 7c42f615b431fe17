//! What callers hand to the writers of the ledger, and what they are told when it is durable.

use crate::inbox::Weight;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::oneshot;
use windfall_contract::accounts::Withdrawal;
use windfall_contract::rewards::{Failed, GrantReply};
use windfall_ledger::{Attempt, Finish, HoldOutcome, Ledger};

/// What the ledger says about one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Decided.
    Reply(GrantReply),
    /// Reserved: ask this downstream and no other. Empty: none is known, as with orders that await their event.
    Ask(String),
}

impl Decision {
    pub const fn reply(&self) -> Option<&GrantReply> {
        match self {
            Self::Reply(reply) => Some(reply),
            Self::Ask(_) => None,
        }
    }
}

/// Events of one type to decide in the ledger.
#[derive(Debug)]
pub(crate) struct Grant {
    pub bonus_type: Arc<str>,
    pub events: Vec<Bytes>,
    pub how: How,
    pub reply: oneshot::Sender<Vec<Decision>>,
}

impl Grant {
    /// Credited by the ledger itself, in the normal way.
    pub fn is_plain(&self) -> bool {
        self.how == How::Credit(Attempt::Normal)
    }

    /// Held for its event, in the normal way.
    pub fn is_promised(&self) -> bool {
        self.how == How::Promise(Attempt::Normal)
    }
}

/// Who pays, and so what the ledger is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    /// The ledger itself.
    Credit(Attempt),
    /// The downstream of this name, unless another is asked already: hold the budget meanwhile.
    Reserve(Attempt, Arc<str>),
    /// The ledger itself, when the event comes: hold the budget meanwhile.
    Promise(Attempt),
    /// Nobody.
    Reject,
}

/// What a downstream decided.
#[derive(Debug)]
pub(crate) struct Settle {
    pub bonus_type: Arc<str>,
    /// Its name.
    pub payer: String,
    pub paid: Vec<Bytes>,
    pub refused: Vec<(Bytes, String)>,
    /// First the paid ones, then the refused; dropped when nothing is stored.
    pub reply: oneshot::Sender<Vec<GrantReply>>,
}

/// A withdrawal to hold.
#[derive(Debug)]
pub(crate) struct Hold {
    pub withdrawal: Withdrawal,
    /// Who pays it, if it is not held yet; empty: the ledger itself, in the same transaction.
    pub payer: String,
    pub reply: oneshot::Sender<HoldOutcome>,
}

/// A withdrawal whose payer has decided: it has paid, or refused for this reason.
#[derive(Debug)]
pub(crate) struct End {
    pub id: String,
    pub refused: Option<String>,
    pub reply: oneshot::Sender<Finish>,
}

/// Something else to do with the ledger, in a transaction of its own or none.
pub(crate) type Call = Box<dyn FnOnce(&mut Ledger) + Send>;

pub(crate) enum Job {
    Grant(Grant),
    Settle(Settle),
    Hold(Hold),
    End(End),
    Archive { failed: Vec<Failed>, reply: oneshot::Sender<Result<(), String>> },
    Call(Call),
}

impl Job {
    pub fn weight(&self) -> Weight {
        let of = |events: &mut dyn Iterator<Item = usize>| {
            let (count, bytes) = events.fold((0_usize, 0_usize), |(count, sum), len| (count + 1, sum + len));
            Weight { events: count.max(1), bytes }
        };
        match self {
            Self::Grant(grant) => of(&mut grant.events.iter().map(Bytes::len)),
            Self::Settle(settle) => of(&mut settle
                .paid
                .iter()
                .chain(settle.refused.iter().map(|(event, _)| event))
                .map(Bytes::len)),
            Self::Archive { failed, .. } => of(&mut failed.iter().map(|one| one.payload.len())),
            Self::Call(_) | Self::Hold(_) | Self::End(_) => Weight { events: 1, bytes: 0 },
        }
    }

    pub const fn is_withdrawal(&self) -> bool {
        matches!(self, Self::Hold(_) | Self::End(_))
    }
}

/// What a job's caller is told once the transaction is durable.
pub(crate) enum Answer {
    Decisions(Vec<Decision>),
    Settled(Vec<GrantReply>),
    Held(HoldOutcome),
    Ended(Finish),
    Archived,
    None,
}
