//! A client of etcd whose every call ends in time.

use super::EtcdOptions;
use etcd_client::{
    Client, ConnectOptions, Error, GetOptions, KvClient, PutOptions, Txn, TxnResponse, WatchOptions,
    WatchStream,
};
use std::error::Error as _;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use windfall_tls::{TlsOptions, WANTS_TLS};

/// The bytes of an answer at most: a page of the history's documents.
const ANSWER_MAX_BYTES: usize = 64 << 20;

/// How long the members are asked for why they cannot be spoken to by TLS, all of them at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection, which closes when it is dropped.
pub(super) struct Connection {
    client: Client,
    kv: KvClient,
    within: Duration,
    reach: Reach,
}

/// How the members are reached, to say why they are not.
struct Reach {
    tls: Option<TlsOptions>,
    members: Vec<String>,
    /// Whether a member has answered, or the members were asked why none does. They are not asked again: what is wrong later
    /// is not what the options say of TLS.
    is_known: bool,
}

/// Why there is no answer.
enum Silence {
    TimedOut(Duration),
    Failed(Error),
}

/// The document as etcd has it.
pub(super) struct Found {
    /// The revision of the whole store.
    pub(super) revision: i64,
    /// The revision of the document; 0 where there is none.
    pub(super) changed: i64,
    pub(super) document: Option<Vec<u8>>,
}

impl Connection {
    pub(super) async fn open(options: &EtcdOptions) -> Result<Self, String> {
        let (within, started) = (options.call_timeout(), Instant::now());
        let mut connect = ConnectOptions::new().with_connect_timeout(within).with_auto_token_refresh(true);
        if let Some((name, password)) = &options.user {
            connect = connect.with_user(name, password);
        }
        let security = options.security();
        if let Some(tls) = security.tls() {
            // The files as they are now: a connection that is made anew takes renewed ones.
            let own = tls.clone();
            let read = timeout(within, tokio::task::spawn_blocking(move || own.grpc())).await;
            let read = read.map_err(|_| "the files of its certificates cannot be read in time".to_owned())?;
            let read = read.map_err(|error| format!("reading the files of its certificates: {error}"))?;
            connect = connect.with_tls(read.map_err(|error| error.to_string())?);
        }
        let urls = options.urls(&security);
        let members =
            urls.iter().filter_map(|url| url.split_once("://")).map(|(_, at)| at.to_owned()).collect();
        let mut reach = Reach { tls: security.tls().cloned(), members, is_known: false };
        let left = within.saturating_sub(started.elapsed());
        let client = match limited(left, Client::connect(urls, Some(connect))).await {
            // It has asked nobody yet, unless it has shown a password.
            Ok(client) => client,
            Err(silence) => return Err(reach.why(silence, started + within).await),
        };
        let kv = client.kv_client().max_decoding_message_size(ANSWER_MAX_BYTES);
        Ok(Self { client, kv, within, reach })
    }

    /// Reads the document; with `bare` only what tells whether it changed.
    pub(super) async fn find(&mut self, key: &str, bare: bool) -> Result<Found, String> {
        let options = bare.then(|| GetOptions::new().with_keys_only());
        let started = Instant::now();
        let mut answer = match limited(self.within, self.kv.get(key, options)).await {
            Ok(answer) => answer,
            Err(silence) => return Err(self.reach.why(silence, started + self.within).await),
        };
        self.reach.is_known = true;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let pair = answer.take_kvs().into_iter().next();
        let changed = pair.as_ref().map_or(0, etcd_client::KeyValue::mod_revision);
        let document = pair.map(|pair| pair.into_key_value().1);
        Ok(Found { revision, changed, document })
    }

