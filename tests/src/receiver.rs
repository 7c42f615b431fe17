//! An HTTP server that timers are posted to.

use crate::now_ms;
use parking_lot::Mutex;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Deliveries, in order: when each came (Unix ms), and its body.
pub type Deliveries = Arc<Mutex<Vec<(u64, Value)>>>;

/// Starts a server that takes every timer that is signed with the key `test`, and keeps it.
///
/// # Panics
/// If it cannot listen.
pub fn receiver() -> (SocketAddr, Deliveries) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (address, deliveries) = (listener.local_addr().expect("an address"), Deliveries::default());
    let own = Arc::clone(&deliveries);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, own) = (stream.expect("a connection"), Arc::clone(&own));
            std::thread::spawn(move || receive(stream, &own));
        }
    });
    (address, deliveries)
}

fn receive(mut stream: TcpStream, deliveries: &Deliveries) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.and_then(|length| length.parse().ok()).expect("a length") {
                assert!(head.contains("windfall-signature: v1;key=test;"), "{head}");
                deliveries.lock().push((now_ms(), serde_json::from_str(body).expect("JSON")));
                bytes.clear();
                if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_err() {
                    return;
                }
                continue;
            }
        }
        let mut part = [0; 4_096];
        match stream.read(&mut part) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&part[..count]),
            _ => return,
        }
    }
}
