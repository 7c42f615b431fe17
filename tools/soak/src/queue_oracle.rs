//! The judge of the task queue: it holds what publishers were answered against what consumers got.

use crate::oracle::Verdict;
use crate::queue_book::{Delivery, Published, QueueBook};
use crate::queue_load::{COUNT, TTR_S};
use std::collections::{BTreeMap, HashSet};

/// The task queue in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct QueueTally {
    /// Jobs that publishers asked for.
    pub asked: u64,
    /// Those that were answered.
    pub published: u64,
    /// Those that were acknowledged.
    pub acknowledged: u64,
    /// Jobs that came, also again.
    pub delivered: u64,
    /// Those that came from the dead letter.
    pub revived: u64,
    /// Calls that consume and had no answer.
    pub unanswered: u64,
}

/// Compares them; damage is added to the verdict.
pub fn judge(book: &QueueBook, verdict: &mut Verdict) -> QueueTally {
    let mut tally =
        QueueTally { delivered: book.deliveries.len() as u64, unanswered: book.unanswered, ..<_>::default() };
    let mut by_tag: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
    for delivery in &book.deliveries {
        by_tag.entry(&delivery.tag).or_default().push(delivery);
    }
    for why in &book.refused {
        verdict.damage("unexplained", format!("a call of the task queue was refused: {why}"));
    }
    let (mut ids, mut tries_lost) = (HashSet::new(), 0);
    for (tag, job) in &book.jobs {
        let came = by_tag.remove(tag.as_str()).unwrap_or_default();
        tally.asked += 1;
        tally.published += u64::from(job.id.is_some());
        if let Some(id) = &job.id {
            let is_acknowledged = book.acknowledged.contains_key(id);
            tally.acknowledged += u64::from(is_acknowledged);
            if !is_acknowledged {
                verdict
                    .damage("lost", format!("nobody could end the job {tag} {job:?}; it came as {came:?}"));
            }
            if !ids.insert(id) {
                verdict.damage("double", format!("the id of the job {tag} {job:?} is another one's, too"));
            }
        }
        of_job(tag, job, &came, book, verdict);
        let revived_ms = book.revived_ms.unwrap_or(u64::MAX);
        let before: Vec<_> = came.iter().filter(|one| one.at_ms < revived_ms).collect();
        tally.revived += u64::from(came.len() as u64 > job.tries);
        if before.len() as u64 > job.tries {
            verdict.damage("double", format!("the job {tag} {job:?} came too often: {came:?}"));
        }
        let remain = before.iter().map(|one| one.remain_tries).min().unwrap_or(job.tries);
        tries_lost += job.tries.saturating_sub(before.len() as u64 + remain);
    }
    if tries_lost > book.unanswered * COUNT {
        let unanswered = book.unanswered;
        verdict.damage(
            "unexplained",
            format!("jobs have lost {tries_lost} tries, and {unanswered} calls had no answer"),
        );
    }
    for stranger in by_tag.into_values().flatten() {
        verdict.damage("unexplained", format!("nobody published the job of {stranger:?}"));
    }
    tally
}

