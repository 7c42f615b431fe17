//! What surrounds the readers: it learns the store's id and names, opens the topics, and deletes marks in time.

use super::options::{AGAIN, TIDY_EVERY};
use super::reader::{Ended, Known, read_topic};
use super::{Identity, Inner, QueueTopic, stopped};
use crate::caught::caught;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use windfall_contract::broker::{Consumer, OpenError};
use windfall_contract::due::{KnownName, NameKept, Route, Shard, StoreError};

/// How often names are said to the store, and how many at a time.
const KEEP_EVERY: Duration = Duration::from_secs(5);
const KEPT_AT_ONCE: usize = 100;
const ID_FILE: &str = "store-id";
/// What a trouble with the store is called.
const STORE: &str = "the store of the queue of adds";

/// The id of the store that an earlier start has learnt.
pub(super) fn noted_id(folder: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(folder.join(ID_FILE)).ok()?;
    u64::from_str_radix(text.trim(), 16).ok()
}

/// The name of the consumer group of a store.
fn group(id: u64) -> String {
    format!("windfall-timers-{id:016x}")
}

/// Learns what the store says, and reads all topics until it is to stop; begins anew where the store does not mean the same
/// by its numbers any more.
pub(super) async fn run(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    let mut last_id = None;
    loop {
        let learnt = tokio::select! {
            biased;
            // A process that ends must not give a name to a store that was made anew meanwhile.
            () = stopped(&mut stop) => return,
            learnt = learn(&inner, last_id) => Arc::new(learnt),
        };
        last_id = Some(learnt.id);
        let (end, ends) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for topic in &inner.topics {
            tasks.spawn(read(Arc::clone(&inner), Arc::clone(topic), Arc::clone(&learnt), ends.clone()));
        }
        tasks.spawn(tidy(Arc::clone(&inner), ends));
        let is_over = tokio::select! {
            biased;
            () = stopped(&mut stop) => true,
            () = keep_names(&inner, &learnt) => false,
        };
        end.send_replace(true);
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the queue of adds has ended by itself");
            }
        }
        if is_over {
            return;
        }
    }
}

