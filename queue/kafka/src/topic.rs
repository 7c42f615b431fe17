//! The topic settings that matter here: the largest record, and the retention.

use super::cluster::{block_on, configured, unreachable};
use super::options::{KafkaOptions, OVERHEAD_BYTES};
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::util::Timeout;
use windfall_contract::broker::OpenError;

/// The replicas of a partition that survive the loss of a broker while another one is away for maintenance.
const COPIES: usize = 3;
/// How many of them have a record before it is acknowledged.
const IN_SYNC_WANTED: usize = 2;
const IN_SYNC: &str = "min.insync.replicas";
const UNCLEAN: &str = "unclean.leader.election.enable";

/// A topic's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicSettings {
    /// The largest payload that it takes.
    pub(super) record_bytes_max: usize,
    /// Why records may be deleted before they are read.
    pub(super) hazards: Vec<String>,
}

/// Asks for a topic's settings, and warns of what may cost records.
///
/// # Errors
/// [`OpenError::Invalid`] for a topic that is compacted: of records with equal keys it keeps only the last.
pub(super) fn settings(options: &KafkaOptions, topic: &str) -> Result<TopicSettings, OpenError> {
    let found = match described(options, topic)? {
        Ok(Some(Ok(config))) => read(options, topic, |name| value(&config, name))?,
        // Without the right to ask, the broker says to each record that is too large that it is.
        Ok(Some(Err(_)) | None) | Err(_) => {
            tracing::warn!(topic, "kafka: the topic's settings are not told: its retention is not checked");
            read(options, topic, |_| None)?
        }
    };
    for hazard in &found.hazards {
        tracing::warn!(topic, hazard, "kafka: records may be deleted before they are read");
    }
    Ok(found)
}

/// What may lose records that were acknowledged. `copies` is the replication of the least replicated partition.
pub(super) fn hazards(options: &KafkaOptions, topic: &str, copies: usize) -> Result<Vec<String>, OpenError> {
    match described(options, topic)?.map_err(|error| unreachable(&error))? {
        Some(Ok(config)) => Ok(hazards_of(copies, |name| value(&config, name))),
        Some(Err(
            RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed,
        )) => Ok(hazards_of(copies, |_| None)),
        Some(Err(code)) => Err(OpenError::Unavailable(format!(
            "kafka does not tell the settings of topic `{topic}`: {code}"
        ))),
        None => Err(OpenError::Unavailable(format!("kafka does not tell the settings of topic `{topic}`"))),
    }
}

fn hazards_of(copies: usize, setting: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut hazards = Vec::new();
    if copies < COPIES {
        hazards.push(format!("a partition has {copies} replicas, and {COPIES} are wanted"));
    }
    match setting(IN_SYNC).map(|value| value.parse::<usize>()) {
        Some(Ok(value)) if value >= IN_SYNC_WANTED => {}
        Some(Ok(value)) => hazards.push(format!("{IN_SYNC} is {value}, and {IN_SYNC_WANTED} is wanted")),
        Some(Err(_)) | None => hazards.push(format!("{IN_SYNC} is not told, so that nobody knows it")),
    }
    match setting(UNCLEAN).as_deref() {
        Some("false") => {}
        Some(value) => hazards.push(format!(
            "{UNCLEAN} is {value}, so that a replica which lacks stored records may become the leader"
        )),
        None => hazards.push(format!("{UNCLEAN} is not told, so that nobody knows it")),
    }
    hazards
}

type Described = Result<Option<Result<ConfigResource, RDKafkaErrorCode>>, KafkaError>;

/// The cluster's answer to the question for a topic's settings.
fn described(options: &KafkaOptions, topic: &str) -> Result<Described, OpenError> {
    let admin: AdminClient<DefaultClientContext> = options.client().create().map_err(configured)?;
    let waits = AdminOptions::new().request_timeout(Some(Timeout::After(options.connect_timeout())));
    let described = block_on(admin.describe_configs([&ResourceSpecifier::Topic(topic)], &waits));
    Ok(described.map(|all| all.into_iter().next()))
}

