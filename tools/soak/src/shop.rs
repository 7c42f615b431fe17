//! The downstream system that pays gifts and takes callbacks of timers: a small HTTP server of the soak's own, with a
//! book of what it has paid and received, and moods in which it answers late, badly or not at all.

use crate::journal::now_ms;
use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// It pays and says so.
    Good,
    /// It pays and answers after its callers have given up.
    Late,
    /// It pays and never answers.
    Silent,
    /// It pays and answers that it has not.
    Lying,
    /// It pays and answers what no protocol knows.
    Babbling,
    /// It pays nothing and asks to come again.
    Busy,
    /// It takes no connections.
    Absent,
}

impl Mood {
    /// Those that are faults.
    pub const BAD: [Self; 6] =
        [Self::Late, Self::Silent, Self::Lying, Self::Babbling, Self::Busy, Self::Absent];
}

impl fmt::Display for Mood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "is well",
            Self::Late => "pays and answers too late",
            Self::Silent => "pays and never answers",
            Self::Lying => "pays and says that it has not",
            Self::Babbling => "pays and answers nonsense",
            Self::Busy => "is busy",
            Self::Absent => "takes no connections",
        })
    }
}

/// A payment in its book. Repeats are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    /// The order number.
    pub trade_no: String,
    /// The user who was paid.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount.
    pub amount: i64,
}

/// A callback of a timer in its book. Repeats are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// The timer's payload.
    pub tag: String,
    /// The timer's id.
    pub id: String,
    /// When it came, Unix milliseconds.
    pub at_ms: u64,
    /// Whether it was answered as done, and soon.
    pub is_answered: bool,
}

/// The path of callbacks.
const FIRED: &str = "/fired";

/// Users whose gifts it refuses, which ends such an order.
pub const fn is_refused(user_id: i64) -> bool {
    user_id % 50 == 7
}

struct Inner {
    mood: Mutex<Mood>,
    book: Mutex<(HashSet<String>, Vec<Payment>)>,
    firings: Mutex<Vec<Firing>>,
    /// Forgets whom it has paid, and loses some answers: the control of a payer that pays twice.
    is_forgetful: bool,
    ends: AtomicBool,
}

/// The running system. It ends when it is dropped.
pub struct Shop {
    address: SocketAddr,
    inner: Arc<Inner>,
    accepting: Option<JoinHandle<()>>,
}

const LATE: Duration = Duration::from_millis(900);
/// The same for callbacks, which are given up after two seconds.
const LATE_CALLBACK: Duration = Duration::from_millis(2_500);
/// How long a call that is never answered hangs at most.
const SILENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(100);

impl Shop {
    /// Opens it on a free port.
    pub fn open(is_forgetful: bool) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("the downstream system cannot listen")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            mood: Mutex::new(Mood::Good),
            book: Mutex::default(),
            firings: Mutex::default(),
            is_forgetful,
            ends: AtomicBool::new(false),
        });
        let own = Arc::clone(&inner);
        let accepting = std::thread::Builder::new()
            .name("downstream".into())
            .spawn(move || accept(&listener, &own))
            .context("the downstream system cannot start")?;
        Ok(Self { address, inner, accepting: Some(accepting) })
    }

    /// The address where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes its mood.
    pub fn set_mood(&self, mood: Mood) {
        *self.inner.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    /// Every payment that it has made.
    pub fn payments(&self) -> Vec<Payment> {
        self.inner.book.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Removes some callbacks: the control of timers that never fire.
    pub fn drop_firings(&self) {
        let mut firings = self.inner.firings.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = firings.len().saturating_sub(10);
        firings.truncate(kept);
    }

    /// Every callback that it has received.
    pub fn firings(&self) -> Vec<Firing> {
        self.inner.firings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.inner.ends.store(true, Relaxed);
        if let Some(accepting) = self.accepting.take()
            && accepting.join().is_err()
        {
            eprintln!("soak: the downstream system has panicked");
        }
    }
}

fn accept(listener: &TcpListener, inner: &Arc<Inner>) {
    let mut open: Vec<JoinHandle<()>> = Vec::new();
    while !inner.ends.load(Relaxed) {
        open.retain(|one| !one.is_finished());
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        if inner.mood() == Mood::Absent {
            continue;
        }
        let inner = Arc::clone(inner);
        // A connection that breaks is a lost answer, as it may be anywhere.
        open.push(std::thread::spawn(move || serve(stream, &inner).unwrap_or_default()));
    }
    for one in open {
        if one.join().is_err() {
            eprintln!("soak: a connection of the downstream system has panicked");
        }
    }
}

fn serve(stream: TcpStream, inner: &Inner) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(POLL))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some((path, body)) = request(&mut reader, inner)? {
        let (at_ms, is_callback) = (now_ms(), path == FIRED);
        match inner.mood() {
            Mood::Absent => return Ok(()),
            Mood::Late if !is_callback => inner.wait(LATE),
            _ => {}
        }
        let message: Value = serde_json::from_slice(&body)?;
        let answer = if is_callback { inner.fired(&message, at_ms)? } else { inner.pay(&message)? };
        let Some((status, answer)) = answer else {
            inner.wait(SILENCE);
            return Ok(());
        };
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all(&[head.as_bytes(), answer.as_bytes()].concat())?;
    }
    Ok(())
}

