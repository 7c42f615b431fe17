//! The services by gRPC, from outside: every call by `windfall-client`, by the generated stubs where the client has none,
//! and every documented error.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use windfall_client::{
    ArchiveClient, CallError, ClientOptions, EndUser, GatewayClient, RewardsClient, SendBonus, SendError,
    TokensClient, WalletClient, WithdrawError,
};
use windfall_config::LiveRules;
use windfall_contract::Clock;
use windfall_contract::broker::Broker;
use windfall_proto::order::AMOUNT_MAX;
use windfall_proto::v1::{self, Bonus, BonusEvent, SendBonusRequest, User};
use windfall_proto::v1::{FlowKind, GrantOutcome, TokenVerdict, WithdrawOutcome};
use windfall_queue_embedded::{EmbeddedBroker, EmbeddedOptions};
use windfall_queue_virtual::{Fanout, FanoutOptions};
use windfall_sdk::{Sdk, SdkOptions, SdkParts, SpoolMode};
use windfall_tests::{Service, scratch};
use windfall_token::KeyRing;

const USER: i64 = 42;
const PATIENCE: Duration = Duration::from_secs(60);
/// Coins are held in their lanes, so their tokens stay VALID; stamps go nowhere.
const RULES: &str = r#"version = 1
types = ["cash", "coin"]
[topics]
cash-a = { broker = "a", partitions = 2 }
cash-b = { broker = "b", partitions = 2 }
coins-a = { broker = "a", partitions = 1 }
coins-b = { broker = "b", partitions = 1 }
[queues.cash]
master = "cash-a"
backup = "cash-b"
ratio = 90
[queues.coins]
master = "coins-a"
backup = "coins-b"
ratio = 90
[[routes]]
type = "cash"
queue = "cash"
requeue = ["cash"]
[[routes]]
type = "coin"
queue = "coins"
requeue = ["coins"]
[limits.global]
rate_per_s = 100000
burst = 10000
[limits.default]
rate_per_s = 50000
burst = 5000
[limits.types.coin]
rate_per_s = 0
burst = 1
[end]
"#;

/// Of each service, with the key that it takes.
struct Clients {
    send: GatewayClient,
    tokens: TokensClient,
    wallet: WalletClient,
    rewards: RewardsClient,
    archive: ArchiveClient,
}

impl Clients {
    fn open(service: &Service) -> Self {
        Self {
            send: GatewayClient::open(options(service, "activity")).unwrap(),
            tokens: TokensClient::open(options(service, "wallet-front")).unwrap(),
            wallet: WalletClient::open(options(service, "wallet-front")).unwrap(),
            rewards: RewardsClient::open(options(service, "grants")).unwrap(),
            archive: ArchiveClient::open(options(service, "operator")).unwrap(),
        }
    }

    async fn look(&self, user_id: i64) -> v1::GetWalletReply {
        self.wallet.get(EndUser::Named(user_id), v1::GetWalletRequest::default()).await.unwrap()
    }

    async fn credited(&self, user_id: i64, bonus_type: &str) -> i64 {
        let balances = self.look(user_id).await.balances;
        balances.iter().find(|one| one.bonus_type == bonus_type).map_or(0, |one| one.credited)
    }
}

fn options(service: &Service, caller: &str) -> ClientOptions {
    ClientOptions {
        endpoints: vec![service.url()],
        bearer_key: service.keys.get(caller).cloned(),
        attempts: 1,
        attempt_timeout_ms: 60_000,
        connect_timeout_ms: 60_000,
        ..ClientOptions::default()
    }
}

