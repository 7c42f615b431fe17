//! What goes into the log, and how it is read again.

use crate::OpenFarError;
use crate::entry::Entry;
use crate::log::LogError;
use crate::state::State;
use crate::tier::Inner;
use bytes::BytesMut;
use windfall_contract::due::StoreError;

impl Inner {
    /// Appends entries, and takes them in. They are one frame.
    pub fn append(&self, state: &mut State, entries: Vec<Entry>) -> Result<u64, StoreError> {
        self.check_refused()?;
        self.append_always(state, entries)
    }

    /// The same in whatever case: for what a part of the log must begin with.
    pub fn append_always(&self, state: &mut State, entries: Vec<Entry>) -> Result<u64, StoreError> {
        let mut frame = BytesMut::new();
        entries.iter().for_each(|entry| entry.encode(&mut frame));
        let end = self.log.append(&frame).map_err(log_failed)?;
        entries.into_iter().for_each(|entry| state.apply(entry));
        Ok(end)
    }

    /// Reads the log once more, from this position on: all before it is in segments. What was read of it may be older
    /// than they are, where a failed write has torn it. An error where the log does not have all behind the position.
    pub(crate) fn read_from(&self, flushed: u64) -> Result<(), OpenFarError> {
        // Nothing is appended meanwhile.
        let mut state = self.state.lock();
        if flushed == self.log.first() {
            // It was read from there on.
            return Ok(());
        }
        let mut anew = State::default();
        self.replay(&mut anew, flushed)?;
        *state = anew;
        Ok(())
    }

    /// Reads the log from a part on.
    pub(crate) fn replay(&self, state: &mut State, from: u64) -> Result<(), OpenFarError> {
        let mut is_first = true;
        self.log.replay(from, &mut |mut frame| {
            while !frame.is_empty() {
                let entry = Entry::decode(&mut frame);
                let is_checkpoint =
                    matches!(entry, Ok(Entry::Names(_) | Entry::Hours(_) | Entry::Checkpoint(_)));
                let is_wrong = is_first && from > 0 && !is_checkpoint;
                match entry {
                    Ok(entry) if !is_wrong => state.apply(entry),
                    _ => {
                        let what = format!("a frame behind {from} is none of the far tier");
                        return Err(LogError::Damaged { place: "the far tier".into(), what });
                    }
                }
                is_first = false;
            }
            Ok(())
        })?;
        match is_first && from > 0 {
            true => {
                let what = format!("what is behind {from} is missing");
                Err(LogError::Damaged { place: "the far tier".into(), what }.into())
            }
            false => Ok(()),
        }
    }
}

pub(crate) fn log_failed(error: LogError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}
