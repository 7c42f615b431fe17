//! Segments: immutable objects of sorted rows.
//!
//! A segment is blocks of about 64 KiB, then its index, twice, so that one flipped bit never costs more than a block. A
//! block has rows of one hour. An entry of the index has the key of the block's first row, where the block stands, its
//! length, its CRC-32C and its number of rows. Where the index stands is written in the manifest.

use crate::row::{Row, RowKey};
use crate::stats::FarCounters;
use bytes::{BufMut, Bytes, BytesMut};
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bytes of a block, from which on it is ended.
const BLOCK_BYTES: usize = 64 << 10;
/// The bytes that one request reads at most, and one part of an upload has.
const READ_BYTES: u64 = 1 << 20;
const PART_BYTES: usize = 8 << 20;
/// The bytes of an entry of the index.
const INDEX_ENTRY_BYTES: usize = 31;

/// What the manifest says of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentMeta {
    pub name: String,
    pub first_hour: u32,
    pub last_hour: u32,
    pub rows: u64,
    pub bytes: u64,
    pub index_at: u64,
    pub index_bytes: u64,
}

/// A segment whose index is in memory: some 40 bytes for each block of 64 KiB.
pub(crate) struct Segment {
    pub meta: SegmentMeta,
    path: Path,
    blocks: Vec<Block>,
    /// A block could not be read.
    is_damaged: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    first: RowKey,
    at: u64,
    bytes: u32,
    checksum: u32,
    rows: u32,
}

/// A segment cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// Try again later.
    #[error(transparent)]
    Store(ObjectError),
    /// It is not there: it was merged into another one, or is lost.
    #[error("the segment {0} is not there")]
    Gone(String),
    /// Both of its indexes are damaged, so nothing of it is found any more.
    #[error("both indexes of the segment {0} are damaged")]
    Damaged(String),
}

impl SegmentMeta {
    /// Whether it has rows of one hour alone.
    pub fn is_of_one_hour(&self) -> bool {
        self.first_hour == self.last_hour
    }
}

impl Segment {
    /// Reads the index of a segment.
    pub async fn open(store: &dyn ObjectStore, meta: SegmentMeta) -> Result<Self, ReadError> {
        let path = Path::from(meta.name.as_str());
        for at in [meta.index_at, meta.index_at + meta.index_bytes] {
            let bytes = read(store, &path, at..at + meta.index_bytes).await?;
            if let Some(blocks) = decode_index(&bytes) {
                return Ok(Self { meta, path, blocks, is_damaged: AtomicBool::new(false) });
            }
            tracing::error!(segment = %meta.name, at, "an index of a segment of the far tier is damaged; there are two");
        }
        Err(ReadError::Damaged(meta.name))
    }

    /// Whether a block could not be read, so that the object is kept for people.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    /// The blocks that may have rows of these keys.
    fn blocks_of(&self, keys: &Range<RowKey>) -> Range<usize> {
        let mut first = self.blocks.partition_point(|block| block.first <= keys.start).saturating_sub(1);
        // A block has rows of one hour.
        if self.blocks.get(first).is_some_and(|block| block.first.hour < keys.start.hour) {
            first += 1;
        }
        let end = self.blocks.partition_point(|block| block.first < keys.end);
        first..end.max(first)
    }

    /// Finds a row.
    pub async fn find(
        &self,
        store: &dyn ObjectStore,
        key: RowKey,
        counters: &FarCounters,
    ) -> Result<Option<Row>, ReadError> {
        let at = self.blocks.partition_point(|block| block.first <= key);
        let Some(block) = at.checked_sub(1).map(|at| self.blocks[at]) else { return Ok(None) };
        if block.first.hour != key.hour {
            return Ok(None);
        }
        let bytes = read(store, &self.path, block.at..block.at + u64::from(block.bytes)).await?;
        let rows = self.decode_block(&block, bytes, counters).unwrap_or_default();
        Ok(rows.into_iter().find(|(of, _)| *of == key).map(|(_, row)| row))
    }

    /// The rows of a block; `None`, said and counted, where it is damaged.
    fn decode_block(
        &self,
        block: &Block,
        mut bytes: Bytes,
        counters: &FarCounters,
    ) -> Option<Vec<(RowKey, Row)>> {
        let decoded = (crc32c::crc32c(&bytes) == block.checksum).then(|| {
            let (mut rows, mut before) = (Vec::new(), None);
            while !bytes.is_empty() {
                let (key, row) = Row::decode(&mut bytes, before, block.first.hour).ok()?;
                before = Some(key);
                rows.push((key, row));
            }
            Some(rows)
        });
        let rows = decoded.flatten();
        if rows.is_none() {
            self.is_damaged.store(true, Ordering::Relaxed);
            counters.block_damaged();
            tracing::error!(
                segment = %self.meta.name, at = block.at, bytes = block.bytes, tasks = block.rows,
                first_task = %block.first.id(),
                "a block of the far tier is damaged: its tasks are passed over and the object is kept"
            );
        }
        rows
    }
}