/// Path and body of the next request, `None` at the end of the connection.
fn request(reader: &mut BufReader<TcpStream>, inner: &Inner) -> Result<Option<(String, Vec<u8>)>> {
    let (mut line, mut length, mut path) = (String::new(), 0, String::new());
    loop {
        match reader.read_line(&mut line) {
            Ok(0) => return Ok(None),
            Ok(_) if line == "\r\n" => break,
            Ok(_) => {
                if path.is_empty() {
                    path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                }
                let lower = line.to_ascii_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse()?;
                }
                line.clear();
            }
            // What was read of the line stays in it.
            Err(error) if is_time_out(&error) && !inner.ends.load(Relaxed) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut body = vec![0; length];
    let mut read = 0;
    while read < length {
        match reader.read(&mut body[read..]) {
            Ok(0) => return Ok(None),
            Ok(more) => read += more,
            Err(error) if is_time_out(&error) && !inner.ends.load(Relaxed) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some((path, body)))
}

fn is_time_out(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

impl Inner {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, long: Duration) {
        let until = Instant::now() + long;
        while Instant::now() < until && !self.ends.load(Relaxed) {
            std::thread::sleep(POLL.min(until - Instant::now()));
        }
    }

    /// Notes a callback, unless it is busy; status and body of the answer, `None` for none.
    fn fired(&self, message: &Value, at_ms: u64) -> Result<Option<(u16, String)>> {
        let text = |key: &str| message[key].as_str().with_context(|| format!("{key} is missing"));
        let mood = self.mood();
        if mood == Mood::Busy {
            return Ok(Some((429, String::new())));
        }
        let tag = String::from_utf8(STANDARD.decode(text("payload")?)?)?;
        let is_answered = matches!(mood, Mood::Good | Mood::Babbling);
        let firing = Firing { tag, id: text("id")?.to_owned(), at_ms, is_answered };
        self.firings.lock().unwrap_or_else(PoisonError::into_inner).push(firing);
        Ok(match mood {
            Mood::Silent => None,
            Mood::Lying => Some((500, String::new())),
            Mood::Late => {
                self.wait(LATE_CALLBACK);
                Some((200, String::new()))
            }
            // Whatever it says, it has taken the callback.
            _ => Some((200, "{\"outcome\": \"maybe\"}".into())),
        })
    }

    /// Pays once per key; status and body of the answer, `None` for none.
    fn pay(&self, order: &Value) -> Result<Option<(u16, String)>> {
        let text = |key: &str| order[key].as_str().with_context(|| format!("{key} is missing"));
        // The last word of an order's key is its number.
        let key = text("trade_no")?.to_owned();
        let payment = Payment {
            trade_no: key.rsplit(' ').next().unwrap_or(&key).to_owned(),
            user_id: text("user_id")?.parse()?,
            bonus_type: text("bonus_type")?.to_owned(),
            amount: text("amount")?.parse()?,
        };
        let answer = |status: u16, outcome: &str| {
            let body = json!({"outcome": outcome, "trade_no": key, "reason": "the soak's refusal"});
            Ok(Some((status, body.to_string())))
        };
        let mood = self.mood();
        if mood == Mood::Busy {
            return answer(429, "busy");
        }
        if is_refused(payment.user_id) {
            return if mood == Mood::Silent { Ok(None) } else { answer(422, "refused") };
        }
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = book.0.insert(key.clone());
        if is_new || self.is_forgetful {
            book.1.push(payment);
        }
        let loses_answer = self.is_forgetful && is_new && book.1.len().is_multiple_of(5);
        drop(book);
        match mood {
            Mood::Silent => Ok(None),
            _ if loses_answer => Ok(None),
            Mood::Lying => answer(500, "retry"),
            Mood::Babbling => Ok(Some((200, "{\"outcome\": \"maybe\"}".into()))),
            _ if is_new => answer(200, "paid"),
            _ => answer(200, "already_paid"),
        }
    }
}
