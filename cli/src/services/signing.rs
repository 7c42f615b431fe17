//! The options of signed records.

use super::options::ServiceOptions;
use crate::drivers::BrokerAt;
use crate::wiring::{AcceptedByName, Signing, SigningOptions, Work};
use anyhow::{Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use windfall_consumer::Unsigned;
use windfall_contract::rules::Rules;
use windfall_signing::RingUse;

/// How records are signed and verified, or by name that they are not. Where this is left out, a process works only on brokers that
/// no other process can write to.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SigningAt {
    /// The file of the signing keys. None: nothing is signed or verified, which `unsigned` or `topics` has to accept by name.
    pub keys: Option<PathBuf>,
    /// The sender whose primary key signs what this process writes; a process that writes records needs one.
    pub sender: Option<String>,
    /// What becomes of a record without a signature: `refuse` (an event is archived as `unverified`, and an add by the
    /// scheduler's queue is set aside) or `accept`. Default `refuse`.
    pub unsigned: Unsigned,
    /// The same, by topic: for topics that foreign writers write to.
    pub topics: BTreeMap<String, Unsigned>,
}

impl SigningAt {
    /// Refuses words that contradict each other.
    fn check(&self) -> Result<()> {
        if self.keys.is_some() {
            return Ok(());
        }
        if let Some(sender) = &self.sender {
            bail!(
                "the option signing.keys is missing, but signing.sender is {sender:?}: name the file of this sender's key, or leave \
                 the sender out"
            );
        }
        let refused = self.topics.iter().find(|(_, own)| **own == Unsigned::Refuse);
        if let Some((topic, _)) = refused {
            bail!(
                "the option signing.keys is missing, but [signing.topics] refuses unsigned records of {topic}: without keys \
                 signed records cannot be told from unsigned ones"
            );
        }
        if self.unsigned == Unsigned::Refuse && self.topics.is_empty() {
            bail!(
                "the option signing.keys is missing: name the file of the signing keys, or accept unsigned records by name, by \
                 unsigned = \"accept\" or for single topics in [signing.topics]"
            );
        }
        Ok(())
    }
}

impl ServiceOptions {
    /// What is taken and written where there are no keys.
    pub fn accepted_by_name(&self) -> AcceptedByName {
        let shared = self.brokers.iter().filter(|(_, at)| at.is_shared());
        let (unsigned, topics) =
            self.signing.as_ref().map(|at| (at.unsigned, at.topics.clone())).unwrap_or_default();
        AcceptedByName { shared_brokers: shared.map(|(name, _)| name.clone()).collect(), unsigned, topics }
    }

    /// Refuses a process of this work that has no signing keys and would take, or write, records on brokers that other processes
    /// can write to, where the options do not accept that by name: whoever reaches such a broker could have rewards granted.
    /// Without the rules it refuses what no rules could make good. // I12
    pub fn check_unsigned(&self, work: Work, rules: Option<&Rules>) -> Result<()> {
        let takes_adds = work.schedules && self.scheduler.queue.is_some();
        // Roles share options files: who works on no records may leave its keys out of any of them.
        if !work.queues() && !takes_adds || self.signing.as_ref().is_some_and(|at| at.keys.is_some()) {
            return Ok(());
        }
        self.signing.as_ref().map_or(Ok(()), SigningAt::check)?;
        let accepted = self.accepted_by_name();
        let mut topics = Vec::new();
        match rules {
            Some(rules) if work.queues() => {
                let active = rules.topics.iter().map(|(name, topic)| (name, &topic.broker));
                let draining = rules.draining.iter().map(|old| (&old.topic, &old.broker));
                let refused = active.chain(draining).filter(|(name, broker)| !accepted.has(broker, name));
                topics.extend(refused.map(|(name, broker)| format!("{name} on {broker}")));
            }
            None if work.queues()
                && !accepted.names_any()
                && self.brokers.values().all(BrokerAt::is_shared) =>
            {
                topics.push("every topic of the live rules".to_owned());
            }
            _ => {}
        }
        let adds = self.scheduler.queue.iter().flat_map(|queue| [&queue.master, &queue.backup]);
        let adds = adds.filter(|at| work.schedules && !accepted.has(&at.broker, &at.topic));
        topics.extend(adds.map(|at| format!("{} on {}", at.topic, at.broker)));
        if topics.is_empty() {
            return Ok(());
        }
        bail!(
            "the option signing.keys is missing, and other processes can write to the topics that this one works on, so that whoever \
             reaches their brokers could have rewards granted: {}. Name the file of its keys in signing.keys and its sender in \
             signing.sender (`windfall signing new` makes the file), or accept unsigned records by name: \"TOPIC\" = \"accept\" in \
             [signing.topics] for each of these topics, or signing.unsigned = \"accept\" for all. See docs/signed-records.md",
            topics.join(", ")
        );
    }