/// What a job is by itself: with one id, not early, one consumer's at a time, and gone when it is acknowledged.
fn of_job(tag: &str, job: &Published, came: &[&Delivery], book: &QueueBook, verdict: &mut Verdict) {
    let id = job.id.as_ref().or_else(|| came.first().map(|one| &one.id));
    for delivery in came {
        if Some(&delivery.id) != id {
            verdict.damage("mismatched", format!("the job {tag} {job:?} came as {delivery:?}"));
        }
        if delivery.at_ms < job.asked_ms + job.delay_s * 1_000 {
            verdict.damage("early", format!("the job {tag} {job:?} came as {delivery:?}"));
        }
        if let Some(ended_ms) = book.acknowledged.get(&delivery.id)
            && delivery.asked_ms > *ended_ms
        {
            verdict.damage(
                "after_cancel",
                format!("the job {tag} was acknowledged at {ended_ms} and came as {delivery:?}"),
            );
        }
    }
    let mut in_turn = came.to_vec();
    in_turn.sort_by_key(|one| one.asked_ms);
    for two in in_turn.windows(2) {
        // Each was taken between its call and its answer: too near only if that holds for all such times.
        let farthest_ms = two[0].at_ms.max(two[1].at_ms) - two[0].asked_ms;
        if farthest_ms < TTR_S * 1_000 {
            verdict.damage("double", format!("two consumers had the job {tag} at a time: {two:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_book::EventBook as _;
    use crate::queue_book::{Manner, QueueEvent};

    fn book(tries: u64, manner: Manner) -> QueueBook {
        let mut book = QueueBook::default();
        let job = Published { asked_ms: 1_000, delay_s: 1, tries, manner, id: None };
        book.apply(QueueEvent::Publishes { tag: "a".into(), job });
        book.apply(QueueEvent::Published { tag: "a".into(), id: "1".into() });
        book
    }

    /// It comes; whether it is to be acknowledged.
    fn comes(book: &mut QueueBook, asked_ms: u64, remain_tries: u64) -> bool {
        let delivery =
            Delivery { tag: "a".into(), id: "1".into(), asked_ms, at_ms: asked_ms + 10, remain_tries };
        book.apply(QueueEvent::Came(delivery));
        book.is_time("a", "1")
    }

    fn acknowledges(book: &mut QueueBook, at_ms: u64) {
        book.apply(QueueEvent::Acknowledged { id: "1".into(), at_ms });
    }

    fn found(book: &QueueBook) -> Vec<&'static str> {
        let mut verdict = Verdict::default();
        judge(book, &mut verdict);
        verdict.damage.into_keys().collect()
    }

    #[test]
    fn a_job_that_comes_in_time_and_is_acknowledged_is_no_damage() {
        let mut book = book(5, Manner::Prompt);
        assert_eq!((book.waiting(), found(&book)), (1, vec!["lost"]));
        assert!(comes(&mut book, 2_000, 4));
        acknowledges(&mut book, 2_020);
        assert_eq!((book.waiting(), found(&book)), (0, vec![]));
        assert!(comes(&mut book, 4_100, 3), "its lease is over, but it is gone");
        assert_eq!(found(&book), ["after_cancel"]);
    }

    #[test]
    fn what_is_early_or_in_two_hands_is_found() {
        let mut early = book(5, Manner::Slow);
        assert!(!comes(&mut early, 1_980, 4));
        acknowledges(&mut early, 9_000);
        assert_eq!(found(&early), ["early"]);
        let mut two = book(5, Manner::Slow);
        comes(&mut two, 2_000, 4);
        assert!(comes(&mut two, 3_980, 3));
        acknowledges(&mut two, 9_000);
        assert_eq!(found(&two), ["double"]);
        let mut later = book(5, Manner::Slow);
        comes(&mut later, 2_000, 4);
        comes(&mut later, 3_995, 3);
        acknowledges(&mut later, 9_000);
        assert_eq!(found(&later), [""; 0], "the lease is over when the answer comes");
    }

    #[test]
    fn the_dead_letter_alone_lets_a_job_come_more_often_and_lost_tries_need_lost_answers() {
        let mut dying = book(2, Manner::Dying);
        assert!(!comes(&mut dying, 2_000, 1));
        assert!(!comes(&mut dying, 5_000, 0));
        assert!(comes(&mut dying, 8_000, 0));
        acknowledges(&mut dying, 8_100);
        assert_eq!(found(&dying), ["double"]);
        dying.revived_ms = Some(7_500);
        assert_eq!(found(&dying), [""; 0]);
        let mut lossy = book(5, Manner::Prompt);
        comes(&mut lossy, 5_000, 3);
        acknowledges(&mut lossy, 5_100);
        assert_eq!(found(&lossy), ["unexplained"]);
        lossy.unanswered = 1;
        assert_eq!(found(&lossy), [""; 0]);
    }
}
