//! The handwritten candidate, over the same generated stubs: one connection and one loop per client.

use super::{CLIENTS, GROUP, Seen, event};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures_util::StreamExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tonic::Request;
use tonic::transport::{Channel, Endpoint};
use windfall_rocketmq_wire::proto::messaging_service_client::MessagingServiceClient;
use windfall_rocketmq_wire::proto::receive_message_response::Content;
use windfall_rocketmq_wire::proto::settings::PubSub;
use windfall_rocketmq_wire::proto::telemetry_command::Command;
use windfall_rocketmq_wire::proto::{self, Code, MessageType};

const INVISIBLE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(500);
/// Messages of one answer at most, as the protocol has it.
const RECEIVED: i32 = 32;
/// Messages of one request, where they are sent together.
const SENT: usize = 128;
/// Requests of one client on their way at a time, where they are sent together.
const IN_FLIGHT: usize = 4;
const DEADLINE: Duration = Duration::from_secs(120);

type Stub = MessagingServiceClient<Channel>;

pub struct Bare {
    endpoint: String,
}

/// How the loop is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    /// The loop of a careful user: messages and acknowledgements in batches, and several requests in flight.
    Together,
    /// The loop of the first example: one request per message, and its answer before the next.
    OneByOne,
}

impl Bare {
    pub fn new(endpoint: &str) -> Self {
        Self { endpoint: endpoint.to_owned() }
    }

    /// Sends events, each a message.
    pub async fn send(&self, topic: &str, events: u64, by: Loop) -> Result<Duration> {
        let (sent, in_flight) = if by == Loop::Together { (SENT, IN_FLIGHT) } else { (1, 1) };
        let mut stubs = Vec::new();
        for _ in 0..CLIENTS {
            stubs.push(self.connect().await?);
        }
        let began = Instant::now();
        let clients = stubs.into_iter().enumerate().map(|(client, stub)| {
            let topic = topic.to_owned();
            tokio::spawn(async move {
                let id = format!("bare-send-{client}");
                let numbers: Vec<u64> = (client as u64..events).step_by(CLIENTS).collect();
                let mut requests = Vec::new();
                for numbers in numbers.chunks(sent) {
                    let messages = numbers.iter().map(|number| message(&topic, *number)).collect();
                    let request = signed(proto::SendMessageRequest { messages }, &id);
                    let mut stub = stub.clone();
                    requests
                        .push(async move { accepted(stub.send_message(request).await?.into_inner().status) });
                }
                let mut answers = futures_util::stream::iter(requests).buffer_unordered(in_flight);
                while let Some(answer) = answers.next().await {
                    answer?;
                }
                anyhow::Ok(())
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await??;
        }
        Ok(began.elapsed())
    }

    /// Receives events and acknowledges them.
    pub async fn receive(&self, topic: &str, events: u64, by: Loop) -> Result<Duration> {
        let mut members = Vec::new();
        for client in 0..CLIENTS {
            members.push(self.join(topic, format!("bare-receive-{topic}-{client}")).await?);
        }
        let seen = Arc::new(parking_lot::Mutex::new(Seen::none_of(events)?));
        let began = Instant::now();
        let members = members.into_iter().map(|mut member| {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                while seen.lock().left > 0 {
                    ensure!(began.elapsed() < DEADLINE, "{} events do not come", seen.lock().left);
                    let messages = member.receive().await?;
                    let together = if by == Loop::Together { messages.len().max(1) } else { 1 };
                    for some in messages.chunks(together) {
                        member.ack(some).await?;
                        let mut seen = seen.lock();
                        some.iter().try_for_each(|message| seen.add(&message.body))?;
                    }
                }
                anyhow::Ok(())
            })
        });
        for member in members.collect::<Vec<_>>() {
            member.await??;
        }
        Ok(began.elapsed())
    }

    async fn connect(&self) -> Result<Stub> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.endpoint))?.tcp_nodelay(true);
        Ok(MessagingServiceClient::new(endpoint.connect().await?))
    }

    /// A member of the group whose settings the proxy has echoed.
    async fn join(&self, topic: &str, id: String) -> Result<Member> {
        let mut stub = self.connect().await?;
        let subscription = proto::Subscription {
            group: Some(resource(GROUP)),
            subscriptions: vec![proto::SubscriptionEntry {
                topic: Some(resource(topic)),
                expression: Some(everything()),
            }],
        };
        let settings = proto::Settings {
            client_type: Some(proto::ClientType::SimpleConsumer.into()),
            pub_sub: Some(PubSub::Subscription(subscription)),
            user_agent: Some(proto::Ua { language: proto::Language::Rust.into(), version: "5.1.0".into() }),
            ..Default::default()
        };
        let command = proto::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) };
        let commands = futures_util::stream::iter([command]).chain(futures_util::stream::pending());
        let mut telemetry = stub.telemetry(signed(commands, &id)).await?.into_inner();
        telemetry.message().await?.context("the settings were not echoed")?;
        Ok(Member { stub, id, topic: topic.to_owned(), _telemetry: telemetry })
    }
}

