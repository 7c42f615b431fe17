//! The failure archive for operators: list it, replay from it. Every replay is audited.

use crate::decode;
use crate::handle::{CallError, RewardHandle};
use crate::job::How;
use bytes::Bytes;
use windfall_contract::accounts::{Reason, Status, StoredOrder};
use windfall_contract::rewards::{GrantReply, Rejection};
use windfall_ledger::{ArchiveFilter, Archived, Attempt, Order, OrderId, Replay};
use windfall_proto::record;
use windfall_signing::Refused;

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// The entry.
    pub id: i64,
    /// Its order number, where it has one.
    pub trade_no: Option<String>,
    /// The answer. `Retry`: nothing was decided; replay it again.
    pub reply: GrantReply,
}

/// A replay did not happen, or its outcome could not be recorded: replay it again, an order credits once.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is no such entry.
    #[error("the archive has no entry {0}")]
    NotFound(i64),
    /// The call names no actor.
    #[error("a replay needs the name of who asks for it")]
    NoActor,
    /// The call vouches for a record, and does not say why.
    #[error("a replay despite the signature needs its reason")]
    NoReason,
    /// The ledger could not be asked; nothing was granted.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The event was granted anew, as the answer says, and this could not be written into the audit, which says
    /// `asked`.
    #[error("entry {id} was replayed, and came to: {}; the audit does not say so yet: {error}", word(reply))]
    NotRecorded {
        /// The entry.
        id: i64,
        /// The reply to it.
        reply: GrantReply,
        /// Why it could not be recorded.
        error: CallError,
    },
}

/// The word that the audit keeps. Before it stands `asked`, alone where the process died in between.
fn word(reply: &GrantReply) -> String {
    match reply {
        GrantReply::Credited => "credited".into(),
        GrantReply::AlreadyCredited => "already_credited".into(),
        GrantReply::Conflict => "conflict".into(),
        GrantReply::Rejected(rejection) => rejection.to_string(),
        GrantReply::Retry { reason, .. } => format!("retry: {reason}"),
    }
}

