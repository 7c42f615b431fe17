//! The entries of the log. A frame has any number of them, and is there as a whole or not at all.

use crate::row::{DamagedRow, Row, RowKey};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use windfall_contract::due::{Route, Shard};

const ADD: u8 = 1;
const CHANGE: u8 = 2;
const PUSH: u8 = 3;
const CLOSE: u8 = 4;
const BEGIN: u8 = 5;
const END: u8 = 6;
const HOUR_OVER: u8 = 7;
const CHECKPOINT: u8 = 8;
const HOURS: u8 = 9;
const NAMES: u8 = 10;
const HOUR_GONE: u8 = 11;

/// The figures of hours from which on another entry has the next ones; each takes some 20 bytes.
const FIGURES_MAX: usize = 20_000;

/// A change of the far tier, as a frame of the log says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A task was added.
    Add(RowKey, Row),
    /// A task got another payload, or was cancelled.
    Change(RowKey, Row),
    /// A task was moved to a time of its own; it goes near at once.
    Push(RowKey, Push),
    /// No task is added to this hour and those before it any more, and those that are there change no more.
    Close(u32),
    /// A batch is about to be loaded near.
    Begin(Batch),
    /// The batch of this number is near.
    End(u64),
    /// All tasks of this hour are near.
    HourOver(u32),
    /// All tasks of this hour are near, and its rows are not kept: what is changed near is not noted here.
    HourGone(u32),
    /// What the numbers of tenants and targets stand for.
    Names(Vec<Named>),
    /// Figures of hours that belong to the checkpoint behind them.
    Hours(BTreeMap<u32, Hour>),
    /// All that is neither in rows nor in segments. Each part of the log begins with one, and with its hours before it.
    Checkpoint(Checkpoint),
}

/// The names of a tenant and of its target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub tenant: u16,
    pub target: u16,
    pub names: (String, String),
}

/// A task on its way near by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Push {
    pub due_ms: u64,
    pub tenant: u16,
    pub target: u16,
    pub payload: Vec<u8>,
}

