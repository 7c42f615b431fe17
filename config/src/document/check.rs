//! Checks a document as a whole and makes [`Rules`] of it. The names and what refers to them stand here, the amounts
//! in [`super::limits`].
//!
//! What is named is checked before what names it: types, topics, queues, routes, limits, budgets. A name counts as
//! declared even if its own values are faulty, so that one mistake makes one problem.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use toml::Spanned;
use windfall_contract::rules::{DrainingTopic, Pattern, Queue, Ratio, Route, Rules, Topic};

use super::limits::{check_budgets, check_caps, check_limits, check_pacing};
use super::raw::{RawDocument, RawQueue, RawRoute};
use super::revoke::check_revocations;
use super::staged::check_staged;
use super::value::{
    Field, Needed, PLACE_NAME, SceneOrAny, TYPE_NAME, TopicName, is_place_name, is_type_name,
};
use crate::bounds::TYPES_MAX;
use crate::findings::{Findings, join};
use crate::nearest::shortened;
use crate::refusal::Fault;

/// The rules of a document. Where a value is faulty a stand-in takes its place, so that the rest can be checked; the
/// caller drops the rules if there are findings.
pub(super) fn check(
    document: &RawDocument,
    known_brokers: Option<&[&str]>,
    findings: &Findings<'_>,
) -> Rules {
    let bonus_types = check_types(&document.types, findings);
    let topics = check_topics(document, known_brokers, findings);
    let draining = check_draining(document, &topics, findings);
    let queues = check_queues(document, &topics, findings);
    let known = Known { types: &bonus_types, queues: &queues, findings };
    let routes: Vec<Route> = listed("routes", &document.routes)
        .map(|(path, _, route)| check_route(&path, route, &known))
        .collect();
    for name in &bonus_types {
        if !routes.iter().any(|route| route.bonus_type.matches(name)) {
            let fault = Fault::Unreachable { found: shortened(name).into_owned() };
            findings.note("types", document.types.at(), fault);
        }
    }
    let limits = check_limits(&document.limits, &known);
    let budgets = check_budgets(&document.budgets, &known);
    let pacing = check_pacing(&document.pacing, findings);
    Rules {
        version: document.version.get().map(|version| version.0).unwrap_or_default(),
        staged: check_staged(&document.staged, &limits, &pacing, &known),
        tries_staged: false,
        changes_need_approval: document.changes_need_approval.get().copied().unwrap_or(false),
        limits,
        budgets,
        caps: check_caps(&document.caps, &known),
        pacing,
        revocations: check_revocations(&document.revoke, findings),
        bonus_types,
        topics,
        draining,
        queues,
        routes,
    }
}

/// The names that may be referred to.
pub(super) struct Known<'r> {
    pub(super) types: &'r [String],
    queues: &'r BTreeMap<String, Queue>,
    pub(super) findings: &'r Findings<'r>,
}

impl Known<'_> {
    pub(super) fn check_type(&self, path: &str, at: Option<usize>, name: &str) {
        if !self.types.iter().any(|known| known == name) {
            self.findings.note_unknown(path, at, "type", name, self.types.iter().map(String::as_str));
        }
    }

    fn check_queue(&self, path: &str, at: Option<usize>, name: &str) {
        if !self.queues.contains_key(name) {
            self.findings.note_unknown(path, at, "queue", name, self.queues.keys().map(String::as_str));
        }
    }
}

/// The good tables of a list, each with its path and the byte where it stands.
pub(super) fn listed<'r, T>(
    path: &'static str,
    tables: &'r Field<Vec<Needed<T>>>,
) -> impl Iterator<Item = (String, Option<usize>, &'r T)> {
    let tables = tables.get().into_iter().flatten().enumerate();
    tables.filter_map(move |(index, table)| Some((format!("{path}[{index}]"), table.at(), table.get()?)))
}

