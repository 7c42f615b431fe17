//! The frames of a spill log: written, read, and found again behind damage.

use crate::requeue::RequeueRecord;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use windfall_proto::wire::{self, Malformed, Reader, Value};

/// The bytes that a file begins with.
pub(super) const MAGIC: &[u8; 8] = b"WFSALV01";
pub(super) const HEAD_BYTES: usize = 8;
/// The largest body of a frame. A frame is a record and a few names; no broker takes a record that large.
pub(super) const BODY_MAX_BYTES: u32 = 64 << 20;

/// Names the route that a record takes back: its activity, scene and bonus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(u64);

impl RouteId {
    /// The route of a record.
    pub fn of(record: &RequeueRecord) -> Self {
        Self::named(&record.activity, &record.scene, &record.bonus_type)
    }

    /// The route of an event.
    pub fn named(activity: &str, scene: &str, bonus_type: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        (activity, scene, bonus_type).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A whole frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub at: usize,
    pub body_bytes: u32,
    pub record: RequeueRecord,
}

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub frames: Vec<Frame>,
    /// The runs of bytes that are no whole frame.
    pub damaged: Vec<Range<usize>>,
}

/// Reads all frames. Damage costs the frames that it lies in, and no other one.
pub(super) fn scan(bytes: &[u8]) -> Scan {
    let mut scan = Scan::default();
    let mut at = MAGIC.len();
    while at < bytes.len() {
        if let Some(frame) = frame_at(bytes, at) {
            at += HEAD_BYTES + frame.body_bytes as usize;
            scan.frames.push(frame);
            continue;
        }
        let next = next_frame(bytes, at);
        scan.damaged.push(at..next);
        at = next;
    }
    scan
}

/// Where the next whole frame begins behind a damaged one; the end where none does.
fn next_frame(bytes: &[u8], damaged: usize) -> usize {
    // Most often the length is right and the body is not.
    if let Some(body) = body_at(bytes, damaged)
        && (body.end == bytes.len() || frame_at(bytes, body.end).is_some())
    {
        return body.end;
    }
    (damaged + 1..bytes.len()).find(|&at| frame_at(bytes, at).is_some()).unwrap_or(bytes.len())
}

/// The whole frame that begins here, if one does.
fn frame_at(bytes: &[u8], at: usize) -> Option<Frame> {
    let body = body_at(bytes, at)?;
    let body_bytes = u32::try_from(body.len()).ok()?;
    let record = check(&bytes[at..body.end])?;
    Some(Frame { at, body_bytes, record })
}

/// Where the body lies of a frame that may begin here.
fn body_at(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let from = at.checked_add(HEAD_BYTES)?;
    let size = bytes.get(at..at + 4)?;
    let size = u32::from_le_bytes(size.try_into().ok()?);
    let to = from.checked_add(size as usize)?;
    (size > 0 && size <= BODY_MAX_BYTES && to <= bytes.len()).then_some(from..to)
}

/// The record of a frame, if nothing of it is damaged.
pub(super) fn check(frame: &[u8]) -> Option<RequeueRecord> {
    let sum = u32::from_le_bytes(frame.get(4..HEAD_BYTES)?.try_into().ok()?);
    let body = frame.get(HEAD_BYTES..)?;
    // The shape first: it is cheap, and few bytes that are no frame have it.
    (is_shaped(body) && crc32c::crc32c(body) == sum).then(|| decode(body).ok()).flatten()
}

fn is_shaped(body: &[u8]) -> bool {
    let mut reader = Reader::new(body);
    while !reader.is_empty() {
        if reader.field().is_err() {
            return false;
        }
    }
    true
}

/// A frame of a record; `None` where it is too large for one.
pub(super) fn build(record: &RequeueRecord) -> Option<Vec<u8>> {
    let body = encode(record);
    let size = u32::try_from(body.len()).ok().filter(|size| *size <= BODY_MAX_BYTES)?;
    let mut frame = Vec::with_capacity(HEAD_BYTES + body.len());
    frame.extend_from_slice(&size.to_le_bytes());
    frame.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    frame.extend_from_slice(&body);
    Some(frame)
}

fn encode(record: &RequeueRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.payload.len() + 256);
    wire::put_bytes(&mut out, 1, record.bonus_type.as_bytes());
    wire::put_bytes(&mut out, 2, record.activity.as_bytes());
    wire::put_bytes(&mut out, 3, record.scene.as_bytes());
    wire::put_i64(&mut out, 4, record.first_user_id);
    wire::put_bytes(&mut out, 5, &record.key);
    wire::put_bytes(&mut out, 6, &record.payload);
    wire::put_u64(&mut out, 7, record.events.into());
    out
}

fn decode(body: &[u8]) -> Result<RequeueRecord, Malformed> {
    let mut record = RequeueRecord {
        bonus_type: String::new(),
        activity: String::new(),
        scene: String::new(),
        first_user_id: 0,
        key: Vec::new(),
        payload: Vec::new(),
        events: 0,
    };
    let mut reader = Reader::new(body);
    while !reader.is_empty() {
        let at = reader.position();
        let (field, value): (u64, Value<'_>) = reader.field()?;
        match field {
            1 => record.bonus_type = wire::text(value, at)?.to_owned(),
            2 => record.activity = wire::text(value, at)?.to_owned(),
            3 => record.scene = wire::text(value, at)?.to_owned(),
            4 => record.first_user_id = wire::int64(value, at)?,
            5 => record.key = wire::blob(value, at)?.to_vec(),
            6 => record.payload = wire::blob(value, at)?.to_vec(),
            7 => record.events = wire::uint32(value, at)?,
            _ => {}
        }
    }
    Ok(record)
}
