//! Who may call what, on both transports; and the access file while the process runs.

use crate::fixture::http::{JSON, bearer, channel, get, post, request, with};
use crate::fixture::{Keys, options, start, start_of_one_app, start_with, until};
use std::fs;
use tonic::Code;
use windfall_contract::Clock;
use windfall_edge::{AccessError, AccessSource, Role, mint_key};
use windfall_proto::v1;
use windfall_proto::v1::send_client::SendClient;
use windfall_proto::v1::tokens_client::TokensClient;

const PATHS: [(&str, Role); 68] = [
    ("/v1/bonuses/send", Role::Send),
    ("/v1/bonuses/send-batch", Role::Send),
    ("/v1/tokens/list", Role::Verify),
    ("/v1/tokens/verify", Role::Verify),
    ("/v1/rewards/grant", Role::Grant),
    ("/v1/rewards/grant-batch", Role::Grant),
    ("/v1/rewards/grant-async", Role::Grant),
    ("/v1/archive/list", Role::Observe),
    ("/v1/archive/get", Role::Observe),
    ("/v1/archive/replay", Role::Operate),
    ("/v1/budgets/list", Role::Observe),
    ("/v1/reserved/list", Role::Observe),
    ("/v1/reserved/release", Role::Operate),
    ("/v1/orders/get", Role::Observe),
    ("/v1/withdrawals/held", Role::Observe),
    ("/v1/ledger/mark", Role::Observe),
    ("/v1/ledger/accept", Role::Operate),
    ("/v1/statements/get", Role::Observe),
    ("/v1/withdrawals/list", Role::Observe),
    ("/v1/acts/propose", Role::Operate),
    ("/v1/acts/list", Role::Observe),
    ("/v1/acts/get", Role::Observe),
    ("/v1/acts/approve", Role::Approve),
    ("/v1/acts/refuse", Role::Operate),
    ("/v1/acts/survey", Role::Observe),
    ("/v1/acts/carry-out", Role::Approve),
    ("/v1/payouts/list", Role::PayOut),
    ("/v1/payouts/acknowledge", Role::PayOut),
    ("/v1/wallet/get", Role::Verify),
    ("/v1/wallet/withdraw", Role::Withdraw),
    ("/v1/timers/add", Role::Schedule),
    ("/v1/timers/add-batch", Role::Schedule),
    ("/v1/timers/update", Role::Schedule),
    ("/v1/timers/cancel", Role::Schedule),
    ("/v1/timers/cancel-batch", Role::Schedule),
    ("/v1/timers/get", Role::Schedule),
    ("/v1/timers/list", Role::Schedule),
    ("/v1/timers/dead/list", Role::Schedule),
    ("/v1/timers/dead/end", Role::Schedule),
    ("/v1/backfills/start", Role::Operate),
    ("/v1/backfills/get", Role::Observe),
    ("/v1/backfills/cancel", Role::Operate),
    ("/v1/audits/get", Role::Observe),
    ("/v1/audits/differences/list", Role::Observe),
    ("/v1/audits/differences/mark", Role::Operate),
    ("/v1/audits/statements/begin", Role::Operate),
    ("/v1/audits/statements/append", Role::Operate),
    ("/v1/audits/statements/compare", Role::Operate),
    ("/v1/audits/statements/list", Role::Observe),
    ("/v1/jobs/put", Role::Schedule),
    ("/v1/jobs/put-many", Role::Schedule),
    ("/v1/jobs/get", Role::Schedule),
    ("/v1/jobs/list", Role::Schedule),
    ("/v1/jobs/versions", Role::Schedule),
    ("/v1/jobs/set-paused", Role::Schedule),
    ("/v1/jobs/remove", Role::Schedule),
    ("/v1/jobs/run", Role::Schedule),
    ("/v1/jobs/runs/list", Role::Schedule),
    ("/v1/jobs/runs/get", Role::Schedule),
    ("/v1/jobs/runs/again", Role::Schedule),
    ("/v1/jobs/runs/kill", Role::Schedule),
    ("/v1/jobs/runs/log", Role::Schedule),
    ("/v1/jobs/runs/dead", Role::Schedule),
    ("/v1/jobs/executors/list", Role::Schedule),
    ("/v1/jobs/executors/register", Role::Schedule),
    ("/v1/jobs/executors/unregister", Role::Schedule),
    ("/v1/jobs/runs/report", Role::Schedule),
    ("/v1/jobs/preview", Role::Schedule),
];

