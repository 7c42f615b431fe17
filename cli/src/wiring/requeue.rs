//! Where records go that a consumer requeues: the candidate queues of their route, through the fan-out.
//!
//! Each candidate is tried by itself before the record is given back for the salvage file: a broker that takes a record
//! and does not answer would else use up the patience of all. Then each is offered the record once more, for what hung
//! is known by then and passed by.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_consumer::{Done, RequeueOutcome, RequeueRecord, RequeueSink};
use windfall_queue_virtual::{Fanout, PendingRecord, QueueId, Side, Undelivered};
use windfall_signing::{QueueTag, SignError, Signer};

/// How long a record is offered to one candidate queue. One that has refused the record before this one is asked once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requeues records by the routes in force.
pub struct RequeueToQueues {
    shared: Arc<Shared>,
    rules: LiveRules,
}

struct Shared {
    fanout: Arc<Fanout>,
    /// Signs records for the queue that they are written to; `None` where consumers take unsigned ones.
    signer: Option<Signer>,
    /// The queues that took no record lately.
    refusing: Mutex<BTreeSet<QueueId>>,
}

impl RequeueToQueues {
    /// To these queues, signed if there is a signer.
    pub fn new(fanout: Arc<Fanout>, rules: LiveRules, signer: Option<Signer>) -> Self {
        Self { shared: Arc::new(Shared { fanout, signer, refusing: Mutex::default() }), rules }
    }

    /// The candidate queues of a record; every queue where no route takes it, for it must stay somewhere.
    fn candidates(&self, record: &RequeueRecord) -> Vec<Candidate> {
        let rules = self.rules.current();
        let names: Vec<&String> = match rules.route(&record.activity, &record.scene, &record.bonus_type) {
            Some(route) => route.requeue.iter().collect(),
            None => rules.queues.keys().collect(),
        };
        let fanout = &self.shared.fanout;
        names
            .into_iter()
            .filter_map(|name| {
                let queue = fanout.queue(name)?;
                let side = fanout.side(queue, record.first_user_id)?;
                Some(Candidate { queue, side, tag: QueueTag::of(name) })
            })
            .collect()
    }
}

impl RequeueSink for RequeueToQueues {
    fn requeue(&self, record: RequeueRecord, done: Done) {
        let candidates = self.candidates(&record);
        let pending = PendingRequeue {
            shared: Arc::clone(&self.shared),
            candidates,
            tried: 0,
            patience: Duration::ZERO,
            record,
            signed: None,
            done,
        };
        Box::new(pending).submit();
    }
}

/// A queue that a record may take.
#[derive(Clone, Copy)]
struct Candidate {
    queue: QueueId,
    side: Side,
    tag: QueueTag,
}

struct PendingRequeue {
    shared: Arc<Shared>,
    candidates: Vec<Candidate>,
    /// Candidates tried so far, over both rounds.
    tried: usize,
    patience: Duration,
    record: RequeueRecord,
    /// The record as it is signed for the candidate that is tried now.
    signed: Option<Vec<u8>>,
    done: Done,
}

impl PendingRequeue {
    /// The candidate that is tried now.
    fn candidate(&self) -> Option<Candidate> {
        let many = self.candidates.len();
        if self.tried < 2 * many { self.candidates.get(self.tried % many).copied() } else { None }
    }

    fn submit(mut self: Box<Self>) {
        let Some(Candidate { queue, side, tag }) = self.candidate() else {
            return (self.done)(RequeueOutcome::Refused);
        };
        if let Err(why) = self.sign(tag) {
            tracing::error!(%why, "a requeued record cannot be signed; it waits in the salvage file");
            return (self.done)(RequeueOutcome::Refused);
        }
        let is_again = self.tried >= self.candidates.len();
        let is_refusing = self.shared.refusing.lock().contains(&queue);
        self.patience = if is_again || is_refusing { Duration::ZERO } else { PATIENCE };
        let fanout = Arc::clone(&self.shared.fanout);
        fanout.submit(&[(queue, side)], self);
    }
}

impl PendingRequeue {
    /// I12: signs what this process has verified, and never a record as it came, which nobody has.
    fn sign(&mut self, tag: QueueTag) -> Result<(), SignError> {
        if let (Some(signer), false) = (&self.shared.signer, self.record.is_raw()) {
            self.signed = Some(signer.sign_record(&self.record.payload, tag)?);
        }
        Ok(())
    }
}

impl PendingRecord for PendingRequeue {
    fn key(&self) -> &[u8] {
        &self.record.key
    }

