//! Sends commands to the nodes that have their keys, in pipelines, and follows keys that move.
//!
//! A single server is a cluster of one node that has every slot. Only masters are asked: a replica may be behind,
//! and its "no such key" would be believed (I7).

use super::link::{Link, Trouble};
use super::options::{
    LinkOptions, NODES_MAX, NoAnswer, OpenRedisError, REDIRECTS_MAX, REFRESH_PAUSE, SERVER,
};
use super::server;
use super::slots::{self, SLOTS};
use futures_util::future::{join_all, select_ok};
use parking_lot::Mutex;
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline, ServerError, ServerErrorKind, Value,
};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Commands on one key, to be sent one right after the other.
pub struct Request {
    /// The slot of the key.
    pub slot: u16,
    /// The command whose answer is wanted.
    pub command: Cmd,
    /// Further commands, whose answers matter only where they are errors.
    pub then: Vec<Cmd>,
    /// Whether an error of the server about the first command itself, not about its own state, counts as an answer.
    pub may_be_refused: bool,
    /// Whether the commands may be carried out twice. Where they may not, a connection that is lost after they were
    /// sent is [`NoAnswer`]; redirects are followed all the same, because a node that redirects has done nothing.
    pub may_be_repeated: bool,
}

impl Request {
    /// One command that may be repeated.
    pub fn new(slot: u16, command: Cmd) -> Self {
        Self { slot, command, then: Vec::new(), may_be_refused: false, may_be_repeated: true }
    }
}

/// The servers and the connections to them. When it is dropped, it closes them and ends its tasks.
pub struct Nodes {
    shared: Arc<Shared>,
    /// The task that learns which node has which slots.
    refresher: Option<JoinHandle<()>>,
}

struct Shared {
    runtime: Handle,
    options: LinkOptions,
    seeds: Vec<ConnectionInfo>,
    map: Mutex<Arc<Map>>,
    stale: Notify,
}

/// The map from slots to nodes.
#[derive(Default, Clone)]
struct Map {
    nodes: Vec<Arc<Node>>,
    /// An index into `nodes` for each slot; empty where one node has all.
    owners: Vec<Option<u16>>,
}

struct Node {
    host: String,
    port: u16,
    links: Vec<Link>,
}

/// The node that a request is sent to.
enum Target {
    Owner,
    /// The node that an answer named as the key's owner, now or (with `asking`) soon.
    Told {
        host: String,
        port: u16,
        asking: bool,
    },
}

struct Waiting {
    at: usize,
    request: Request,
    target: Target,
}

/// One pipeline on one connection.
struct Batch {
    node: Arc<Node>,
    link: usize,
    pipeline: Pipeline,
    entries: Vec<Entry>,
}

/// The commands of a pipeline that belong to one request.
struct Entry {
    at: usize,
    slot: u16,
    asking: bool,
    then: usize,
    may_be_refused: bool,
    may_be_repeated: bool,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(refresher) = &self.refresher {
            refresher.abort();
        }
    }
}

