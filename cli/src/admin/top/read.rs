//! Asks the processes, and makes a picture of what they say: `GET /metrics` and `GET /health/ready` of each, side by side.

use super::picture::{Picture, Process, ProcessState, Stale, WATCHED};
use super::rates::Rates;
use super::words::whole;
use crate::admin::now_ms;
use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;
use windfall_console::{ReadError, Reader, ServiceAt, read_samples};

/// The processes that are asked at most, as many as a console has.
const PROCESSES_MAX: usize = 64;

/// The processes, and what is remembered of their last answers.
pub struct Fleet {
    processes: Vec<(String, Arc<Reader>)>,
    key: Arc<str>,
    rates: Rates,
    started: Instant,
    /// Since when a process is away, in Unix milliseconds.
    away: HashMap<String, u64>,
    last: Picture,
}

/// What came of asking.
pub struct Looked {
    /// What is known now: if nobody answers, what was known last.
    pub picture: Picture,
    /// Why every process refuses the key, if they do.
    pub denied: Option<String>,
    /// The processes that did not answer, and why.
    pub away: Vec<(String, String)>,
}

/// What a process said about itself.
struct Said {
    metrics: String,
    readiness: Value,
}

impl Fleet {
    /// The processes at these addresses. Nothing is asked yet.
    pub fn new(servers: &[String], ca_file: Option<&PathBuf>, key: &str) -> Result<Self> {
        if servers.len() > PROCESSES_MAX {
            bail!("--server names {} processes; {PROCESSES_MAX} at most are asked", servers.len());
        }
        let mut processes = Vec::new();
        for server in servers {
            if processes.iter().any(|(name, _)| name == server) {
                bail!("--server names {server} twice");
            }
            let at = ServiceAt {
                name: server.clone(),
                url: server.clone(),
                ca_file: ca_file.cloned(),
                server_name: None,
                key_in_plain_text: false,
            };
            let reader = Reader::new(&at).map_err(|why| anyhow::anyhow!("--server {server}: {why}"))?;
            processes.push((server.clone(), Arc::new(reader)));
        }
        let (rates, away, last) = (Rates::default(), HashMap::new(), Picture::default());
        Ok(Self { processes, key: key.into(), rates, started: Instant::now(), away, last })
    }

    /// Asks all of them; one that hangs holds up the picture for two seconds.
    pub async fn look(&mut self) -> Looked {
        let answers = self.ask().await;
        let (at_ms, at) = (now_ms(), self.started.elapsed());
        let names: Vec<&String> = self.processes.iter().map(|(name, _)| name).collect();
        let rows = names.iter().zip(&answers).map(|(name, answer)| {
            if answer.is_ok() {
                self.away.remove(*name);
                return process(name, answer, None);
            }
            process(name, answer, Some(*self.away.entry((*name).clone()).or_insert(at_ms)))
        });
        let rows: Vec<Process> = rows.collect();
        let away = names.iter().zip(&answers);
        let away =
            away.filter_map(|(name, answer)| Some(((*name).clone(), answer.as_ref().err()?.to_string())));
        let away: Vec<(String, String)> = away.collect();
        let is_denied = |answer: &Result<Said, ReadError>| matches!(answer, Err(ReadError::Denied(_)));
        let denied = answers.iter().all(is_denied).then(|| away.first().map(|(_, why)| why.clone()));
        match away.first() {
            Some((_, why)) if away.len() == answers.len() => {
                let since_ms = rows.iter().filter_map(|row| row.away_since_ms).max().unwrap_or(at_ms);
                let stale = Stale { since_ms, why: why.clone() };
                let picture = self.last.stale(at_ms, rows, stale);
                Looked { picture, denied: denied.flatten(), away }
            }
            _ => {
                let said = names.iter().zip(&answers);
                let said = said
                    .filter_map(|(name, said)| Some((name.as_str(), said.as_ref().ok()?.metrics.as_str())));
                let sample = self.rates.take(at, said, WATCHED);
                self.last = Picture::of(at_ms, rows, &sample);
                Looked { picture: self.last.clone(), denied: None, away }
            }
        }
    }

