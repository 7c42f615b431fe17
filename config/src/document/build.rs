//! Checks a parsed document as a whole and builds the [`Rules`] from it: the names and what refers to them
//! here, the amounts in `amounts`.
//!
//! What is named is read before what names it: types, topics, queues, routes, limits, budgets. A name counts
//! as declared even if its own values are faulty, so that one mistake makes one problem.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::END;
use super::amounts::{read_budgets, read_limits, read_pacing};
use super::revoke::read_revocations;
use super::walk::{Findings, Section, Text};
use crate::bounds::{self, NAME_MAX_BYTES, TYPE_MAX_BYTES, TYPES_MAX};
use crate::nearest::shortened;
use crate::refusal::{Fault, Problem};
use windfall_contract::rules::{Pattern, Queue, Ratio, Route, Rules, Topic};

const TYPE_NAME: &str = "1 to 32 of a-z, 0-9, _, - and .";
const PLACE_NAME: &str = "1 to 64 of A-Z, a-z, 0-9, _, - and ., the first a letter or digit";
pub(super) const SCENE_NAME: &str = "1 to 64 visible ASCII characters";
const TYPE_LIST: &str = "an array of 1 to 256 names of bonus types";

/// The rules, or every problem that was found.
///
/// Where a value is faulty a stand-in takes its place, so that the rest can be checked; it never leaves here,
/// for a problem has been noted.
pub(super) fn build<'d>(
    text: &'d str,
    root: &DeTable<'d>,
    known_brokers: Option<&[&str]>,
) -> Result<Rules, Vec<Problem>> {
    let mut findings = Findings::new(text);
    let root = Section::root(root);
    let known =
        ["version", "types", "topics", "queues", "routes", "limits", "budgets", "pacing", "revoke", END];
    root.only(&known, &mut findings);
    let version = root.number("version", bounds::VERSION, &mut findings);
    let bonus_types = read_types(&root, &mut findings);
    let topics = read_topics(&root, known_brokers, &mut findings);
    let queues = read_queues(&root, &topics, &mut findings);
    let names = Names { types: &bonus_types, queues: &queues };
    let routes = read_routes(&root, &names, &mut findings);
    check_reachable(&root, &bonus_types, &routes, &mut findings);
    let limits = read_limits(&root, &names, &mut findings);
    let budgets = read_budgets(&root, &names, &mut findings);
    let pacing = read_pacing(&root, &mut findings);
    let revocations = read_revocations(&root, &mut findings);
    let problems = findings.into_problems();
    if !problems.is_empty() {
        return Err(problems);
    }
    let version = version.unwrap_or_default();
    Ok(Rules { version, bonus_types, topics, queues, routes, limits, budgets, pacing, revocations })
}

/// What may be referred to.
pub(super) struct Names<'r> {
    pub(super) types: &'r [String],
    queues: &'r BTreeMap<String, Queue>,
}

impl Names<'_> {
    pub(super) fn known_type(&self, path: &str, name: Text<'_>, findings: &mut Findings<'_>) {
        if !self.types.iter().any(|known| known == name.text) {
            findings.note_unknown(path, "type", name, self.types.iter().map(String::as_str));
        }
    }

    fn known_queue(&self, path: &str, name: Text<'_>, findings: &mut Findings<'_>) {
        if !self.queues.contains_key(name.text) {
            findings.note_unknown(path, "queue", name, self.queues.keys().map(String::as_str));
        }
    }
}

pub(super) fn check_name(
    path: &str,
    name: Text<'_>,
    fits: impl Fn(&str) -> bool,
    allowed: &str,
    findings: &mut Findings<'_>,
) {
    if !fits(name.text) {
        let fault =
            Fault::NotAllowed { found: format!("{:?}", shortened(name.text)), allowed: allowed.to_owned() };
        findings.note(path, Some(name.at), fault);
    }
}

fn is_type_name(name: &str) -> bool {
    (1..=TYPE_MAX_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b))
}

