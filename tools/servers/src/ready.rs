//! Is a server ready? Each kind is asked in its own protocol.
//!
//! An open port says little: a frozen process still accepts connections, RocketMQ's proxy listens before
//! it has routes, and PostgreSQL before it has recovered.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rocketmq_admin;

/// How long one question may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// A question that a ready server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ready {
    /// No question: the server is ready when its log has had this text since the start.
    Line(String),
    /// ApiVersions, which every Kafka broker answers before any login.
    Kafka(SocketAddr),
    /// PING, after AUTH where there is a password.
    Redis { address: SocketAddr, password: Option<String> },
    /// A start-up message: the answer is an authentication request, or an error while it recovers.
    Postgres { address: SocketAddr, user: String },
    /// `GET /health` of etcd.
    Etcd(SocketAddr),
    /// Any answer by HTTP.
    Http(SocketAddr),
    /// Any answer of RocketMQ's name server.
    Namesrv(SocketAddr),
    /// The name server knows who has this topic, and that broker answers.
    Route { namesrv: SocketAddr, topic: String },
    /// An HTTP/2 SETTINGS frame.
    Http2(SocketAddr),
}

impl Ready {
    /// Nothing when the server is ready, else what is amiss.
    pub(crate) fn check(&self, log: &Path, log_start: u64) -> Result<(), String> {
        match self {
            Self::Line(text) => line(log, log_start, text),
            Self::Kafka(address) => kafka(*address),
            Self::Redis { address, password } => redis(*address, password.as_deref()),
            Self::Postgres { address, user } => postgres(*address, user),
            Self::Etcd(address) => etcd(*address),
            Self::Http(address) => ask(*address, b"GET / HTTP/1.0\r\n\r\n", &mut [0; 12]),
            Self::Namesrv(address) => rocketmq_admin::ping(*address).map_err(|error| error.to_string()),
            Self::Route { namesrv, topic } => {
                let broker = rocketmq_admin::broker_of(*namesrv, topic).map_err(|error| error.to_string())?;
                rocketmq_admin::ping(broker).map_err(|error| error.to_string())
            }
            Self::Http2(address) => http2(*address),
        }
    }
}

/// Connects to a loopback address with a limit on every step.
pub(crate) fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a request and reads as many bytes of the answer as `answer` holds.
fn ask(address: SocketAddr, request: &[u8], answer: &mut [u8]) -> Result<(), String> {
    let mut talk = || {
        let mut stream = connect(address)?;
        stream.write_all(request)?;
        stream.read_exact(answer)
    };
    talk().map_err(|error| format!("{address}: {error}"))
}

fn line(log: &Path, log_start: u64, text: &str) -> Result<(), String> {
    let find = || -> std::io::Result<bool> {
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(log_start))?;
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            if String::from_utf8_lossy(&line).contains(text) {
                return Ok(true);
            }
            line.clear();
        }
        Ok(false)
    };
    match find() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("the log does not say '{text}'")),
        Err(error) => Err(error.to_string()),
    }
}

/// <https://kafka.apache.org/protocol.html>: length, api key 18, version 0, correlation id, no client id.
fn kafka(address: SocketAddr) -> Result<(), String> {
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    // Length, our correlation id, error code.
    let mut answer = [0; 10];
    ask(address, &request, &mut answer)?;
    if answer[4..] == [0, 0, 0, 7, 0, 0] { Ok(()) } else { Err("an odd answer to ApiVersions".to_owned()) }
}

fn redis(address: SocketAddr, password: Option<&str>) -> Result<(), String> {
    let mut stream = connect(address).map_err(|error| format!("{address}: {error}"))?;
    if let Some(password) = password {
        redis_command(&mut stream, &["AUTH", password])?;
    }
    match redis_command(&mut stream, &["PING"])?.as_str() {
        "+PONG" => Ok(()),
        other => Err(other.to_owned()),
    }
}

/// One Redis command; the first line of its answer, or of its payload when that is a bulk string's.
pub(crate) fn redis_command(stream: &mut TcpStream, words: &[&str]) -> Result<String, String> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        // Writing into a String does not fail.
        write!(request, "${}\r\n{word}\r\n", word.len()).map_err(|error| error.to_string())?;
    }
    let mut talk = || -> std::io::Result<String> {
        stream.write_all(request.as_bytes())?;
        let mut reader = BufReader::new(&mut *stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(length) = line.strip_prefix('$').and_then(|text| text.trim_end().parse::<usize>().ok()) {
            let mut payload = vec![0; length + 2];
            reader.read_exact(&mut payload)?;
            line = String::from_utf8_lossy(&payload).into_owned();
        }
        Ok(line)
    };
    let answer = talk().map_err(|error| error.to_string())?;
    if answer.starts_with('-') { Err(answer.trim_end().to_owned()) } else { Ok(answer.trim_end().to_owned()) }
}

/// <https://www.postgresql.org/docs/15/protocol-message-formats.html>: StartupMessage, version 3.0.
fn postgres(address: SocketAddr, user: &str) -> Result<(), String> {
    let mut body = Vec::new();
    body.extend_from_slice(&196_608_u32.to_be_bytes());
    body.extend_from_slice(format!("user\0{user}\0database\0{user}\0\0").as_bytes());
    let length = u32::try_from(body.len() + 4).map_err(|error| error.to_string())?;
    let request = [&length.to_be_bytes(), body.as_slice()].concat();
    let mut answer = [0; 1];
    let mut more = Vec::new();
    let mut talk = || {
        let mut stream = connect(address)?;
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        // An error is the end of what the server says.
        if answer == *b"E" { stream.take(4_096).read_to_end(&mut more).map(drop) } else { Ok(()) }
    };
    talk().map_err(|error| format!("{address}: {error}"))?;
    // The second is said when it has recovered: it takes TLS alone.
    if answer == *b"R" || String::from_utf8_lossy(&more).contains("C28000\0") {
        Ok(())
    } else {
        Err("the database system is starting up or shutting down".to_owned())
    }
}

fn etcd(address: SocketAddr) -> Result<(), String> {
    let mut stream = connect(address).map_err(|error| format!("{address}: {error}"))?;
    let mut text = String::new();
    let mut talk = || {
        write!(stream, "GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        (&mut stream).take(16 * 1024).read_to_string(&mut text)
    };
    talk().map_err(|error| format!("{address}: {error}"))?;
    if text.contains(r#""health":"true""#) { Ok(()) } else { Err(format!("unhealthy: {text}")) }
}

/// RFC 9113, 3.4: the client's preface and an empty SETTINGS frame; the server's first frame is SETTINGS.
fn http2(address: SocketAddr) -> Result<(), String> {
    let request = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let mut answer = [0; 9];
    ask(address, &request, &mut answer)?;
    if answer[3] == 4 { Ok(()) } else { Err("the first frame is not SETTINGS".to_owned()) }
}
