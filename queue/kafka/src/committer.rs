//! Commits, on a thread of their own: librdkafka's call waits for the broker, and its answer without waiting would
//! come by the queue of records, behind all that was read ahead.
//! A commit may wait here while partitions move. So it is checked against the epochs once more when it runs, and what
//! it names is not given back before it has ended: the broker knows members and generations, not who owns a partition.

use super::finished;
use super::shared::Shared;
use super::thread::Client;
use parking_lot::Mutex;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use tokio::sync::oneshot;
use windfall_contract::broker::{Commit, CommitError, OpenError};
use windfall_contract::finished::Origin;

/// The handle of the committing thread, which ends when the handle is dropped, after the commit that is running.
pub(super) struct Committer {
    jobs: SyncSender<Job>,
    client: Arc<Mutex<Option<Arc<Client>>>>,
}

struct Job {
    client: Arc<Client>,
    commits: Vec<Commit>,
    answer: oneshot::Sender<Result<(), CommitError>>,
}

impl Committer {
    /// Commits by the client that is in `client` at the time.
    pub(super) fn start(
        topic: &str,
        client: Arc<Mutex<Option<Arc<Client>>>>,
        shared: Arc<Shared>,
    ) -> Result<Self, OpenError> {
        // One waits at most: what comes while a broker is frozen is refused, and said again.
        let (jobs, todo) = sync_channel::<Job>(1);
        let name = format!("commit-{topic}");
        let topic = topic.to_owned();
        std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                for Job { client, commits, answer } in todo {
                    let done = run(&topic, &client, &shared, &commits);
                    drop(client);
                    // The caller may have gone.
                    drop(answer.send(done));
                }
            })
            .map_err(|error| OpenError::Io { place: name, what: error.to_string() })?;
        Ok(Self { jobs, client })
    }

    /// Starts a commit. Its answer may stay away for as long as the broker is frozen.
    pub(super) fn commit(
        &self,
        commits: Vec<Commit>,
    ) -> Result<oneshot::Receiver<Result<(), CommitError>>, CommitError> {
        let client = self.client.lock().clone();
        let client = client.ok_or_else(|| CommitError::Unavailable("joining the group anew".into()))?;
        let (answer, receiver) = oneshot::channel();
        self.jobs
            .try_send(Job { client, commits, answer })
            .map_err(|_| CommitError::Unavailable("an earlier commit has no answer yet".into()))?;
        Ok(receiver)
    }
}

fn run(topic: &str, client: &Client, shared: &Shared, commits: &[Commit]) -> Result<(), CommitError> {
    let commits = shared.state.lock().begin_commit(commits);
    if commits.is_empty() {
        return Ok(());
    }
    let done = store(topic, client, &commits);
    shared.state.lock().end_commit(&commits, done.is_ok());
    shared.ordered.notify_one();
    done.map_err(refused)
}

/// Plain positions together, each with the topic's id. A position with a map goes by itself: librdkafka tells of one
/// place in many that it was refused only if all of them were, and a broker may be set to take shorter metadata than
/// ours.
fn store(topic: &str, client: &Client, commits: &[(Commit, Origin)]) -> Result<(), KafkaError> {
    let mut plain = TopicPartitionList::with_capacity(commits.len());
    for (commit, origin) in commits {
        match finished::to_text(&commit.finished, origin) {
            None => add(&mut plain, topic, commit, finished::topic_text(origin.topic).as_deref())?,
            Some(text) => {
                let mut mapped = TopicPartitionList::with_capacity(1);
                add(&mut mapped, topic, commit, Some(&text))?;
                match client.commit(&mapped, CommitMode::Sync) {
                    Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::OffsetMetadataTooLarge)) => {
                        tracing::warn!(
                            topic,
                            bytes = text.len(),
                            "kafka: metadata so long is refused: raise offset.metadata.max.bytes"
                        );
                        add(&mut plain, topic, commit, finished::topic_text(origin.topic).as_deref())?;
                    }
                    done => done?,
                }
            }
        }
    }
    if plain.count() == 0 {
        return Ok(());
    }
    match client.commit(&plain, CommitMode::Sync) {
        // A broker that takes not even a topic's id: all of these are as long, so that none of them was stored.
        Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::OffsetMetadataTooLarge)) => {
            let mut bare = TopicPartitionList::with_capacity(plain.count());
            for place in plain.elements() {
                bare.add_partition(topic, place.partition()).set_offset(place.offset())?;
            }
            client.commit(&bare, CommitMode::Sync)
        }
        done => done,
    }
}

fn add(
    list: &mut TopicPartitionList,
    topic: &str,
    commit: &Commit,
    metadata: Option<&str>,
) -> Result<(), KafkaError> {
    let place = (i32::try_from(commit.partition), i64::try_from(commit.next_offset));
    if let (Ok(partition), Ok(offset)) = place {
        let mut place = list.add_partition(topic, partition);
        place.set_offset(Offset::Offset(offset))?;
        if let Some(metadata) = metadata {
            place.set_metadata(metadata);
        }
    }
    Ok(())
}

fn refused(error: KafkaError) -> CommitError {
    let why = match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::IllegalGeneration | RDKafkaErrorCode::UnknownMemberId) => {
            "the group has moved on without us"
        }
        Some(RDKafkaErrorCode::RebalanceInProgress) => "the group is rebalancing",
        _ => return CommitError::Unavailable(error.to_string()),
    };
    CommitError::Unavailable(why.into())
}