impl RewardHandle {
    /// A page of the archive, oldest first.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn archive_list(&self, filter: ArchiveFilter) -> Result<Vec<Archived>, CallError> {
        self.call(move |ledger| ledger.archive_list(&filter)).await
    }

    /// Grants an archived event again, on behalf of `actor`. What was rejected is decided anew; what has been
    /// credited since answers `AlreadyCredited`; a conflict stays one. A record that was not verified is verified anew, by
    /// the keys of this moment: see [`RewardHandle::with_verifier`].
    ///
    /// # Errors
    /// [`ReplayError`].
    pub async fn replay(&self, id: i64, actor: &str) -> Result<Replayed, ReplayError> {
        if actor.trim().is_empty() {
            return Err(ReplayError::NoActor);
        }
        self.replay_entry(self.entry(id).await?, actor, None).await
    }

    /// Grants an archived record of which nobody can prove any more who wrote it, because `actor` vouches for it: one that is
    /// not signed, or whose key is destroyed or unknown. The audit has the reason. A record whose signature is wrong stays
    /// refused. Other entries are replayed as by [`replay`](Self::replay).
    ///
    /// # Errors
    /// [`ReplayError`].
    pub async fn replay_despite_signature(
        &self,
        id: i64,
        actor: &str,
        reason: &str,
    ) -> Result<Replayed, ReplayError> {
        if actor.trim().is_empty() {
            return Err(ReplayError::NoActor);
        }
        if reason.trim().is_empty() {
            return Err(ReplayError::NoReason);
        }
        self.replay_entry(self.entry(id).await?, actor, Some(reason)).await
    }

    async fn entry(&self, id: i64) -> Result<Archived, ReplayError> {
        self.call(move |ledger| ledger.archived(id)).await?.ok_or(ReplayError::NotFound(id))
    }

    /// Replays what the filter finds, one after the other. Go on with `after` set to the last id until a page
    /// is empty.
    ///
    /// # Errors
    /// [`ReplayError`]: those before it are done.
    pub async fn replay_all(&self, filter: ArchiveFilter, actor: &str) -> Result<Vec<Replayed>, ReplayError> {
        if actor.trim().is_empty() {
            return Err(ReplayError::NoActor);
        }
        let mut done = Vec::new();
        for entry in self.archive_list(filter).await? {
            done.push(self.replay_entry(entry, actor, None).await?);
        }
        Ok(done)
    }

    async fn replay_entry(
        &self,
        entry: Archived,
        actor: &str,
        despite: Option<&str>,
    ) -> Result<Replayed, ReplayError> {
        let Archived { id, trade_no, payload, reason, .. } = entry;
        let despite = despite.filter(|_| reason == Rejection::Unverified.to_string());
        // Before the grant: killed in between, the audit still says who asked for what is credited.
        let asked = despite
            .map_or_else(|| "asked".to_owned(), |reason| format!("asked, despite the signature: {reason}"));
        self.note(id, actor, asked).await?;
        let payload = Bytes::from(payload);
        let may_be_granted = || match self.verify(&payload) {
            Ok(()) => true,
            Err(refused) if despite.is_some() && can_be_vouched_for(refused.as_ref()) => {
                tracing::warn!(id, actor, ?refused, "an archived record is granted despite its signature");
                true
            }
            Err(refused) => {
                tracing::warn!(id, ?refused, "an archived record is not verified: nothing of it is granted");
                false
            }
        };
        let reply = match events_of_record(&payload) {
            // Somebody's bytes that are no record: nothing says what they would be.
            None if reason == Rejection::Unverified.to_string() => {
                GrantReply::Rejected(Rejection::Unverified)
            }
            _ if reason == Rejection::Unverified.to_string() && !may_be_granted() => {
                GrantReply::Rejected(Rejection::Unverified)
            }
            Some(events) => self.replay_events(events).await?,
            None => self.replay_event(payload).await?,
        };
        match self.note(id, actor, word(&reply)).await {
            Ok(()) => Ok(Replayed { id, trade_no, reply }),
            Err(error) => Err(ReplayError::NotRecorded { id, reply, error }),
        }
    }

    /// I12: whether it is known by now who wrote a record that came unverified; `Err(None)` where there are no keys. The queue
    /// that it was signed for is not asked for: it is read from no topic, its sender has signed its events for this tenant,
    /// and an order credits once. What is not signed is refused also where the options accept such records of some topic.
    fn verify(&self, payload: &[u8]) -> Result<(), Option<Refused>> {
        let verifier = self.verifier.as_ref().ok_or(None)?;
        verifier.verify(payload, |_| true).map(drop).map_err(Some)
    }

    async fn replay_event(&self, payload: Bytes) -> Result<GrantReply, CallError> {
        // Broken bytes: nothing in them can be granted.
        let Ok(order) = decode::order(&payload, None, 0) else {
            return Ok(GrantReply::Rejected(Rejection::Malformed));
        };
        let (how, bonus_type) = (self.how_again(&order).await?, order.bonus_type.to_owned());
        let replies = self.grant_as(&bonus_type, &[payload], how).await;
        replies.into_iter().next().ok_or(CallError::Closed)
    }

    /// Grants each event of a record that was archived whole. The answer is `Credited` if all of them are credited, and
    /// otherwise that of the first one that is not; the entry stays open for it.
    async fn replay_events(&self, events: Vec<Bytes>) -> Result<GrantReply, CallError> {
        let mut all = GrantReply::AlreadyCredited;
        for event in events {
            let reply = self.replay_event(event).await?;
            all = match (all, reply) {
                (GrantReply::AlreadyCredited, reply) => reply,
                (GrantReply::Credited, reply) if !reply.is_credited() => reply,
                (first, _) => first,
            };
        }
        Ok(all)
    }

    /// The payer of a replayed order. It is the type's present payer, unless a downstream was asked before: that one
    /// may have paid unless it has refused for good, and then no other is asked (I1).
    async fn how_again(&self, order: &Order<'_>) -> Result<How, CallError> {
        let (activity, trade_no) = (order.activity.to_owned(), order.trade_no.to_owned());
        let read =
            self.read(move |reader| reader.order(OrderId { activity: &activity, trade_no: &trade_no }));
        let stored = read.await?;
        let may_have_paid = |order: &StoredOrder| {
            let has_refused = order.status == Status::Rejected(Reason::DownstreamRefused);
            matches!(order.status, Status::Rejected(_)) && !has_refused && !order.payer.is_empty()
        };
        Ok(match stored.filter(may_have_paid) {
            Some(order) => How::Reserve(Attempt::Replay, order.payer.into()),
            None => self.how(order.bonus_type, Attempt::Replay),
        })
    }

    /// Writes a line of the audit.
    async fn note(&self, id: i64, actor: &str, outcome: String) -> Result<(), CallError> {
        let replay = Replay { time_ms: self.inner.clock.wall_ms(), actor: actor.to_owned(), outcome };
        self.call(move |ledger| {
            let mut tx = ledger.begin()?;
            tx.mark_replayed(id, &replay)?;
            tx.commit()
        })
        .await
    }
}

/// Whether an operator may vouch for a record that is refused for this: nothing proves or disproves who wrote it. Without
/// keys (`None`), nothing does of any record. One that somebody has changed, or has signed for more than his key may, is not
/// granted by any word.
const fn can_be_vouched_for(refused: Option<&Refused>) -> bool {
    match refused {
        None => true,
        Some(
            Refused::Unsigned
            | Refused::UnknownKey { .. }
            | Refused::DestroyedKey { .. }
            | Refused::UnknownOrigin { .. }
            | Refused::OriginGone { .. }
            | Refused::UnsignedOrigin { .. },
        ) => true,
        Some(_) => false,
    }
}

/// The events of a record that was archived whole and is well-formed: what made a consumer panic is.
fn events_of_record(payload: &Bytes) -> Option<Vec<Bytes>> {
    let (head, events) = record::split(payload).ok()?;
    let events: Vec<Bytes> =
        events.map(|range| range.map(|range| payload.slice(range))).collect::<Result<_, _>>().ok()?;
    (head.count > 0 && events.len() == head.count as usize).then_some(events)
}
