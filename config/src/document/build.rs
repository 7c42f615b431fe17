//! Checks a parsed document as a whole and builds the [`Rules`] from it.
//!
//! What is named is read before what names it: types, topics, queues, routes, limits, budgets. A name counts
//! as declared even if its own values are faulty, so that one mistake makes one problem.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::DeTable;

use super::END;
use super::walk::{Findings, Section, Text};
use crate::bounds::{self, Bound, NAME_MAX_BYTES, NUMBER_MAX, TYPE_MAX_BYTES, TYPES_MAX};
use crate::nearest::shortened;
use crate::refusal::{Fault, Problem};
use crate::rules::{
    Budget, Fuse, Limit, Limits, Pacing, Pattern, Queue, Ratio, Route, Rules, Topic, TypeLimit,
};

const TYPE_NAME: &str = "1 to 32 of a-z, 0-9, _, - and .";
const PLACE_NAME: &str = "1 to 64 of A-Z, a-z, 0-9, _, - and ., the first a letter or digit";
const SCENE_NAME: &str = "1 to 64 visible ASCII characters";
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
    let known = ["version", "types", "topics", "queues", "routes", "limits", "budgets", "pacing", END];
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
    let problems = findings.into_problems();
    if !problems.is_empty() {
        return Err(problems);
    }
    let version = version.unwrap_or_default();
    Ok(Rules { version, bonus_types, topics, queues, routes, limits, budgets, pacing })
}

/// What may be referred to.
struct Names<'r> {
    types: &'r [String],
    queues: &'r BTreeMap<String, Queue>,
}