    /// Reads the signing keys, if there are any and a process of this work needs them. A process without keys must accept by
    /// name what it takes and writes.
    pub fn open_signing(&self, work: Work, rules: &Rules) -> Result<Option<Signing>> {
        let adds = self.scheduler.add_topics();
        let takes_adds = work.schedules && !adds.is_empty();
        if !work.queues() && !takes_adds {
            return Ok(None);
        }
        let with_keys = self.signing.as_ref().and_then(|at| Some((at, at.keys.as_ref()?)));
        let Some((at, keys)) = with_keys else {
            self.check_unsigned(work, Some(rules))?;
            if self.brokers.values().any(BrokerAt::is_shared) {
                warn_of_unsigned(work, takes_adds);
            }
            return Ok(None);
        };
        let Some(sender) = at.sender.clone() else {
            bail!(
                "the option signing.sender is missing, but this process writes records: name whose key signs them"
            );
        };
        let accepting: Vec<&String> =
            at.topics.iter().filter(|(_, own)| **own == Unsigned::Accept).map(|(name, _)| name).collect();
        if work.consumes && (at.unsigned == Unsigned::Accept || !accepting.is_empty()) {
            tracing::warn!(
                everywhere = at.unsigned == Unsigned::Accept,
                topics = ?accepting,
                "records without a signature are taken: whoever can write to these topics can have a reward granted"
            );
        }
        let is_open =
            |topic: &&String| at.topics.get(*topic).copied().unwrap_or(at.unsigned) == Unsigned::Accept;
        let open: Vec<&String> = adds.iter().filter(is_open).collect();
        if takes_adds && !open.is_empty() {
            tracing::warn!(
                topics = ?open,
                "adds of timers without a signature are taken: whoever can write to these topics can add timers, including \
                 timers that send rewards"
            );
        }
        let options = SigningOptions {
            sender,
            tenant: self.tenant.clone(),
            others: self.rewards.apps.clone(),
            unsigned: at.unsigned,
            topics: at.topics.clone(),
            adds,
            used: match (work.consumes, work.serves_grants) {
                (true, _) => RingUse::Consumes,
                (false, true) => RingUse::Replays,
                (false, false) => RingUse::Sends,
            },
        };
        let signing = Signing::open(keys, &options)?;
        if let (true, Some(only)) = (takes_adds, signing.keys().ring().copy_for()) {
            tracing::warn!(
                sender = only,
                "the signing keys are an export: adds of timers by the queue are taken only if this sender's present key has \
                 signed them; give this process the whole file before another key is promoted"
            );
        }
        Ok(Some(signing))
    }
}

