//! HTTP/1.1 by hand, so that a test can say what no client would.

use crate::Answer;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a read or a write waits before the peer counts as dead.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that reads and writes in time.
///
/// # Panics
/// If no process listens there.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
    stream.set_nodelay(true).expect("no delay");
    stream
}

/// Says this on a connection of its own, and reads what is answered until the server closes it. The last thing that
/// is said should make it do so.
///
/// # Panics
/// If it does not.
pub fn exchange(address: SocketAddr, said: &[u8]) -> Vec<Answer> {
    let mut stream = connect(address);
    // It may have been refused before its end.
    stream.write_all(said).ok();
    read_answers(&mut stream)
}

/// Reads until the server closes.
///
/// # Panics
/// If it does not.
pub fn read_answers(stream: &mut TcpStream) -> Vec<Answer> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        let is_reset = matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::ConnectionAborted
        );
        assert!(is_reset, "still open: {error}: {}", String::from_utf8_lossy(&bytes));
    }
    answers(&bytes)
}

/// Takes answers apart. One that is cut off counts with the body that it has.
///
/// # Panics
/// If these are no answers.
pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no answer: {head}"));
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let body = &bytes[end..bytes.len().min(end + length.unwrap_or(0))];
        bytes = &bytes[end + body.len()..];
        let text = || Value::String(String::from_utf8_lossy(body).into_owned());
        found.push(Answer { status, body: serde_json::from_slice(body).unwrap_or_else(|_| text()) });
    }
    found
}
