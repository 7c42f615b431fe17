//! Drains a topic: window, lanes, dispatch, requeue, commit

mod sync;
pub mod window;
