//! A client of etcd whose every call ends in time.

use super::EtcdOptions;
use etcd_client::{
    Client, ConnectOptions, Error, GetOptions, KvClient, PutOptions, Txn, TxnResponse, WatchOptions,
    WatchStream,
};
use std::error::Error as _;
use std::time::Duration;
use tokio::time::timeout;
use windfall_tls::{TlsOptions, WANTS_TLS};

/// The bytes of an answer at most: a page of the history's documents.
const ANSWER_MAX_BYTES: usize = 64 << 20;

/// How long a member is asked for why it cannot be spoken to by TLS.
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
        let within = options.call_timeout();
        let mut connect = ConnectOptions::new().with_connect_timeout(within).with_auto_token_refresh(true);
        if let Some((name, password)) = &options.user {
            connect = connect.with_user(name, password);
        }
        let security = options.security();
        if let Some(tls) = security.tls() {
            // The files as they are now: a connection that is made anew takes renewed ones.
            connect = connect.with_tls(tls.grpc().map_err(|error| error.to_string())?);
        }
        let urls = options.urls(&security);
        let members =
            urls.iter().filter_map(|url| url.split_once("://")).map(|(_, at)| at.to_owned()).collect();
        let reach = Reach { tls: security.tls().cloned(), members };
        let client = reach.answered(limited(within, Client::connect(urls, Some(connect))).await).await?;
        let kv = client.kv_client().max_decoding_message_size(ANSWER_MAX_BYTES);
        Ok(Self { client, kv, within, reach })
    }

    /// Reads the document; with `bare` only what tells whether it changed.
    pub(super) async fn find(&mut self, key: &str, bare: bool) -> Result<Found, String> {
        let options = bare.then(|| GetOptions::new().with_keys_only());
        let answer = limited(self.within, self.kv.get(key, options)).await;
        let mut answer = self.reach.answered(answer).await?;
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
    /// An answer, or why there is none. The client loses what a server says of TLS after the handshake, so the members are
    /// asked then by a connection of our own.
    async fn answered<T>(&self, answer: Result<T, Silence>) -> Result<T, String> {
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(Silence::Failed(error @ (Error::GRpcStatus(_) | Error::TransportError(_)))) => error,
            Err(silence) => return Err(silence.into()),
        };
        let what = said(&error);
        let Some(tls) = &self.tls else {
            // A server that answers by gRPC has no cause below its status.
            let is_cut_off = matches!(&error, Error::GRpcStatus(status) if status.source().is_some());
            let is_away = what.contains("tcp connect error") || what.contains("ConnectError");
            return Err(if is_cut_off && !is_away { format!("{what}; {WANTS_TLS}") } else { what });
        };
        for member in &self.members {
            if let Some(why) = tls.probe(member, PROBE_TIMEOUT).await {
                return Err(by_tls(&why));
            }
        }
        Err(what)
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
