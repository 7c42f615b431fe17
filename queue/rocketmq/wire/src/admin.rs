//! What gRPC v2 cannot say: topics, groups, and how far a group is.
//!
//! RocketMQ's remoting protocol: a length, a JSON header and a body over TCP, to a broker's own port
//! (`org.apache.rocketmq.remoting.protocol.RemotingCommand`; codes in `RequestCode`; signing in
//! `AclUtils.combineRequestContent`). Each request uses a connection of its own, since these requests are rare.

use crate::error::{CallError, Next};
use crate::options::Credentials;
use base64::Engine as _;
use ring::hmac;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use windfall_tls::TlsOptions;

const QUERY_CONSUMER_OFFSET: u32 = 14;
const UPDATE_CONSUMER_OFFSET: u32 = 15;
const UPDATE_AND_CREATE_TOPIC: u32 = 17;
const GET_MAX_OFFSET: u32 = 30;
const GET_MIN_OFFSET: u32 = 31;
const UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: u32 = 200;
const GET_ALL_SUBSCRIPTION_GROUPS: u32 = 201;
const GET_TOPIC_CONFIG: u32 = 351;
const GET_SUBSCRIPTION_GROUP_CONFIG: u32 = 352;

const SUCCESS: i64 = 0;
const TOPIC_NOT_EXIST: i64 = 17;
const QUERY_NOT_FOUND: i64 = 22;
const SUBSCRIPTION_GROUP_NOT_EXIST: i64 = 26;
const NO_PERMISSION: i64 = 16;
/// The largest answer that is read. An answer is a page of JSON, or a list of all groups of 0.6 KiB each; anything
/// larger does not come from RocketMQ.
const MAX_ANSWER_BYTES: u32 = 64 << 20;

/// A topic as the broker has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topic {
    /// Its queues on this broker.
    pub queues: u32,
}

/// A group as the broker has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// After so many redeliveries a message is moved to the group's dead letters.
    pub retry_max_times: i64,
}

/// One broker's own port.
#[derive(Debug, Clone)]
pub struct Admin {
    broker: String,
    credentials: Option<Credentials>,
    tls: Option<TlsOptions>,
    timeout: Duration,
}

impl Admin {
    /// A client of the broker at `host:port` (its `listenPort`). It makes no connection yet.
    pub fn new(
        broker: &str,
        credentials: Option<Credentials>,
        tls: Option<TlsOptions>,
        timeout: Duration,
    ) -> Self {
        Self { broker: broker.into(), credentials, tls, timeout }
    }

    /// The address.
    pub fn broker(&self) -> &str {
        &self.broker
    }

    /// The topic, or `None` where the broker has no such topic.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn topic(&self, topic: &str) -> Result<Option<Topic>, CallError> {
        match self.call(GET_TOPIC_CONFIG, [("topic", topic)], Vec::new()).await {
            Ok(answer) => {
                let config: Value = self.json(&answer.body)?;
                let queues = config.get("writeQueueNums").and_then(Value::as_u64).unwrap_or_default();
                Ok(Some(Topic { queues: u32::try_from(queues).unwrap_or(u32::MAX) }))
            }
            Err(error) if error.code().map(i64::from) == Some(TOPIC_NOT_EXIST) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a topic for messages without order or delay, or gives it so many queues.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put_topic(&self, topic: &str, queues: u32) -> Result<(), CallError> {
        let queues = queues.to_string();
        let fields = [
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", &queues),
            ("writeQueueNums", &queues),
            // Read and write.
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
            ("attributes", "+message.type=NORMAL"),
        ];
        self.call(UPDATE_AND_CREATE_TOPIC, fields, Vec::new()).await.map(drop)
    }

    /// Whether the broker has the group. Ask this first: [`Admin::group`] makes a missing one, with 16 redeliveries,
    /// where the broker's `autoCreateSubscriptionGroup` is on, and by default it is.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn has_group(&self, group: &str) -> Result<bool, CallError> {
        let answer = self.call(GET_ALL_SUBSCRIPTION_GROUPS, [], Vec::new()).await?;
        let all = self.json(&answer.body)?;
        let all = all.get("subscriptionGroupTable").and_then(Value::as_object);
        let all = all.ok_or_else(|| CallError::unknown(&self.broker, "an answer without groups"))?;
        Ok(all.contains_key(group))
    }