/// The tables of a table, each with its path and name; their names have to suit a broker.
fn named<'r, T>(
    path: &'static str,
    tables: &'r Field<BTreeMap<Spanned<String>, Needed<T>>>,
    findings: &Findings<'_>,
) -> impl Iterator<Item = (String, &'r str, Option<&'r T>)> {
    if tables.get().is_some_and(BTreeMap::is_empty) {
        let allowed = "a table with at least one entry".to_owned();
        findings.note(path, tables.at(), Fault::NotAllowed { found: "an empty table".to_owned(), allowed });
    }
    let tables = tables.get().into_iter().flatten();
    tables.map(move |(name, table)| {
        let path = join(path, name.get_ref());
        check_name(&path, Some(name.span().start), name.get_ref(), is_place_name, PLACE_NAME, findings);
        (path, name.get_ref().as_str(), table.get())
    })
}

fn check_name(
    path: &str,
    at: Option<usize>,
    name: &str,
    fits: fn(&str) -> bool,
    allowed: &str,
    findings: &Findings<'_>,
) {
    if !fits(name) {
        let found = format!("{:?}", shortened(name));
        findings.note(path, at, Fault::NotAllowed { found, allowed: allowed.to_owned() });
    }
}

/// The names of a list, each with the byte where it stands. The list may not be empty, nor name anything twice.
pub(super) fn distinct<'r>(
    path: &str,
    names: &'r Field<Vec<Needed<String>>>,
    findings: &Findings<'_>,
) -> impl Iterator<Item = (Option<usize>, &'r str)> {
    if names.get().is_some_and(Vec::is_empty) {
        let allowed = "an array of one name or more".to_owned();
        findings.note(path, names.at(), Fault::NotAllowed { found: "empty".to_owned(), allowed });
    }
    let mut seen = BTreeSet::new();
    names.get().into_iter().flatten().enumerate().filter_map(move |(index, name)| {
        let (at, name) = (name.at(), name.get()?.as_str());
        if seen.insert(name) {
            return Some((at, name));
        }
        let found = format!("`{}`", shortened(name));
        findings.note(format!("{path}[{index}]"), at, Fault::Twice { found });
        None
    })
}

fn check_types(names: &Field<Vec<Needed<String>>>, findings: &Findings<'_>) -> Vec<String> {
    let count = names.get().map_or(0, Vec::len);
    if count > TYPES_MAX {
        let allowed = format!("an array of 1 to {TYPES_MAX} names of bonus types");
        findings.note("types", names.at(), Fault::NotAllowed { found: format!("{count} names"), allowed });
    }
    let names = distinct("types", names, findings).take(TYPES_MAX).inspect(|(at, name)| {
        check_name("types", *at, name, is_type_name, TYPE_NAME, findings);
    });
    names.map(|(_, name)| name.to_owned()).collect()
}

fn check_topics(
    document: &RawDocument,
    known_brokers: Option<&[&str]>,
    findings: &Findings<'_>,
) -> BTreeMap<String, Topic> {
    let topics = named("topics", &document.topics, findings).map(|(path, name, raw)| {
        let broker =
            raw.and_then(|raw| raw.broker.get()).map(|broker| (**broker).to_owned()).unwrap_or_default();
        if let Some(known) =
            known_brokers.filter(|known| !broker.is_empty() && !known.contains(&broker.as_str()))
        {
            let at = raw.and_then(|raw| raw.broker.at());
            findings.note_unknown(&join(&path, "broker"), at, "broker", &broker, known.iter().copied());
        }
        let partitions = raw.and_then(|raw| raw.partitions.get()).map_or(1, |partitions| partitions.0);
        (name.to_owned(), Topic { broker, partitions })
    });
    topics.collect()
}