    fn payload(&self) -> &[u8] {
        self.signed.as_ref().unwrap_or(&self.record.payload)
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.patience)
    }

    fn delivered(self: Box<Self>) {
        if let Some(Candidate { queue, .. }) = self.candidate() {
            self.shared.refusing.lock().remove(&queue);
        }
        // I3: the original is finished by this call alone.
        (self.done)(RequeueOutcome::Stored);
    }

    fn undelivered(mut self: Box<Self>, why: Undelivered) {
        match why {
            // No candidate takes it any more, whichever is asked.
            Undelivered::Closed => return (self.done)(RequeueOutcome::Refused),
            Undelivered::PatienceOver => {
                if let Some(Candidate { queue, .. }) = self.candidate() {
                    self.shared.refusing.lock().insert(queue);
                }
            }
            Undelivered::Full | Undelivered::TooLarge | Undelivered::NoQueue => {}
        }
        self.tried += 1;
        self.submit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::dev;
    use crate::wiring::parts::Brokers;
    use std::sync::mpsc;
    use std::time::Instant;
    use windfall_contract::Clock;
    use windfall_contract::broker::Broker;
    use windfall_proto::record::{self, Head};
    use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
    use windfall_queue_faulty::{Faults, Faulty};
    use windfall_queue_virtual::FanoutOptions;
    use windfall_signing::{LiveRing, Ring};

    /// The bound after which a test has failed, however busy the machine is.
    const MINUTE: Duration = Duration::from_secs(60);

    fn unsigned() -> Vec<u8> {
        let head = Head { bonus_type: "cash", attempt: 1, failures: 0, not_before_ms: 0, count: 1 };
        record::build(head, [b"event".as_slice()])
    }

    struct Queues {
        _folder: tempfile::TempDir,
        brokers: [Arc<Faulty>; 2],
        fanout: Arc<Fanout>,
        sink: RequeueToQueues,
    }

    /// The development rules: `cash` goes back to the queue `cash`, then to `gifts`.
    fn open() -> Queues {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let broker = EmbeddedBroker::open(&folder.path().join(name), &EmbeddedOptions::default());
            Faulty::new(broker.unwrap(), 1)
        };
        let brokers = ["a", "b"].map(open);
        let named =
            |(name, broker): (&str, &Arc<Faulty>)| (name.to_owned(), Arc::clone(broker) as Arc<dyn Broker>);
        let of_rules: Brokers = ["a", "b"].into_iter().zip(&brokers).map(named).collect();
        let (rules, _) = LiveRules::adjustable(windfall_config::parse_rules(dev::RULES, None).unwrap(), None);
        let options = FanoutOptions { delivery_timeout_ms: 500, ..FanoutOptions::default() };
        let fanout = Fanout::open(&rules.current(), of_rules, options, Clock::system());
        let fanout = Arc::new(fanout.unwrap());
        let ring = LiveRing::new(Ring::ephemeral("consumer").unwrap());
        let signer = Signer::new(&ring, "consumer", "windfall").unwrap();
        let sink = RequeueToQueues::new(Arc::clone(&fanout), rules, Some(signer));
        Queues { _folder: folder, brokers, fanout, sink }
    }

    impl Queues {
        fn set(&self, topics: &[&str], faults: &Faults) {
            for topic in topics {
                self.brokers.iter().for_each(|broker| broker.set(topic, faults.clone()));
            }
        }

        /// The outcome of a record.
        fn requeue(&self) -> RequeueOutcome {
            let (told, outcome) = mpsc::sync_channel(1);
            let record = RequeueRecord {
                bonus_type: "cash".into(),
                activity: "spring".into(),
                scene: "rain".into(),
                first_user_id: 1,
                key: b"key".to_vec(),
                payload: unsigned(),
                events: 1,
            };
            self.sink.requeue(record, Box::new(move |outcome| told.try_send(outcome).unwrap()));
            outcome.recv_timeout(MINUTE).unwrap()
        }
    }

    /// A broker that takes records and does not answer used up the patience, and the record went to the salvage file.
    #[test]
    fn brokers_that_hang_do_not_keep_a_record_from_its_last_candidate() {
        let queues = open();
        queues.set(&["cash-a", "cash-b"], &Faults { hang: true, ..Faults::default() });
        assert_eq!(queues.requeue(), RequeueOutcome::Stored);
        queues.fanout.close(Duration::ZERO);
    }

    #[test]
    fn a_record_that_every_candidate_refuses_is_given_back_and_the_next_one_at_once() {
        let queues = open();
        let all = ["cash-a", "cash-b", "gifts-a", "gifts-b"];
        queues.set(&all, &Faults { refuse: true, ..Faults::default() });
        assert_eq!(queues.requeue(), RequeueOutcome::Refused);
        // With the patience of 2 s for each, they would take 80 s.
        let began = Instant::now();
        for _ in 0..40 {
            assert_eq!(queues.requeue(), RequeueOutcome::Refused);
        }
        assert!(began.elapsed() < MINUTE, "queues that are known to refuse are waited for");
        queues.set(&all, &Faults::default());
        let until = Instant::now() + MINUTE;
        while queues.requeue() == RequeueOutcome::Refused {
            assert!(Instant::now() < until, "queues that are back take nothing");
            std::thread::sleep(Duration::from_millis(50));
        }
        queues.fanout.close(Duration::ZERO);
    }
}
