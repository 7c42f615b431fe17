//! A change of the rules that some processes try first: what would be staged, and its steps: stage, promote, abort.

use crate::answer::Refused;
use crate::rules::{By, RulesEditor, conflict, not_set, problem, told, unreadable};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use windfall_config::{
    Difference, ProcessStatus, ReadError, Refusal, SetError, StageError, StageFor, Triers, Written,
    differences, parse_rules, standing_json,
};
use windfall_contract::rules::{Guards, Rules, Staged};

/// A change that somebody wants some processes to try.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wish {
    /// The whole document with the change made.
    text: String,
    /// The version that was shown to who made it.
    based_on: u64,
    /// The processes by their names, or else `percent` of those with consumers.
    processes: Option<Vec<String>>,
    percent: Option<u64>,
    #[serde(default)]
    guards: WishedGuards,
    proven_after_ms: u64,
    #[serde(default)]
    pub(crate) why: String,
    #[serde(default)]
    pub(crate) actor: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WishedGuards {
    oldest_max_ms: Option<u64>,
    failed_max_percent: Option<u64>,
    lag_max_records: Option<u64>,
    latency_p99_max_ms: Option<u64>,
    budget_lasts_min_ms: Option<u64>,
}

/// A step that ends a trial.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Promote { is_forced: bool },
    Abort,
}

/// A document with a staged change, before it is written.
struct Ready {
    text: String,
    processes: Vec<String>,
    found: Vec<Difference>,
}

/// A step of a trial is not made. Nothing was written.
enum NotMade {
    /// A part of what is wanted that makes no sense, by its key.
    Wish(&'static str, &'static str),
    /// The document that is wanted.
    Wanted(Refusal),
    /// The document in force.
    InForce(Refusal),
    /// Another version than was shown.
    Version {
        based_on: u64,
        current: u64,
    },
    /// Another change is staged than was shown.
    OtherStaged,
    Stage(StageError),
}

impl RulesEditor {
    /// What would be staged and for whom, or everything that is wrong with it.
    pub(crate) async fn check_wish(&self, wish: Wish) -> Result<Value, Refused> {
        let looked = self.blocking(move |own| own.ready(&wish, own.clock.unix_ms())).await?;
        Ok(match looked.map_err(unreadable)? {
            Ok(ready) => json!({
                "ok": true, "problems": [], "processes": ready.processes, "differences": ready.found,
            }),
            Err(wrong) => {
                let problems: Vec<_> = wrong.iter().flat_map(NotMade::problems).collect();
                json!({ "ok": false, "problems": problems, "processes": [], "differences": [] })
            }
        })
    }

    /// Stages a change, for whom the caller has found to be allowed to.
    pub(crate) async fn stage(&self, wish: Wish, by: By) -> Result<Value, Refused> {
        let made = self.blocking(move |own| {
            let now_ms = own.clock.unix_ms();
            let ready = own.ready(&wish, now_ms).map_err(unreadable)?.map_err(|wrong| refused(&wrong))?;
            let written = own.write(&ready.text, &by, &reason("stage", &wish.why), false, now_ms)?;
            Ok::<_, Refused>((written, ready))
        });
        let (written, ready) = made.await??;
        let mut answer = told(written);
        answer["processes"] = ready.processes.into();
        answer["differences"] = json!(ready.found);
        Ok(answer)
    }

    /// Promotes the change that was staged at `since_ms`, or takes it back, for whom the caller has found to be allowed to.
    pub(crate) async fn end_trial(
        &self,
        step: Step,
        since_ms: u64,
        by: By,
        why: String,
    ) -> Result<Value, Refused> {
        let made = self.blocking(move |own| {
            let now_ms = own.clock.unix_ms();
            let text = own.ended(step, since_ms, now_ms).map_err(unreadable)?;
            let text = text.map_err(|wrong| refused(&[wrong]))?;
            let (name, by_force) = match step {
                Step::Promote { is_forced } => ("promote", is_forced),
                Step::Abort => ("abort", false),
            };
            own.write(&text, &by, &reason(name, &why), by_force, now_ms)
        });
        Ok(told(made.await??))
    }