/// Any broker's name is taken: a process that does not have it says so, and goes on.
fn check_draining(
    document: &RawDocument,
    topics: &BTreeMap<String, Topic>,
    findings: &Findings<'_>,
) -> Vec<DrainingTopic> {
    let mut draining: Vec<DrainingTopic> = Vec::new();
    // Documents of strangers to this file may name many thousands.
    let mut seen = BTreeSet::new();
    for (path, at, raw) in listed("draining", &document.draining) {
        let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
        let (topic, broker) =
            (name(raw.topic.get().map(|name| &**name)), name(raw.broker.get().map(|name| &**name)));
        if topic.is_empty() || broker.is_empty() {
            continue; // noted as missing
        }
        check_name(&join(&path, "topic"), raw.topic.at(), &topic, is_place_name, PLACE_NAME, findings);
        if topics.get(&topic).is_some_and(|active| active.broker == broker) {
            let found = format!("`{}` on broker `{}`", shortened(&topic), shortened(&broker));
            let allowed = "a topic that [topics] does not name on that broker";
            findings.note(path, at, Fault::Clash { found, allowed });
        } else if !seen.insert((topic.clone(), broker.clone())) {
            findings.note(path, at, Fault::Twice { found: format!("`{}`", shortened(&topic)) });
        } else {
            let partitions = raw.partitions.get().map_or(1, |partitions| partitions.0);
            draining.push(DrainingTopic { topic, broker, partitions });
        }
    }
    draining
}

fn check_queues(
    document: &RawDocument,
    topics: &BTreeMap<String, Topic>,
    findings: &Findings<'_>,
) -> BTreeMap<String, Queue> {
    let queues = named("queues", &document.queues, findings).map(|(path, name, raw)| {
        let mut queue = Queue { master: String::new(), backup: String::new(), ratio: Ratio::ALL };
        if let Some(raw) = raw {
            let topic = |key: &str, name: &Field<TopicName>| {
                let Some(topic) = name.get() else { return String::new() };
                if !topics.contains_key(&**topic) {
                    let known = topics.keys().map(String::as_str);
                    findings.note_unknown(&join(&path, key), name.at(), "topic", topic, known);
                }
                (**topic).to_owned()
            };
            queue.master = topic("master", &raw.master);
            queue.backup = topic("backup", &raw.backup);
            queue.ratio = raw.ratio.get().and_then(|percent| Ratio::new(percent.0)).unwrap_or(Ratio::ALL);
            check_apart(&path, raw, &queue, topics, findings);
        }
        (name.to_owned(), queue)
    });
    queues.collect()
}

/// A backup that dies with its master is none.
fn check_apart(
    path: &str,
    raw: &RawQueue,
    queue: &Queue,
    topics: &BTreeMap<String, Topic>,
    findings: &Findings<'_>,
) {
    let (Some(master), Some(backup)) = (topics.get(&queue.master), topics.get(&queue.backup)) else {
        return; // noted as missing or unknown
    };
    let name = shortened(&queue.backup);
    let fault = if queue.master == queue.backup {
        Fault::Clash {
            found: format!("`{name}` is the master too"),
            allowed: "master and backup must be two topics, on two brokers",
        }
    } else if master.broker == backup.broker && !master.broker.is_empty() {
        Fault::Clash {
            found: format!("`{name}` is on broker `{}`, as the master is", shortened(&backup.broker)),
            allowed: "master and backup must be on two brokers",
        }
    } else {
        return;
    };
    findings.note(join(path, "backup"), raw.backup.at(), fault);
}

fn check_route(path: &str, raw: &RawRoute, known: &Known<'_>) -> Route {
    let bonus_type = pattern(&raw.bonus_type);
    if let Pattern::Is(name) = &bonus_type {
        known.check_type(&join(path, "type"), raw.bonus_type.at(), name);
    }
    let queue = raw.queue.get().map(|queue| (**queue).to_owned()).unwrap_or_default();
    if raw.queue.get().is_some() {
        known.check_queue(&join(path, "queue"), raw.queue.at(), &queue);
    }
    let requeue_path = join(path, "requeue");
    let requeue: Vec<String> = distinct(&requeue_path, &raw.requeue, known.findings)
        .map(|(at, name)| {
            known.check_queue(&requeue_path, at, name);
            name.to_owned()
        })
        .collect();
    let (activity, scene) = (pattern::<SceneOrAny>(&raw.activity), pattern::<SceneOrAny>(&raw.scene));
    let requeue = if raw.requeue.is_given() { requeue } else { vec![queue.clone()] };
    Route { activity, scene, bonus_type, queue, requeue }
}

fn pattern<T: Deref<Target = str>>(name: &Field<T>) -> Pattern {
    match name.get().map(Deref::deref) {
        Some(name) if name != "*" => Pattern::Is(name.to_owned()),
        _ => Pattern::Any,
    }
}
