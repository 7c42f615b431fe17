//! Executors: who is there for an app, and what a run asks of one.

mod calls;
mod table;

pub use calls::{ExecutorCalls, LogLines, RunCall};
pub(crate) use table::{App, ExecutorTable, Registered};