fn value(config: &ConfigResource, name: &str) -> Option<String> {
    config.get(name)?.value.clone()
}

fn read(
    options: &KafkaOptions,
    topic: &str,
    setting: impl Fn(&str) -> Option<String>,
) -> Result<TopicSettings, OpenError> {
    if setting("cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
        return Err(OpenError::Invalid(format!(
            "kafka's topic `{topic}` is compacted, so that of rewards with equal keys only the last would be kept; run: \
             kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {topic} \
             --add-config cleanup.policy=delete",
            options.bootstrap_servers
        )));
    }
    let number = |name: &str| setting(name)?.parse::<i64>().ok();
    let mut hazards = Vec::new();
    for (name, ours) in [("retention.ms", options.retention_ms), ("retention.bytes", options.retention_bytes)]
    {
        let is_less = |theirs: &i64| *theirs >= 0 && (ours < 0 || *theirs < ours);
        if let Some(theirs) = number(name).filter(is_less) {
            hazards.push(format!("{name} is {theirs}, and {ours} is wanted"));
        }
    }
    let ours = usize::try_from(options.record_bytes_max).unwrap_or(usize::MAX);
    let theirs = number("max.message.bytes").and_then(|bytes| usize::try_from(bytes).ok());
    let overhead = usize::try_from(OVERHEAD_BYTES).unwrap_or(usize::MAX);
    let record_bytes_max =
        theirs.map_or(ours, |theirs| ours.min(theirs.saturating_sub(overhead.min(theirs / 64))));
    Ok(TopicSettings { record_bytes_max, hazards })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(settings: &[(&str, &str)]) -> Result<TopicSettings, OpenError> {
        let options = KafkaOptions { retention_bytes: 1 << 40, ..KafkaOptions::at("a:1") };
        read(&options, "t", |name| {
            settings.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn what_is_kept_for_less_than_asked_is_a_hazard() {
        let hazards = |age, size| {
            let found = read_of(&[("retention.ms", age), ("retention.bytes", size)]).unwrap();
            found.hazards.len()
        };
        assert_eq!(hazards("-1", "-1"), 0);
        assert_eq!(hazards("2592000000", "1099511627776"), 0);
        assert_eq!(hazards("604800000", "-1"), 1);
        assert_eq!(hazards("604800000", "1073741824"), 2);
        assert_eq!(read_of(&[]).unwrap().hazards.len(), 0, "nothing is known");
    }

    #[test]
    fn what_may_lose_a_stored_record_is_named() {
        let hazards = |copies, settings: &[(&str, &str)]| {
            hazards_of(copies, |name| {
                settings.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(hazards(3, &[(IN_SYNC, "2"), (UNCLEAN, "false")]), Vec::<String>::new());
        let all = hazards(1, &[(IN_SYNC, "1"), (UNCLEAN, "true")]).join("; ");
        for part in
            ["1 replicas, and 3", "min.insync.replicas is 1", "unclean.leader.election.enable is true"]
        {
            assert!(all.contains(part), "{all}");
        }
        assert_eq!(hazards(3, &[]).len(), 2, "what is not told is not known to be safe");
    }

    #[test]
    fn a_compacted_topic_is_refused() {
        for policy in ["compact", "compact,delete"] {
            let error = read_of(&[("cleanup.policy", policy)]).unwrap_err().to_string();
            assert!(error.contains("cleanup.policy=delete"), "{error}");
        }
        assert!(read_of(&[("cleanup.policy", "delete")]).is_ok());
    }

    #[test]
    fn the_largest_record_is_the_smaller_of_ours_and_theirs() {
        let most = |bytes| read_of(&[("max.message.bytes", bytes)]).unwrap().record_bytes_max;
        assert_eq!(most("100000000"), 2 << 20);
        assert_eq!(most("1048576"), (1 << 20) - (16 << 10));
    }
}