    fn ready(&self, wish: &Wish, now_ms: u64) -> Result<Result<Ready, Vec<NotMade>>, ReadError> {
        let (text, reports) = (self.store.show()?, self.store.reports()?);
        let in_force = match parse_rules(&text, None) {
            Ok(rules) => rules,
            Err(refusal) => return Ok(Err(vec![NotMade::InForce(refusal)])),
        };
        let mut wrong = Vec::new();
        let wanted = noted(&mut wrong, wish.rules(self, in_force.version));
        let guards = wish.guards.parsed();
        let asked = guards.as_ref().copied().unwrap_or_default();
        let processes = noted(&mut wrong, wish.processes(&reports, &asked, now_ms));
        let guards = noted(&mut wrong, guards);
        let (Some(wanted), Some(processes), Some(guards)) = (wanted, processes, guards) else {
            return Ok(Err(wrong));
        };
        let who = StageFor { processes, guards, proven_after_ms: wish.proven_after_ms };
        Ok(match windfall_config::stage(&text, &wanted, &who, now_ms) {
            Ok(text) => {
                let found = differences(&without_trial(&in_force), &without_trial(&wanted));
                Ok(Ready { text, processes: who.processes, found })
            }
            Err(error) => Err(vec![NotMade::Stage(error)]),
        })
    }

    /// The document after a step that ends the trial.
    fn ended(&self, step: Step, since_ms: u64, now_ms: u64) -> Result<Result<String, NotMade>, ReadError> {
        let (text, reports) = (self.store.show()?, self.store.reports()?);
        let rules = match parse_rules(&text, None) {
            Ok(rules) => rules,
            Err(refusal) => return Ok(Err(NotMade::InForce(refusal))),
        };
        // Who ends a trial means the one that was shown, and not one that somebody else has begun since.
        if rules.staged.is_some_and(|staged| staged.since_ms != since_ms) {
            return Ok(Err(NotMade::OtherStaged));
        }
        let ended = match step {
            Step::Promote { is_forced } => windfall_config::promote(&text, &reports, is_forced, now_ms),
            Step::Abort => windfall_config::abort(&text),
        };
        Ok(ended.map_err(NotMade::Stage))
    }

    fn write(&self, text: &str, by: &By, why: &str, by_force: bool, now_ms: u64) -> Result<Written, Refused> {
        if let Some(error) = self.refuse_unknown_brokers(text) {
            return Err(not_set(error));
        }
        self.set(text, by, why, by_force, now_ms).map_err(|error| match error {
            // Somebody else has written between the look and this.
            SetError::Conflict { current, .. } => conflict(current),
            error => not_set(error),
        })
    }
}

/// How the staged change stands, and what it is, for the page.
pub(crate) fn staged(rules: &Rules, staged: &Staged, reports: &[ProcessStatus], now_ms: u64) -> Value {
    let mut object = standing_json(staged, reports, now_ms);
    let tried = without_trial(&rules.with_staged());
    object["differences"] = json!(differences(&without_trial(rules), &tried));
    object
}

impl Wish {
    /// The rules that are wanted, if they were made from those in force.
    fn rules(&self, editor: &RulesEditor, current: u64) -> Result<Rules, NotMade> {
        let rules = editor.rules_of(&self.text).map_err(NotMade::Wanted)?;
        match [self.based_on, rules.version].into_iter().find(|based_on| *based_on != current) {
            Some(based_on) => Err(NotMade::Version { based_on, current }),
            None => Ok(rules),
        }
    }

    fn processes(
        &self,
        reports: &[ProcessStatus],
        guards: &Guards,
        now_ms: u64,
    ) -> Result<Vec<String>, NotMade> {
        let triers = match (&self.processes, self.percent) {
            (Some(names), None) if !names.is_empty() => Triers::Named(names.clone()),
            (None, Some(percent)) => match u8::try_from(percent) {
                Ok(percent @ 1..=100) => Triers::Percent(percent),
                _ => return Err(NotMade::Wish("percent", "it is 1 to 100")),
            },
            _ => {
                let what = "name one process at least, or give `percent` in place of `processes`";
                return Err(NotMade::Wish("processes", what));
            }
        };
        triers.choose(reports, guards, now_ms).map_err(NotMade::Stage)
    }
}