impl Names<'_> {
    fn known_type(&self, path: &str, name: Text<'_>, findings: &mut Findings<'_>) {
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

fn check_name(
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

fn is_scene_name(name: &str) -> bool {
    (1..=NAME_MAX_BYTES).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}

fn narrow(number: Option<u64>) -> u32 {
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

const SHUT: Limit = Limit { rate_per_s: 0, burst: 1 };

fn read_limits(root: &Section<'_, '_>, names: &Names<'_>, findings: &mut Findings<'_>) -> Limits {
    let mut limits = Limits { global: SHUT, types: BTreeMap::new() };
    let Some(section) = root.section("limits", findings) else {
        if !root.has("limits") {
            findings.note("limits", None, Fault::Missing { allowed: "a table with `global`".to_owned() });
        }
        return limits;
    };
    section.only(&["global", "default", "types"], findings);
    let plain = |key: &str, findings: &mut Findings<'_>| {
        let section = section.section(key, findings)?;
        section.only(&["rate_per_s", "burst"], findings);
        Some(read_limit(&section, findings))
    };
    match plain("global", findings) {
        Some(global) => limits.global = global,
        None if section.has("global") => {}
        None => {
            let allowed = "a table with `rate_per_s` and `burst`".to_owned();
            findings.note(section.path_of("global"), section.at(), Fault::Missing { allowed });
        }
    }
    let default = plain("default", findings);
    let own = section.section("types", findings);
    for name in own.iter().flat_map(Section::keys) {
        names.known_type(&section.path_of("types"), name, findings);
    }
    for name in names.types {
        let own = own.as_ref().and_then(|own| own.section(name, findings));
        let limit = read_type_limit(&section, name, own.as_ref(), default, findings);
        limits.types.insert(name.clone(), limit);
    }
    limits
}

fn read_type_limit(
    limits: &Section<'_, '_>,
    name: &str,
    own: Option<&Section<'_, '_>>,
    default: Option<Limit>,
    findings: &mut Findings<'_>,
) -> TypeLimit {
    let priority_bound = if name == "cash" { bounds::PRIORITY_CASH } else { bounds::PRIORITY };
    let mut limit = default;
    let mut fuse = Fuse::default();
    let mut priority = priority_bound.default;
    if let Some(own) = own {
        own.only(&["rate_per_s", "burst", "fuse", "priority"], findings);
        // A rate without its burst is half a limit: they come together.
        if own.has("rate_per_s") || own.has("burst") {
            limit = Some(read_limit(own, findings));
        }
        fuse = match own.word("fuse", &["closed", "pause", "divert"], findings) {
            "pause" => Fuse::Pause,
            "divert" => Fuse::Divert,
            _ => Fuse::Closed,
        };
        priority = own.number("priority", priority_bound, findings);
    }
    if limit.is_none() {
        let found = format!("the type `{}` has no limit", shortened(name));
        let allowed = "give `rate_per_s` and `burst` under `limits.types`, or `limits.default` for all";
        findings.note(limits.path(), own.map_or(limits.at(), Section::at), Fault::Clash { found, allowed });
    }
    let priority = priority.and_then(|priority| u8::try_from(priority).ok()).unwrap_or_default();
    TypeLimit { limit: limit.unwrap_or(SHUT), fuse, priority }
}

fn read_limit(section: &Section<'_, '_>, findings: &mut Findings<'_>) -> Limit {
    let rate_per_s = section.number("rate_per_s", bounds::RATE_PER_S, findings).unwrap_or_default();
    let burst = narrow(section.number("burst", bounds::BURST, findings));
    Limit { rate_per_s, burst }
}

fn read_budgets(root: &Section<'_, '_>, names: &Names<'_>, findings: &mut Findings<'_>) -> Vec<Budget> {
    let mut budgets: Vec<Budget> = Vec::new();
    let mut keys = BTreeSet::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for section in root.list("budgets", findings) {
        section.only(&["activity", "scene", "type", "total", "shards"], findings);
        let name = |key: &str, findings: &mut Findings<'_>| {
            let name = section.needed_text(key, SCENE_NAME, findings)?;
            if key == "type" {
                names.known_type(&section.path_of(key), name, findings);
            } else {
                check_name(&section.path_of(key), name, is_scene_name, SCENE_NAME, findings);
                refuse_star(&section, key, name, findings);
            }
            Some(name.text.to_owned())
        };
        let (activity, scene, bonus_type) =
            (name("activity", findings), name("scene", findings), name("type", findings));
        let total = section.number("total", bounds::BUDGET_TOTAL, findings);
        let shards = read_shards(&section, total, findings);
        let (Some(activity), Some(scene), Some(bonus_type)) = (activity, scene, bonus_type) else {
            continue; // noted
        };
        if !keys.insert((activity.clone(), scene.clone(), bonus_type.clone())) {
            let found = format!(
                "the budget of `{}`, `{}`, `{}`",
                shortened(&activity),
                shortened(&scene),
                shortened(&bonus_type)
            );
            findings.note(section.path(), section.at(), Fault::Twice { found });
        }
        let sum = sums.entry(bonus_type.clone()).or_default();
        let before = *sum;
        // Each total is at most 2^53 − 1 and a document has fewer than 2^11 · 2^53 of them; saturate anyway.
        *sum = sum.saturating_add(total.unwrap_or_default());
        if *sum > NUMBER_MAX && before <= NUMBER_MAX {
            let fault = Fault::Clash {
                found: format!("the totals of the type `{}` add up to {sum} or more", shortened(&bonus_type)),
                allowed: "they must add up to at most 9007199254740991 (2^53 - 1)",
            };
            findings.note(section.path_of("total"), section.at_value("total"), fault);
        }
        let total = total.and_then(|total| i64::try_from(total).ok()).unwrap_or_default();
        budgets.push(Budget { activity, scene, bonus_type, total, shards });
    }
    budgets
}

/// A budget is one campaign's: `*` would look like all, and be a name.
fn refuse_star(section: &Section<'_, '_>, key: &str, name: Text<'_>, findings: &mut Findings<'_>) {
    if name.text == "*" {
        let fault = Fault::NotAllowed {
            found: "`*`".to_owned(),
            allowed: "one name; a budget has no patterns".to_owned(),
        };
        findings.note(section.path_of(key), Some(name.at), fault);
    }
}

/// By default eight, or fewer where the total is smaller: a shard holds one unit at least.
fn read_shards(section: &Section<'_, '_>, total: Option<u64>, findings: &mut Findings<'_>) -> u32 {
    let shards = section.number("shards", bounds::BUDGET_SHARDS, findings);
    match (shards, total) {
        (Some(shards), Some(total)) if shards > total => {
            if !section.has("shards") {
                return narrow(Some(total));
            }
            let fault = Fault::Clash {
                found: format!("{shards} shards of a total of {total}"),
                allowed: "there may be at most as many shards as units",
            };
            findings.note(section.path_of("shards"), section.at_value("shards"), fault);
            narrow(Some(shards))
        }
        _ => narrow(shards),
    }
}

fn read_pacing(root: &Section<'_, '_>, findings: &mut Findings<'_>) -> Pacing {
    let empty = DeTable::new();
    let section = root.section("pacing", findings).unwrap_or_else(|| Section::root(&empty));
    let default = Pacing::default();
    let fields = [
        ("hold_max_ms", bounds::HOLD_MAX_MS.or(default.hold_max_ms)),
        ("deadline_ms", bounds::DEADLINE_MS.or(default.deadline_ms)),
        ("requeue_delay_ms", bounds::REQUEUE_DELAY_MS.or(default.requeue_delay_ms)),
        ("requeue_delay_max_ms", bounds::REQUEUE_DELAY_MAX_MS.or(default.requeue_delay_max_ms)),
        ("max_failures", bounds::MAX_FAILURES.or(default.max_failures.into())),
        ("grant_batch", bounds::GRANT_BATCH.or(default.grant_batch.into())),
        ("in_hand_max", bounds::IN_HAND_MAX.or(default.in_hand_max.into())),
        ("lane_events_max", bounds::LANE_EVENTS_MAX.or(default.lane_events_max.into())),
        ("lane_bytes_max", bounds::LANE_BYTES_MAX.or(default.lane_bytes_max)),
    ];
    section.only(&fields.map(|(key, _)| key), findings);
    let [hold, deadline, delay, delay_max, failures, batch, in_hand, lane_events, lane_bytes] =
        fields.map(|(key, bound): (&str, Bound)| section.number(key, bound, findings));
    let mut at_most = |low: (&str, Option<u64>), high: (&str, Option<u64>), allowed: &'static str| {
        if let (Some(low_value), Some(high_value)) = (low.1, high.1)
            && low_value > high_value
        {
            let found = format!("{} = {low_value} is above {} = {high_value}", low.0, high.0);
            findings.note(section.path_of(low.0), section.at_value(low.0), Fault::Clash { found, allowed });
        }
    };
    at_most(("hold_max_ms", hold), ("deadline_ms", deadline), "what is held must pass before the deadline");
    at_most(
        ("requeue_delay_ms", delay),
        ("requeue_delay_max_ms", delay_max),
        "the first delay may be at most the longest",
    );
    at_most(("grant_batch", batch), ("in_hand_max", in_hand), "one full batch must fit in hand");
    Pacing {
        hold_max_ms: hold.unwrap_or_default(),
        deadline_ms: deadline.unwrap_or_default(),
        requeue_delay_ms: delay.unwrap_or_default(),
        requeue_delay_max_ms: delay_max.unwrap_or_default(),
        max_failures: narrow(failures),
        grant_batch: narrow(batch),
        in_hand_max: narrow(in_hand),
        lane_events_max: narrow(lane_events),
        lane_bytes_max: lane_bytes.unwrap_or_default(),
    }
}