struct Member {
    stub: Stub,
    id: String,
    topic: String,
    /// The proxy forgets us without it.
    _telemetry: tonic::Streaming<proto::TelemetryCommand>,
}

impl Member {
    async fn receive(&mut self) -> Result<Vec<proto::Message>> {
        let queue = proto::MessageQueue { topic: Some(resource(&self.topic)), ..Default::default() };
        let request = proto::ReceiveMessageRequest {
            group: Some(resource(GROUP)),
            message_queue: Some(queue),
            filter_expression: Some(everything()),
            batch_size: RECEIVED,
            invisible_duration: Some(INVISIBLE.try_into()?),
            auto_renew: false,
            long_polling_timeout: Some(POLL.try_into()?),
        };
        let mut request = signed(request, &self.id);
        request.set_timeout(POLL + Duration::from_secs(3));
        let mut stream = self.stub.receive_message(request).await?.into_inner();
        let mut messages = Vec::new();
        while let Some(item) = stream.message().await? {
            match item.content {
                Some(Content::Message(message)) => messages.push(message),
                Some(Content::Status(status)) if status.code == i32::from(Code::MessageNotFound) => {}
                Some(Content::Status(status)) => accepted(Some(status))?,
                Some(Content::DeliveryTimestamp(_)) | None => {}
            }
        }
        Ok(messages)
    }

    async fn ack(&mut self, messages: &[proto::Message]) -> Result<()> {
        let entry = |message: &proto::Message| {
            let system = message.system_properties.clone().unwrap_or_default();
            proto::AckMessageEntry {
                message_id: system.message_id,
                receipt_handle: system.receipt_handle.unwrap_or_default(),
            }
        };
        let request = proto::AckMessageRequest {
            group: Some(resource(GROUP)),
            topic: Some(resource(&self.topic)),
            entries: messages.iter().map(entry).collect(),
        };
        let answer = self.stub.ack_message(signed(request, &self.id)).await?.into_inner();
        if answer.entries.is_empty() {
            return accepted(answer.status);
        }
        answer.entries.into_iter().try_for_each(|entry| accepted(entry.status))
    }
}

fn message(topic: &str, number: u64) -> proto::Message {
    let system = proto::SystemProperties {
        message_id: format!("01{number:032X}"),
        body_encoding: proto::Encoding::Identity.into(),
        message_type: MessageType::Normal.into(),
        born_timestamp: Some(SystemTime::now().into()),
        ..Default::default()
    };
    proto::Message {
        topic: Some(resource(topic)),
        system_properties: Some(system),
        body: Bytes::copy_from_slice(&event(number)),
        ..Default::default()
    }
}

fn signed<T>(message: T, id: &str) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(id) = id.parse() {
        request.metadata_mut().insert("x-mq-client-id", id);
    }
    for (name, value) in
        [("x-mq-language", "RUST"), ("x-mq-protocol", "v2"), ("x-mq-client-version", "5.1.0")]
    {
        request.metadata_mut().insert(name, tonic::metadata::MetadataValue::from_static(value));
    }
    request
}

fn accepted(status: Option<proto::Status>) -> Result<()> {
    match status {
        Some(status) if status.code == i32::from(Code::Ok) => Ok(()),
        other => bail!("RocketMQ refuses: {other:?}"),
    }
}

fn resource(name: &str) -> proto::Resource {
    proto::Resource { resource_namespace: String::new(), name: name.to_owned() }
}

fn everything() -> proto::FilterExpression {
    proto::FilterExpression { r#type: proto::FilterType::Tag.into(), expression: "*".into() }
}