    /// The group, or `None` where the broker has no such group. The broker may create it: see [`Admin::has_group`].
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn group(&self, group: &str) -> Result<Option<Group>, CallError> {
        match self.call(GET_SUBSCRIPTION_GROUP_CONFIG, [("group", group)], Vec::new()).await {
            Ok(answer) => {
                let config: Value = self.json(&answer.body)?;
                let retry_max_times = config.get("retryMaxTimes").and_then(Value::as_i64).unwrap_or_default();
                Ok(Some(Group { retry_max_times }))
            }
            Err(error) if error.code().map(i64::from) == Some(SUBSCRIPTION_GROUP_NOT_EXIST) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a group, or gives it so many redeliveries.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put_group(&self, group: &str, retry_max_times: i32) -> Result<(), CallError> {
        let config = json!({
            "groupName": group,
            "consumeEnable": true,
            "consumeFromMinEnable": true,
            "consumeBroadcastEnable": false,
            "consumeMessageOrderly": false,
            "retryQueueNums": 1,
            "retryMaxTimes": retry_max_times,
        });
        self.call(UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, [], config.to_string().into_bytes()).await.map(drop)
    }

    /// The first position that a queue still has.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn min_offset(&self, topic: &str, queue: u32) -> Result<u64, CallError> {
        self.offset(GET_MIN_OFFSET, [("topic", topic), ("queueId", &queue.to_string())]).await
    }

    /// The position that a queue's next message will have.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn max_offset(&self, topic: &str, queue: u32) -> Result<u64, CallError> {
        self.offset(GET_MAX_OFFSET, [("topic", topic), ("queueId", &queue.to_string())]).await
    }