/// A name that every broker takes for a topic, and that is safe as a file's.
fn is_place_name(name: &str) -> bool {
    name.len() <= NAME_MAX_BYTES
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

pub(super) fn is_scene_name(name: &str) -> bool {
    (1..=NAME_MAX_BYTES).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}

pub(super) fn narrow(number: Option<u64>) -> u32 {
    // Every bound of a 32-bit field fits; only a stand-in could fail, and it never leaves `build`.
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or_default()
}

fn read_types(root: &Section<'_, '_>, findings: &mut Findings<'_>) -> Vec<String> {
    let Some(names) = root.texts("types", TYPE_LIST, findings) else {
        if !root.has("types") {
            findings.note("types", None, Fault::Missing { allowed: TYPE_LIST.to_owned() });
        }
        return Vec::new();
    };
    if names.len() > TYPES_MAX {
        let fault =
            Fault::NotAllowed { found: format!("{} names", names.len()), allowed: TYPE_LIST.to_owned() };
        findings.note("types", root.at_value("types"), fault);
    }
    for name in names.iter().take(TYPES_MAX) {
        check_name("types", *name, is_type_name, TYPE_NAME, findings);
    }
    names.iter().take(TYPES_MAX).map(|name| name.text.to_owned()).collect()
}

fn read_topics(
    root: &Section<'_, '_>,
    known_brokers: Option<&[&str]>,
    findings: &mut Findings<'_>,
) -> BTreeMap<String, Topic> {
    let mut topics = BTreeMap::new();
    for (name, section) in root.named("topics", "topic", findings) {
        let mut topic = Topic { broker: String::new(), partitions: 1 };
        if let Some(section) = section {
            check_name(section.path(), name, is_place_name, PLACE_NAME, findings);
            section.only(&["broker", "partitions"], findings);
            topic.partitions = narrow(section.number("partitions", bounds::PARTITIONS, findings));
            if let Some(broker) = section.needed_text("broker", "a broker's name", findings) {
                topic.broker = broker.text.to_owned();
                let path = section.path_of("broker");
                check_name(&path, broker, is_place_name, PLACE_NAME, findings);
                if let Some(known) = known_brokers.filter(|known| !known.contains(&broker.text)) {
                    findings.note_unknown(&path, "broker", broker, known.iter().copied());
                }
            }
        }
        topics.insert(name.text.to_owned(), topic);
    }
    topics
}

fn read_queues(
    root: &Section<'_, '_>,
    topics: &BTreeMap<String, Topic>,
    findings: &mut Findings<'_>,
) -> BTreeMap<String, Queue> {
    let mut queues = BTreeMap::new();
    for (name, section) in root.named("queues", "queue", findings) {
        let mut queue = Queue { master: String::new(), backup: String::new(), ratio: Ratio::ALL };
        if let Some(section) = section {
            check_name(section.path(), name, is_place_name, PLACE_NAME, findings);
            section.only(&["master", "backup", "ratio"], findings);
            queue.master = read_topic_of(&section, "master", topics, findings);
            queue.backup = read_topic_of(&section, "backup", topics, findings);
            check_apart(&section, &queue, topics, findings);
            if let Some(ratio) = section.number("ratio", bounds::RATIO, findings) {
                queue.ratio = u8::try_from(ratio).ok().and_then(Ratio::new).unwrap_or(Ratio::ALL);
            }
        }
        queues.insert(name.text.to_owned(), queue);
    }
    queues
}

fn read_topic_of(
    section: &Section<'_, '_>,
    key: &str,
    topics: &BTreeMap<String, Topic>,
    findings: &mut Findings<'_>,
) -> String {
    let Some(topic) = section.needed_text(key, "a topic's name", findings) else {
        return String::new();
    };
    if !topics.contains_key(topic.text) {
        findings.note_unknown(&section.path_of(key), "topic", topic, topics.keys().map(String::as_str));
    }
    topic.text.to_owned()
}

/// A backup that dies with its master is none.
fn check_apart(
    section: &Section<'_, '_>,
    queue: &Queue,
    topics: &BTreeMap<String, Topic>,
    findings: &mut Findings<'_>,
) {
    let (Some(master), Some(backup)) = (topics.get(&queue.master), topics.get(&queue.backup)) else {
        return; // noted as missing or unknown
    };
    let fault = if queue.master == queue.backup {
        Fault::Clash {
            found: format!("`{}` is the master too", shortened(&queue.backup)),
            allowed: "master and backup must be two topics, on two brokers",
        }
    } else if master.broker == backup.broker && !master.broker.is_empty() {
        Fault::Clash {
            found: format!(
                "`{}` is on broker `{}`, as the master is",
                shortened(&queue.backup),
                shortened(&backup.broker)
            ),
            allowed: "master and backup must be on two brokers",
        }
    } else {
        return;
    };
    findings.note(section.path_of("backup"), section.at_value("backup"), fault);
}

fn read_routes(root: &Section<'_, '_>, names: &Names<'_>, findings: &mut Findings<'_>) -> Vec<Route> {
    let mut routes = Vec::new();
    for section in root.list("routes", findings) {
        section.only(&["activity", "scene", "type", "queue", "requeue"], findings);
        let activity = read_pattern(&section, "activity", findings);
        let scene = read_pattern(&section, "scene", findings);
        let bonus_type = match section.needed_text("type", "a bonus type or `*`", findings) {
            Some(name) if name.text != "*" => {
                names.known_type(&section.path_of("type"), name, findings);
                Pattern::Is(name.text.to_owned())
            }
            _ => Pattern::Any,
        };
        let queue = section.needed_text("queue", "a queue's name", findings);
        if let Some(queue) = queue {
            names.known_queue(&section.path_of("queue"), queue, findings);
        }
        let queue = queue.map(|queue| queue.text.to_owned()).unwrap_or_default();
        let requeue = match section.texts("requeue", "an array of one queue's name or more", findings) {
            None => vec![queue.clone()],
            Some(candidates) => {
                for candidate in &candidates {
                    names.known_queue(&section.path_of("requeue"), *candidate, findings);
                }
                candidates.iter().map(|candidate| candidate.text.to_owned()).collect()
            }
        };
        routes.push(Route { activity, scene, bonus_type, queue, requeue });
    }
    routes
}

fn read_pattern(section: &Section<'_, '_>, key: &str, findings: &mut Findings<'_>) -> Pattern {
    match section.text(key, "a name or `*`", findings) {
        Some(name) if name.text != "*" => {
            check_name(&section.path_of(key), name, is_scene_name, SCENE_NAME, findings);
            Pattern::Is(name.text.to_owned())
        }
        _ => Pattern::Any,
    }
}

fn check_reachable(root: &Section<'_, '_>, types: &[String], routes: &[Route], findings: &mut Findings<'_>) {
    for name in types {
        if !routes.iter().any(|route| route.bonus_type.matches(name)) {
            findings.note(
                "types",
                root.at_value("types"),
                Fault::Unreachable { found: shortened(name).into_owned() },
            );
        }
    }
}
