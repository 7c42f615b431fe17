//! What a user has and sees coming: each reward once, at whatever moment it arrives.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bank;

use bank::{ALICE, At, Desk};
use std::collections::BTreeSet;
use std::slice::from_ref;
use windfall_contract::accounts::Status;
use windfall_wallet::{Balance, LineKind, LookError, User, View};

async fn look(desk: &Desk, texts: &[String]) -> View {
    desk.wallet.look(ALICE, texts, "", 500).await.unwrap()
}

fn cash(view: &View) -> (i64, i64, i64) {
    let cash = view.balances.iter().find(|balance| balance.bonus_type == "cash");
    cash.map_or((0, 0, 0), |balance| (balance.credited, balance.pending, balance.total))
}

#[tokio::test]
async fn tokens_of_both_sides_count_once_and_only_what_is_proved() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 1_000);
    let both = desk.hold("both", 200);
    desk.hold("server", 30);
    desk.hold_of("coins", "coin", 4);
    // Credited, and its token not dropped yet; rejected; known with another amount; at a downstream.
    for (trade_no, amount, status) in [
        ("lingering", 50_000, Status::Credited),
        ("rejected", 50_000, bank::rejected().1),
        ("conflict", 60_000, Status::Reserved),
        ("reserved", 5, Status::Reserved),
    ] {
        desk.hold(trade_no, if trade_no == "conflict" { 70_000 } else { amount });
        desk.world.books.lock().order(trade_no, ALICE.user_id, "cash", amount, status);
    }
    let unknown = desk.mint(ALICE.user_id, "unknown", "cash", 800_000);
    let bobs = desk.mint(43, "bobs", "cash", 900_000);
    desk.world.tokens.lock().insert((43, "bobs".into()), bobs.clone());
    let texts = [both.clone(), both, unknown, bobs, "no token".into(), "A".repeat(10 << 20)];

    let view = look(&desk, &texts).await;
    assert!(view.tokens_complete);
    let expected = [("cash", 1_000, 235, 1_235), ("coin", 0, 4, 4)];
    let expected = expected.map(|(bonus_type, credited, pending, total)| Balance {
        bonus_type: bonus_type.into(),
        credited,
        pending,
        total,
    });
    assert_eq!(view.balances, expected);
    let lines: Vec<_> =
        view.flow.iter().map(|line| (line.kind, line.reference.as_str(), line.amount)).collect();
    assert_eq!(lines[..4].iter().filter(|line| line.0 == LineKind::Pending).count(), 4, "{lines:?}");
    assert_eq!(lines[4..], [(LineKind::Credit, "arrived", 1_000)]);
    let short = desk.wallet.look(ALICE, &texts, "", 2).await.unwrap();
    assert_eq!(short.flow.len(), 2);
    assert!(!short.flow_next.is_empty(), "the movement that has no room is on the next page");
}