    /// The position that a group receives next; none where it has never received from that queue.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn group_offset(&self, topic: &str, group: &str, queue: u32) -> Result<Option<u64>, CallError> {
        let queue = queue.to_string();
        let fields = [
            ("consumerGroup", group),
            ("topic", topic),
            ("queueId", &queue),
            // Else the broker makes up a 0 for queues that still begin there.
            ("setZeroIfNotFound", "false"),
        ];
        match self.offset(QUERY_CONSUMER_OFFSET, fields).await {
            Ok(offset) => Ok(Some(offset)),
            Err(error) if error.code().map(i64::from) == Some(QUERY_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lets a group begin at a position of a queue.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn put_group_offset(
        &self,
        topic: &str,
        group: &str,
        queue: u32,
        offset: u64,
    ) -> Result<(), CallError> {
        let (queue, offset) = (queue.to_string(), offset.to_string());
        let fields =
            [("consumerGroup", group), ("topic", topic), ("queueId", &queue), ("commitOffset", &offset)];
        self.call(UPDATE_CONSUMER_OFFSET, fields, Vec::new()).await.map(drop)
    }

    async fn offset<const N: usize>(&self, code: u32, fields: [(&str, &str); N]) -> Result<u64, CallError> {
        let answer = self.call(code, fields, Vec::new()).await?;
        let offset = answer.header.pointer("/extFields/offset").and_then(Value::as_str);
        let offset = offset.and_then(|offset| offset.parse().ok());
        offset.ok_or_else(|| {
            CallError::unknown(&self.broker, format!("an answer without an offset: {}", answer.header))
        })
    }

    fn json(&self, body: &[u8]) -> Result<Value, CallError> {
        serde_json::from_slice(body).map_err(|error| CallError::unknown(&self.broker, error.to_string()))
    }

    async fn call<const N: usize>(
        &self,
        code: u32,
        fields: [(&str, &str); N],
        body: Vec<u8>,
    ) -> Result<Answer, CallError> {
        let request = self.encode(code, &fields, &body);
        let exchange = async {
            let not_sent = |error: std::io::Error| CallError::NotSent {
                place: self.broker.clone(),
                what: error.to_string(),
            };
            let mut stream = TcpStream::connect(&self.broker).await.map_err(not_sent)?;
            let Some(tls) = &self.tls else { return self.exchange(&mut stream, &request).await };
            let host = self.broker.rsplit_once(':').map_or(self.broker.as_str(), |(host, _)| host);
            let mut protected = tls.connect(host, stream).await.map_err(|error| not_sent(error.into()))?;
            self.exchange(&mut protected, &request).await
        };
        let answer = match tokio::time::timeout(self.timeout, exchange).await {
            Ok(answer) => answer?,
            Err(_) => {
                return Err(CallError::unknown(&self.broker, format!("no answer within {:?}", self.timeout)));
            }
        };
        match answer.header.get("code").and_then(Value::as_i64) {
            Some(SUCCESS) => Ok(answer),
            Some(code) => {
                let next = match code {
                    TOPIC_NOT_EXIST | SUBSCRIPTION_GROUP_NOT_EXIST | NO_PERMISSION => Next::Reconfigure,
                    QUERY_NOT_FOUND => Next::GiveUp,
                    _ => Next::Retry,
                };
                let what =
                    answer.header.get("remark").and_then(Value::as_str).unwrap_or("no reason given").into();
                let code = i32::try_from(code).unwrap_or(i32::MAX);
                Err(CallError::Refused { place: self.broker.clone(), code, what, next })
            }
            None => {
                Err(CallError::unknown(&self.broker, "an answer without a code: is this a broker's port?"))
            }
        }
    }

    async fn exchange(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        request: &[u8],
    ) -> Result<Answer, CallError> {
        let broken = |error: std::io::Error| CallError::unknown(&self.broker, error.to_string());
        stream.write_all(request).await.map_err(broken)?;
        let length = stream.read_u32().await.map_err(broken)?;
        // The first byte says how the header is written: 0 is JSON, as in the request.
        let header_length = stream.read_u32().await.map_err(broken)?;
        if length > MAX_ANSWER_BYTES || header_length.saturating_add(4) > length {
            return Err(CallError::unknown(&self.broker, "no remoting answer: is this a broker's port?"));
        }
        let mut header = vec![0; header_length as usize];
        stream.read_exact(&mut header).await.map_err(broken)?;
        let mut body = vec![0; (length - 4 - header_length) as usize];
        stream.read_exact(&mut body).await.map_err(broken)?;
        Ok(Answer { header: self.json(&header)?, body })
    }

    fn encode(&self, code: u32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut fields: BTreeMap<&str, String> =
            fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        if let Some(Credentials { access_key, secret_key }) = &self.credentials {
            fields.insert("AccessKey", access_key.clone());
            let mut content: Vec<u8> = fields.values().flat_map(|value| value.bytes()).collect();
            content.extend_from_slice(body);
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret_key.as_bytes());
            let proof = base64::engine::general_purpose::STANDARD.encode(hmac::sign(&key, &content));
            fields.insert("Signature", proof);
        }
        let header = json!({
            "code": code,
            "language": "OTHER",
            // V5_3_0 and later know all that is asked here.
            "version": 485,
            "opaque": 1,
            "flag": 0,
            "extFields": fields,
            "serializeTypeCurrentRPC": "JSON",
        });
        let header = header.to_string().into_bytes();
        // The body is far below 4 GiB: it holds names and numbers.
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
        let mut request = Vec::with_capacity(8 + header.len() + body.len());
        request.extend_from_slice(&length(4 + header.len() + body.len()));
        request.extend_from_slice(&length(header.len()));
        request.extend_from_slice(&header);
        request.extend_from_slice(body);
        request
    }
}

struct Answer {
    header: Value,
    body: Vec<u8>,
}