/// Reads rows of a segment in their order, a request for several blocks at a time.
pub(crate) struct SegmentRows {
    segment: Arc<Segment>,
    keys: Range<RowKey>,
    blocks: Range<usize>,
    rows: VecDeque<(RowKey, Row)>,
}

impl SegmentRows {
    pub fn new(segment: Arc<Segment>, keys: Range<RowKey>) -> Self {
        let blocks = segment.blocks_of(&keys);
        Self { segment, keys, blocks, rows: VecDeque::new() }
    }

    pub async fn next(
        &mut self,
        store: &dyn ObjectStore,
        counters: &FarCounters,
    ) -> Result<Option<(RowKey, Row)>, ReadError> {
        loop {
            while let Some((key, row)) = self.rows.pop_front() {
                if self.keys.contains(&key) {
                    return Ok(Some((key, row)));
                }
            }
            let Some(first) = self.segment.blocks.get(self.blocks.start).filter(|_| !self.blocks.is_empty())
            else {
                return Ok(None);
            };
            let blocks = &self.segment.blocks[self.blocks.clone()];
            let upto = |block: &Block| block.at + u64::from(block.bytes);
            let fits = blocks.iter().skip(1).take_while(|block| upto(block) - first.at <= READ_BYTES);
            let count = 1 + fits.count();
            let end = blocks.get(count - 1).map_or(first.at, upto);
            let bytes = read(store, &self.segment.path, first.at..end).await?;
            for block in &blocks[..count] {
                let from = usize::try_from(block.at - first.at).unwrap_or(usize::MAX);
                let part = bytes.slice(from..from + usize::try_from(block.bytes).unwrap_or(0));
                let rows = self.segment.decode_block(block, part, counters);
                self.rows.extend(rows.into_iter().flatten());
            }
            self.blocks.start += count;
        }
    }
}

/// Writes a segment; what is larger than a part goes up in parts.
pub(crate) struct SegmentWriter {
    store: Arc<dyn ObjectStore>,
    name: String,
    upload: Option<Box<dyn object_store::MultipartUpload>>,
    buffer: BytesMut,
    uploaded: u64,
    block: BytesMut,
    block_first: Option<RowKey>,
    block_rows: u32,
    before: Option<RowKey>,
    blocks: Vec<Block>,
    rows: u64,
}

impl SegmentWriter {
    pub fn new(store: Arc<dyn ObjectStore>, name: String) -> Self {
        Self {
            store,
            name,
            upload: None,
            buffer: BytesMut::new(),
            uploaded: 0,
            block: BytesMut::new(),
            block_first: None,
            block_rows: 0,
            before: None,
            blocks: Vec::new(),
            rows: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.uploaded + wide(self.buffer.len())
    }

    /// Rows come in their order.
    pub async fn push(&mut self, key: RowKey, row: &Row) -> Result<(), ObjectError> {
        if self.block_first.is_some_and(|first| first.hour != key.hour) || self.block.len() >= BLOCK_BYTES {
            self.end_block();
            if self.buffer.len() >= PART_BYTES {
                self.upload_part().await?;
            }
        }
        self.block_first.get_or_insert(key);
        row.encode(&mut self.block, self.before, key);
        self.before = Some(key);
        self.block_rows += 1;
        self.rows += 1;
        Ok(())
    }

    /// Puts the object where it is found. `None` where it would have no rows.
    pub async fn finish(mut self) -> Result<Option<Segment>, ObjectError> {
        self.end_block();
        let (Some(first), Some(last)) = (self.blocks.first(), self.blocks.last()) else { return Ok(None) };
        let (first_hour, last_hour) = (first.first.hour, last.first.hour);
        let (index, index_at) = (encode_index(&self.blocks), self.bytes());
        self.buffer.put_slice(&index);
        self.buffer.put_slice(&index);
        let bytes = self.bytes();
        let path = Path::from(self.name.as_str());
        match self.upload.take() {
            None => {
                self.store.put(&path, PutPayload::from(self.buffer.split().freeze())).await?;
            }
            Some(mut upload) => {
                let part = PutPayload::from(self.buffer.split().freeze());
                let ended = match upload.put_part(part).await {
                    Ok(()) => upload.complete().await.map(drop),
                    failed => failed,
                };
                if ended.is_err() {
                    self.upload = Some(upload);
                    self.abort().await;
                }
                ended?;
            }
        }
        let (rows, index_bytes) = (self.rows, wide(index.len()));
        let meta = SegmentMeta { name: self.name, first_hour, last_hour, rows, bytes, index_at, index_bytes };
        let is_damaged = AtomicBool::new(false);
        Ok(Some(Segment { meta, path, blocks: self.blocks, is_damaged }))
    }

    fn end_block(&mut self) {
        let Some(first) = self.block_first.take() else { return };
        self.blocks.push(Block {
            first,
            at: self.bytes(),
            bytes: u32::try_from(self.block.len()).unwrap_or(u32::MAX),
            checksum: crc32c::crc32c(&self.block),
            rows: self.block_rows,
        });
        self.buffer.put_slice(&self.block);
        self.block.clear();
        (self.block_rows, self.before) = (0, None);
    }

    async fn upload_part(&mut self) -> Result<(), ObjectError> {
        if self.upload.is_none() {
            let path = Path::from(self.name.as_str());
            self.upload = Some(self.store.put_multipart(&path).await?);
        }
        if let Some(upload) = &mut self.upload {
            let part = self.buffer.split().freeze();
            self.uploaded += wide(part.len());
            let put = upload.put_part(PutPayload::from(part)).await;
            if put.is_err() {
                self.abort().await;
            }
            return put;
        }
        Ok(())
    }

    /// Gives up what was uploaded of an object that will not be whole; some stores keep its parts for ever.
    pub async fn abort(&mut self) {
        if let Some(mut upload) = self.upload.take()
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(segment = %self.name, %error, "the parts of a segment that was given up may still be there");
        }
    }
}