#[tokio::test]
async fn nobody_elses_tokens_and_nobody_elses_app() {
    let desk = Desk::new();
    let text = desk.hold("alices", 200);
    for user in [User { user_id: 43, ..ALICE }, User { tenant: "rival", ..ALICE }] {
        let view = desk.wallet.look(user, from_ref(&text), "", 500).await.unwrap();
        assert_eq!((view.balances, view.flow), (vec![], vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_proves_nothing_and_the_answer_says_so() {
    let desk = Desk::new();
    desk.world.arrive("arrived", 1_000);
    let text = desk.hold("held", 200);
    *desk.world.store_down.lock() = true;
    let view = look(&desk, from_ref(&text)).await;
    assert!(!view.tokens_complete && cash(&view) == (1_000, 0, 1_000), "{view:?}");
    // Hanging as well: both reads of it run into their time limit.
    *desk.world.store_down.lock() = false;
    desk.world.rewind();
    desk.world.at(0, At::Hang);
    desk.world.at(1, At::Hang);
    let view = look(&desk, from_ref(&text)).await;
    assert!(!view.tokens_complete && cash(&view) == (1_000, 0, 1_000), "{view:?}");
    desk.world.rewind();
    assert_eq!(cash(&look(&desk, &[text]).await), (1_000, 200, 1_200));
}

/// One reward arrives by the consumer's path at each step in turn: credited, its token dropped.
#[tokio::test]
async fn a_reward_that_arrives_meanwhile_is_shown_once_whenever_it_does() {
    let mut step = 0;
    loop {
        let desk = Desk::new();
        desk.world.arrive("before", 1_000);
        let text = desk.hold("meanwhile", 200);
        desk.world.at(step, At::Do(Box::new(|world| world.arrive("meanwhile", 200))));
        let view = look(&desk, &[text]).await;
        let (credited, pending, total) = cash(&view);
        assert_eq!(total, 1_200, "step {step}: {credited} + {pending}");
        let shown = view.flow.iter().filter(|line| line.reference == "meanwhile").count();
        assert_eq!(shown, 1, "step {step}: {:?}", view.flow);
        if desk.world.steps.load(std::sync::atomic::Ordering::SeqCst) <= step {
            assert!(step >= 10, "it ran through all steps: {step}");
            return;
        }
        step += 1;
    }
}

/// The same, credited while the token is still there, and dropped later or never.
#[tokio::test]
async fn a_credit_whose_token_lingers_is_shown_once_too() {
    for step in 0..16 {
        let desk = Desk::new();
        let text = desk.hold("meanwhile", 200);
        desk.world.at(
            step,
            At::Do(Box::new(|world| {
                world.books.lock().credit("meanwhile", ALICE.user_id, "cash", 200);
            })),
        );
        let view = look(&desk, &[text]).await;
        assert_eq!(cash(&view).2, 200, "step {step}");
        assert_eq!(view.flow.len(), 1, "step {step}: {:?}", view.flow);
    }
}

/// At every step another one arrives: something may be missing from the answer, nothing is in it twice.
#[tokio::test]
async fn while_they_keep_arriving_none_is_shown_twice() {
    let desk = Desk::new();
    let texts: Vec<String> = (0..40).map(|nth| desk.hold(&format!("order-{nth:02}"), 100)).collect();
    desk.world.at_each(|world| {
        let next = world.books.lock().orders.len();
        if next < 40 {
            world.arrive(&format!("order-{next:02}"), 100);
        }
    });
    for _ in 0..4 {
        let view = look(&desk, &texts).await;
        let (credited, pending, total) = cash(&view);
        assert!(total <= 4_000, "{credited} + {pending}");
        let references: BTreeSet<&str> = view.flow.iter().map(|line| line.reference.as_str()).collect();
        assert_eq!(references.len(), view.flow.len(), "one twice: {:?}", view.flow);
    }
    assert_eq!(cash(&look(&desk, &texts).await), (4_000, 0, 4_000));
}

#[tokio::test]
async fn sums_that_leave_64_bits_are_refused() {
    let largest = (1 << 53) - 1;
    let desk = Desk::new();
    for nth in 0..1_025 {
        desk.hold(&format!("order-{nth:04}"), largest);
    }
    let overflow = Err(LookError::Overflow { bonus_type: "cash".into() });
    assert_eq!(desk.wallet.look(ALICE, &[], "", 10).await, overflow);

    let desk = Desk::new();
    desk.hold("one", 1);
    desk.world.books.lock().balances.insert((ALICE.user_id, "cash".into()), i64::MAX);
    assert_eq!(desk.wallet.look(ALICE, &[], "", 10).await, overflow);
    // A signed amount that no reward can have counts for nothing.
    let desk = Desk::new();
    for (trade_no, amount) in [("a", i64::MAX), ("b", 0), ("c", -5), ("d", largest + 1)] {
        desk.hold(trade_no, amount);
    }
    assert_eq!(look(&desk, &[]).await.balances, []);
}

#[tokio::test]
async fn bounds() {
    let desk = Desk::new();
    let text = desk.hold("held", 1);
    let texts = vec![text; 513];
    assert!(matches!(desk.wallet.look(ALICE, &texts, "", 10).await, Err(LookError::Tokens(_))));
    for limit in [0, 501] {
        assert_eq!(desk.wallet.look(ALICE, &[], "", limit).await, Err(LookError::FlowLimit(limit)));
    }
    for nth in 0..2_100 {
        desk.hold(&format!("order-{nth:04}"), 1);
    }
    let view = look(&desk, &[]).await;
    assert!(!view.tokens_complete);
    assert_eq!(cash(&view), (0, 2_000, 2_000));
    assert_eq!(view.flow.len(), 500);
}

/// A history is read to its end: rewards on their way are on the first page alone, and between two pages nothing is left out or
/// shown twice, also where something arrives meanwhile, and where the first page has no room for a movement.
#[tokio::test]
async fn a_history_page_by_page() {
    for limit in [1, 2, 3, 4, 9, 500] {
        let desk = Desk::new();
        for nth in 0..7 {
            desk.world.arrive(&format!("arrived-{nth}"), 10);
        }
        desk.hold("coming-a", 1);
        desk.hold("coming-b", 1);
        let (mut lines, mut after) = (Vec::new(), String::new());
        for page in 0.. {
            let view = desk.wallet.look(ALICE, &[], &after, limit).await.unwrap();
            assert!(view.flow.len() <= limit, "{view:?}");
            assert!(page == 0 || view.flow.iter().all(|line| line.kind == LineKind::Credit), "{view:?}");
            assert_eq!(cash(&view).1, 2, "balances have what is on its way on each page");
            lines.extend(view.flow.into_iter().map(|line| line.reference));
            after = view.flow_next;
            if after.is_empty() {
                break;
            }
            desk.world.arrive(&format!("later-{page}"), 10);
        }
        let pending = lines.iter().filter(|line| line.starts_with("coming")).count();
        assert_eq!(pending, limit.min(2), "by {limit}");
        let moved: Vec<&str> = lines[pending..].iter().map(String::as_str).collect();
        let expected: Vec<String> = (0..7).rev().map(|nth| format!("arrived-{nth}")).collect();
        assert_eq!(moved, expected, "by {limit}");
    }
}

#[tokio::test]
async fn a_cursor_of_no_page_of_the_user_is_refused() {
    let desk = Desk::new();
    for nth in 0..3 {
        desk.world.arrive(&format!("arrived-{nth}"), 10);
    }
    let own = desk.wallet.look(ALICE, &[], "", 1).await.unwrap().flow_next;
    assert_eq!(desk.wallet.look(ALICE, &[], &own, 9).await.unwrap().flow.len(), 2);
    let other = User { user_id: 43, ..ALICE };
    let long = "9".repeat(65_537);
    for (user, after) in [(other, own.as_str()), (ALICE, "soon"), (ALICE, "42/1\n"), (ALICE, long.as_str())] {
        let refused = desk.wallet.look(user, &[], after, 9).await;
        assert!(matches!(refused, Err(LookError::FlowAfter(_))), "{refused:?}");
    }
}