/// Who may change what operators change may also look at it; no other role includes one.
fn includes(role: Role, needed: Role) -> bool {
    role == needed || (role, needed) == (Role::Operate, Role::Observe)
}

#[tokio::test]
async fn a_key_reaches_the_paths_of_its_role_and_no_other() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    for (path, needed) in PATHS {
        for role in Role::ALL {
            let reply = post(address, path, running.keys.of(role), "{}").await;
            if !includes(role, needed) {
                assert_eq!(
                    (reply.status, reply.code().as_str()),
                    (403, "PERMISSION_DENIED"),
                    "{role} {path}"
                );
            } else if path == "/v1/tokens/list" {
                // It asks for an end user, whom this call does not name.
                assert_eq!((reply.status, reply.code().as_str()), (401, "UNAUTHENTICATED"), "{role} {path}");
            } else {
                assert_eq!(reply.status, 200, "{role} {path} {reply:?}");
            }
        }
    }
}

/// What an access file of the release before gives its callers, it gives them still: each path by the role that it needed
/// then.
#[tokio::test]
async fn an_access_file_of_the_release_before_still_reaches_what_it_reached() {
    let keys = Keys::mint();
    let text = keys.access_text().replace("version = 2\n", "");
    let access = windfall_edge::Access::parse(&text).unwrap();
    let running = start_with(options(), keys, AccessSource::fixed(access, Clock::system()).unwrap()).await;
    let address = running.server.address();
    for (path, needed) in PATHS.iter().filter(|(path, _)| *path != "/v1/tokens/list") {
        let before = match needed {
            Role::Observe => Role::Operate,
            Role::Withdraw => Role::Verify,
            same => *same,
        };
        let reply = post(address, path, running.keys.of(before), "{}").await;
        assert_eq!(reply.status, 200, "{before} {path} {reply:?}");
    }
    assert_eq!(get(address, "/metrics", running.keys.of(Role::Operate)).await.status, 200);
}

/// The paths that a server answers, with the role that its own document names.
fn paths_and_roles(document: &serde_json::Value) -> Vec<(String, String, String)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .map(|(path, item)| {
            let of = |name: &str| item["post"][name].as_str().unwrap().to_owned();
            let role =
                of("description").rsplit_once("\n\nRole: ").unwrap().1.trim_end_matches('.').to_owned();
            (path.clone(), of("operationId").replace('_', "/"), role)
        })
        .collect()
}

