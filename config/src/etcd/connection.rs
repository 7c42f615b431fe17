//! A client of etcd whose every call ends in time.

use super::EtcdOptions;
use etcd_client::{
    Client, ConnectOptions, Error, GetOptions, KvClient, PutOptions, Txn, TxnResponse, WatchOptions,
    WatchStream,
};
use std::time::Duration;
use tokio::time::timeout;

/// The bytes of an answer at most: a page of the history's documents.
const ANSWER_MAX_BYTES: usize = 64 << 20;

/// The connection, which closes when it is dropped.
pub(super) struct Connection {
    client: Client,
    kv: KvClient,
    within: Duration,
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
        let client = limited(within, Client::connect(options.urls(&security), Some(connect))).await?;
        let kv = client.kv_client().max_decoding_message_size(ANSWER_MAX_BYTES);
        Ok(Self { client, kv, within })
    }

    /// Reads the document; with `bare` only what tells whether it changed.
    pub(super) async fn find(&mut self, key: &str, bare: bool) -> Result<Found, String> {
        let options = bare.then(|| GetOptions::new().with_keys_only());
        let mut answer = limited(self.within, self.kv.get(key, options)).await?;
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
        limited(self.within, self.kv.txn(transaction)).await
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
        limited(self.within, self.kv.put(key, value, Some(options))).await.map(drop)
    }

    /// Every change of the key after a revision.
    pub(super) async fn watch(&mut self, key: &str, after: i64) -> Result<WatchStream, String> {
        let options = WatchOptions::new().with_start_revision(after + 1);
        let mut watch = self.client.watch_client().max_decoding_message_size(ANSWER_MAX_BYTES);
        limited(self.within, watch.watch(key, Some(options))).await
    }
}

async fn limited<T>(within: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(within, call).await {
        Ok(answer) => answer.map_err(|error| said(&error)),
        Err(_) => Err(format!("no answer within {} ms", within.as_millis())),
    }
}

/// What an error says; where TLS is the cause, in an operator's words.
pub(super) fn said(error: &Error) -> String {
    let by_tls = match error {
        Error::GRpcStatus(status) => windfall_tls::explain(status),
        Error::TransportError(error) => windfall_tls::explain(error),
        Error::IoError(error) => windfall_tls::explain(error),
        _ => None,
    };
    by_tls.map_or_else(|| error.to_string(), |said| format!("it cannot be spoken to by TLS: {said}"))
}