async fn read(store: &dyn ObjectStore, path: &Path, range: Range<u64>) -> Result<Bytes, ReadError> {
    let wanted = range.end - range.start;
    let end = range.end;
    match store.get_range(path, range).await {
        Ok(bytes) if wide(bytes.len()) == wanted => Ok(bytes),
        Ok(bytes) => Ok(padded(bytes, wanted)),
        Err(ObjectError::NotFound { path, .. }) => Err(ReadError::Gone(path)),
        // The object may have been cut short: that is damage, and no reason to ask again for ever.
        Err(error) => match store.head(path).await {
            Ok(meta) if meta.size < end => Ok(padded(Bytes::new(), wanted)),
            _ => Err(ReadError::Store(error)),
        },
    }
}

/// What is missing is zeros, whose checksum matches nothing.
fn padded(bytes: Bytes, wanted: u64) -> Bytes {
    let mut padded = BytesMut::from(bytes);
    padded.resize(usize::try_from(wanted).unwrap_or(0), 0);
    padded.freeze()
}

fn encode_index(blocks: &[Block]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(blocks.len() * INDEX_ENTRY_BYTES + 4);
    for block in blocks {
        bytes.put_u32(block.first.hour);
        bytes.put_u16(block.first.shard);
        bytes.put_u8(block.first.minute);
        bytes.put_u32(block.first.number);
        bytes.put_u64(block.at);
        bytes.put_u32(block.bytes);
        bytes.put_u32(block.checksum);
        bytes.put_u32(block.rows);
    }
    let checksum = crc32c::crc32c(&bytes);
    bytes.put_u32(checksum);
    bytes.freeze()
}

fn decode_index(bytes: &Bytes) -> Option<Vec<Block>> {
    let (entries, checksum) = bytes.split_last_chunk::<4>()?;
    let (entries, rest) = entries.as_chunks::<INDEX_ENTRY_BYTES>();
    if !rest.is_empty() || crc32c::crc32c(entries.as_flattened()) != u32::from_be_bytes(*checksum) {
        return None;
    }
    let block = |entry: &[u8; INDEX_ENTRY_BYTES]| {
        let mut at: &[u8] = entry;
        let mut take = |len: usize| {
            let (number, rest) = at.split_at_checked(len)?;
            at = rest;
            Some(number.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let narrow = |number: u64| u32::try_from(number).ok();
        let (hour, shard) = (narrow(take(4)?)?, u16::try_from(take(2)?).ok()?);
        let (minute, number) = (u8::try_from(take(1)?).ok()?, narrow(take(4)?)?);
        let first = RowKey { hour, shard, minute, number };
        let (at, bytes) = (take(8)?, narrow(take(4)?)?);
        Some(Block { first, at, bytes, checksum: narrow(take(4)?)?, rows: narrow(take(4)?)? })
    };
    entries.iter().map(block).collect()
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