impl Nodes {
    /// Begins to connect, on this runtime.
    pub fn start(runtime: &Handle, options: &LinkOptions, seeds: Vec<ConnectionInfo>) -> Self {
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            options: options.clone(),
            seeds,
            map: Mutex::default(),
            stale: Notify::new(),
        });
        if options.is_cluster {
            shared.stale.notify_one();
            let refresher = runtime.spawn(Arc::clone(&shared).refresh());
            return Self { shared, refresher: Some(refresher) };
        }
        let nodes = shared.seeds.iter().filter_map(|info| shared.new_node(info.clone())).collect();
        *shared.map.lock() = Arc::new(Map { nodes, owners: Vec::new() });
        Self { shared, refresher: None }
    }

    /// Learns the cluster's map now.
    ///
    /// # Errors
    /// [`OpenRedisError`].
    pub async fn learn(&self) -> Result<(), OpenRedisError> {
        if self.shared.options.is_cluster { self.shared.learn().await } else { Ok(()) }
    }

    /// The masters that are known: the server, or those of the cluster's map.
    pub fn masters(&self) -> Vec<ConnectionInfo> {
        let map = Arc::clone(&self.shared.map.lock());
        map.nodes.iter().filter_map(|node| self.shared.info_of(&node.host, node.port)).collect()
    }

    /// Sends requests and gathers the answers to their first commands, in their order. With `guarded` every answer is
    /// known to come from a master. Any doubt is an error.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn run(
        &self,
        requests: Vec<Request>,
        guarded: bool,
        deadline: Instant,
    ) -> Result<Vec<Value>, NoAnswer> {
        let shared = &*self.shared;
        let mut answers: Vec<Option<Value>> = Vec::new();
        answers.resize_with(requests.len(), || None);
        let requests = requests.into_iter().enumerate();
        let mut waiting: Vec<_> =
            requests.map(|(at, request)| Waiting { at, request, target: Target::Owner }).collect();
        for _ in 0..REDIRECTS_MAX {
            let batches = shared.pack(waiting, guarded && !shared.options.is_cluster)?;
            waiting = Vec::new();
            let exchanges =
                batches.iter().map(|batch| batch.node.links[batch.link].exchange(&batch.pipeline, deadline));
            let results = join_all(exchanges).await;
            for (batch, result) in batches.into_iter().zip(results) {
                match result {
                    Ok(values) => batch.sort_out(values, &mut answers, &mut waiting, shared)?,
                    Err(Trouble::Closed) => batch.again(&mut waiting)?,
                    Err(Trouble::Failed(why)) => {
                        shared.stale.notify_one();
                        return Err(NoAnswer(format!("{}:{}: {why}", batch.node.host, batch.node.port)));
                    }
                }
            }
            if waiting.is_empty() {
                let all: Option<Vec<_>> = answers.into_iter().collect();
                return all.ok_or_else(|| NoAnswer("an answer is missing".into()));
            }
        }
        Err(NoAnswer(format!(
            "the keys have moved {REDIRECTS_MAX} times, or the connection was lost as often"
        )))
    }
}

impl Shared {
    /// Sorts requests into pipelines by connection; what a pipeline has of one key stays in one.
    fn pack(&self, waiting: Vec<Waiting>, guarded: bool) -> Result<Vec<Batch>, NoAnswer> {
        let map = Arc::clone(&self.map.lock());
        let mut full = Vec::new();
        let mut open: Vec<Batch> = Vec::new();
        for Waiting { at, request, target } in waiting {
            let (node, asking) = match target {
                Target::Owner => (map.owner(request.slot).cloned(), false),
                Target::Told { host, port, asking } => (self.node_at(&host, port), asking),
            };
            let Some(node) = node else {
                self.stale.notify_one();
                return Err(NoAnswer(format!("no node is known for slot {}", request.slot)));
            };
            let link = usize::from(request.slot) % node.links.len();
            let found = open.iter().position(|batch| batch.link == link && Arc::ptr_eq(&batch.node, &node));
            let index = found.unwrap_or_else(|| {
                open.push(Batch::new(node, link, guarded));
                open.len() - 1
            });
            let batch = &mut open[index];
            batch.push(at, request, asking);
            if batch.entries.len() >= self.options.pipeline_requests {
                full.push(open.swap_remove(index));
            }
        }
        full.append(&mut open);
        Ok(full)
    }

    /// The node at this address, made if it is new.
    fn node_at(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let mut map = self.map.lock();
        if let Some(node) = map.nodes.iter().find(|node| node.host == host && node.port == port) {
            return Some(Arc::clone(node));
        }
        if map.nodes.len() >= NODES_MAX {
            return None;
        }
        let node = self.new_node(self.info_of(host, port)?)?;
        Arc::make_mut(&mut map).nodes.push(Arc::clone(&node));
        Some(node)
    }

    fn new_node(&self, info: ConnectionInfo) -> Option<Arc<Node>> {
        let ConnectionAddr::Tcp(host, port) = info.addr() else { return None };
        let (host, port) = (host.clone(), *port);
        let links = (0..self.options.connections)
            .map(|_| Link::start(&self.runtime, info.clone(), &self.options))
            .collect();
        Some(Arc::new(Node { host, port, links }))
    }

