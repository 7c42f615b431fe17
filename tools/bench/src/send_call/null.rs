//! A broker and a token store that take everything and keep nothing.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use windfall_contract::broker::{
    Broker, Consumer, Delivery, DeliverySink, Lag, OpenError, OutRecord, Producer, SendRefused, Tag,
};
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};

/// Records between `send` and the driver's thread.
const RECORDS_MAX: usize = 1024;

/// Copies each record and says, from a thread of its own as real drivers do, that it is stored.
pub struct NullBroker;

#[async_trait]
impl Broker for NullBroker {
    fn ensure_topic(&self, _topic: &str, _partitions: u32) -> Result<(), OpenError> {
        Ok(())
    }

    fn producer(&self, topic: &str, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, OpenError> {
        let (records, inbox) = sync_channel::<(Tag, Vec<u8>)>(RECORDS_MAX);
        let thread = std::thread::Builder::new()
            .name(format!("null-{topic}"))
            .spawn(move || {
                for (tag, record) in inbox {
                    drop(black_box(record));
                    sink.delivered(tag, Delivery::Stored);
                }
            })
            .map_err(|error| OpenError::Io { place: topic.into(), what: error.to_string() })?;
        Ok(Arc::new(NullProducer { open: Mutex::new(Some(Driver { records, thread })) }))
    }

    async fn consumer(&self, _topic: &str, _group: &str) -> Result<Box<dyn Consumer>, OpenError> {
        Err(OpenError::Invalid("nothing is kept, so nothing can be read".into()))
    }

    async fn lag(&self, _topic: &str, _group: &str) -> Result<Lag, OpenError> {
        Ok(Lag::default())
    }
}

struct NullProducer {
    open: Mutex<Option<Driver>>,
}

struct Driver {
    records: SyncSender<(Tag, Vec<u8>)>,
    thread: JoinHandle<()>,
}

impl Producer for NullProducer {
    fn send(&self, tag: Tag, record: OutRecord<'_>) -> Result<(), SendRefused> {
        let open = self.open.lock();
        let driver = open.as_ref().ok_or(SendRefused::Closed)?;
        driver.records.try_send((tag, record.payload.to_vec())).map_err(|_| SendRefused::Full)
    }

    fn close(&self, _timeout: Duration) -> usize {
        let Some(Driver { records, thread }) = self.open.lock().take() else { return 0 };
        // Its thread ends once it has told the fate of all.
        drop(records);
        usize::from(thread.join().is_err())
    }
}

/// Takes every token and keeps none.
pub struct NullStore;

#[async_trait]
impl TokenStore for NullStore {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        black_box(batch);
        Ok(())
    }

    async fn remove(&self, _batch: &[TokenKey]) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        Ok(vec![None; keys.len()])
    }

    async fn list(
        &self,
        _user_id: i64,
        _after: Option<&str>,
        _limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        Ok(Vec::new())
    }
}
