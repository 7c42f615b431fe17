//! A connection that is made again when it was lost, with pauses that grow.

use super::address::Address;
use super::session::Session;
use super::shape::{FIVE, Shape, THREE};
use super::{failover, position, schema};
use crate::error::{LedgerError, OpenError};
use crate::guard::Guard;
use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::{Duration, Instant};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// A writer compares its own connection anew before a transaction, when it was compared longer ago than this: of two
/// servers behind one address, another connection's look says nothing.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Address {
    /// Connects. The first connection of all brings the tables up to date, or refuses them; every other one looks which
    /// tables there are, for a server that has taken the place of another may have older ones. A connection that only reads
    /// does not write anything else: it is ready also where a commit waits or fails.
    fn connect(&self, purpose: Purpose) -> Result<Session, OpenError> {
        let session = Session::open(self, false)?;
        let may_make = purpose != Purpose::Seal && !self.opened.load(Acquire);
        let is_unmarked = self.guard.as_ref().is_some_and(|guard| guard.is_unmarked());
        let is_new = may_make && (is_unmarked || schema::is_missing(&session, self)?);
        failover::check(&session, self, is_new)?;
        if matches!(purpose, Purpose::Write | Purpose::Seal) {
            failover::check_waiting(&session, self)?;
        }
        if may_make {
            schema::open(&session, self)?;
        } else {
            schema::check(&session, self)?;
        }
        self.opened.store(true, Release);
        match purpose {
            Purpose::Seal => session.need_journal().map_err(|error| OpenError::Invalid(error.to_string()))?,
            _ => self.tell_shape(session.shape()),
        }
        if let Some(guard) = &self.guard {
            let compared = match purpose {
                Purpose::Write => position::follow(&session, guard, &self.options.schema).map(drop),
                _ => position::look(&session, guard).map(drop),
            };
            compared.map_err(|error| schema::refused(&self.place, error))?;
        }
        self.told.store(false, Release);
        Ok(session)
    }

    /// Logs once that the tables are of an older version.
    fn tell_shape(&self, shape: Shape) {
        if shape != Shape::Keyed && !self.told_older.swap(true, AcqRel) {
            let version = if shape == Shape::Three { THREE } else { FIVE };
            tracing::warn!(
                "{}: its schema has version {version}, which processes of older versions write too; run windfall ledger migrate when \
                 none of them is left",
                self.place
            );
        }
    }

    /// Logs once an error that does not pass by itself.
    fn tell(&self, error: &OpenError) {
        if !error.may_pass() && !self.told.swap(true, AcqRel) {
            tracing::error!(%error, "the ledger cannot be opened as it is; nothing is granted until that is mended");
        }
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To write, and to read in between.
    Write,
    /// To read what is committed at each read.
    Read,
    /// To read one moment, which a new connection would change.
    Snapshot,
    /// To seal a journal that is there. It makes no tables.
    Seal,
}

/// A connection that may be missing.
#[derive(Debug)]
pub(crate) struct Link {
    pub address: Address,
    session: RefCell<Option<Session>>,
    failures: Cell<u32>,
    failed_at: Cell<Option<Instant>>,
    purpose: Purpose,
}

impl Link {
    /// Makes a link, and connects it.
    pub fn connect(address: Address, purpose: Purpose) -> Result<Self, OpenError> {
        let session = address.connect(purpose)?;
        Ok(Self::new(address, Some(session), purpose))
    }

    /// Makes a link. Without a session it connects when it is first used.
    pub fn new(address: Address, session: Option<Session>, purpose: Purpose) -> Self {
        let session = RefCell::new(session);
        Self { address, session, failures: Cell::new(0), failed_at: Cell::new(None), purpose }
    }

    pub fn is_snapshot(&self) -> bool {
        self.purpose == Purpose::Snapshot
    }

    /// The number of its connection; 0 where it has none.
    pub fn number(&mut self) -> u64 {
        self.session.get_mut().as_ref().map_or(0, Session::number)
    }

    /// The connection; a new one where it was lost, after a pause where that failed before.
    pub fn session(&self) -> Result<RefMut<'_, Session>, LedgerError> {
        let mut own = self.session.borrow_mut();
        if own.as_ref().is_some_and(Session::is_broken) {
            *own = None;
        }
        if own.is_none() {
            *own = Some(self.reconnect()?);
        }
        RefMut::filter_map(own, Option::as_mut).map_err(|_| lost("there is none"))
    }

    /// The same for a writer, which holds it for a transaction. The second value says whether the connection is new.
    pub fn session_mut(&mut self) -> Result<(&mut Session, bool), LedgerError> {
        let mut own = self.session.take().filter(|session| !session.is_broken());
        let new = own.is_none();
        if new {
            own = Some(self.reconnect()?);
        }
        Ok((self.session.get_mut().insert(own.ok_or_else(|| lost("there is none"))?), new))
    }

    /// Looks again at the database, where it had gone back in time (a person may have accepted it), and where it was
    /// looked at too long ago.
    pub fn look_again(&mut self) -> Result<(), LedgerError> {
        let (Some(guard), Some(session)) = (&self.address.guard, self.session.get_mut()) else {
            return Ok(());
        };
        if session.is_broken() || session.is_sound_since(LOOK_EVERY) {
            return Ok(());
        }
        match position::look(session, guard) {
            // Lost meanwhile: the next connection is compared when it is made.
            Err(_) if session.is_broken() => Ok(()),
            looked => looked.map(drop),
        }
    }

    /// Guards every connection that is made from now on. An address with several hosts without a synchronous standby is
    /// refused where the ledger has no mark yet: it was not run like this before. (A sealer may be where no mark is kept.)
    pub fn guard_by(&mut self, guard: Arc<Guard>) -> Result<(), OpenError> {
        let is_unmarked = self.purpose != Purpose::Seal && guard.is_unmarked();
        self.address.guard = Some(guard);
        // It was made without a look, so it is not kept.
        match self.session.get_mut().take() {
            Some(session) => match failover::check(&session, &self.address, is_unmarked) {
                Err(error) if error.may_pass() => {
                    // Lost meanwhile. The next connection is the first one once more, and is checked as such.
                    self.address.opened.store(false, Release);
                    Ok(())
                }
                checked => checked,
            },
            None => Ok(()),
        }
    }

    /// The connection on which a transaction has begun, even if it is lost; never a new one.
    pub fn held(&mut self) -> Result<&mut Session, LedgerError> {
        self.session.get_mut().as_mut().ok_or_else(|| lost("there is none"))
    }

    fn reconnect(&self) -> Result<Session, LedgerError> {
        if self.is_snapshot() {
            return Err(lost("a reader sees one moment, on one connection; open a new reader"));
        }
        if let Some(failed_at) = self.failed_at.get() {
            let longest = Duration::from_millis(self.address.options.backoff_max_ms);
            let pause = BACKOFF_MIN.saturating_mul(1 << self.failures.get().min(16)).min(longest);
            std::thread::sleep(pause.saturating_sub(failed_at.elapsed()));
        }
        match self.address.connect(self.purpose) {
            Ok(session) => {
                tracing::info!("connected: {}", self.address.place);
                self.failures.set(0);
                self.failed_at.set(None);
                Ok(session)
            }
            Err(error) => {
                self.address.tell(&error);
                self.failures.set(self.failures.get().saturating_add(1));
                self.failed_at.set(Some(Instant::now()));
                Err(LedgerError::Unavailable(error.to_string()))
            }
        }
    }
}

fn lost(what: &str) -> LedgerError {
    LedgerError::Unavailable(format!("the connection was lost: {what}"))
}