/// Says the names that are in use, and the store's id, to the store again and again, so that it puts back what it has lost; returns
/// when another name has one of the numbers by now, or the store another id. A name that has a second number keeps the one that is known
/// here: marks of used keys lie under it.
async fn keep_names(inner: &Inner, known: &Known) {
    let name = |((tenant, target), route): (&(String, String), &Route)| KnownName {
        tenant: (route.tenant, tenant.clone()),
        target: Some((route.target, target.clone())),
    };
    let names: Vec<KnownName> = known.routes.iter().map(name).collect();
    for nth in 0_usize.. {
        tokio::time::sleep(KEEP_EVERY).await;
        match inner.store.queue_id(Some(known.id)).await {
            Ok(Some(id)) if id != known.id => {
                tracing::warn!(
                    "the timers' store had lost its id, and has another one by now, which is read anew"
                );
                return;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the id of the timers' store could not be kept now"),
        }
        let parts = names.len().div_ceil(KEPT_AT_ONCE).max(1);
        let Some(part) = names.chunks(KEPT_AT_ONCE).nth(nth % parts) else { continue };
        match inner.store.keep_names(part).await {
            Ok(kept) if kept.contains(&NameKept::Taken) => {
                tracing::warn!(
                    "the timers' store had lost names and has given their numbers to others; the names are read anew"
                );
                return;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "names could not be kept now"),
        }
    }
}

/// With the id that the store had, where it is known: a store that has lost it is the same one.
async fn learn(inner: &Arc<Inner>, last_id: Option<u64>) -> Known {
    loop {
        match learn_once(inner, last_id).await {
            Ok(known) => {
                inner.is_troubled(STORE, None);
                return known;
            }
            Err(what) => {
                inner.is_troubled(STORE, Some(what));
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn learn_once(inner: &Arc<Inner>, last_id: Option<u64>) -> Result<Known, String> {
    let fresh = last_id.map_or_else(getrandom::u64, Ok).map_err(|error| error.to_string())?;
    let said = |error: StoreError| error.to_string();
    let id = inner.store.queue_id(Some(fresh)).await.map_err(said)?;
    let id = id.ok_or("it does not say its id")?;
    let mut routes = BTreeMap::new();
    for (tenant, rules) in &inner.tenants.0 {
        let number = inner.store.tenant(tenant).await.map_err(said)?;
        for target in rules.targets.keys() {
            let route =
                Route { tenant: number, target: inner.store.target(number, target).await.map_err(said)? };
            routes.insert((tenant.clone(), target.clone()), route);
        }
    }
    note(inner, id).await;
    Ok(Known { id, routes })
}

/// The store has said its id.
async fn note(inner: &Arc<Inner>, id: u64) {
    let before = {
        let mut identity = inner.identity.lock();
        let before = *identity;
        *identity = match inner.options.store_id {
            Some(option) if option != id => Identity::Mistyped { option, own: id },
            _ => Identity::Known(id),
        };
        before
    };
    let own = format!("{id:016x}");
    match before {
        Identity::Assumed(other) if other != id => tracing::error!(
            store_id = own,
            assumed = format!("{other:016x}"),
            "the timers' store has another id than was assumed; adds by the queue that were written for the other one are \
             set aside"
        ),
        Identity::Assumed(_) | Identity::Known(_) | Identity::Mistyped { .. } => {}
        Identity::Unknown => tracing::info!(
            store_id = own,
            "the timers' store has this id; set scheduler.queue.store_id to it where a process without its data directory \
             shall take adds by the queue before it has reached the store"
        ),
    }
    let inner = Arc::clone(inner);
    let noted = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(&inner.folder)?;
        let fresh = inner.folder.join(format!("{ID_FILE}.new"));
        std::fs::write(&fresh, own)?;
        std::fs::rename(fresh, inner.folder.join(ID_FILE))
    });
    let noted = noted.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    if let Err(error) = noted {
        tracing::warn!(%error, "the id of the timers' store cannot be noted; the next start has to reach the store first");
    }
}

/// Reads one topic until it is to stop, from the last commit on whenever it begins anew.
async fn read(inner: Arc<Inner>, topic: Arc<QueueTopic>, known: Arc<Known>, mut stop: watch::Receiver<bool>) {
    let name = format!("the topic {} of the queue of adds", topic.name);
    let group = group(known.id);
    loop {
        let opened = tokio::select! {
            biased;
            () = stopped(&mut stop) => return,
            opened = open(&topic, &group) => opened,
        };
        let mut consumer = match opened {
            Ok(consumer) => consumer,
            Err(error) => {
                inner.stats.errors.add(1);
                if inner.is_troubled(&name, Some(error.to_string())) {
                    tracing::warn!(%error, "{name} cannot be opened; it is tried again");
                }
                tokio::select! {
                    () = stopped(&mut stop) => return,
                    () = tokio::time::sleep(AGAIN) => continue,
                }
            }
        };
        if consumer.may_delete_unread() {
            tracing::warn!(topic = topic.name, "the broker may delete adds of timers before they are read");
        }
        let ended = caught(read_topic(&inner, &topic, &name, &known, &mut consumer, &mut stop)).await;
        consumer.close().await;
        match ended {
            Ok(Ended::Stopped) => return,
            Ok(Ended::ReadAgain) => {}
            Err(panic) => {
                tracing::error!(
                    panic,
                    topic = topic.name,
                    "a reader of the queue of adds panicked; it is started again"
                );
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn open(topic: &Arc<QueueTopic>, group: &str) -> Result<Box<dyn Consumer>, OpenError> {
    let made = Arc::clone(topic);
    let made = tokio::task::spawn_blocking(move || {
        made.broker.ensure_topic(&made.name, made.partitions)?;
        made.broker.hazards(&made.name)
    });
    let hazards = made.await.unwrap_or_else(|error| Err(OpenError::Unavailable(error.to_string())))?;
    if !hazards.is_empty() {
        let hazards = hazards.join("; ");
        tracing::warn!(
            topic = topic.name,
            hazards,
            "a topic of the queue of adds may lose what it has stored"
        );
    }
    topic.broker.consumer(&topic.name, group).await
}

/// Deletes marks whose time is over in all shards, also in those that nothing is added to.
async fn tidy(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    let pause = TIDY_EVERY / u32::from(inner.store.shards().max(1));
    loop {
        for shard in (0..inner.store.shards()).map(Shard) {
            let kept_ms = inner.options.keys_kept_ms;
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return,
                () = async {
                    // A shard that is away has its turn again.
                    if let Err(error) = inner.store.add_once(shard, &[], kept_ms).await {
                        tracing::debug!(shard = shard.0, %error, "marks of used keys are not deleted now");
                    }
                    tokio::time::sleep(pause).await;
                } => {}
            }
        }
    }
}