impl WishedGuards {
    /// Whether they are within their bounds the document decides, but for one that its type has no room for.
    fn parsed(&self) -> Result<Guards, NotMade> {
        let failed_max_percent = self.failed_max_percent.map(u8::try_from).transpose();
        Ok(Guards {
            oldest_max_ms: self.oldest_max_ms,
            failed_max_percent: failed_max_percent
                .map_err(|_| NotMade::Wish("guards.failed_max_percent", "it is 0 to 99"))?,
            lag_max_records: self.lag_max_records,
            latency_p99_max_ms: self.latency_p99_max_ms,
            budget_lasts_min_ms: self.budget_lasts_min_ms,
        })
    }
}

impl NotMade {
    /// Everything that it says, as a check of a document says it.
    fn problems(&self) -> Vec<Value> {
        match self {
            Self::Wanted(refusal) => refusal.problems().iter().map(problem).collect(),
            // Lines are those of a document that the page does not have.
            Self::Stage(StageError::Refused(refusal)) => {
                let without_line =
                    |one: Value| json!({ "line": null, "key": one["key"], "what": one["what"] });
                refusal.problems().iter().map(problem).map(without_line).collect()
            }
            Self::Wish(key, what) => vec![json!({ "line": null, "key": key, "what": what })],
            other => vec![json!({ "line": null, "key": "", "what": other.what() })],
        }
    }

    /// What is wrong, without the options of a command.
    fn what(&self) -> String {
        match self {
            Self::Wish(key, what) => format!("`{key}`: {what}"),
            Self::Wanted(refusal) => refusal.to_string(),
            Self::InForce(refusal) => format!("the document in force is refused: {refusal}"),
            Self::Version { based_on, current } => format!(
                "the change was made from version {based_on} of the rules, but they have version {current} now: look at what has changed, and make it again"
            ),
            Self::OtherStaged => "another change is staged than you were shown: look at it first".to_owned(),
            Self::Stage(StageError::Already(names)) => {
                format!("a change is staged already, for {names}: promote it or take it back first")
            }
            Self::Stage(StageError::NotForSome(key)) => format!(
                "only limits, fuses, priorities and pacing can be tried by some processes, and this changes {key}: make that change for all first"
            ),
            Self::Stage(StageError::NotProven(why)) => {
                format!("it is not promoted: {why}; take it back, or promote it by force")
            }
            Self::Stage(error) => error.to_string(),
        }
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Version { .. } | Self::OtherStaged | Self::Stage(StageError::Already(_)) => {
                (StatusCode::CONFLICT, "ABORTED")
            }
            Self::InForce(_)
            | Self::Stage(
                StageError::NotProven(_)
                | StageError::OldProcess(_)
                | StageError::OldProcessForGuard { .. }
                | StageError::NoProcess,
            ) => (StatusCode::CONFLICT, "FAILED_PRECONDITION"),
            Self::Stage(StageError::Nothing) => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            Self::Wish(..) | Self::Wanted(_) | Self::Stage(_) => {
                (StatusCode::BAD_REQUEST, "INVALID_ARGUMENT")
            }
        }
    }
}

/// The answer to a step that is not made: the first thing decides its status, and all are said.
fn refused(wrong: &[NotMade]) -> Refused {
    let (status, code) = wrong.first().map_or((StatusCode::BAD_REQUEST, "INVALID_ARGUMENT"), NotMade::status);
    let all: Vec<_> = wrong.iter().map(NotMade::what).collect();
    Refused::new(status, code, all.join("; "))
}

fn noted<T>(wrong: &mut Vec<NotMade>, found: Result<T, NotMade>) -> Option<T> {
    found.map_err(|error| wrong.push(error)).ok()
}

fn without_trial(rules: &Rules) -> Rules {
    Rules { staged: None, tries_staged: false, ..rules.clone() }
}

/// The reason of a step as the history shows it. No reason stays none, and is refused as with any change.
fn reason(step: &str, why: &str) -> String {
    if why.trim().is_empty() { String::new() } else { format!("{step}: {why}") }
}
