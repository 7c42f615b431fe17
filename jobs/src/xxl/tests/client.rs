//! What the client makes of answers, and of none.

use super::{app, client, fake, here, patient, run, token};
use crate::xxl::fake::{FakeExecutor, FakeOptions, Generation, Reply};
use crate::xxl::{
    AccessToken, AddressRules, CallError, ClientOptions, Executor, ExecutorAddress, LogRequest, Refusal,
    XxlClient,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use tokio::net::TcpListener;

fn at(address: &str) -> Executor {
    Executor { app: app(), address: ExecutorAddress::parse(address).unwrap() }
}

#[tokio::test]
async fn executors_of_each_generation_get_runs() {
    for (generation, paths) in [
        (Generation::Two, vec![("/run", 3)]),
        (Generation::Three, vec![("/run", 3)]),
        // Asked once by the name that it does not know.
        (Generation::Next, vec![("/run", 1), ("/trigger", 3)]),
    ] {
        let options = FakeOptions { generation, token: Some(token()), ..FakeOptions::new(app()) };
        let fake = FakeExecutor::start(options).await.unwrap();
        let client = client(patient());
        for log_id in 1..=3 {
            client.run(fake.executor(), &run(log_id)).await.unwrap();
        }
        assert_eq!(fake.runs(), [run(1), run(2), run(3)]);
        let paths: BTreeMap<_, _> = paths.into_iter().map(|(path, count)| (path.to_owned(), count)).collect();
        assert_eq!(fake.paths(), paths);
        assert_eq!(fake.connections_count(), 1, "the connection is kept");

        let request = LogRequest { log_id: 3, log_date_time_ms: 1, from_line: 1 };
        let lines = client.log(fake.executor(), request).await.unwrap();
        assert_eq!((lines.from_line, lines.to_line, lines.text.as_str()), (1, 2, "begun\nended\n"));
        fake.close().await;
    }
}

#[tokio::test]
async fn beats_idle_beats_and_kills() {
    let fake = fake(|_| Reply::Take).await;
    let client = client(patient());
    client.beat(fake.executor()).await.unwrap();
    client.idle_beat(fake.executor(), 7).await.unwrap();
    fake.set_busy(7, true);
    let busy = client.idle_beat(fake.executor(), 7).await.unwrap_err();
    assert_eq!(busy.refusal(), Some(Refusal::Busy));
    client.idle_beat(fake.executor(), 8).await.unwrap();
    client.kill(fake.executor(), 7).await.unwrap();
    client.kill(fake.executor(), -1).await.unwrap();
    assert_eq!((fake.beats_count(), fake.killed()), (1, vec![7, -1]));
}

#[tokio::test]
async fn without_an_answer_in_time_a_run_is_unknown_and_not_sent_again() {
    let fake = fake(|_| Reply::Hang).await;
    let (mut calls, mut call_timeout_ms) = (0, 200);
    // A busy machine may take longer than the first limits to send anything.
    let error = loop {
        let options = ClientOptions { connect_timeout_ms: call_timeout_ms / 2, call_timeout_ms, ..patient() };
        let error = client(options).run(fake.executor(), &run(1)).await.unwrap_err();
        calls += 1;
        if fake.runs_count() > 0 {
            break error;
        }
        call_timeout_ms *= 2;
    };
    assert!(matches!(error, CallError::Unknown { .. }) && !error.is_certain(), "{error}");
    assert!(fake.runs_count() <= calls);
    assert_eq!(fake.paths().into_keys().collect::<Vec<_>>(), ["/run"]);
}

#[tokio::test]
async fn a_connection_that_breaks_makes_a_run_unknown() {
    let fake = fake(|_| Reply::Reset).await;
    let error = client(patient()).run(fake.executor(), &run(1)).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown { .. }) && !error.is_certain(), "{error}");
    assert_eq!((fake.runs_count(), fake.paths().len()), (1, 1));
}

#[tokio::test]
async fn a_reset_on_a_kept_connection_is_unknown_too() {
    let fake = fake(|request| if request.log_id == 1 { Reply::Take } else { Reply::Reset }).await;
    let client = client(patient());
    client.run(fake.executor(), &run(1)).await.unwrap();
    let error = client.run(fake.executor(), &run(2)).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown { .. }), "{error}");
    assert_eq!((fake.runs_count(), fake.connections_count()), (2, 1));
}

#[tokio::test]
async fn what_never_left_is_certain() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = client(patient());
    for address in [closed.as_str(), "http://no-such-host.invalid:9999"] {
        let error = client.run(&at(address), &run(1)).await.unwrap_err();
        assert!(matches!(error, CallError::NotSent { .. }), "{error}");
        assert!(error.is_certain() && error.to_string().contains(address));
    }
}

