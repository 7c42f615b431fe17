//! One member: a producer of topics or a consumer of a group.

use crate::connection::{Connection, Stub, accepted};
use crate::error::{CallError, Next, OptionsError};
use crate::handle;
use crate::identity;
use crate::message::{InMessage, OutMessage};
use crate::options::{ClientOptions, Role};
use crate::proto::receive_message_response::Content;
use crate::proto::{self, Code, MessageType};
use crate::session::{Granted, Session, endpoints_of, everything};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Calls on behalf of one member. Cheap to share behind an `Arc`; dropped, it leaves without a word, and the server
/// notices in its own time.
pub struct Client {
    connection: Arc<Connection>,
    session: Session,
    role: Role,
    namespace: String,
}

/// Where a message was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its id.
    pub id: String,
    /// Its position in its queue.
    pub offset: i64,
}

/// What to receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receive {
    /// The topic to receive from.
    pub topic: String,
    /// The topic's broker to receive from; with `None` the proxy chooses.
    pub broker: Option<String>,
    /// The number of messages at most. 1 to 32 by the server's defaults; default 32.
    pub max_messages: u16,
    /// How long they are hidden from others. The server's default minimum is 10 s; default 30 s.
    pub invisible: Duration,
    /// How long the server waits for a first message. Its default minimum is 5 s; default 5 s.
    pub wait: Duration,
    /// The least number of delivery attempts that the server must grant: with fewer nothing is received, since the
    /// server moves messages to dead letters while it delivers. Default 0: any number is accepted.
    pub min_attempts: i32,
}

impl Default for Receive {
    fn default() -> Self {
        Self {
            topic: String::new(),
            broker: None,
            max_messages: 32,
            invisible: Duration::from_secs(30),
            wait: Duration::from_secs(5),
            min_attempts: 0,
        }
    }
}

/// Names a delivery that is finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckEntry {
    /// The message's id.
    pub id: String,
    /// The newest handle: of the delivery, or of its last extension. An older one is answered OK and acknowledges
    /// nothing.
    pub handle: String,
}

impl AckEntry {
    /// The entry of a message that was not extended.
    pub fn of(message: &InMessage) -> Self {
        Self { id: message.id.clone(), handle: message.handle.clone() }
    }
}

/// Where a topic is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Route {
    /// Brokers that have it.
    pub brokers: Vec<String>,
    /// Its queues over all brokers.
    pub queues: usize,
    /// Whether it takes messages in batches, without order or delay.
    pub takes_normal: bool,
}

impl Client {
    /// Starts to introduce itself to the server, and returns at once. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// [`OptionsError`] names the option that makes no sense.
    pub fn open(options: &ClientOptions, role: Role) -> Result<Self, OptionsError> {
        let connection = Arc::new(Connection::open(options, identity::client_id())?);
        let session = Session::start(Arc::clone(&connection), role.clone(), options.namespace.clone());
        Ok(Self { connection, session, role, namespace: options.namespace.clone() })
    }

    /// This client's id at the server.
    pub fn id(&self) -> &str {
        self.connection.signer.client_id()
    }

    /// Waits until the server has echoed the settings.
    ///
    /// # Errors
    /// The last [`CallError`], at once where waiting does not help.
    pub async fn ready(&self, wait: Duration) -> Result<Granted, CallError> {
        self.session.ready(wait).await
    }

    /// Sends the settings again: [`Client::ready`] then says what the server grants now.
    pub fn resync(&self) {
        self.session.again();
    }

    /// The route of a topic, as the server knows it just now.
    ///
    /// # Errors
    /// [`CallError`]; [`Next::Reconfigure`] where there is no such topic.
    pub async fn route(&self, topic: &str) -> Result<Route, CallError> {
        let Stub { mut calls, place } = self.connection.stub();
        let request = proto::QueryRouteRequest {
            topic: Some(self.resource(topic)),
            endpoints: Some(endpoints_of(&place)),
        };
        let timeout = self.connection.timeout;
        let call = calls.query_route(self.connection.signer.request(request, timeout));
        let answer = self.answer(&place, timeout, call).await?;
        self.accepted(&place, answer.status.as_ref())?;
        let queues = &answer.message_queues;
        let brokers =
            queues.iter().filter_map(|queue| queue.broker.as_ref().map(|broker| broker.name.clone()));
        let brokers: BTreeSet<_> = brokers.collect();
        let normal = i32::from(MessageType::Normal);
        let takes_normal = queues.iter().any(|queue| {
            queue.accept_message_types.is_empty() || queue.accept_message_types.contains(&normal)
        });
        Ok(Route { brokers: brokers.into_iter().collect(), queues: queues.len(), takes_normal })
    }

