//! The contract with the queues that events are requeued to.

/// A record to write to one of the candidate queues of its first event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequeueRecord {
    /// The bonus type of its events; empty for a malformed record that the archive would not take.
    pub bonus_type: String,
    /// The first event's activity; with `scene` and `bonus_type` it finds the route.
    pub activity: String,
    /// The first event's scene.
    pub scene: String,
    /// The first event's user, whose id picks master or backup.
    pub first_user_id: i64,
    /// The partition key: the first event's order number followed by the attempt.
    pub key: Vec<u8>,
    /// The record's bytes, without a signature but for a [raw](Self::is_raw) record's own. The sink signs them for the
    /// queue that it writes them to.
    pub payload: Vec<u8>,
    /// The number of events in it.
    pub events: u32,
}

impl RequeueRecord {
    /// Whether it is a malformed record as it came: nobody has verified it, so it must not be signed.
    pub fn is_raw(&self) -> bool {
        self.bonus_type.is_empty()
    }
}

/// The outcome of a [`RequeueRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequeueOutcome {
    /// A broker has acknowledged it.
    Stored,
    /// No candidate queue took it, or that is not known: it goes to the spill log.
    Refused,
}

/// What [`RequeueSink::requeue`] calls, once, when the record's outcome is known. If it is dropped without a
/// call, that counts as refused.
pub type Done = Box<dyn FnOnce(RequeueOutcome) + Send>;

/// The sink that records are requeued to: the virtual queues, in a whole process.
pub trait RequeueSink: Send + Sync {
    /// Tries the candidate queues of the record's route. Never blocks; `done` may be called before it returns,
    /// or later from any thread.
    fn requeue(&self, record: RequeueRecord, done: Done);
}
