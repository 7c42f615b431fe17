//! Rows of several sources in one order; where two have the same row, the newer one's counts.

use crate::row::{Row, RowKey};
use crate::segment::{ReadError, SegmentRows};
use crate::stats::FarCounters;
use object_store::ObjectStore;
use std::sync::Arc;

/// A source of sorted rows.
pub(crate) enum Rows {
    Segment(SegmentRows),
    Memory(std::vec::IntoIter<(RowKey, Row)>),
}

pub(crate) struct MergedRows {
    store: Arc<dyn ObjectStore>,
    counters: Arc<FarCounters>,
    /// The oldest first.
    sources: Vec<Rows>,
    heads: Vec<Option<(RowKey, Row)>>,
    is_begun: bool,
}

impl MergedRows {
    /// `sources` has the oldest one first.
    pub fn new(store: Arc<dyn ObjectStore>, counters: Arc<FarCounters>, sources: Vec<Rows>) -> Self {
        let heads = sources.iter().map(|_| None).collect();
        Self { store, counters, sources, heads, is_begun: false }
    }

    /// The next row. After an error begin anew.
    pub async fn next(&mut self) -> Result<Option<(RowKey, Row)>, ReadError> {
        if !self.is_begun {
            for at in 0..self.sources.len() {
                self.refill(at).await?;
            }
            self.is_begun = true;
        }
        let Some(least) = self.heads.iter().flatten().map(|(key, _)| *key).min() else { return Ok(None) };
        let mut newest = None;
        for at in 0..self.heads.len() {
            if self.heads[at].as_ref().is_some_and(|(key, _)| *key == least) {
                newest = self.heads[at].take();
                self.refill(at).await?;
            }
        }
        Ok(newest)
    }

    async fn refill(&mut self, at: usize) -> Result<(), ReadError> {
        self.heads[at] = match &mut self.sources[at] {
            Rows::Segment(rows) => rows.next(&*self.store, &self.counters).await?,
            Rows::Memory(rows) => rows.next(),
        };
        Ok(())
    }
}
