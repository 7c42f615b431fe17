//! The jobs that callers give to the writers of the ledger, and the answers when they are durable.

use crate::inbox::Weight;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::oneshot;
use windfall_contract::accounts::Withdrawal;
use windfall_contract::rewards::{Failed, GrantReply};
use windfall_ledger::{Attempt, Finish, HoldOutcome, Ledger, WithdrawalId};

/// The ledger's decision on one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Decided.
    Reply(GrantReply),
    /// Reserved: ask this downstream.
    Ask(Ask),
}

/// The downstream of a reserved order, and the key that it is given: both stay what they were when it was reserved first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ask {
    /// The downstream to ask, and no other. Empty where none is known, as for orders that await their event.
    pub payer: String,
    /// The idempotency key.
    pub key: String,
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
    /// Whether the ledger itself credits them in the normal way.
    pub fn is_plain(&self) -> bool {
        self.how == How::Credit(Attempt::Normal)
    }

    /// Whether they are held for their event in the normal way.
    pub fn is_promised(&self) -> bool {
        self.how == How::Promise(Attempt::Normal)
    }
}

/// The payer, and with it the request to the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    /// The ledger itself pays.
    Credit(Attempt),
    /// The downstream of this name pays, unless another is asked already; the budget is held meanwhile.
    Reserve(Attempt, Arc<str>),
    /// The ledger itself pays when the event comes; the budget is held meanwhile.
    Promise(Attempt),
    /// The type has no payer.
    Reject,
}

/// The decisions of a downstream.
#[derive(Debug)]
pub(crate) struct Settle {
    pub bonus_type: Arc<str>,
    /// The downstream's name.
    pub payer: String,
    pub paid: Vec<Bytes>,
    pub refused: Vec<(Bytes, String)>,
    /// Receives the replies: first of the paid orders, then of the refused ones. It is dropped when nothing is stored.
    pub reply: oneshot::Sender<Vec<GrantReply>>,
}

/// A withdrawal to hold.
#[derive(Debug)]
pub(crate) struct Hold {
    pub withdrawal: Withdrawal,
    /// The payer, if it is not held yet; empty for the ledger itself, in the same transaction.
    pub payer: String,
    pub reply: oneshot::Sender<HoldOutcome>,
}

/// A withdrawal whose payer has decided: it has paid, or refused for this reason.
#[derive(Debug)]
pub(crate) struct End {
    pub user_id: i64,
    pub id: String,
    pub refused: Option<String>,
    pub reply: oneshot::Sender<Finish>,
}

impl End {
    /// The withdrawal's name.
    pub fn name(&self) -> WithdrawalId<'_> {
        WithdrawalId { user_id: self.user_id, id: &self.id }
    }
}

/// Another operation on the ledger, in a transaction of its own or without one.
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

/// The answer to a job's caller once the transaction is durable.
pub(crate) enum Answer {
    Decisions(Vec<Decision>),
    Settled(Vec<GrantReply>),
    Held(HoldOutcome),
    Ended(Finish),
    Archived,
    None,
}
