//! A slow external system in process, behind the connector contract: it limits its rate, takes its time, fails,
//! and times out after having paid. For demos and tests; nothing here is real money.
//! It keeps a book of its own, one line per payment, so that a check can see whether it ever paid twice. The book is
//! written before the answer and survives the death of the process (not that of the machine).

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use windfall_contract::Clock;
use windfall_contract::connector::{Connector, PayAnswer, PayOrder};

/// How the fake behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeOptions {
    /// The connector's name.
    pub name: String,
    /// Payments per second; above it answers `Busy`. 0 is no limit. Default 2,000.
    pub rate_per_s: u64,
    /// Payments that may come at once. Default 200.
    pub burst: u32,
    /// How long an answer takes, in ms. Default 2.
    pub latency_ms: u64,
    /// The number of calls in 1,000 that answer `Retry` and pay nothing. Default 0.
    pub retry_per_mille: u32,
    /// The number of payments in 1,000 that are made and never answered. Default 0.
    pub paid_then_timeout_per_mille: u32,
    /// How long a call that is never answered hangs, in ms. Default 10,000.
    pub hang_ms: u64,
    /// The seed of its random choices.
    pub seed: u64,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            name: "fake".into(),
            rate_per_s: 2_000,
            burst: 200,
            latency_ms: 2,
            retry_per_mille: 0,
            paid_then_timeout_per_mille: 0,
            hang_ms: 10_000,
            seed: 0,
        }
    }
}

/// One line of the book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakePayment {
    /// The order number.
    pub trade_no: String,
    /// The user who was paid.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount.
    pub amount: i64,
}

/// The fake's book, for the independent check.
#[derive(Debug)]
pub struct FakeBook;

impl FakeBook {
    /// Reads every payment, repeats included. A torn last line is not a payment: it was never answered.
    ///
    /// # Errors
    /// The file cannot be read, or a line is none of a book.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<FakePayment>> {
        Ok(read_book(&File::open(path)?)?.0)
    }
}

/// Payments, and where the last whole line ends.
fn read_book(file: &File) -> io::Result<(Vec<FakePayment>, u64)> {
    let mut reader = BufReader::new(file);
    let (mut payments, mut end, mut line) = (Vec::new(), 0, String::new());
    loop {
        line.clear();
        let read = reader.read_line(&mut line)?;
        let Some(whole) = line.strip_suffix('\n') else {
            return Ok((payments, end));
        };
        end += read as u64;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not a line of a book: {whole:?}"));
        let mut parts = whole.split('\t');
        let mut next = || parts.next().ok_or_else(bad);
        payments.push(FakePayment {
            trade_no: next()?.to_owned(),
            user_id: next()?.parse().map_err(|_| bad())?,
            bonus_type: next()?.to_owned(),
            amount: next()?.parse().map_err(|_| bad())?,
        });
    }
}

struct Book {
    file: File,
    paid: HashMap<Box<str>, (i64, Box<str>, i64)>,
    /// When the next payment is due at the limited rate (GCRA), in µs.
    due_us: i64,
}

/// The fake.
pub struct FakeDownstream {
    options: FakeOptions,
    book: Mutex<Book>,
    rolls: AtomicU64,
    retry_per_mille: AtomicU32,
    paid_then_timeout_per_mille: AtomicU32,
    clock: Clock,
}

