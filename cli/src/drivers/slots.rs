//! The slot store of the scheduler: files.

use crate::place;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use tokio::task::block_in_place;
use windfall_contract::Clock;
use windfall_contract::due::{Durability, SlotStore};
use windfall_slots::embedded::{EmbeddedSlots, EmbeddedSlotsOptions};

/// What keeps timers until their time.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SlotsAt {
    /// Files in the data directory, for one process alone.
    #[default]
    Embedded,
}

/// What the Ok of a call survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DurabilityAt {
    /// The end of the process.
    #[default]
    Process,
    /// The end of the machine, for a disk sync that calls share.
    Machine,
}

impl SlotsAt {
    /// Opens it, with this number of shards.
    pub fn open(
        &self,
        data: &Path,
        shards: u16,
        durability: DurabilityAt,
        clock: &Clock,
    ) -> Result<Arc<dyn SlotStore>> {
        let durability = match durability {
            DurabilityAt::Process => Durability::Process,
            DurabilityAt::Machine => Durability::Machine,
        };
        match self {
            Self::Embedded => {
                let options = EmbeddedSlotsOptions { shards, durability, ..EmbeddedSlotsOptions::default() };
                let opened =
                    block_in_place(|| EmbeddedSlots::open(&place::slots(data), &options, clock.clone()));
                Ok(opened.context("the slot store of the scheduler cannot be opened")?)
            }
        }
    }
}
