//! The telemetry stream: the proxy keeps a client's settings only while it lasts.
//! Each client has one task, which opens the stream, sends the settings, waits for their echo, and sends heartbeats.
//! When the stream ends, or the proxy says that it has forgotten the client, the task starts anew.

use crate::connection::{Connection, accepted};
use crate::error::{CallError, Next};
use crate::options::Role;
use crate::proto::telemetry_command::Command;
use crate::proto::{self, settings::PubSub};
use futures_util::StreamExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The proxy drops a member that it has not heard of for two minutes; its own clients beat every 10 s.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The shortest pause between two tries to open the stream.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The wait after a heartbeat that was not answered.
const SECOND_TRY: Duration = Duration::from_secs(1);
/// The number of unanswered heartbeats after which the connection is given up.
const SILENT_HEARTBEATS: u32 = 2;

/// What the server said when it echoed the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Granted {
    /// The number of deliveries after which a message is moved to its group's dead letters. For consumers only.
    pub max_attempts: Option<i32>,
    /// The largest body that the proxy takes, in bytes. For producers only.
    pub max_body_bytes: Option<i32>,
}

#[derive(Debug, Clone)]
enum State {
    Starting,
    Ready(Granted),
    Broken(CallError),
}

pub(crate) struct Session {
    state: watch::Receiver<State>,
    forgotten: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Session {
    /// Starts the task. Needs a tokio runtime around it.
    pub(crate) fn start(connection: Arc<Connection>, role: Role, namespace: String) -> Self {
        let (sender, state) = watch::channel(State::Starting);
        let forgotten = Arc::new(Notify::new());
        let talk = Talk { connection, role, namespace, state: sender, forgotten: Arc::clone(&forgotten) };
        Self { state, forgotten, task: tokio::spawn(talk.run()) }
    }

    /// Waits until the settings are echoed.
    pub(crate) async fn ready(&self, wait: Duration) -> Result<Granted, CallError> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| match state {
            State::Ready(_) => true,
            // Waiting does not help.
            State::Broken(error) => matches!(error.next(), Next::Reconfigure | Next::GiveUp),
            State::Starting => false,
        });
        let outcome = match tokio::time::timeout(wait, settled).await {
            Ok(Ok(state)) => State::clone(&state),
            Ok(Err(_)) | Err(_) => self.state.borrow().clone(),
        };
        match outcome {
            State::Ready(granted) => Ok(granted),
            State::Broken(error) => Err(error),
            State::Starting => {
                Err(CallError::unknown("the proxy", format!("settings not echoed within {wait:?}")))
            }
        }
    }

    /// Sends the settings again, because the proxy has forgotten them. It does nothing while they are being sent
    /// already.
    pub(crate) fn again(&self) {
        self.forgotten.notify_waiters();
    }

    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Talk {
    connection: Arc<Connection>,
    role: Role,
    namespace: String,
    state: watch::Sender<State>,
    forgotten: Arc<Notify>,
}