impl FakeDownstream {
    /// Opens the fake with its book, and makes the book where there is none. What the book holds is paid.
    ///
    /// # Errors
    /// The book cannot be read or written.
    pub fn open(book: impl AsRef<Path>, options: FakeOptions, clock: Clock) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(book)?;
        let (payments, end) = read_book(&file)?;
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        let paid = payments
            .into_iter()
            .map(|one| (one.trade_no.into(), (one.user_id, one.bonus_type.into(), one.amount)))
            .collect();
        Ok(Self {
            book: Mutex::new(Book { file, paid, due_us: 0 }),
            rolls: AtomicU64::new(0),
            retry_per_mille: AtomicU32::new(options.retry_per_mille),
            paid_then_timeout_per_mille: AtomicU32::new(options.paid_then_timeout_per_mille),
            clock,
            options,
        })
    }

    /// Changes how often it fails, from now on.
    pub fn set_faults(&self, retry_per_mille: u32, paid_then_timeout_per_mille: u32) {
        self.retry_per_mille.store(retry_per_mille, Ordering::Relaxed);
        self.paid_then_timeout_per_mille.store(paid_then_timeout_per_mille, Ordering::Relaxed);
    }

    /// Payments in the book.
    pub fn payments(&self) -> usize {
        self.book.lock().paid.len()
    }

    fn happens(&self, per_mille: &AtomicU32) -> bool {
        let roll = mix(self.options.seed.wrapping_add(self.rolls.fetch_add(1, Ordering::Relaxed)));
        roll % 1_000 < per_mille.load(Ordering::Relaxed).into()
    }

    /// Pays, and says whether to answer.
    fn book(&self, order: PayOrder<'_>) -> (PayAnswer, bool) {
        let mut book = self.book.lock();
        if let Err(after_ms) = book.admit(self.clock.wall_ms(), &self.options) {
            return (PayAnswer::Busy { after_ms }, true);
        }
        if self.happens(&self.retry_per_mille) {
            return (PayAnswer::Retry { after_ms: 20 }, true);
        }
        if let Some((user_id, bonus_type, amount)) = book.paid.get(order.trade_no) {
            let same =
                (*user_id, bonus_type.as_ref(), *amount) == (order.user_id, order.bonus_type, order.amount);
            let other = || PayAnswer::Refused("paid before with another user, type or amount".into());
            return (if same { PayAnswer::AlreadyPaid } else { other() }, true);
        }
        let PayOrder { trade_no, user_id, bonus_type, amount, .. } = order;
        // One write: a kill leaves the whole line or, at worst, a torn one that was never answered.
        let line = format!("{trade_no}\t{user_id}\t{bonus_type}\t{amount}\n");
        if let Err(error) = book.append(line.as_bytes()) {
            tracing::error!(%error, "the fake's book cannot be written");
            return (PayAnswer::Retry { after_ms: 1_000 }, true);
        }
        book.paid.insert(trade_no.into(), (user_id, bonus_type.into(), amount));
        (PayAnswer::Paid, !self.happens(&self.paid_then_timeout_per_mille))
    }
}

impl Book {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let at = self.file.stream_position()?;
        self.file.write_all(line).or_else(|error| {
            // Half a line must not stay in front of the next one.
            self.file.set_len(at)?;
            self.file.seek(SeekFrom::Start(at))?;
            Err(error)
        })
    }

    fn admit(&mut self, now_ms: i64, options: &FakeOptions) -> Result<(), u64> {
        if options.rate_per_s == 0 {
            return Ok(());
        }
        let step_us = i64::try_from(1_000_000 / options.rate_per_s.min(1_000_000)).unwrap_or(1);
        let now_us = now_ms.saturating_mul(1_000);
        let ahead_us = self.due_us.saturating_sub(now_us);
        let allowed_us = step_us.saturating_mul(options.burst.into());
        if ahead_us > allowed_us {
            return Err(u64::try_from((ahead_us - allowed_us) / 1_000 + 1).unwrap_or(1));
        }
        self.due_us = self.due_us.max(now_us).saturating_add(step_us);
        Ok(())
    }
}

#[async_trait]
impl Connector for FakeDownstream {
    fn name(&self) -> &str {
        &self.options.name
    }

    async fn pay(&self, order: PayOrder<'_>) -> PayAnswer {
        if self.options.latency_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.options.latency_ms)).await;
        }
        let (answer, heard) = self.book(order);
        if heard {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(self.options.hang_ms)).await;
        PayAnswer::Unknown
    }
}

/// splitmix64 (<https://prng.di.unimi.it/splitmix64.c>).
const fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
