//! A folder of objects that can be away.

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tokio::sync::Semaphore;

#[derive(Debug)]
pub(super) struct FaultyObjects {
    folder: PathBuf,
    inner: LocalFileSystem,
    is_away: AtomicBool,
    keeps_all: AtomicBool,
    puts: Mutex<Puts>,
    late: Mutex<Vec<(Path, PutPayload, PutOptions)>>,
    held: Mutex<Option<Arc<Semaphore>>>,
    held_reads: AtomicUsize,
}

/// What becomes of objects that are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Puts {
    #[default]
    Done,
    /// They are refused.
    Refused,
    /// Those in this folder are written, and their answers get lost.
    Unanswered(&'static str),
    /// Those in this folder have no answer, and are written when [`FaultyObjects::arrive`] is called.
    Late(&'static str),
    /// They are written, whatever is there, and whatever was asked for.
    Unconditional,
}

impl FaultyObjects {
    pub fn new(folder: &std::path::Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let inner = LocalFileSystem::new_with_prefix(folder).unwrap();
        Self {
            folder: folder.to_owned(),
            inner,
            is_away: AtomicBool::new(false),
            keeps_all: AtomicBool::new(false),
            puts: Mutex::default(),
            late: Mutex::default(),
            held: Mutex::default(),
            held_reads: AtomicUsize::new(0),
        }
    }

    pub fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, SeqCst);
    }

    /// Whether nothing can be deleted.
    pub fn set_keeps_all(&self, keeps_all: bool) {
        self.keeps_all.store(keeps_all, SeqCst);
    }

    pub fn set_puts(&self, puts: Puts) {
        *self.puts.lock() = puts;
    }

    /// What was on its way is written now, as far as its conditions hold.
    pub async fn arrive(&self) {
        self.set_puts(Puts::Done);
        let late = std::mem::take(&mut *self.late.lock());
        for (at, payload, options) in late {
            match self.inner.put_opts(&at, payload, options).await {
                Ok(_) | Err(Error::AlreadyExists { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads hang from now on, until they get permits.
    pub fn hold_reads(&self) -> Arc<Semaphore> {
        let held = Arc::new(Semaphore::new(0));
        *self.held.lock() = Some(Arc::clone(&held));
        held
    }

    /// Reads that come from now on do not hang.
    pub fn hold_no_more(&self) {
        self.held.lock().take();
    }

    /// Waits until so many reads have hung.
    pub async fn until_held(&self, reads: usize) {
        while self.held_reads.load(SeqCst) < reads {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// The files of a folder.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.folder.join(folder)) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Flips a bit of an object.
    pub fn flip(&self, name: &str, at: usize) {
        let path = self.folder.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }

    /// Cuts the end of an object off.
    pub fn cut(&self, name: &str, by: u64) {
        let file = std::fs::OpenOptions::new().write(true).open(self.folder.join(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() - by).unwrap();
    }

    fn ask(&self) -> Result<()> {
        match self.is_away.load(SeqCst) {
            true => Err(Error::Generic { store: "test", source: "it is away".into() }),
            false => Ok(()),
        }
    }
}

impl fmt::Display for FaultyObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a folder that can be away")
    }
}

#[async_trait]
impl ObjectStore for FaultyObjects {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.ask()?;
        let lost = || Error::Generic { store: "test", source: "no answer".into() };
        let puts = *self.puts.lock();
        match puts {
            Puts::Done => self.inner.put_opts(at, payload, options).await,
            Puts::Refused => Err(lost()),
            Puts::Unconditional => self.inner.put_opts(at, payload, PutOptions::default()).await,
            Puts::Late(folder) | Puts::Unanswered(folder) if !at.as_ref().starts_with(folder) => {
                self.inner.put_opts(at, payload, options).await
            }
            Puts::Unanswered(_) => self.inner.put_opts(at, payload, options).await.and_then(|_| Err(lost())),
            Puts::Late(_) => {
                self.late.lock().push((at.clone(), payload, options));
                Err(lost())
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.ask()?;
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.ask()?;
        let held = self.held.lock().clone();
        if let Some(held) = held {
            self.held_reads.fetch_add(1, SeqCst);
            held.acquire().await.unwrap().forget();
        }
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(&self, all: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let refused = || Error::Generic { store: "test", source: "nothing can be deleted".into() };
        let is_kept = self.keeps_all.load(SeqCst);
        match self.ask().and_then(|()| if is_kept { Err(refused()) } else { Ok(()) }) {
            Ok(()) => self.inner.delete_stream(all),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.ask() {
            Ok(()) => self.inner.list(prefix),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.ask()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.ask()?;
        self.inner.copy_opts(from, to, options).await
    }
}