    /// The connection settings of a node; every node takes the credentials of the first.
    fn info_of(&self, host: &str, port: u16) -> Option<ConnectionInfo> {
        let seed = self.seeds.first()?;
        if let Err(error) = self.options.security.allow(SERVER, host) {
            tracing::error!(%error, "the cluster names a node that must not be connected to");
            return None;
        }
        let info = (host, port).into_connection_info().ok()?;
        Some(
            info.set_redis_settings(seed.redis_settings().clone())
                .set_tcp_settings(seed.tcp_settings().clone()),
        )
    }

    /// Learns the map again whenever a call found it wrong. Ends when the nodes are dropped.
    async fn refresh(self: Arc<Self>) {
        loop {
            self.stale.notified().await;
            if let Err(error) = self.learn().await {
                tracing::warn!(%error, "who has which slots cannot be learnt; the next call asks again");
            }
            sleep(REFRESH_PAUSE).await;
        }
    }

    /// Asks all known nodes, and takes the map of the first that answers.
    async fn learn(&self) -> Result<(), OpenRedisError> {
        let known = Arc::clone(&self.map.lock());
        let mut infos = self.seeds.clone();
        for node in &known.nodes {
            let is_seed = infos.iter().any(
                |info| matches!(info.addr(), ConnectionAddr::Tcp(host, port) if *host == node.host && *port == node.port),
            );
            if !is_seed {
                infos.extend(self.info_of(&node.host, node.port));
            }
        }
        let asks = infos.iter().map(|info| Box::pin(self.ask_slots(info)));
        let (owned, _) = select_ok(asks).await?;
        let mut owners = vec![None; SLOTS];
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for range in owned {
            let same = |node: &Arc<Node>| node.host == range.host && node.port == range.port;
            let index = nodes.iter().position(same).or_else(|| {
                let node = self.node_at(&range.host, range.port)?;
                nodes.push(node);
                Some(nodes.len() - 1)
            });
            let index = index.and_then(|index| u16::try_from(index).ok());
            for slot in range.slots {
                if let Some(owner) = owners.get_mut(usize::from(slot)) {
                    *owner = index;
                }
            }
        }
        // Nodes that have nothing any more go with the old map.
        *self.map.lock() = Arc::new(Map { nodes, owners });
        Ok(())
    }

    async fn ask_slots(&self, info: &ConnectionInfo) -> Result<Vec<slots::Owned>, OpenRedisError> {
        let within = self.options.connect_timeout;
        let place = info.addr().to_string();
        let mut connection = server::connect(info, &self.options).await?;
        let answer = server::ask(&mut connection, redis::cmd("CLUSTER").arg("SLOTS"), within).await;
        let answer = answer.map_err(|error| server::explain(&place, &error))?;
        let asked = match info.addr() {
            ConnectionAddr::Tcp(host, _) => host.as_str(),
            _ => "",
        };
        match slots::parse(&answer, asked) {
            Some(owned) if !owned.is_empty() => Ok(owned),
            Some(_) => Err(OpenRedisError::NotNow { place, what: "the cluster has no slots yet".into() }),
            None => {
                Err(OpenRedisError::NotRedis { place, what: "its answer to CLUSTER SLOTS is none".into() })
            }
        }
    }
}

impl Map {
    fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        match self.owners.get(usize::from(slot)) {
            Some(owner) => self.nodes.get(usize::from((*owner)?)),
            None if self.owners.is_empty() => self.nodes.first(),
            None => None,
        }
    }
}

impl Batch {
    fn new(node: Arc<Node>, link: usize, guarded: bool) -> Self {
        let mut pipeline = Pipeline::new();
        if guarded {
            // Before the reads: what a server answers after it was a master may be old by nothing.
            pipeline.add_command(redis::cmd("ROLE"));
        }
        Self { node, link, pipeline, entries: Vec::new() }
    }

    fn push(&mut self, at: usize, request: Request, asking: bool) {
        let Request { slot, command, then, may_be_refused, may_be_repeated } = request;
        self.entries.push(Entry { at, slot, asking, then: then.len(), may_be_refused, may_be_repeated });
        for command in std::iter::once(command).chain(then) {
            if asking {
                self.pipeline.add_command(redis::cmd("ASKING"));
            }
            self.pipeline.add_command(command);
        }
    }

