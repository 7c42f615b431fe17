//! The auditor: reconciles a ledger in use, all the time, and keeps what differs until people have seen to it.
//!
//! What is compared, and why nothing is reported that is sound, stands in [`windfall_ledger::Auditor`], which takes single steps.
//! Here is who takes them: one thread with a connection of its own ([`AuditService`]), within the pace of [`AuditorOptions`], and the
//! calls of operators ([`AuditsService`]), who also upload payers' statements and have them compared.
//!
//! Not here: what a difference means and how it is mended; `docs/runbook/WindfallAuditDifference.md` says that to people.
//!
//! ```
//! use std::sync::Arc;
//! use windfall_auditor::{AuditService, AuditorOptions};
//! use windfall_contract::Clock;
//! use windfall_ledger::{Auditor, Ledger, LedgerOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("ledger.db");
//! let ledger = Ledger::open(&path, &LedgerOptions::default())?;
//! let open = move || Auditor::open(&path).map_err(|error| error.to_string());
//! let auditor = AuditService::start(AuditorOptions::default(), Box::new(open), Clock::system())?;
//! let progress = auditor.call_blocking(|auditor| auditor.progress())?;
//! assert!(progress.is_clean());
//! auditor.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod options;
mod rpc;
mod service;
mod statements;
mod stats;

pub use options::{AuditorOptions, BadOptions};
pub use rpc::AuditsService;
pub use service::{AuditCallError, AuditHandle, AuditService, OpenAuditor};
pub use stats::{AuditDifferences, AuditStats};