    /// Sends messages without order or delay as one batch: they go to one queue, all or none. The answers come in the
    /// order of the messages; where the server gives one answer for all, each message has it.
    /// All of them together may have no more bytes than the broker allows for one message (4 MiB by default).
    ///
    /// # Errors
    /// [`CallError`] for all of them.
    pub async fn send_batch(
        &self,
        topic: &str,
        messages: Vec<OutMessage>,
    ) -> Result<Vec<Result<Receipt, CallError>>, CallError> {
        let resource = self.resource(topic);
        let to_wire = |message: OutMessage| message.into_wire(resource.clone(), MessageType::Normal);
        self.send(messages.into_iter().map(to_wire).collect()).await
    }

    /// Sends a message that keeps its order within its group. The topic must be made for that.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn send_fifo(
        &self,
        topic: &str,
        group: &str,
        message: OutMessage,
    ) -> Result<Receipt, CallError> {
        let mut message = message.into_wire(self.resource(topic), MessageType::Fifo);
        if let Some(system) = &mut message.system_properties {
            system.message_group = Some(group.into());
        }
        self.send_one(message).await
    }

    /// Sends a message that is delivered at a time. The topic must be made for that.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn send_delayed(
        &self,
        topic: &str,
        at: SystemTime,
        message: OutMessage,
    ) -> Result<Receipt, CallError> {
        let mut message = message.into_wire(self.resource(topic), MessageType::Delay);
        if let Some(system) = &mut message.system_properties {
            system.delivery_timestamp = Some(at.into());
        }
        self.send_one(message).await
    }

    async fn send_one(&self, message: proto::Message) -> Result<Receipt, CallError> {
        let mut receipts = self.send(vec![message]).await?;
        receipts.pop().unwrap_or_else(|| Err(CallError::unknown("the proxy", "an answer without a receipt")))
    }

    async fn send(
        &self,
        messages: Vec<proto::Message>,
    ) -> Result<Vec<Result<Receipt, CallError>>, CallError> {
        let count = messages.len();
        let Stub { mut calls, place } = self.connection.stub();
        let timeout = self.connection.timeout;
        let request = proto::SendMessageRequest { messages };
        let call = calls.send_message(self.connection.signer.request(request, timeout));
        let answer = self.answer(&place, timeout, call).await?;
        // A batch is stored as a whole and answered with one receipt, which names its first position.
        if answer.entries.len() != count && answer.entries.len() != 1 {
            self.accepted(&place, answer.status.as_ref())?;
            let what = format!("{} receipts for {count} messages", answer.entries.len());
            return Err(CallError::unknown(&place, what));
        }
        let entries = answer.entries.into_iter().cycle().take(count);
        let receipts = entries.map(|entry| {
            self.accepted(&place, entry.status.as_ref())?;
            Ok(Receipt { id: entry.message_id, offset: entry.offset })
        });
        Ok(receipts.collect())
    }

    /// Receives messages and hands each over as it comes; what was handed over stays so even if the stream breaks
    /// then. Waits for the settings' echo first. Returns how many came.
    ///
    /// # Errors
    /// [`CallError`]; some messages may have been handed over, others may be hidden until their duration is over.
    /// [`Next::Reconfigure`] where `min_attempts` is not granted.
    pub async fn receive(&self, what: &Receive, mut each: impl FnMut(InMessage)) -> Result<usize, CallError> {
        let timeout = self.connection.timeout;
        let granted = self.ready(timeout).await?;
        let Role::Consumer { group, .. } = &self.role else {
            let what = "a producer receives nothing".into();
            return Err(CallError::Refused { place: self.id().into(), code: 0, what, next: Next::GiveUp });
        };
        if let Some(attempts) = granted.max_attempts.filter(|attempts| *attempts < what.min_attempts) {
            // Until it is set right; the server says so only when it is asked.
            self.resync();
            let what = format!("group {group} gives a message up after {attempts} deliveries");
            return Err(CallError::Refused {
                place: self.id().into(),
                code: 0,
                what,
                next: Next::Reconfigure,
            });
        }
        let broker = what.broker.as_ref().map(|name| proto::Broker { name: name.clone(), id: 0 });
        let topic = Some(self.resource(&what.topic));
        let request = proto::ReceiveMessageRequest {
            group: Some(self.resource(group)),
            message_queue: Some(proto::MessageQueue { topic, broker, ..Default::default() }),
            filter_expression: Some(everything()),
            batch_size: i32::from(what.max_messages),
            invisible_duration: Some(duration(what.invisible)),
            auto_renew: false,
            long_polling_timeout: Some(duration(what.wait)),
        };
        let deadline = what.wait + timeout;
        let until = Instant::now() + deadline;
        let Stub { mut calls, place } = self.connection.stub();
        let call = calls.receive_message(self.connection.signer.request(request, deadline));
        let mut stream = self.answer(&place, deadline, call).await?;
        let mut count = 0;
        loop {
            let item = match tokio::time::timeout_at(until, stream.message()).await {
                Ok(Ok(Some(item))) => item,
                Ok(Ok(None)) => return Ok(count),
                Ok(Err(status)) => return Err(CallError::from_grpc(&place, &status)),
                Err(_) => {
                    return Err(CallError::unknown(&place, format!("no messages' end within {deadline:?}")));
                }
            };
            match item.content {
                Some(Content::Message(message)) => {
                    let message = InMessage::from_wire(message);
                    if message.handle.is_empty() {
                        tracing::warn!(id = message.id, "a message without a handle cannot be acknowledged");
                        continue;
                    }
                    count += 1;
                    each(message);
                }
                Some(Content::Status(status)) if status.code == i32::from(Code::MessageNotFound) => {}
                Some(Content::Status(status)) => self.accepted(&place, Some(&status))?,
                Some(Content::DeliveryTimestamp(_)) | None => {}
            }
        }
    }

    /// Acknowledges deliveries; the answers come in the order of the deliveries.
    ///
    /// # Errors
    /// [`CallError`] for all of them. To ask again is harmless.
    pub async fn ack(
        &self,
        topic: &str,
        entries: &[AckEntry],
    ) -> Result<Vec<Result<(), CallError>>, CallError> {
        let to_wire = |entry: &AckEntry| proto::AckMessageEntry {
            message_id: entry.id.clone(),
            receipt_handle: entry.handle.clone(),
        };
        let request = proto::AckMessageRequest {
            group: self.group(),
            topic: Some(self.resource(topic)),
            entries: entries.iter().map(to_wire).collect(),
        };
        let Stub { mut calls, place } = self.connection.stub();
        let timeout = self.connection.timeout;
        let call = calls.ack_message(self.connection.signer.request(request, timeout));
        let answer = self.answer(&place, timeout, call).await?;
        if answer.entries.is_empty() {
            self.accepted(&place, answer.status.as_ref())?;
        }
        let answers: HashMap<_, _> = answer
            .entries
            .iter()
            .map(|entry| (entry.receipt_handle.as_str(), entry.status.as_ref()))
            .collect();
        let outcome = |entry: &AckEntry| match answers.get(entry.handle.as_str()) {
            Some(status) => self.accepted(&place, *status),
            None => Err(CallError::unknown(&place, "an answer without this acknowledgement")),
        };
        Ok(entries.iter().map(outcome).collect())
    }

    /// Hides a delivery for `invisible` from now on; shows it to others soon after a short one. Returns the new
    /// handle: the old one acknowledges nothing any more.
    ///
    /// # Errors
    /// [`CallError`]. After [`CallError::Unknown`] either handle may be the right one.
    pub async fn change_invisible(
        &self,
        topic: &str,
        entry: &AckEntry,
        invisible: Duration,
    ) -> Result<String, CallError> {
        let request = proto::ChangeInvisibleDurationRequest {
            group: self.group(),
            topic: Some(self.resource(topic)),
            receipt_handle: entry.handle.clone(),
            invisible_duration: Some(duration(invisible)),
            message_id: entry.id.clone(),
        };
        let Stub { mut calls, place } = self.connection.stub();
        let timeout = self.connection.timeout;
        let call = calls.change_invisible_duration(self.connection.signer.request(request, timeout));
        let answer = self.answer(&place, timeout, call).await?;
        self.accepted(&place, answer.status.as_ref())?;
        if answer.receipt_handle.is_empty() {
            return Err(CallError::unknown(&place, "an extension without a new handle"));
        }
        Ok(handle::of_one(answer.receipt_handle))
    }

    /// Tells the server that this member leaves.
    ///
    /// # Errors
    /// [`CallError`]; it is gone all the same, and the server notices in its own time.
    pub async fn close(&self) -> Result<(), CallError> {
        self.session.stop();
        let Stub { mut calls, place } = self.connection.stub();
        let request = proto::NotifyClientTerminationRequest { group: self.group() };
        let timeout = self.connection.timeout;
        let call = calls.notify_client_termination(self.connection.signer.request(request, timeout));
        let answer = self.connection.answer(&place, timeout, call).await?;
        accepted(&place, answer.status.as_ref())
    }

    async fn answer<T>(
        &self,
        place: &str,
        deadline: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, CallError> {
        self.connection.answer(place, deadline, call).await
    }

    /// Turns a status into OK or an error. If the server has forgotten the settings, they are sent again.
    fn accepted(&self, place: &str, status: Option<&proto::Status>) -> Result<(), CallError> {
        accepted(place, status).inspect_err(|error| {
            if error.next() == Next::Resync {
                self.session.again();
            }
        })
    }

    fn group(&self) -> Option<proto::Resource> {
        match &self.role {
            Role::Consumer { group, .. } => Some(self.resource(group)),
            Role::Producer { .. } => None,
        }
    }

    fn resource(&self, name: &str) -> proto::Resource {
        proto::Resource { resource_namespace: self.namespace.clone(), name: name.into() }
    }
}

fn duration(duration: Duration) -> prost_types::Duration {
    // Both fit: durations here are minutes, nanoseconds below 10^9.
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}