    /// Takes the answers, and puts back what has to be sent elsewhere.
    fn sort_out(
        self,
        values: Vec<Value>,
        answers: &mut [Option<Value>],
        waiting: &mut Vec<Waiting>,
        shared: &Shared,
    ) -> Result<(), NoAnswer> {
        let mut own: usize = self.entries.iter().map(Entry::commands).sum();
        own = values.len().saturating_sub(own);
        let mut values = values.into_iter();
        if let Some(role) = values.by_ref().take(own).last() {
            server::must_be_master(&role).map_err(NoAnswer)?;
        }
        let mut commands = self.pipeline.cmd_iter().skip(own);
        for entry in &self.entries {
            let mut told = None;
            let mut next = |may_be_refused: bool| {
                if entry.asking {
                    // ASKING itself says OK.
                    values.next();
                }
                match values.next() {
                    Some(Value::ServerError(error)) if may_be_refused && is_refusal(&error) => {
                        Ok(Value::ServerError(error))
                    }
                    Some(Value::ServerError(error)) => {
                        told = Some(self.node.whither(&error)?);
                        Ok(Value::Nil)
                    }
                    Some(value) => Ok(value),
                    None => Err(NoAnswer("an answer is missing".into())),
                }
            };
            let first = next(entry.may_be_refused)?;
            for _ in 0..entry.then {
                next(false)?;
            }
            let sent = commands.by_ref().take(entry.commands());
            match told {
                None => {
                    sent.for_each(drop);
                    answers[entry.at] = Some(first);
                }
                Some(target) => {
                    if matches!(target, Target::Owner | Target::Told { asking: false, .. }) {
                        shared.stale.notify_one();
                    }
                    waiting.extend(entry.again(sent, target));
                }
            }
        }
        Ok(())
    }

    /// Puts every request back, where all of them may be repeated: the connection was closed.
    fn again(self, waiting: &mut Vec<Waiting>) -> Result<(), NoAnswer> {
        if !self.entries.iter().all(|entry| entry.may_be_repeated) {
            let what = "the connection was lost; what was asked may be done or not";
            return Err(NoAnswer(format!("{}:{}: {what}", self.node.host, self.node.port)));
        }
        let own: usize = self.entries.iter().map(Entry::commands).sum();
        let mut commands = self.pipeline.cmd_iter().skip(self.pipeline.len().saturating_sub(own));
        for entry in &self.entries {
            waiting.extend(entry.again(commands.by_ref().take(entry.commands()), Target::Owner));
        }
        Ok(())
    }
}

impl Entry {
    fn commands(&self) -> usize {
        (1 + usize::from(self.asking)) * (1 + self.then)
    }

    fn again<'c>(&self, sent: impl Iterator<Item = &'c Cmd>, target: Target) -> Option<Waiting> {
        let step = 1 + usize::from(self.asking);
        let mut commands = sent.skip(step - 1).step_by(step).cloned();
        let command = commands.next()?;
        let Self { slot, may_be_refused, may_be_repeated, .. } = *self;
        let request = Request { slot, command, then: commands.collect(), may_be_refused, may_be_repeated };
        Some(Waiting { at: self.at, request, target })
    }
}

/// Whether an error is about the command or its key; errors about anything else have a code of their own.
fn is_refusal(error: &ServerError) -> bool {
    matches!(error.code(), "BUSYKEY" | "ERR" | "NOPERM" | "NOSCRIPT" | "TRYAGAIN")
}

impl Node {
    /// Where to send a request that was answered by an error; an error where there is no such node.
    fn whither(&self, error: &ServerError) -> Result<Target, NoAnswer> {
        let asking = match error.kind() {
            Some(ServerErrorKind::Moved) => false,
            Some(ServerErrorKind::Ask) => true,
            // LOADING, OOM, READONLY, CLUSTERDOWN, MISCONF, a key of another type …: it says nothing of the key. // I7
            _ => return Err(NoAnswer(format!("{}:{} says {error}", self.host, self.port))),
        };
        let (host, port) = slots::redirect(error.details(), &self.host)
            .ok_or_else(|| NoAnswer(format!("{}:{} says {error}", self.host, self.port)))?;
        Ok(Target::Told { host, port, asking })
    }
}