fn request(trade_no: &str, user_id: i64, bonus_type: &str, amount: i64) -> SendBonusRequest {
    SendBonusRequest {
        trade_no: trade_no.into(),
        user: Some(User { user_id, ..User::default() }),
        activity: "spring-2027".into(),
        scene: "red-packet-rain".into(),
        bonus: Some(Bonus { r#type: bonus_type.into(), amount, description: "red packet".into() }),
        ..SendBonusRequest::default()
    }
}

fn event(trade_no: &str, user_id: i64, bonus_type: &str, amount: i64) -> BonusEvent {
    let SendBonusRequest { trade_no, user, activity, scene, bonus, .. } =
        request(trade_no, user_id, bonus_type, amount);
    BonusEvent { trade_no, user, activity, scene, bonus, ..BonusEvent::default() }
}

fn withdrawal(id: &str, bonus_type: &str, amount: i64) -> v1::WithdrawRequest {
    v1::WithdrawRequest { withdrawal_id: id.into(), bonus_type: bonus_type.into(), amount, tokens: vec![] }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < until, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_and_every_error() {
    let dir = scratch();
    let (rules, file) = (dir.path().join("rules.toml"), dir.path().join("options.toml"));
    std::fs::write(&rules, RULES).unwrap();
    std::fs::write(&file, format!("rules = {{ file = {:?} }}\n", rules.display().to_string())).unwrap();
    let words = ["serve", "--dev", "--listen", "127.0.0.1:0", "--config"].map(OsStr::new);
    let words = words.into_iter().chain([file.as_os_str(), OsStr::new("--data")]);
    let service = Service::start(words, dir.path().join("data").as_os_str());
    let clients = Clients::open(&service);

    send_by_either(&clients, &dir.path().join("sdk")).await;
    tokens_and_wallet(&clients).await;
    grants(&clients, &service).await;
    archive_and_budgets(&clients).await;
    errors_of_callers(&service).await;
    errors_of_calls(&clients, &service).await;
    sums_out_of_range(&clients, &service).await;

    let ended = service.stop();
    assert_eq!(ended.code, Some(0), "{ended}");
    let gone = clients.send.send_bonus(request("gone", USER, "cash", 1)).await;
    assert!(matches!(gone, Err(SendError::Unanswered(_))), "nobody is there: {gone:?}");
}

/// The activity service's own code. It knows the trait alone.
async fn give(sender: &impl SendBonus, round: u32) -> Result<String, SendError> {
    let request = request(&format!("rain:{round}:{USER}"), USER, "cash", 888);
    Ok(sender.send_bonus(request).await?.token)
}

/// In process and over the wire: the constructor is all that differs, and errors mean the same.
async fn send_by_either(clients: &Clients, dir: &Path) {
    let broker = |name: &str| {
        let broker = EmbeddedBroker::open(&dir.join(name), &EmbeddedOptions::default()).unwrap();
        (name.to_owned(), broker as Arc<dyn Broker>)
    };
    let brokers = BTreeMap::from(["a", "b"].map(broker));
    let (rules, clock) =
        (LiveRules::fixed(windfall_config::parse_rules(RULES, None).unwrap()), Clock::system());
    let fanout = Fanout::open(&rules.current(), brokers, FanoutOptions::default(), clock.clone()).unwrap();
    let parts = SdkParts {
        spool: SpoolMode::Process(dir.join("spool")),
        keys: KeyRing::ephemeral().unwrap(),
        signer: None,
        rules,
        fanout: Arc::new(fanout),
        tokens: None,
        clock,
    };
    let (in_process, _) = Sdk::init(SdkOptions::default(), parts).unwrap();
    let over_the_wire = &clients.send;

    let tokens = [give(&in_process, 1).await.unwrap(), give(over_the_wire, 1).await.unwrap()];
    assert!(tokens.iter().all(|token| token.len() > 100), "{tokens:?}");
    let wrong = [
        request("", USER, "cash", 1),
        request("a b", USER, "cash", 1),
        request("n", USER, "cash", 0),
        request("n", USER, "cash", AMOUNT_MAX + 1),
        request("n", 0, "cash", 1),
        request("n", USER, "stamp", 1),
        SendBonusRequest {
            user: Some(User { user_id: USER, app_id: "b".into(), ..User::default() }),
            ..request("n", USER, "cash", 1)
        },
    ];
    for wrong in wrong {
        let own = SendBonus::send_bonus(&in_process, wrong.clone()).await.unwrap_err();
        let theirs = over_the_wire.send_bonus(wrong.clone()).await.unwrap_err();
        assert_eq!(own.is_worth_retrying(), theirs.is_worth_retrying(), "{wrong:?}: {own} or {theirs}");
        assert!(matches!(theirs, SendError::Refused(_) | SendError::NoRoute { .. }), "{theirs:?}");
    }
    assert_eq!(in_process.close(PATIENCE).await.packs_left, 0);

    let batch =
        vec![request("b:1", USER, "cash", 1), request("", USER, "cash", 1), request("b:2", USER, "cash", 2)];
    let answers = clients.send.send_bonus_batch(batch).await;
    assert!(matches!(answers[..], [Ok(_), Err(SendError::Refused(_)), Ok(_)]), "{answers:?}");
    until("all of it arrives", async || clients.credited(USER, "cash").await == 888 + 3).await;
}

async fn tokens_and_wallet(clients: &Clients) {
    for nth in 0..5 {
        clients.send.send_bonus(request(&format!("coin:{nth}"), USER, "coin", 10)).await.unwrap();
    }
    let list = async |page_token: String| {
        let page = v1::ListTokensRequest { activity: "spring-2027".into(), page_size: 2, page_token };
        clients.tokens.list(EndUser::Named(USER), page).await.unwrap()
    };
    let mut held: Vec<v1::HeldToken> = Vec::new();
    until("five are listed", async || {
        held.clear();
        let mut page_token = String::new();
        loop {
            let page = list(page_token).await;
            assert!(page.tokens.len() <= 2, "{page:?}");
            held.extend(page.tokens);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return held.len() == 5;
            }
        }
    })
    .await;
    let orders: Vec<_> = held.iter().map(|one| one.content.as_ref().unwrap().trade_no.clone()).collect();
    assert_eq!(orders, ["coin:0", "coin:1", "coin:2", "coin:3", "coin:4"]);

    let texts: Vec<String> = held.iter().map(|one| one.token.clone()).chain(["AQAB".to_owned()]).collect();
    let verified = clients.tokens.verify(EndUser::Named(USER), texts.clone()).await.unwrap();
    let verdicts: Vec<_> = verified.iter().map(v1::VerifiedToken::verdict).collect();
    assert_eq!(verdicts, [[TokenVerdict::Valid; 5].as_slice(), &[TokenVerdict::Illegal]].concat());
    assert_eq!(verified[0].content.as_ref().unwrap().amount, 10);
    let theirs = clients.tokens.verify(EndUser::Named(43), texts.clone()).await.unwrap();
    assert!(theirs.iter().all(|one| one.verdict() == TokenVerdict::Illegal), "{theirs:?}");

    let wallet = clients.look(USER).await;
    assert!(wallet.tokens_complete, "{wallet:?}");
    let coins = wallet.balances.iter().find(|one| one.bonus_type == "coin").unwrap();
    assert_eq!((coins.credited, coins.pending, coins.total), (0, 50, 50));
    assert_eq!(wallet.flow.iter().filter(|line| line.kind() == FlowKind::Pending).count(), 5);

    // What is on its way is credited as far as it takes, and paid once.
    let asked = v1::WithdrawRequest { tokens: texts, ..withdrawal("c-1", "coin", 25) };
    let paid = clients.wallet.withdraw(EndUser::Named(USER), asked.clone()).await.unwrap();
    assert_eq!((paid.outcome(), paid.credited_tokens, paid.balance), (WithdrawOutcome::ToPayOut, 3, 5));
    let again = clients.wallet.withdraw(EndUser::Named(USER), asked.clone()).await.unwrap();
    assert_eq!((again.outcome(), again.balance), (WithdrawOutcome::ToPayOut, 5));
    let taken = v1::WithdrawRequest { amount: 24, ..asked };
    let taken = clients.wallet.withdraw(EndUser::Named(USER), taken).await;
    assert!(matches!(taken, Err(WithdrawError::Taken(_))), "{taken:?}");
    let short = clients.wallet.withdraw(EndUser::Named(USER), withdrawal("c-2", "coin", 26)).await;
    assert!(matches!(short, Err(WithdrawError::Short(_))), "{short:?}");
}

async fn grants(clients: &Clients, service: &Service) {
    let outcomes = |replies: Vec<v1::GrantReply>| -> Vec<GrantOutcome> {
        replies.iter().map(v1::GrantReply::outcome).collect()
    };
    let batch = vec![
        event("g:1", 7, "cash", 5),
        event("g:1", 7, "cash", 5),
        event("g:1", 7, "cash", 6),
        event("g:2", 7, "coin", 1),
        event("", 7, "cash", 1),
    ];
    let replies = outcomes(clients.rewards.grant_batch(batch).await.unwrap());
    let (credited, already) = (GrantOutcome::Credited, GrantOutcome::AlreadyCredited);
    assert_eq!(replies, [credited, already, GrantOutcome::Conflict, credited, GrantOutcome::Rejected]);
    let later: Vec<_> = (0..100).map(|nth| event(&format!("l:{nth}"), 8, "cash", 2)).collect();
    let replies = outcomes(clients.rewards.grant_async(later).await.unwrap());
    assert!(replies.iter().all(|one| matches!(one, GrantOutcome::Accepted | GrantOutcome::AlreadyCredited)));
    until("they are credited later", async || clients.credited(8, "cash").await == 200).await;

    // The client has no call for a single one.
    let mut stub = v1::rewards_client::RewardsClient::new(channel(service).await);
    let one = v1::GrantRequest { event: Some(event("g:3", 7, "cash", 1)) };
    let granted = stub.grant(with(one, service.keys.get("grants"), None)).await.unwrap();
    assert_eq!(granted.into_inner().outcome(), credited);
}

async fn archive_and_budgets(clients: &Clients) {
    let conflicts = v1::ListArchiveRequest { reason: "conflict".into(), open: true, ..Default::default() };
    let listed = clients.archive.list(conflicts).await.unwrap();
    let [entry] = &listed.entries[..] else { panic!("one conflict: {listed:?}") };
    assert_eq!((entry.trade_no.as_str(), listed.next_after), ("g:1", 0));
    let replayed = clients.archive.replay(entry.id, "ann".into()).await.unwrap();
    assert_eq!(replayed.outcome(), GrantOutcome::Conflict, "a conflict stays one");
    let one = clients.archive.get(entry.id).await.unwrap();
    assert!(!one.payload.is_empty() && one.replays.last().unwrap().actor.contains("ann"), "{one:?}");
    let budgets = clients.archive.budgets().await.unwrap();
    assert!(budgets.iter().any(|line| line.bonus_type == "cash" && line.used > 0), "{budgets:?}");
}

async fn channel(service: &Service) -> Channel {
    Channel::from_shared(service.url()).unwrap().connect().await.unwrap()
}

fn with<T>(message: T, key: Option<&String>, user_id: Option<i64>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(key) = key {
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    }
    if let Some(user_id) = user_id {
        request.metadata_mut().insert("x-windfall-user", user_id.into());
    }
    request
}

/// The code of each method, called with empty messages.
async fn codes(channel: &Channel, key: Option<&String>, user_id: Option<i64>) -> Vec<(&'static str, Code)> {
    macro_rules! codes {
        ($($client:ident :: $stub:ident . $method:ident)*) => {
            vec![$({
                let mut stub = v1::$client::$stub::new(channel.clone());
                let answer = stub.$method(with(Default::default(), key, user_id)).await;
                (stringify!($method), answer.err().map_or(Code::Ok, |status: Status| status.code()))
            }),*]
        };
    }
    codes! {
        send_client::SendClient.send_bonus
        send_client::SendClient.send_bonus_batch
        tokens_client::TokensClient.list_tokens
        tokens_client::TokensClient.verify_tokens
        wallet_client::WalletClient.get_wallet
        wallet_client::WalletClient.withdraw
        rewards_client::RewardsClient.grant
        rewards_client::RewardsClient.grant_batch
        rewards_client::RewardsClient.grant_async
        archive_client::ArchiveClient.list_archive
        archive_client::ArchiveClient.get_archived
        archive_client::ArchiveClient.replay_archived
        archive_client::ArchiveClient.list_budgets
        archive_client::ArchiveClient.list_reserved
        archive_client::ArchiveClient.release_reserved
        archive_client::ArchiveClient.get_order
        archive_client::ArchiveClient.list_held
        archive_client::ArchiveClient.get_ledger_mark
        archive_client::ArchiveClient.accept_ledger
        acts_client::ActsClient.propose_act
        acts_client::ActsClient.list_acts
        acts_client::ActsClient.get_act
        acts_client::ActsClient.approve_act
        acts_client::ActsClient.refuse_act
        archive_client::ArchiveClient.get_statement
        archive_client::ArchiveClient.list_withdrawals
    }
}

/// Of each method: without a key, with a wrong one, without the role, without a user, with a user who may not be named.
async fn errors_of_callers(service: &Service) {
    let channel = channel(service).await;
    let wrong = format!("wfk_{}", "A".repeat(43));
    for key in [None, Some(&wrong), Some(&String::new())] {
        for (method, code) in codes(&channel, key, None).await {
            assert_eq!(code, Code::Unauthenticated, "{method} with the key {key:?}");
        }
    }
    // Which methods each caller may call; the approver looks, too.
    let owners: [(&str, Vec<usize>); 5] = [
        ("activity", (0..2).collect()),
        ("wallet-front", (2..6).collect()),
        ("grants", (6..9).collect()),
        ("operator", (9..22).chain(23..26).collect()),
        ("approver", vec![9, 10, 12, 13, 15, 16, 17, 20, 21, 22, 24, 25]),
    ];
    for (caller, own) in owners {
        let key = service.keys.get(caller);
        for (at, (method, code)) in codes(&channel, key, None).await.into_iter().enumerate() {
            let is_own = own.contains(&at);
            assert_eq!(code != Code::PermissionDenied, is_own, "{method} by {caller}: {code:?}");
            if (2..6).contains(&at) && is_own {
                assert_eq!(code, Code::Unauthenticated, "{method} for nobody");
            }
        }
        if caller != "wallet-front" {
            for (method, code) in codes(&channel, key, Some(USER)).await {
                assert_eq!(code, Code::PermissionDenied, "{method}: {caller} may not name users");
            }
        }
    }
}

async fn errors_of_calls(clients: &Clients, service: &Service) {
    let channel = channel(service).await;
    let key = |caller: &str| service.keys.get(caller);
    let mut send = v1::send_client::SendClient::new(channel.clone());
    let mut codes_of = Vec::new();
    let foreign = User { user_id: USER, app_id: "elsewhere".into(), ..User::default() };
    for wrong in [
        SendBonusRequest::default(),
        request("e", USER, "Cash", 1),
        request("e", USER, "cash", -1),
        SendBonusRequest { user: Some(foreign.clone()), ..request("e", USER, "cash", 1) },
        request("e", USER, "stamp", 1),
    ] {
        codes_of.push(send.send_bonus(with(wrong, key("activity"), None)).await.unwrap_err().code());
    }
    let (invalid, denied) = (Code::InvalidArgument, Code::PermissionDenied);
    assert_eq!(codes_of, [invalid, invalid, invalid, denied, Code::FailedPrecondition]);
    let batch = v1::SendBonusBatchRequest { requests: vec![SendBonusRequest::default(); 513] };
    let refused = send.send_bonus_batch(with(batch, key("activity"), None)).await.unwrap_err();
    assert_eq!(refused.code(), invalid, "{refused}");
    let batch = v1::SendBonusBatchRequest { requests: vec![SendBonusRequest::default(); 100_000] };
    let refused = send.send_bonus_batch(with(batch, key("activity"), None)).await.unwrap_err();
    assert_eq!(refused.code(), invalid, "{refused}");
    let long = request("e", USER, "cash", 1);
    let long = SendBonusRequest { scene: "x".repeat(5 << 20), ..long };
    let refused = send.send_bonus(with(long, key("activity"), None)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let mut compressed = with(request("e", USER, "cash", 1), key("activity"), None);
    compressed.metadata_mut().insert("grpc-encoding", "gzip".parse().unwrap());
    assert_eq!(send.send_bonus(compressed).await.unwrap_err().code(), Code::Unimplemented);

    let user = EndUser::Named(USER);
    let refused = |answer: Result<(), CallError>| matches!(answer, Err(CallError::Refused(_)));
    assert!(refused(clients.tokens.verify(user, vec![String::new(); 513]).await.map(drop)));
    for (activity, page_size, page_token) in [("", 501, ""), ("a b", 1, ""), ("", 1, "elsewhere")] {
        let (activity, page_token) = (activity.into(), page_token.into());
        let page = v1::ListTokensRequest { activity, page_size, page_token };
        assert!(refused(clients.tokens.list(user, page).await.map(drop)));
    }
    let many = vec![String::new(); 513];
    for (tokens, flow_limit, flow_after) in
        [(vec![], 501, ""), (many, 1, ""), (vec![], 1, "soon"), (vec![], 1, "1/1:1:1")]
    {
        let look = v1::GetWalletRequest { tokens, flow_limit, flow_after: flow_after.into() };
        assert!(refused(clients.wallet.get(user, look).await.map(drop)));
    }
    for wrong in [
        withdrawal("", "cash", 1),
        withdrawal("e", "Cash", 1),
        withdrawal("e", "cash", 0),
        withdrawal("e", "cash", i64::MAX),
    ] {
        let answer = clients.wallet.withdraw(user, wrong).await;
        assert!(matches!(answer, Err(WithdrawError::Refused(_))), "{answer:?}");
    }
    assert!(refused(clients.rewards.grant_batch(vec![BonusEvent::default(); 1_001]).await.map(drop)));
    assert!(refused(clients.rewards.grant_async(vec![BonusEvent::default(); 1_001]).await.map(drop)));
    let foreign = BonusEvent { user: Some(foreign), ..event("e", USER, "cash", 1) };
    let answer = clients.rewards.grant_batch(vec![foreign]).await;
    assert!(matches!(answer, Err(CallError::Denied(_))), "{answer:?}");
    let answer =
        clients.archive.list(v1::ListArchiveRequest { page_size: 1_001, ..Default::default() }).await;
    assert!(refused(answer.map(drop)));
    assert!(matches!(clients.archive.get(i64::MAX).await, Err(CallError::NotFound(_))));
    assert!(matches!(clients.archive.replay(i64::MAX, String::new()).await, Err(CallError::NotFound(_))));
    assert!(refused(clients.archive.replay(1, "x".repeat(65)).await.map(drop)));
}

/// A wallet whose coins are beyond what a number holds says so.
async fn sums_out_of_range(clients: &Clients, service: &Service) {
    let rich = 60;
    for half in 0..2 {
        let orders = (0..512).map(|nth| {
            let order = event(&format!("rich:{half}:{nth}"), rich, "coin", AMOUNT_MAX);
            BonusEvent { activity: format!("half-{half}"), scene: format!("scene-{}", nth / 31), ..order }
        });
        let replies = clients.rewards.grant_batch(orders.collect()).await.unwrap();
        assert!(replies.iter().all(|one| one.outcome() == GrantOutcome::Credited));
    }
    clients.send.send_bonus(request("rich:over", rich, "coin", AMOUNT_MAX)).await.unwrap();
    let mut wallet = v1::wallet_client::WalletClient::new(channel(service).await);
    until("the sum is out of range", async || {
        let look = with(v1::GetWalletRequest::default(), service.keys.get("wallet-front"), Some(rich));
        match wallet.get_wallet(look).await {
            Ok(_) => false,
            Err(status) => {
                assert_eq!(status.code(), Code::OutOfRange, "{status}");
                true
            }
        }
    })
    .await;
}
