//! A running service and an ordinary HTTP client for it.

use crate::run::{Run, Running};
use crate::{Ended, Memory, ahead, plain};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

/// A role of the binary that serves.
pub struct Service {
    running: Running,
    caller: Caller,
}

/// An ordinary HTTP client with keys. It may outlive the service.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The address where the service listens.
    pub address: SocketAddr,
    /// Keys by the name of their caller.
    pub keys: BTreeMap<String, String>,
    agent: ureq::Agent,
}

/// The result of an HTTP call.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body, where it is JSON.
    pub body: Value,
}

impl Service {
    /// `windfall serve --dev` on a free port.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn dev(data: &Path) -> Self {
        Self::start(["serve", "--dev", "--listen", "127.0.0.1:0", "--data"].map(OsStr::new), data.as_os_str())
    }

    /// A role with these arguments, the last of which stands apart to be a path.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start<'a>(args: impl IntoIterator<Item = &'a OsStr>, last: &OsStr) -> Self {
        Self::start_until("is ready at ", args, last, &[])
    }

    /// The same for one that lacks something that it needs: it is up, and not ready.
    ///
    /// # Panics
    /// If it does not come up, or is ready all the same.
    pub fn start_unready<'a>(args: impl IntoIterator<Item = &'a OsStr>, last: &OsStr) -> Self {
        Self::start_until("is up at ", args, last, &[])
    }

    /// `windfall serve --dev` with task queues in its options, on free ports, with clients of its queue API and of its admin
    /// API.
    ///
    /// # Panics
    /// If it does not come up, or has no task queues.
    pub fn with_task_queues(data: &Path, options: &Path) -> (Self, Caller, Caller) {
        Self::with_task_queues_ahead(data, options, Duration::ZERO)
    }

    /// The same with a time of day that is so far ahead of the system's.
    ///
    /// # Panics
    /// If it does not come up, or has no task queues.
    pub fn with_task_queues_ahead(data: &Path, options: &Path, by: Duration) -> (Self, Caller, Caller) {
        let args = ["serve", "--dev", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
        let args = args.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
        let env = if by.is_zero() { Vec::new() } else { ahead(by) };
        let service = Self::start_until("is ready at ", args, data.as_os_str(), &env);
        service.split_task_queues()
    }

    /// The role `task-queue` on free ports, with clients of its queue API and of its admin API, and a time of day that is so far
    /// ahead of the system's.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn task_queue(data: &Path, options: &Path, by: Duration) -> (Self, Caller, Caller) {
        let args = ["task-queue", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
        let args = args.into_iter().chain([options.as_os_str(), OsStr::new("--data")]);
        let env = if by.is_zero() { Vec::new() } else { ahead(by) };
        Self::start_until("is ready at ", args, data.as_os_str(), &env).split_task_queues()
    }

    fn split_task_queues(self) -> (Self, Caller, Caller) {
        let service = self;
        let said = service.output();
        let caller = |before: &str| {
            let rest =
                said.split_once(before).unwrap_or_else(|| panic!("it does not say {before:?}: {said}")).1;
            let address = rest.split(|c: char| c == ',' || c.is_whitespace()).next();
            let address = address.and_then(|address| address.parse().ok());
            service.caller().at(address.unwrap_or_else(|| panic!("no address behind {before:?}: {said}")))
        };
        let (api, admin) = (caller("task queues are at "), caller("their admin API at "));
        (service, api, admin)
    }

    fn start_until<'a>(
        told: &str,
        args: impl IntoIterator<Item = &'a OsStr>,
        last: &OsStr,
        env: &[(&str, String)],
    ) -> Self {
        let run = Run::new(plain()).args(args).arg(last).time_out(Duration::from_secs(600));
        let run = env.iter().fold(run, |run, (name, value)| run.env(name, value));
        let mut running = run.start();
        let output = running.wait_for_output(told, Duration::from_secs(60));
        let address = output
            .lines()
            .find_map(|line| line.split_once(told)?.1.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("no address: {output}"));
        let keys = output.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, key) = (words.next()?, words.next()?);
            key.starts_with("wfk_").then(|| (name.to_owned(), key.to_owned()))
        });
        let keys = keys.collect();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build();
        Self { running, caller: Caller { address, keys, agent: config.into() } }
    }

    /// With these keys in place of those that it printed.
    #[must_use]
    pub fn with_keys(mut self, keys: BTreeMap<String, String>) -> Self {
        self.caller.keys = keys;
        self
    }

    /// Its memory, from now on.
    pub fn memory(&self) -> Memory {
        Memory::of(self.running.pid())
    }

    /// The HTTP client that calls it.
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Posts until the answer is as wanted.
    ///
    /// # Panics
    /// If it never is.
    pub fn post_until(
        &self,
        caller: &str,
        user_id: Option<i64>,
        path: &str,
        body: &Value,
        wanted: impl Fn(&Answer) -> bool,
    ) -> Answer {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.post(caller, user_id, path, body);
            if wanted(&answer) {
                return answer;
            }
            assert!(std::time::Instant::now() < until, "{path} stays {answer:?}\n{}", self.running.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks for readiness until it is as wanted.
    ///
    /// # Panics
    /// If it is not within so long.
    pub fn ready_until(&self, within: Duration, wanted: impl Fn(&Answer) -> bool) -> Answer {
        let until = std::time::Instant::now() + within;
        loop {
            let answer = self.send("GET", "/health/ready", &[], b"");
            if wanted(&answer) {
                return answer;
            }
            assert!(std::time::Instant::now() < until, "readiness stays {answer:?}\n{}", self.running.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops it as an orchestrator does: SIGTERM, then waits for its end.
    pub fn stop(self) -> Ended {
        self.running.terminate();
        self.running.end()
    }

    /// Waits until it ends by itself.
    pub fn end(self) -> Ended {
        self.running.end()
    }

    /// Freezes it: it lives, and does nothing.
    pub fn freeze(&self) {
        self.running.freeze();
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.running.thaw();
    }

    /// Kills it.
    pub fn kill(self) -> Ended {
        self.running.kill()
    }

    /// Its output on standard output.
    pub fn output(&self) -> String {
        self.running.output()
    }

    /// Its output on standard error.
    pub fn said(&self) -> String {
        self.running.said()
    }
}

impl Deref for Service {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Caller {
    /// The same client for another address.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    /// Posts JSON as a caller, for a user where one is given.
    ///
    /// # Panics
    /// If there is no answer.
    pub fn post(&self, caller: &str, user_id: Option<i64>, path: &str, body: &Value) -> Answer {
        self.try_post(caller, user_id, path, body).unwrap_or_else(|| panic!("no answer from {path}"))
    }

    /// The same; `None` without an answer.
    pub fn try_post(&self, caller: &str, user_id: Option<i64>, path: &str, body: &Value) -> Option<Answer> {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if let Some(key) = self.keys.get(caller) {
            headers.push(("authorization", format!("Bearer {key}")));
        }
        if let Some(user_id) = user_id {
            headers.push(("x-windfall-user", user_id.to_string()));
        }
        self.try_send("POST", path, &headers, body.to_string().as_bytes())
    }

    /// Any request.
    ///
    /// # Panics
    /// If there is no answer.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, String)], body: &[u8]) -> Answer {
        self.try_send(method, path, headers, body).unwrap_or_else(|| panic!("no answer from {path}"))
    }

    /// The same; `None` without an answer.
    ///
    /// # Panics
    /// If it is no request.
    pub fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Option<Answer> {
        let url = format!("http://{}{path}", self.address);
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let run = self.agent.run(request.body(body.to_vec()).expect("a request"));
        let mut response = run.inspect_err(|error| println!("{method} {path}: {error}")).ok()?;
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().ok()?;
        Some(Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) })
    }

    /// A URL for gRPC.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