    /// Keys and values from `from` to `to`, at most `limit`, in order.
    pub(super) async fn range(
        &mut self,
        from: &[u8],
        to: &[u8],
        limit: i64,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, String> {
        let options = GetOptions::new().with_range(to).with_limit(limit);
        let mut answer = limited(self.within, self.kv.get(from, Some(options))).await?;
        Ok(answer.take_kvs().into_iter().map(etcd_client::KeyValue::into_key_value).collect())
    }

    pub(super) async fn transact(&mut self, transaction: Txn) -> Result<TxnResponse, String> {
        Ok(limited(self.within, self.kv.txn(transaction)).await?)
    }

    /// Writes a key that etcd forgets after so many seconds.
    pub(super) async fn put_for_a_while(
        &mut self,
        key: &str,
        value: &str,
        seconds: i64,
    ) -> Result<(), String> {
        let mut leases = self.client.lease_client();
        let lease = limited(self.within, leases.grant(seconds, None)).await?.id();
        let options = PutOptions::new().with_lease(lease);
        Ok(limited(self.within, self.kv.put(key, value, Some(options))).await.map(drop)?)
    }

    /// Every change of the key after a revision.
    pub(super) async fn watch(&mut self, key: &str, after: i64) -> Result<WatchStream, String> {
        let options = WatchOptions::new().with_start_revision(after + 1);
        let mut watch = self.client.watch_client().max_decoding_message_size(ANSWER_MAX_BYTES);
        Ok(limited(self.within, watch.watch(key, Some(options))).await?)
    }
}

async fn limited<T>(within: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Silence> {
    match timeout(within, call).await {
        Ok(answer) => answer.map_err(Silence::Failed),
        Err(_) => Err(Silence::TimedOut(within)),
    }
}

impl From<Silence> for String {
    fn from(silence: Silence) -> Self {
        match silence {
            Silence::TimedOut(within) => format!("no answer within {} ms", within.as_millis()),
            Silence::Failed(error) => said(&error),
        }
    }
}

impl Reach {
    /// Why there is no answer. The client loses what a server says of TLS after the handshake, so the members are asked then,
    /// by connections of our own: once, and not beyond the end of the call.
    async fn why(&mut self, silence: Silence, end: Instant) -> String {
        let error = match silence {
            // A server that answers by gRPC has no cause below its status.
            Silence::Failed(error) if is_of_transport(&error) => error,
            silence => return silence.into(),
        };
        let what = said(&error);
        let Some(tls) = &self.tls else {
            let is_status = matches!(error, Error::GRpcStatus(_));
            let is_away = what.contains("tcp connect error") || what.contains("ConnectError");
            return if is_status && !is_away { format!("{what}; {WANTS_TLS}") } else { what };
        };
        if std::mem::replace(&mut self.is_known, true) {
            return what;
        }
        let within = PROBE_TIMEOUT.min(end.saturating_duration_since(Instant::now()));
        let mut probes = JoinSet::new();
        for member in &self.members {
            let (tls, member) = (tls.clone(), member.clone());
            probes.spawn(async move { tls.probe(&member, within).await });
        }
        while let Some(probed) = probes.join_next().await {
            match probed {
                Ok(Some(why)) => return by_tls(&why),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "etcd: a look for an error of TLS was cut off"),
            }
        }
        what
    }
}

/// Whether the connection failed, and not what was asked for.
fn is_of_transport(error: &Error) -> bool {
    match error {
        Error::TransportError(_) => true,
        Error::GRpcStatus(status) => status.source().is_some(),
        _ => false,
    }
}

/// What an error says; where TLS is the cause, in an operator's words.
pub(super) fn said(error: &Error) -> String {
    let explained = match error {
        Error::GRpcStatus(status) => windfall_tls::explain(status),
        Error::TransportError(error) => windfall_tls::explain(error),
        Error::IoError(error) => windfall_tls::explain(error),
        _ => None,
    };
    explained.map_or_else(|| error.to_string(), |why| by_tls(&why))
}

fn by_tls(why: &str) -> String {
    format!("it cannot be spoken to by TLS: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use tokio::net::TcpListener;
    use tonic::Status;

    /// Members that take connections and say nothing, and how they are reached.
    async fn silent_members(count: usize) -> (Vec<TcpListener>, Reach) {
        let mut listeners = Vec::new();
        for _ in 0..count {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let members = listeners.iter().map(|one| one.local_addr().unwrap().to_string()).collect();
        (listeners, Reach { tls: Some(TlsOptions::default()), members, is_known: false })
    }

    async fn was_asked(listener: &TcpListener) -> bool {
        timeout(Duration::from_millis(50), listener.accept()).await.is_ok()
    }

    fn cut_off() -> Silence {
        let mut status = Status::unavailable("transport error");
        status.set_source(Arc::new(io::Error::other("cut off")));
        Silence::Failed(Error::GRpcStatus(status))
    }

    #[tokio::test(start_paused = true)]
    async fn what_etcd_itself_answers_is_no_reason_to_look_for_errors_of_tls() {
        let (listeners, mut reach) = silent_members(1).await;
        let refused = Silence::Failed(Error::GRpcStatus(Status::unavailable("etcdserver: no leader")));
        let why = reach.why(refused, Instant::now() + PROBE_TIMEOUT).await;
        assert!(why.contains("no leader"), "{why}");
        assert!(!was_asked(&listeners[0]).await && !reach.is_known);
    }

    #[tokio::test(start_paused = true)]
    async fn all_members_are_asked_at_once_and_only_once() {
        let (listeners, mut reach) = silent_members(3).await;
        let started = Instant::now();
        reach.why(cut_off(), started + Duration::from_secs(60)).await;
        // One after the other, they would take three times as long.
        assert!(started.elapsed() < PROBE_TIMEOUT * 2);
        for listener in &listeners {
            assert!(was_asked(listener).await);
        }
        reach.why(cut_off(), Instant::now() + Duration::from_secs(60)).await;
        assert!(!was_asked(&listeners[0]).await, "asked twice");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_time_is_over_is_not_made_longer() {
        let (_listeners, mut reach) = silent_members(3).await;
        let started = Instant::now();
        reach.why(cut_off(), started).await;
        assert!(started.elapsed() < PROBE_TIMEOUT);
    }
}