/// Tasks that are loaded in one step. Sent again, it has the same tasks: those of a closed hour change no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub sequence: u64,
    pub shard: u16,
    pub what: BatchOf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BatchOf {
    /// The tasks of an hour behind `after`, or from the hour's first one on, up to and with `to`.
    Hour { after: Option<RowKey>, to: RowKey },
    /// A task that was moved.
    Push(RowKey),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Empty where they are written before it: they may be more than a frame has room for.
    pub hours: BTreeMap<u32, Hour>,
    pub closed_upto: u32,
    pub over_upto: u32,
    /// The number of the last batch.
    pub sequence: u64,
    /// The batch of which it is not known whether it is near.
    pub batch: Option<Batch>,
    /// The tasks of closed hours are near up to here.
    pub loaded_upto: Option<RowKey>,
    pub pushes: Vec<(RowKey, Push)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hour {
    /// The number that the next task gets.
    pub next: u32,
    /// Tasks that wait, by tenant.
    pub waiting: BTreeMap<u16, u64>,
}

impl Checkpoint {
    /// It as entries, each of which has room in a frame.
    pub fn entries(&self) -> Vec<Entry> {
        let (mut entries, mut part, mut figures) = (Vec::new(), BTreeMap::new(), 0);
        for (hour, of) in &self.hours {
            figures += 1 + of.waiting.len();
            part.insert(*hour, of.clone());
            if figures >= FIGURES_MAX {
                entries.push(Entry::Hours(std::mem::take(&mut part)));
                figures = 0;
            }
        }
        entries.push(Entry::Hours(part));
        entries.push(Entry::Checkpoint(Self { hours: BTreeMap::new(), ..self.clone() }));
        entries
    }
}

impl Push {
    pub fn route(&self) -> Route {
        Route { tenant: self.tenant, target: self.target }
    }
}

impl Batch {
    pub fn shard(&self) -> Shard {
        Shard(self.shard)
    }
}

impl Entry {
    pub fn encode(&self, into: &mut BytesMut) {
        match self {
            Self::Add(key, row) => put_row(into, ADD, *key, row),
            Self::Change(key, row) => put_row(into, CHANGE, *key, row),
            Self::Push(key, push) => put_json(into, PUSH, &(key, push)),
            Self::Close(hour) => {
                into.put_u8(CLOSE);
                into.put_u32(*hour);
            }
            Self::Begin(batch) => put_json(into, BEGIN, batch),
            Self::End(sequence) => {
                into.put_u8(END);
                into.put_u64(*sequence);
            }
            Self::HourOver(hour) => {
                into.put_u8(HOUR_OVER);
                into.put_u32(*hour);
            }
            Self::HourGone(hour) => {
                into.put_u8(HOUR_GONE);
                into.put_u32(*hour);
            }
            Self::Names(names) => put_json(into, NAMES, names),
            Self::Hours(hours) => put_json(into, HOURS, hours),
            Self::Checkpoint(checkpoint) => put_json(into, CHECKPOINT, checkpoint),
        }
    }

    pub fn decode(from: &mut Bytes) -> Result<Self, DamagedRow> {
        Ok(match from.try_get_u8().map_err(|_| DamagedRow)? {
            ADD => get_row(from).map(|(key, row)| Self::Add(key, row))?,
            CHANGE => get_row(from).map(|(key, row)| Self::Change(key, row))?,
            PUSH => get_json(from).map(|(key, push)| Self::Push(key, push))?,
            CLOSE => Self::Close(from.try_get_u32().map_err(|_| DamagedRow)?),
            BEGIN => Self::Begin(get_json(from)?),
            END => Self::End(from.try_get_u64().map_err(|_| DamagedRow)?),
            HOUR_OVER => Self::HourOver(from.try_get_u32().map_err(|_| DamagedRow)?),
            HOUR_GONE => Self::HourGone(from.try_get_u32().map_err(|_| DamagedRow)?),
            NAMES => Self::Names(get_json(from)?),
            HOURS => Self::Hours(get_json(from)?),
            CHECKPOINT => Self::Checkpoint(get_json(from)?),
            _ => return Err(DamagedRow),
        })
    }
}

fn put_row(into: &mut BytesMut, kind: u8, key: RowKey, row: &Row) {
    into.put_u8(kind);
    into.put_u32(key.hour);
    row.encode(into, None, key);
}

fn get_row(from: &mut Bytes) -> Result<(RowKey, Row), DamagedRow> {
    let hour = from.try_get_u32().map_err(|_| DamagedRow)?;
    Row::decode(from, None, hour)
}

/// What is rare is written as JSON behind its length.
fn put_json<T: Serialize>(into: &mut BytesMut, kind: u8, what: &T) {
    let json = serde_json::to_vec(what).unwrap_or_default();
    into.put_u8(kind);
    into.put_u32(u32::try_from(json.len()).unwrap_or(u32::MAX));
    into.put_slice(&json);
}

fn get_json<T: for<'de> Deserialize<'de>>(from: &mut Bytes) -> Result<T, DamagedRow> {
    let len = usize::try_from(from.try_get_u32().map_err(|_| DamagedRow)?).map_err(|_| DamagedRow)?;
    if len > from.len() {
        return Err(DamagedRow);
    }
    serde_json::from_slice(&from.split_to(len)).map_err(|_| DamagedRow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::FRAME_MAX_BYTES;
    use crate::row::FarTask;
    use crate::state::State;

    #[test]
    fn entries_are_read_as_they_are_written() {
        let key = RowKey { hour: 500_000, shard: 7, minute: 9, number: 11 };
        let route = Route { tenant: 1, target: 2 };
        let push = Push { due_ms: 5, tenant: 1, target: 2, payload: vec![0, 255] };
        let what = BatchOf::Hour { after: Some(key), to: RowKey { number: 12, ..key } };
        let batch = Batch { sequence: 3, shard: 7, what };
        let hours = [(500_000, Hour { next: 4, waiting: [(1, 2)].into() })].into();
        let entries = [
            Entry::Add(key, Row::Task(FarTask { offset_ms: 1, route, payload: "x".into() })),
            Entry::Change(key, Row::Cancelled(4)),
            Entry::Push(key, push.clone()),
            Entry::Close(500_001),
            Entry::Begin(batch),
            Entry::End(1 << 40),
            Entry::HourOver(500_000),
            Entry::HourGone(500_001),
            Entry::Names(vec![Named { tenant: 1, target: 2, names: ("shop".into(), "hook".into()) }]),
            Entry::Hours(hours),
            Entry::Checkpoint(Checkpoint {
                hours: BTreeMap::new(),
                closed_upto: 1,
                over_upto: 2,
                sequence: 3,
                batch: Some(Batch { what: BatchOf::Push(key), ..batch }),
                loaded_upto: Some(key),
                pushes: vec![(key, push)],
            }),
        ];
        let mut frame = BytesMut::new();
        entries.iter().for_each(|entry| entry.encode(&mut frame));
        let mut frame = frame.freeze();
        for entry in entries {
            assert_eq!(Entry::decode(&mut frame), Ok(entry));
        }
        assert!(frame.is_empty());
        assert_eq!(Entry::decode(&mut Bytes::from_static(&[77])), Err(DamagedRow));
    }

    /// A month of hours in which each of 2,000 tenants has tasks is more than one frame has room for.
    #[test]
    fn a_checkpoint_of_many_tenants_is_many_entries() {
        let waiting: BTreeMap<u16, u64> = (0..2_000).map(|tenant| (tenant, u64::MAX)).collect();
        let hours: BTreeMap<u32, Hour> =
            (0..720).map(|hour| (hour, Hour { next: 7, waiting: waiting.clone() })).collect();
        let checkpoint = Checkpoint { hours, sequence: 5, ..Checkpoint::default() };
        let mut state = State::default();
        for entry in checkpoint.entries() {
            let mut frame = BytesMut::new();
            entry.encode(&mut frame);
            assert!(frame.len() < FRAME_MAX_BYTES / 16, "{}", frame.len());
            state.apply(Entry::decode(&mut frame.freeze()).unwrap());
        }
        assert_eq!(state.figures, checkpoint);
    }
}
