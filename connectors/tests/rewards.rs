//! Through the reward service, with a ledger in a file: whatever the downstream does to its answers, each order is
//! in its book once and credited once.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{book, grpc, http, quick, server};
use windfall_connectors::fake::Trouble;
use windfall_connectors::fake::{FakeBook, FakeOptions};
use windfall_contract::Clock;
use windfall_contract::accounts::Status;
use windfall_contract::connector::Connector;
use windfall_contract::rewards::{GrantReply, Rewards};
use windfall_ledger::{Ledger, LedgerOptions, LedgerReader, Unbudgeted};
use windfall_proto::event::EventRef;
use windfall_reward_service::{ConnectorOptions, Payer, RewardHandle, RewardOptions, RewardService};

const ORDERS: usize = 120;

fn badges() -> Vec<Bytes> {
    (0..ORDERS)
        .map(|nth| {
            let trade_no = format!("order/{nth}");
            let event = EventRef {
                trade_no: &trade_no,
                user_id: 7,
                app_id: "app",
                activity: "spring-2027",
                scene: "rain",
                bonus_type: "badge",
                amount: 1,
                award_time_ms: 1,
                first_sent_ms: 1,
                ..EventRef::default()
            };
            let mut bytes = Vec::new();
            event.encode([], &mut bytes);
            bytes.into()
        })
        .collect()
}

fn start(folder: &Path, connector: Arc<dyn Connector>) -> RewardHandle {
    let mut options = RewardOptions::default();
    options.pays.insert("badge".into(), Payer::Connector("fake".into()));
    let guard = ConnectorOptions {
        concurrency: 8,
        timeout_ms: 100,
        breaker_open_ms: 20,
        timeout_retry_ms: 5,
        ..ConnectorOptions::default()
    };
    options.connectors.insert("fake".into(), guard);
    let ledger = Ledger::open(
        folder.join("ledger.db"),
        &LedgerOptions { unbudgeted: Unbudgeted::Allow, ..LedgerOptions::default() },
    )
    .unwrap();
    RewardService::start(options, ledger, vec![connector], None, Clock::system()).unwrap()
}

/// Asks until everything is final, as a consumer does.
async fn until_final(rewards: &RewardHandle, events: &[Bytes]) -> Vec<GrantReply> {
    let mut replies = vec![None; events.len()];
    for _ in 0..500 {
        let open: Vec<usize> = (0..events.len()).filter(|at| replies[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let ask: Vec<Bytes> = open.iter().map(|at| events[*at].clone()).collect();
        for (at, reply) in open.iter().zip(rewards.grant_batch("badge", &ask).await) {
            replies[*at] = Some(reply).filter(GrantReply::is_final);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    replies.into_iter().map(|reply| reply.expect("final within 500 rounds")).collect()
}

/// I1: the book has each order once, the ledger has credited each once.
fn assert_once(folder: &Path) {
    let paid = FakeBook::read(book(folder)).unwrap();
    let names: HashSet<&str> = paid.iter().map(|one| one.trade_no.as_str()).collect();
    assert_eq!((paid.len(), names.len()), (ORDERS, ORDERS), "each order is in the book once");
    let reader = LedgerReader::open(folder.join("ledger.db")).unwrap();
    let lines: Vec<_> = reader.orders().unwrap().map(Result::unwrap).collect();
    assert_eq!(lines.len(), ORDERS);
    assert!(lines.iter().all(|line| (line.status, line.credits) == (Status::Credited, 1)));
    let found = reader.reconcile().unwrap();
    assert!(found.is_clean(), "{found:?}");
}

async fn credited_once(faults: FakeOptions, trouble: Option<Trouble>, grpc_too: bool) {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = server(folder.path(), faults).await;
    server.set_trouble(trouble, 300);
    let connector: Arc<dyn Connector> = if grpc_too {
        Arc::new(grpc(folder.path(), server.address()))
    } else {
        Arc::new(http(folder.path(), server.address()))
    };
    let rewards = start(folder.path(), connector);
    let replies = until_final(&rewards, &badges()).await;
    assert!(replies.iter().all(GrantReply::is_credited));
    rewards.close();
    server.stop().await;
    assert_once(folder.path());
}

fn lossy() -> FakeOptions {
    FakeOptions {
        rate_per_s: 4_000,
        burst: 30,
        latency_ms: 1,
        retry_per_mille: 100,
        paid_then_timeout_per_mille: 150,
        hang_ms: 300,
        ..quick()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credited_then_timeout_ends_credited_once() {
    credited_once(lossy(), None, false).await;
    credited_once(lossy(), None, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_answers_to_good_payments_end_credited_once() {
    for trouble in Trouble::ALL {
        credited_once(quick(), Some(trouble), false).await;
    }
    for trouble in [Trouble::Cut, Trouble::Nonsense, Trouble::Endless] {
        credited_once(quick(), Some(trouble), true).await;
    }
}

/// The downstream goes away in the middle and comes back on its port; the caller is given up once, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_restarts_of_the_downstream_each_order_is_paid_once() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = server(folder.path(), FakeOptions { latency_ms: 5, ..lossy() }).await;
    let address = first.address();
    let rewards = start(folder.path(), Arc::new(http(folder.path(), address)));
    let events = badges();
    let call = tokio::spawn({
        let (rewards, events) = (rewards.clone(), events.clone());
        async move { rewards.grant_batch("badge", &events).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    first.stop().await;
    call.abort();
    drop(call.await);
    rewards.grant_batch("badge", &events).await;
    let again =
        windfall_connectors::fake::FakeDownstream::open(book(folder.path()), quick(), Clock::system());
    let options = windfall_connectors::fake::ServerOptions { listen: address, ..support::server_options() };
    let second =
        windfall_connectors::fake::FakeServer::start(options, Arc::new(again.unwrap()), Clock::system());
    let second = second.await.unwrap();
    let replies = until_final(&rewards, &events).await;
    assert!(replies.iter().all(GrantReply::is_credited));
    rewards.close();
    second.stop().await;
    assert_once(folder.path());
}