#[tokio::test]
async fn no_request_goes_where_the_rules_do_not_permit_it() {
    let fake = fake(|_| Reply::Take).await;
    let port = fake.executor().address.as_str().rsplit(':').next().unwrap().to_owned();
    let rules = AddressRules::parse::<&str>(&[]).unwrap();
    let client = XxlClient::new(patient(), Some(&token()), rules).unwrap();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "169.254.169.254"] {
        let error = client.beat(&at(&format!("http://{host}:{port}"))).await.unwrap_err();
        let CallError::NotSent { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.contains("not allowed"), "{error}");
    }
    assert_eq!(fake.connections_count(), 0);
}

#[tokio::test]
async fn refusals_say_what_they_mean() {
    let fake = fake(|request| match request.log_id {
        1 => Reply::Refuse("block strategy effect：Discard Later".into()),
        2 => Reply::Refuse("repeate trigger job, logId:2".into()),
        3 => Reply::Refuse("job handler [echo] not found.".into()),
        _ => Reply::Refuse("x".repeat(10_000)),
    })
    .await;
    let client = client(patient());
    for (log_id, refusal) in
        [(1, Refusal::Blocked), (2, Refusal::Repeated), (3, Refusal::NoHandler), (4, Refusal::Other)]
    {
        let error = client.run(fake.executor(), &run(log_id)).await.unwrap_err();
        let CallError::Refused { code, msg, .. } = &error else { panic!("{error}") };
        assert_eq!((*code, error.refusal()), (500, Some(refusal)));
        assert!(msg.len() <= 2_000);
    }
    let other = AccessToken::new("another").unwrap();
    let other = XxlClient::new(patient(), Some(&other), here()).unwrap();
    for error in [other.run(fake.executor(), &run(9)).await, other.beat(fake.executor()).await] {
        assert_eq!(error.unwrap_err().refusal(), Some(Refusal::WrongToken));
    }
    assert_eq!(fake.runs_count(), 4);
}

#[tokio::test]
async fn what_stands_between_speaks_http() {
    let huge = format!(r#"{{"code":200,"msg":"{}"}}"#, "x".repeat(100_000));
    let answers: Vec<(u16, Bytes, Option<Option<Refusal>>)> = vec![
        (200, Bytes::from_static(br#"{"code":200,"msg":null,"content":null}"#), None),
        (200, Bytes::from_static(b"<html>fine</html>"), Some(None)),
        (200, Bytes::new(), Some(None)),
        (200, huge.into(), Some(None)),
        (204, Bytes::new(), Some(None)),
        (502, Bytes::from_static(b"bad gateway"), Some(None)),
        (503, Bytes::new(), Some(None)),
        (408, Bytes::new(), Some(None)),
        (413, Bytes::new(), Some(Some(Refusal::Other))),
        (302, Bytes::new(), Some(Some(Refusal::Other))),
        (404, Bytes::new(), Some(Some(Refusal::NoSuchCall))),
        (200, Bytes::from_static(br#"{"code":404,"msg":"no"}"#), Some(Some(Refusal::NoSuchCall))),
    ];
    for (status, body, expected) in answers {
        let answer = body.clone();
        let fake = fake(move |_| Reply::Raw(status, answer.clone())).await;
        let outcome = client(patient()).run(fake.executor(), &run(1)).await;
        let seen = outcome.as_ref().err().map(CallError::refusal);
        assert_eq!(seen, expected, "{status} {:?}: {outcome:?}", &body[..body.len().min(40)]);
        assert_eq!(fake.runs_count(), 1);
    }
}

#[tokio::test]
async fn an_executor_that_became_another_one_is_found_by_either_path() {
    let options = |generation| FakeOptions { generation, ..FakeOptions::new(app()) };
    let (old, new) = (
        FakeExecutor::start(options(Generation::Three)).await.unwrap(),
        FakeExecutor::start(options(Generation::Next)).await.unwrap(),
    );
    let client = client(patient());
    client.run(new.executor(), &run(1)).await.unwrap();
    client.run(old.executor(), &run(1)).await.unwrap();
    client.forget(&new.executor().address);
    client.run(new.executor(), &run(2)).await.unwrap();
    assert_eq!(new.paths()["/run"], 2);
    assert_eq!((new.runs_count(), old.runs_count()), (2, 1));
}

#[tokio::test]
async fn log_lines_have_a_limit_of_their_own() {
    let log_text = "line\n".repeat(15_000);
    let fake = FakeExecutor::start(FakeOptions { log_text: log_text.clone(), ..FakeOptions::new(app()) })
        .await
        .unwrap();
    let request = LogRequest { log_id: 1, log_date_time_ms: 1, from_line: 1 };
    let lines = client(patient()).log(fake.executor(), request).await.unwrap();
    assert!(lines.text == log_text && lines.to_line == 15_000);
    let narrow = ClientOptions { log_max_bytes: 64 << 10, ..patient() };
    let error = client(narrow).log(fake.executor(), request).await.unwrap_err();
    assert!(matches!(error, CallError::Unknown { .. }), "{error}");
}