    /// Their answers, in the order of the processes.
    async fn ask(&self) -> Vec<Result<Said, ReadError>> {
        let mut asking = JoinSet::new();
        for (at, (_, reader)) in self.processes.iter().enumerate() {
            let (reader, key) = (Arc::clone(reader), Arc::clone(&self.key));
            asking.spawn(async move {
                let (metrics, readiness) = tokio::join!(reader.metrics(&key), reader.readiness(&key));
                (at, metrics.and_then(|metrics| Ok(Said { metrics, readiness: readiness? })))
            });
        }
        let unasked = || Err(ReadError::Away("it was not asked".to_owned()));
        let mut answers: Vec<_> = self.processes.iter().map(|_| unasked()).collect();
        while let Some(answered) = asking.join_next().await {
            // A call that panicked leaves its process as not asked.
            if let Ok((at, answer)) = answered {
                answers[at] = answer;
            }
        }
        answers
    }
}

/// A process as the picture shows it.
fn process(name: &str, answer: &Result<Said, ReadError>, away_since_ms: Option<u64>) -> Process {
    let mut process = Process {
        name: name.to_owned(),
        state: ProcessState::Away,
        why: Vec::new(),
        away_since_ms,
        rules_version: None,
        refuses_rules: false,
    };
    match answer {
        Err(error) => process.why.push(error.to_string()),
        Ok(said) => {
            let is_ready = said.readiness["ready"].as_bool() == Some(true);
            process.state = if is_ready { ProcessState::Ready } else { ProcessState::NotReady };
            for parts in ["failing", "missing"].map(|key| &said.readiness[key]) {
                let parts = parts.as_object().into_iter().flatten();
                process.why.extend(parts.map(|(part, why)| match why.as_str() {
                    Some(why) => format!("{part} ({why})"),
                    None => part.clone(),
                }));
            }
            for sample in read_samples(&said.metrics) {
                match sample.name {
                    "windfall_rules_version" => process.rules_version = Some(whole(sample.value)),
                    "windfall_rules_refuses" => process.refuses_rules = sample.value > 0.0,
                    _ => {}
                }
            }
        }
    }
    process
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_process_says_what_it_lacks() {
        let said = |readiness| Ok(Said { metrics: "windfall_rules_version 3\n".into(), readiness });
        let ready = process("a", &said(json!({"ready": true, "failing": {}})), None);
        assert_eq!((ready.state, ready.rules_version, ready.why.len()), (ProcessState::Ready, Some(3), 0));
        let failing =
            json!({"ready": false, "failing": {"ledger": "no answer"}, "missing": {"tokens": "away"}});
        let failing = process("a", &said(failing), None);
        assert_eq!(failing.state, ProcessState::NotReady);
        assert_eq!(failing.why, ["ledger (no answer)", "tokens (away)"]);
    }

    #[test]
    fn addresses_that_cannot_be_used_are_named() {
        let fleet = |servers: &[&str]| {
            let servers: Vec<String> = servers.iter().map(|&server| server.to_owned()).collect();
            Fleet::new(&servers, None, "key").err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(fleet(&["http://127.0.0.1:1", "http://127.0.0.1:2"]), "");
        assert!(fleet(&["http://127.0.0.1:1", "http://127.0.0.1:1"]).contains("twice"));
        assert!(fleet(&["http://10.0.0.1:1"]).contains("--server http://10.0.0.1:1: keys would cross"));
        let many: Vec<String> = (0..65).map(|port| format!("http://127.0.0.1:{port}")).collect();
        assert!(fleet(&many.iter().map(String::as_str).collect::<Vec<_>>()).contains("64 at most"));
    }

    #[tokio::test]
    async fn nobody_who_answers_leaves_the_last_picture_and_says_since_when() {
        let mut fleet = Fleet::new(&["http://127.0.0.1:1".into()], None, "key").unwrap();
        fleet.last.limit_per_s = Some(7.0);
        let first = fleet.look().await;
        let stale = first.picture.stale.unwrap();
        assert!(stale.why.contains("cannot be reached"), "{}", stale.why);
        assert_eq!((first.picture.limit_per_s, first.away.len(), first.denied), (Some(7.0), 1, None));
        let later = fleet.look().await.picture;
        assert_eq!(later.stale.unwrap().since_ms, stale.since_ms);
        assert_eq!(later.processes[0].away_since_ms, Some(stale.since_ms));
    }
}