/// Says that a process takes or writes records that anybody could have written.
fn warn_of_unsigned(work: Work, has_adds: bool) {
    if has_adds {
        tracing::warn!(
            "adds of timers by the queue are not verified, since the options have no signing.keys: whoever can write to the \
             topics of [scheduler.queue] can add timers, including timers that send rewards"
        );
    }
    if work.consumes {
        tracing::warn!(
            "records are not verified, since the options have no signing.keys: whoever can write to a topic can have a \
             reward granted"
        );
    } else if work.queues() {
        tracing::warn!(
            "records are not signed, since the options have no signing.keys: a consumer that verifies records refuses them"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{Role, dev};

    const KAFKA: &str = "[brokers]\na = { kafka = { bootstrap_servers = \"127.0.0.1:1\" } }\n\
                         b = { kafka = { bootstrap_servers = \"127.0.0.1:1\" } }\n";
    const MIXED: &str =
        "[brokers]\na = \"embedded\"\nb = { kafka = { bootstrap_servers = \"127.0.0.1:1\" } }\n";
    const FILES: &str = "[brokers]\na = \"embedded\"\nb = \"embedded\"\n";
    const WORD: &str = "[signing]\nunsigned = \"accept\"\n";
    const QUEUE: &str = "[scheduler.queue]\nmaster = { broker = \"b\", topic = \"adds\" }\n\
                         backup = { broker = \"a\", topic = \"adds-backup\" }\n";

    fn options(text: &str) -> ServiceOptions {
        toml::from_str(text).unwrap()
    }

    /// Why a process of this role does not start, with the rules of a try-out.
    fn refused(role: Role, text: &str) -> Option<String> {
        let options = options(text);
        let rules = windfall_config::parse_rules(dev::RULES, Some(&["a", "b"])).unwrap();
        let opened = options.open_signing(options.work_of(role), &rules);
        opened.map(drop).err().map(|why| format!("{why:#}"))
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn without_keys_each_role_that_works_on_records_of_real_brokers_is_refused_and_told_what_to_do() {
        for role in [Role::Serve, Role::Consumer, Role::RewardService, Role::SdkGateway] {
            let why = refused(role, KAFKA).unwrap();
            for said in [
                "the option signing.keys is missing",
                "cash-a on a, cash-b on b, gifts-a on a, gifts-b on b.",
                "signing.sender",
                "windfall signing new",
                "[signing.topics]",
                "signing.unsigned = \"accept\"",
            ] {
                assert!(why.contains(said), "{role}: {said} is not in: {why}");
            }
            assert_eq!(refused(role, &format!("{KAFKA}{WORD}")), None, "{role} with the word");
            assert_eq!(refused(role, FILES), None, "{role} on files");
            // A process that waits for its rules is told so before it has them, where no rules could make it good.
            let early = |text: &str| options(text).check_unsigned(role.work(), None).is_err();
            assert!(early(KAFKA) && !early(MIXED) && !early(&format!("{KAFKA}{WORD}")), "{role}");
        }
        for role in [Role::TokenService, Role::Wallet, Role::Scheduler] {
            assert_eq!(refused(role, KAFKA), None, "{role} works on no records");
        }
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn topics_are_accepted_one_by_one_and_those_in_files_need_no_word() {
        let why = refused(Role::Consumer, MIXED).unwrap();
        assert!(why.contains(": cash-b on b, gifts-b on b. ") && !why.contains(" on a"), "{why}");
        let one = format!("{MIXED}[signing.topics]\ncash-b = \"accept\"\n");
        let why = refused(Role::Consumer, &one).unwrap();
        assert!(why.contains(": gifts-b on b. "), "{why}");
        assert_eq!(refused(Role::Consumer, &format!("{one}gifts-b = \"accept\"\n")), None);
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn a_scheduler_without_keys_takes_adds_of_real_brokers_only_where_that_is_accepted_by_name() {
        let why = refused(Role::Scheduler, &format!("{KAFKA}{QUEUE}")).unwrap();
        assert!(why.contains(": adds on b, adds-backup on a. "), "{why}");
        let early = options(&format!("{MIXED}{QUEUE}")).check_unsigned(Role::Scheduler.work(), None);
        assert!(early.unwrap_err().to_string().contains(": adds on b. "));
        let word = "[signing.topics]\nadds = \"accept\"\n";
        assert_eq!(refused(Role::Scheduler, &format!("{MIXED}{QUEUE}{word}")), None);
    }

    #[test]
    fn words_that_need_keys_are_refused_without_them() {
        let check = |text: &str| {
            let checked = options(text).signing.unwrap().check();
            checked.err().map(|why| why.to_string()).unwrap_or_default()
        };
        assert!(
            check("[signing]\nsender = \"gateway\"\nunsigned = \"accept\"\n")
                .contains("signing.sender is \"gateway\"")
        );
        assert!(check("[signing]\nunsigned = \"refuse\"\n").contains("signing.keys is missing"));
        let one = "[signing]\nunsigned = \"accept\"\n[signing.topics]\ncash-a = \"refuse\"\n";
        assert!(check(one).contains("refuses unsigned records of cash-a"));
        assert_eq!(check(WORD), "");
        assert_eq!(check("[signing.topics]\ncash-a = \"accept\"\n"), "");
        assert_eq!(check("[signing]\nkeys = \"signing.toml\"\nsender = \"gateway\"\n"), "");
    }
}
