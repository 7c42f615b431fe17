//! Executors: who is there for an app, and what a run asks of one.

mod calls;
mod schemes;
mod table;
mod xxl;

pub use calls::{AskError, ExecutorCalls, LogCall, LogLines, RunCall};
pub use schemes::BySchemes;
pub(crate) use table::{Addresses, App, ExecutorTable, Registered};
pub use xxl::{XxlAdmin, XxlExecutors};
