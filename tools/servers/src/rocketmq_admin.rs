//! Topics and groups of RocketMQ while it runs.
//!
//! RocketMQ's own tool starts a JVM a command (4 s). The requests behind it are small: RocketMQ's
//! remoting protocol is a length, a JSON header and a body over TCP
//! (`org.apache.rocketmq.remoting.protocol.RemotingCommand`, request codes in `RequestCode`).

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Error, process, ready};

const UPDATE_AND_CREATE_TOPIC: u32 = 17;
const UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: u32 = 200;
const GET_ROUTE_BY_TOPIC: u32 = 105;
/// Any code that both servers know without a body: "get the name server's or broker's own settings".
const UNKNOWN_BUT_ANSWERED: u32 = 0;

const SUCCESS: u64 = 0;
/// An answer is a route or a word; more than this is not RocketMQ.
const MAX_ANSWER_BYTES: u32 = 1 << 20;
/// How long a new topic may take to reach the name server.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a topic's messages may be; RocketMQ 5 refuses others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicKind {
    /// No order, no delay; may be sent in batches.
    Normal,
    /// In order within a message group.
    Fifo,
    /// Delivered at a time.
    Delay,
}

impl TopicKind {
    fn attribute(self) -> &'static str {
        match self {
            Self::Normal => "+message.type=NORMAL",
            Self::Fifo => "+message.type=FIFO",
            Self::Delay => "+message.type=DELAY",
        }
    }
}

/// Makes a topic, or changes it, and waits until the name server knows it.
pub(crate) fn create_topic(
    broker: SocketAddr,
    namesrv: SocketAddr,
    name: &str,
    kind: TopicKind,
    queues: u16,
) -> Result<(), Error> {
    let queues = queues.to_string();
    let fields = json!({
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        // Read and write.
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": kind.attribute(),
    });
    call(broker, UPDATE_AND_CREATE_TOPIC, &fields, &[])?;
    let end = Instant::now() + ROUTE_TIMEOUT;
    while let Err(error) = broker_of(namesrv, name) {
        if Instant::now() >= end {
            return Err(error);
        }
        std::thread::sleep(process::POLL);
    }
    Ok(())
}

/// Makes a consumer group, or changes it. `ordered` groups receive FIFO topics in order.
pub(crate) fn create_group(broker: SocketAddr, name: &str, ordered: bool) -> Result<(), Error> {
    let group = json!({
        "groupName": name,
        "consumeEnable": true,
        "consumeFromMinEnable": true,
        "consumeBroadcastEnable": false,
        "consumeMessageOrderly": ordered,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
    });
    call(broker, UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, &json!({}), group.to_string().as_bytes())?;
    Ok(())
}

/// The broker that has a topic, as the name server says.
pub(crate) fn broker_of(namesrv: SocketAddr, topic: &str) -> Result<SocketAddr, Error> {
    let fields = json!({ "topic": topic, "acceptStandardJsonOnly": "true" });
    let body = call(namesrv, GET_ROUTE_BY_TOPIC, &fields, &[])?;
    let refused = |reason: &str| Error::Refused {
        address: namesrv.to_string(),
        what: format!("the route of {topic}"),
        reason: reason.to_owned(),
    };
    let route: Value = serde_json::from_slice(&body).map_err(|error| refused(&error.to_string()))?;
    route
        .pointer("/brokerDatas/0/brokerAddrs/0")
        .and_then(Value::as_str)
        .and_then(|address| address.parse().ok())
        .ok_or_else(|| refused("it names no broker"))
}

/// Any answer will do: a process that answers is alive.
pub(crate) fn ping(address: SocketAddr) -> Result<(), Error> {
    exchange(address, UNKNOWN_BUT_ANSWERED, &json!({}), &[]).map(|_| ())
}

/// One request on a connection of its own; the answer's body when it succeeded.
fn call(address: SocketAddr, code: u32, fields: &Value, body: &[u8]) -> Result<Vec<u8>, Error> {
    let (header, body) = exchange(address, code, fields, body)?;
    if header.get("code").and_then(Value::as_u64) == Some(SUCCESS) {
        return Ok(body);
    }
    Err(Error::Refused {
        address: address.to_string(),
        what: format!("request {code}"),
        reason: header.get("remark").and_then(Value::as_str).unwrap_or("no reason given").to_owned(),
    })
}

fn exchange(address: SocketAddr, code: u32, fields: &Value, body: &[u8]) -> Result<(Value, Vec<u8>), Error> {
    let failed = |source| Error::Io { what: format!("ask RocketMQ at {address}"), source };
    let header = json!({
        "code": code, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0,
        "serializeTypeCurrentRPC": "JSON", "extFields": fields,
    })
    .to_string();
    let size =
        |bytes: usize| u32::try_from(bytes).map_err(|_| failed(std::io::ErrorKind::InvalidInput.into()));
    let header_size = size(header.len())?;
    let total = size(4 + header.len() + body.len())?;
    let request = [&total.to_be_bytes(), &header_size.to_be_bytes(), header.as_bytes(), body].concat();

    let mut stream = ready::connect(address).map_err(failed)?;
    stream.write_all(&request).map_err(failed)?;
    let mut word = [0; 4];
    stream.read_exact(&mut word).map_err(failed)?;
    let total = u32::from_be_bytes(word);
    stream.read_exact(&mut word).map_err(failed)?;
    // The high byte says how the header is written: 0 is JSON.
    let header_size = u32::from_be_bytes(word);
    if total > MAX_ANSWER_BYTES || header_size > total.saturating_sub(4) {
        return Err(failed(std::io::Error::other("not an answer of RocketMQ")));
    }
    let mut header = vec![0; usize::try_from(header_size).unwrap_or(0)];
    stream.read_exact(&mut header).map_err(failed)?;
    let mut body = vec![0; usize::try_from(total - 4 - header_size).unwrap_or(0)];
    stream.read_exact(&mut body).map_err(failed)?;
    let header = serde_json::from_slice(&header).map_err(|error| failed(error.into()))?;
    Ok((header, body))
}