/// The calls and their roles in the documentation are those that are served.
#[tokio::test]
async fn the_documentation_lists_every_call_with_its_role() {
    const BEGIN: &str = "<!-- calls: made from the code; `WINDFALL_WRITE_DOCS=1` writes it anew -->\n";
    const END: &str = "<!-- end of calls -->\n";
    let running = start(options(), "", Clock::system()).await;
    let document = get(running.server.address(), "/openapi.json", &running.keys.send.text).await.json();
    let calls = paths_and_roles(&document);
    let known: std::collections::BTreeMap<&str, &str> =
        PATHS.iter().map(|(path, role)| (*path, role.name())).collect();
    assert_eq!(known.len(), calls.len());
    let mut expected = String::from("| HTTP (POST) | gRPC method | role of the caller |\n|---|---|---|\n");
    for (path, method, role) in &calls {
        assert_eq!(known.get(path.as_str()), Some(&role.as_str()), "{path}");
        expected.push_str(&format!("| `{path}` | `{method}` | {role} |\n"));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/services.md");
    let text = fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("docs/services.md has no list of calls");
    let (found, after) = rest.split_once(END).expect("the list of calls has no end");
    if std::env::var_os("WINDFALL_WRITE_DOCS").is_some() {
        fs::write(file, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert!(found == expected, "docs/services.md has\n{found}\nand the code\n{expected}");
}

/// A caller of an app that is not served here gets nothing, whatever its roles: on every method that is mounted, on both
/// transports, and on what is no method.
#[tokio::test]
async fn a_caller_of_another_app_reaches_nothing() {
    let (keys, foreign) = (Keys::mint(), mint_key().unwrap());
    let roles: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
    let text = format!(
        "{}[[caller]]\nname = \"stranger\"\ntenant = \"elsewhere\"\nroles = {roles:?}\nmay_name_users = true\n\
         timers_of = [\"windfall\"]\nkey_sha256 = \"{}\"\n",
        keys.access_text(),
        foreign.sha256
    );
    let access = windfall_edge::Access::parse(&text).unwrap();
    let running = start_of_one_app(keys, AccessSource::fixed(access, Clock::system()).unwrap()).await;
    let address = running.server.address();
    let document = get(address, "/openapi.json", &running.keys.send.text).await.json();
    let calls = paths_and_roles(&document);
    assert_eq!(calls.len(), PATHS.len(), "every method of every service is mounted");
    let key = bearer(&foreign.text);
    let headers = [("authorization", key.as_str()), ("x-windfall-user", "42"), JSON];
    let channel = channel(address).await;
    for (path, method, _) in &calls {
        let reply = request(address, "POST", path, &headers, "{}").await;
        assert_eq!((reply.status, reply.code().as_str()), (403, "PERMISSION_DENIED"), "{path}");
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = format!("/windfall.v1.{method}").parse().unwrap();
        let asked = with((), &headers[..2]);
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let refused = grpc.unary(asked, path, codec).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{method}");
        assert!(refused.message().contains("is not served here"), "{refused}");
    }
    for path in ["/metrics", "/openapi.json"] {
        let reply = get(address, path, &foreign.text).await;
        assert_eq!((reply.status, reply.code().as_str()), (403, "PERMISSION_DENIED"), "{path}");
    }
    assert!(running.fake.calls.lock().is_empty(), "no service has seen a call");
    let refused = running.metric("windfall_edge_refused_calls_total{reason=\"other_tenant\"}");
    assert_eq!(refused, f64::from(u32::try_from(2 * PATHS.len() + 2).unwrap()));
}

#[tokio::test]
async fn grpc_has_the_same_roles() {
    let running = start(options(), "", Clock::system()).await;
    let channel = channel(running.server.address()).await;
    for role in Role::ALL {
        let key = bearer(running.keys.of(role));
        let key = [("authorization", key.as_str())];
        let send = SendClient::new(channel.clone()).send_bonus(with(Default::default(), &key)).await;
        let verify = TokensClient::new(channel.clone()).verify_tokens(with(Default::default(), &key)).await;
        let grant = v1::rewards_client::RewardsClient::new(channel.clone());
        let grant = { grant }.grant(with(Default::default(), &key)).await;
        let list = v1::archive_client::ArchiveClient::new(channel.clone());
        let list = { list }.list_budgets(with(Default::default(), &key)).await;
        let wallet = v1::wallet_client::WalletClient::new(channel.clone());
        let wallet = { wallet }.withdraw(with(Default::default(), &key)).await;
        let payouts = v1::payouts_client::PayoutsClient::new(channel.clone());
        let payouts = { payouts }.list_to_pay_out(with(Default::default(), &key)).await;
        let timers = v1::timers_client::TimersClient::new(channel.clone());
        let timers = { timers }.list(with(Default::default(), &key)).await;
        let codes = [
            (Role::Send, send.err()),
            (Role::Verify, verify.err()),
            (Role::Grant, grant.err()),
            (Role::Observe, list.err()),
            (Role::Withdraw, wallet.err()),
            (Role::PayOut, payouts.err()),
            (Role::Schedule, timers.err()),
        ];
        for (needed, error) in codes {
            let expected = (!includes(role, needed)).then_some(Code::PermissionDenied);
            assert_eq!(error.map(|error| error.code()), expected, "{role} where {needed} is needed");
        }
    }
}

#[tokio::test]
async fn timers_are_those_of_the_callers_app_or_of_a_tenant_that_the_access_file_names() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    for (named, acted_for) in [("", "windfall"), ("windfall", "windfall"), ("calls", "calls")] {
        let body = format!("{{\"tenant\": {named:?}}}");
        let reply = post(address, "/v1/timers/add", running.keys.of(Role::Schedule), &body).await;
        assert_eq!((reply.status, &reply.json()["id"]), (200, &acted_for.into()), "{named}");
    }
    let reply =
        post(address, "/v1/timers/add", running.keys.of(Role::Schedule), r#"{"tenant": "other"}"#).await;
    assert_eq!((reply.status, reply.code().as_str()), (403, "PERMISSION_DENIED"));
    assert!(reply.json()["message"].as_str().unwrap().contains("timers_of"), "{reply:?}");
}

#[tokio::test]
async fn without_a_good_key_nothing_answers_but_health() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    let good = bearer(&running.keys.send.text);
    let other = bearer(&mint_key().unwrap().text);
    let hash = bearer(&running.keys.send.sha256);
    let basic = format!("Basic {}", running.keys.send.text);
    let wrong: [&[(&str, &str)]; 7] = [
        &[],
        &[("authorization", &other)],
        &[("authorization", &hash)],
        &[("authorization", &basic)],
        &[("authorization", "Bearer ")],
        &[("authorization", &good), ("authorization", &good)],
        &[("authorization", &good), ("authorization", &other)],
    ];
    let channel = channel(address).await;
    for headers in wrong {
        for path in ["/v1/bonuses/send", "/nothing", "/openapi.json", "/metrics"] {
            let headers: Vec<_> = headers.iter().copied().chain([JSON]).collect();
            let reply = request(address, "POST", path, &headers, "{}").await;
            assert_eq!((reply.status, reply.code().as_str()), (401, "UNAUTHENTICATED"), "{path} {headers:?}");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
        let sent = SendClient::new(channel.clone()).send_bonus(with(Default::default(), headers)).await;
        assert_eq!(sent.unwrap_err().code(), Code::Unauthenticated, "{headers:?}");
    }
    assert!(running.fake.calls.lock().is_empty());
    for path in ["/health/live", "/health/ready"] {
        assert_eq!(request(address, "GET", path, &[], "").await.status, 200);
    }
    assert!(running.metric("windfall_edge_refused_calls_total{reason=\"no_caller\"}") >= 35.0);
}

#[tokio::test]
async fn metrics_are_for_who_observes_and_the_document_for_any_caller() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    assert_eq!(get(address, "/metrics", &running.keys.send.text).await.status, 403);
    assert_eq!(get(address, "/metrics", &running.keys.observe.text).await.status, 200);
    let metrics = get(address, "/metrics", &running.keys.operate.text).await;
    assert!(metrics.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(
        metrics.body.contains("windfall_edge_refused_calls_total{reason=\"no_role\"} 1"),
        "{}",
        metrics.body
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    assert_eq!(get(address, "/openapi.json", &running.keys.send.text).await.status, 200);
}

/// Headers, and the user or the refusal that they lead to.
type Case<'a> = (&'a [(&'a str, &'a str)], Result<&'a str, (u16, Code)>);

#[tokio::test]
async fn a_trusted_front_names_users_and_nobody_else_does() {
    let running = start(options(), "", Clock::system()).await;
    let address = running.server.address();
    let (front, verify) = (bearer(&running.keys.front.text), bearer(&running.keys.verify.text));
    let channel = channel(address).await;
    let cases: [Case<'_>; 8] = [
        (&[("authorization", &front), ("x-windfall-user", "42")], Ok("42")),
        (&[("authorization", &verify), ("x-windfall-user", "42")], Err((403, Code::PermissionDenied))),
        (
            &[("authorization", &front), ("x-windfall-user", "42"), ("x-windfall-user", "43")],
            Err((401, Code::Unauthenticated)),
        ),
        (
            &[("authorization", &verify), ("x-windfall-user", "42"), ("x-windfall-user", "42")],
            Err((403, Code::PermissionDenied)),
        ),
        (
            &[("authorization", &front), ("x-windfall-user", "42"), ("x-windfall-user-token", "a.b.c")],
            Err((401, Code::Unauthenticated)),
        ),
        (&[("authorization", &front), ("x-windfall-user", "alice")], Err((401, Code::Unauthenticated))),
        (&[("authorization", &front), ("x-windfall-user", "42, 43")], Err((401, Code::Unauthenticated))),
        (&[("authorization", &front), ("x_windfall_user", "42")], Err((401, Code::Unauthenticated))),
    ];
    for (headers, expected) in cases {
        let all: Vec<_> = headers.iter().copied().chain([JSON]).collect();
        let reply = request(address, "POST", "/v1/tokens/list", &all, "{}").await;
        let listed = TokensClient::new(channel.clone()).list_tokens(with(Default::default(), headers)).await;
        match expected {
            Ok(user) => {
                assert_eq!(reply.json()["next_page_token"], user, "{reply:?}");
                assert_eq!(listed.unwrap().get_ref().next_page_token, user);
            }
            Err((status, code)) => {
                assert_eq!(reply.status, status, "{headers:?} {reply:?}");
                assert_eq!(listed.unwrap_err().code(), code, "{headers:?}");
            }
        }
    }
    assert!(running.fake.calls.lock().iter().all(|call| call.user_id.is_none_or(|user| user == 42)));
}

#[tokio::test]
async fn a_user_in_the_body_is_no_user() {
    let running = start(options(), "", Clock::system()).await;
    let (address, key) = (running.server.address(), &running.keys.verify.text);
    for body in [r#"{"user_id": 42}"#, r#"{"user": {"user_id": "42"}}"#] {
        let reply = post(address, "/v1/tokens/list", key, body).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "INVALID_ARGUMENT"));
        assert!(reply.json()["message"].as_str().unwrap().contains("unknown field"), "{reply:?}");
    }
}

#[tokio::test]
async fn a_sampled_trace_reaches_the_service() {
    let running = start(options(), "", Clock::system()).await;
    let key = bearer(&running.keys.send.text);
    for flags in ["01", "00"] {
        let trace = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        let headers = [("authorization", key.as_str()), JSON, ("traceparent", &trace)];
        request(running.server.address(), "POST", "/v1/bonuses/send", &headers, "{}").await;
    }
    let traces: Vec<_> = running.fake.calls.lock().iter().map(|call| call.trace_id).collect();
    assert_eq!(traces, [Some(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes()), None]);
}

#[tokio::test]
async fn the_access_file_is_followed_and_a_wrong_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.toml");
    let (old, new) = (Keys::mint(), Keys::mint());
    fs::write(&path, old.access_text()).unwrap();
    let access = AccessSource::follow(&path, Clock::system()).unwrap();
    let (old_key, new_key) = (old.send.text.clone(), new.send.text.clone());
    let running = start_with(options(), old, access).await;
    let address = running.server.address();
    let status = async |key: &str| post(address, "/v1/bonuses/send", key, "{}").await.status;
    assert_eq!((status(&old_key).await, status(&new_key).await), (200, 401));

    fs::write(&path, new.access_text()).unwrap();
    until("the new file is in force", async || status(&new_key).await == 200).await;
    assert_eq!(status(&old_key).await, 401);
    assert_eq!((running.access.changes(), running.access.refused()), (1, 0));

    let version = running.access.version();
    fs::write(&path, format!("{}roles = [\"admin\"]", new.access_text())).unwrap();
    until("the wrong file is refused", async || running.access.refused() == 1).await;
    fs::remove_file(&path).unwrap();
    until("the missing file is refused", async || running.access.refused() == 2).await;
    assert_eq!((status(&new_key).await, running.access.version()), (200, version));
    assert_eq!(running.metric("windfall_edge_access_refused_total"), 2.0);
}

#[tokio::test]
async fn a_process_does_not_start_with_a_wrong_access_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.toml");
    assert!(matches!(AccessSource::follow(&path, Clock::system()), Err(AccessError::Read { .. })));
    fs::write(&path, "[[caller]]\nname = \"a\"\n").unwrap();
    let error = AccessSource::follow(&path, Clock::system()).unwrap_err();
    assert!(error.to_string().starts_with("line 1: "), "{error}");
}