impl Talk {
    async fn run(self) {
        let mut pause = MIN_PAUSE;
        loop {
            let began = Instant::now();
            let error = self.once().await;
            if began.elapsed() > MAX_PAUSE {
                pause = MIN_PAUSE;
            }
            tracing::debug!(%error, "the telemetry stream ended");
            self.state.send_replace(State::Broken(error));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Runs one stream from its opening to its end. Returns why it ended.
    async fn once(&self) -> CallError {
        let mut stub = self.connection.stub();
        let place = stub.place.clone();
        let settings =
            proto::TelemetryCommand { status: None, command: Some(Command::Settings(self.settings(&place))) };
        // Stays open after its only item: its end would end our membership.
        let commands = futures_util::stream::iter([settings]).chain(futures_util::stream::pending());
        let call = stub.calls.telemetry(self.connection.signer.lasting(commands));
        let mut stream = match self.connection.answer(&place, self.connection.timeout, call).await {
            Ok(stream) => stream,
            Err(error) => {
                if matches!(error, CallError::Unknown { .. }) {
                    // It takes connections and says nothing: another may answer.
                    self.connection.leave(&place);
                }
                return error;
            }
        };
        let mut echo_by = Some(Instant::now() + self.connection.timeout);
        let mut next_beat = Instant::now() + HEARTBEAT;
        let mut silent = 0;
        loop {
            let until = echo_by.unwrap_or(next_beat);
            tokio::select! {
                () = self.forgotten.notified() => return CallError::unknown(&place, "settings forgotten"),
                command = stream.message() => match command {
                    Ok(Some(command)) => match self.heard(&place, command) {
                        Ok(true) => {
                            echo_by = None;
                            next_beat = Instant::now();
                        }
                        Ok(false) => {}
                        Err(error) => return error,
                    },
                    Ok(None) => return CallError::unknown(&place, "the stream ended"),
                    Err(status) => return CallError::from_grpc(&place, &status),
                },
                () = tokio::time::sleep_until(until) => {
                    if echo_by.is_some() {
                        self.connection.leave(&place);
                        return CallError::unknown(&place, "settings were not echoed");
                    }
                    match self.beat().await {
                        Ok(()) => silent = 0,
                        Err(CallError::Unknown { .. }) if silent + 1 < SILENT_HEARTBEATS => silent += 1,
                        Err(error) => {
                            if matches!(error, CallError::Unknown { .. }) {
                                // A connection to a machine that is gone looks open for a quarter of an hour.
                                self.connection.leave(&place);
                            }
                            return error;
                        }
                    }
                    next_beat = Instant::now() + if silent == 0 { HEARTBEAT } else { SECOND_TRY };
                }
            }
        }
    }

    /// Whether a command is the echo of the settings.
    fn heard(&self, place: &str, command: proto::TelemetryCommand) -> Result<bool, CallError> {
        if command.status.is_some() {
            accepted(place, command.status.as_ref())?;
        }
        // Other commands ask for thread dumps and the like: nothing here answers them.
        let Some(Command::Settings(settings)) = command.command else { return Ok(false) };
        let max_attempts = match &settings.pub_sub {
            Some(PubSub::Subscription(_)) => settings.backoff_policy.map(|policy| policy.max_attempts),
            _ => None,
        };
        let max_body_bytes = match &settings.pub_sub {
            Some(PubSub::Publishing(publishing)) => Some(publishing.max_body_size),
            _ => None,
        };
        self.state.send_replace(State::Ready(Granted { max_attempts, max_body_bytes }));
        Ok(true)
    }

    async fn beat(&self) -> Result<(), CallError> {
        let mut stub = self.connection.stub();
        let (client_type, group) = match &self.role {
            Role::Producer { .. } => (proto::ClientType::Producer, None),
            Role::Consumer { group, .. } => (proto::ClientType::SimpleConsumer, Some(self.resource(group))),
        };
        let request = proto::HeartbeatRequest { group, client_type: client_type.into() };
        let timeout = self.connection.timeout;
        let call = stub.calls.heartbeat(self.connection.signer.request(request, timeout));
        let answer = self.connection.answer(&stub.place, timeout, call).await?;
        accepted(&stub.place, answer.status.as_ref())
    }

    fn settings(&self, place: &str) -> proto::Settings {
        // The proxy's default is 17 deliveries, then dead letters; ours counts where it cannot look the group up.
        let backoff_policy = matches!(self.role, Role::Consumer { .. })
            .then_some(proto::RetryPolicy { max_attempts: i32::MAX });
        let (client_type, pub_sub) = match &self.role {
            Role::Producer { topics } => {
                let topics = topics.iter().map(|topic| self.resource(topic)).collect();
                let publishing = proto::Publishing { topics, ..Default::default() };
                (proto::ClientType::Producer, PubSub::Publishing(publishing))
            }
            Role::Consumer { group, topics } => {
                let subscriptions = topics.iter().map(|topic| proto::SubscriptionEntry {
                    topic: Some(self.resource(topic)),
                    expression: Some(everything()),
                });
                let subscriptions = subscriptions.collect();
                let subscription = proto::Subscription { group: Some(self.resource(group)), subscriptions };
                (proto::ClientType::SimpleConsumer, PubSub::Subscription(subscription))
            }
        };
        proto::Settings {
            client_type: Some(client_type.into()),
            access_point: Some(endpoints_of(place)),
            backoff_policy,
            pub_sub: Some(pub_sub),
            user_agent: Some(proto::Ua { language: proto::Language::Rust.into(), version: "5.1.0".into() }),
        }
    }

    fn resource(&self, name: &str) -> proto::Resource {
        proto::Resource { resource_namespace: self.namespace.clone(), name: name.into() }
    }
}

/// A filter that lets all pass.
pub(crate) fn everything() -> proto::FilterExpression {
    proto::FilterExpression { r#type: proto::FilterType::Tag.into(), expression: "*".into() }
}

/// `host:port`, as the protocol has it.
pub(crate) fn endpoints_of(place: &str) -> proto::Endpoints {
    let (host, port) = place.rsplit_once(':').unwrap_or((place, ""));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let scheme = match host.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => proto::AddressScheme::IPv4,
        Ok(std::net::IpAddr::V6(_)) => proto::AddressScheme::IPv6,
        Err(_) => proto::AddressScheme::DomainName,
    };
    let address = proto::Address { host: host.into(), port: port.parse().unwrap_or_default() };
    proto::Endpoints { scheme: scheme.into(), addresses: vec![address] }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests
    use super::*;
    use crate::identity;
    use crate::options::ClientOptions;
    use tokio::net::TcpListener;

    /// A proxy that takes connections and answers nothing is left for the next, and that one for the first again.
    #[tokio::test]
    async fn a_silent_proxy_is_left() {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let second = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let options = ClientOptions {
            endpoints: vec![place(&first), place(&second)],
            timeout: Duration::from_millis(200),
            ..ClientOptions::default()
        };
        let connection = Arc::new(Connection::open(&options, identity::client_id()).unwrap());
        let role = Role::Producer { topics: vec!["t".into()] };
        let session = Session::start(connection, role, String::new());
        let mut kept = Vec::new();
        for listener in [&first, &second, &first] {
            let accepted = tokio::time::timeout(Duration::from_secs(60), listener.accept()).await;
            // Held open: a closed connection would be an answer.
            kept.push(accepted.unwrap().unwrap());
        }
        drop(session);
    }
}
