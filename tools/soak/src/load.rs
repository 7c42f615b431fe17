//! The callers: they journal each call before and after it, and ask again, with the same order number, until they
//! know that a reward was taken.

use crate::draw::mix;
use crate::fleet::Fleet;
use crate::ground::{Ground, PAYER};
use crate::journal::{Journal, Order};
use crate::rules::{ACTIVITY, CASH, COIN, DIRECT, GIFT, LATER, PURSE, SCARCE, SCENE, Type};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const USERS: u64 = 2_000;
/// Rewards of one call.
const BATCH: usize = 20;
/// Callers of the gateways.
const SENDERS: u64 = 3;
const WITHDRAWERS: usize = 2;
/// Per cent of the load: by gateways, by calls of the reward service (each of two kinds); the rest by the SDK.
const BY_GATEWAY: u64 = 50;
const BY_CALL: u64 = 5;
/// Per cent of the load that the SDK process sends.
pub const BY_SDK: u64 = 100 - BY_GATEWAY - 2 * BY_CALL;
const CALL_TIMEOUT: Duration = Duration::from_secs(8);

/// The order `number` of caller `caller`, in second `round` of the run.
pub fn order(caller: u64, number: u64, round: u64, of: Type) -> Order {
    let serial = caller * 100_000_000 + number;
    let user_id = 1 + mix(serial) % USERS;
    let amount = 1 + mix(serial ^ 0x5eed) % 999;
    Order {
        trade_no: format!("{ACTIVITY}/{}/{round:010}/{}/{user_id}/{serial}", SCENE.1, of.name),
        user_id: i64::try_from(user_id).unwrap_or(1),
        bonus_type: of.name.to_owned(),
        amount: i64::try_from(amount).unwrap_or(1),
    }
}

/// The bonus type of a gateway's order, by its share of twenty.
const fn type_of(number: u64) -> Type {
    match number % 20 {
        0..8 => CASH,
        8..12 => COIN,
        12..15 => GIFT,
        15 => SCARCE,
        16..19 => PURSE,
        _ => CASH,
    }
}

/// Scarce rewards that a run of so long asks for, as a sum of amounts.
pub const fn scarce_asked(rate_per_s: u64, seconds: u64) -> u64 {
    rate_per_s * BY_GATEWAY / 100 * seconds / 20 * 500
}

/// The state that all callers share.
struct Shared {
    ground: Arc<Ground>,
    fleet: Arc<Fleet>,
    began: Instant,
    /// No new rewards; what is open is still asked again.
    closing: AtomicBool,
    /// Not even that.
    gives_up: AtomicBool,
    asked: AtomicU64,
    taken: AtomicU64,
    failure: Mutex<Option<anyhow::Error>>,
}

/// The running callers.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts them; together with the SDK process they send `rate_per_s` rewards.
    pub fn start(ground: &Arc<Ground>, fleet: &Arc<Fleet>, rate_per_s: u64) -> Result<Self> {
        let shared = Arc::new(Shared {
            ground: Arc::clone(ground),
            fleet: Arc::clone(fleet),
            began: Instant::now(),
            closing: AtomicBool::new(false),
            gives_up: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            failure: Mutex::default(),
        });
        let mut own = Self { shared, threads: Vec::new() };
        let (purses, withdrawals) = sync_channel(10_000);
        let withdrawals = Arc::new(Mutex::new(withdrawals));
        let rate = move |percent: u64| (rate_per_s * percent / 100).max(1);
        for at in 0..SENDERS {
            let purses = purses.clone();
            own.spawn(at, move |shared, journal| {
                Sender::new(shared, journal, at, rate(BY_GATEWAY) / SENDERS)
                    .run(type_of, &|sender, orders| by_gateway(sender, orders, &purses))
            })?;
        }
        own.spawn(10, move |shared, journal| {
            Sender::new(shared, journal, 10, rate(BY_CALL))
                .run(|_| DIRECT, &|sender, orders| by_grant(sender, orders))
        })?;
        own.spawn(11, move |shared, journal| {
            Sender::new(shared, journal, 11, rate(BY_CALL))
                .run(|_| LATER, &|sender, orders| by_async(sender, orders))
        })?;
        for at in 0..WITHDRAWERS {
            let withdrawals = Arc::clone(&withdrawals);
            own.spawn(20 + at as u64, move |shared, journal| withdraw_all(shared, journal, &withdrawals))?;
        }
        if own.shared.ground.pays_out {
            own.spawn(30, |shared, _| pay_out_all(shared))?;
        }
        Ok(own)
    }

    /// Rewards asked for and rewards taken, without those of the SDK process.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.asked.load(Relaxed), self.shared.taken.load(Relaxed))
    }

    /// Ends the sending; open calls are asked again for so long at most. Fails where a journal could not be written.
    pub fn close(self, patience: Duration) -> Result<()> {
        self.shared.closing.store(true, Relaxed);
        let until = Instant::now() + patience;
        while Instant::now() < until && self.threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.shared.gives_up.store(true, Relaxed);
        for thread in self.threads {
            if thread.join().is_err() {
                anyhow::bail!("a caller has panicked");
            }
        }
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    fn spawn(
        &mut self,
        number: u64,
        run: impl FnOnce(&Shared, Journal) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let journal = Journal::open(&journal_path(&shared.ground, number))?;
        self.threads.push(std::thread::Builder::new().name(format!("caller-{number}")).spawn(move || {
            if let Err(error) = run(&shared, journal) {
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        })?);
        Ok(())
    }
}

fn journal_path(ground: &Ground, number: u64) -> PathBuf {
    ground.dir.join(format!("journal-{number:02}"))
}

/// The outcome of a call for one of its orders.
enum Answer {
    Taken,
    /// Nobody knows, or not now: ask again.
    Open,
    Refused(String),
}

/// Asks for some orders at once.
type Call<'c> = dyn Fn(&mut Sender<'_>, &[Order]) -> Result<Vec<Answer>> + 'c;

/// One caller.
struct Sender<'a> {
    shared: &'a Shared,
    journal: Journal,
    agent: ureq::Agent,
    caller: u64,
    rate_per_s: u64,
    calls: u64,
}

impl<'a> Sender<'a> {
    fn new(shared: &'a Shared, journal: Journal, caller: u64, rate_per_s: u64) -> Self {
        Self { shared, journal, agent: agent(), caller, rate_per_s: rate_per_s.max(1), calls: 0 }
    }

    fn run(mut self, type_of: impl Fn(u64) -> Type, call: &Call<'_>) -> Result<()> {
        let (mut open, mut number): (Vec<Order>, u64) = (Vec::new(), 0);
        let batch = (self.rate_per_s / 5).clamp(1, BATCH as u64);
        let mut due = Instant::now();
        while !self.shared.gives_up.load(Relaxed) {
            let closing = self.shared.closing.load(Relaxed);
            if closing && open.is_empty() {
                break;
            }
            // A caller whose calls stay open sends no new ones beyond a bound: users do not wait for ever either.
            if !closing && open.len() < 20 * BATCH {
                let round = self.shared.began.elapsed().as_secs();
                let fresh: Vec<Order> =
                    (number..number + batch).map(|at| order(self.caller, at, round, type_of(at))).collect();
                number += batch;
                self.journal.asked(&fresh)?;
                self.shared.asked.fetch_add(batch, Relaxed);
                open.extend(fresh);
            }
            let some: Vec<Order> = open.drain(..open.len().min(BATCH)).collect();
            let answers = call(&mut self, &some)?;
            let taken = some.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Answer::Taken));
            let taken: Vec<&str> = taken.map(|(order, _)| order.trade_no.as_str()).collect();
            self.shared.taken.fetch_add(taken.len() as u64, Relaxed);
            self.journal.taken(taken)?;
            let mut again = false;
            for (order, answer) in some.into_iter().zip(answers) {
                match answer {
                    Answer::Taken => {}
                    Answer::Open => {
                        open.push(order);
                        again = true;
                    }
                    Answer::Refused(why) => self.journal.refused(&order.trade_no, &why)?,
                }
            }
            due += Duration::from_micros(1_000_000 * batch / self.rate_per_s);
            // What was not sent while calls hung is not made up for: the load is that of users, who have gone.
            due = due.max(Instant::now() - Duration::from_secs(1));
            let pause = if again { Duration::from_millis(100) } else { Duration::ZERO };
            std::thread::sleep(due.saturating_duration_since(Instant::now()).max(pause));
        }
        Ok(())
    }

    fn post(
        &self,
        process: &str,
        key: &str,
        user: Option<i64>,
        path: &str,
        body: &Value,
    ) -> Option<(u16, Value)> {
        post(self.shared, &self.agent, (process, key, path), user, body)
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(CALL_TIMEOUT));
    config.build().into()
}

/// Status and body; `None` for no answer.
fn post(
    shared: &Shared,
    agent: &ureq::Agent,
    (process, key, path): (&str, &str, &str),
    user: Option<i64>,
    body: &Value,
) -> Option<(u16, Value)> {
    let key = shared.ground.keys.get(key).map_or("", String::as_str);
    let mut request = agent
        .post(format!("http://{}{path}", shared.fleet.address(process)))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"));
    if let Some(user) = user {
        request = request.header("x-windfall-user", user.to_string());
    }
    let mut response = request.send(body.to_string()).ok()?;
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().ok()?;
    Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
}

/// The request that sends it, as JSON.
pub fn reward(order: &Order) -> Value {
    json!({
        "trade_no": order.trade_no,
        "user": {"user_id": order.user_id, "app_id": "windfall"},
        "activity": ACTIVITY,
        "scene": SCENE.0,
        "bonus": {"type": order.bonus_type, "amount": order.amount},
    })
}

/// The outcomes that differ between the orders of a call.
fn undecided(answer: Option<(u16, Value)>, orders: usize) -> Vec<Answer> {
    let one = || match &answer {
        None | Some((429 | 502 | 503 | 504, _)) => Answer::Open,
        Some((status, body)) => Answer::Refused(format!("HTTP {status} {body}")),
    };
    (0..orders).map(|_| one()).collect()
}

fn by_gateway(
    sender: &mut Sender<'_>,
    orders: &[Order],
    purses: &SyncSender<(Order, String)>,
) -> Result<Vec<Answer>> {
    sender.calls += 1;
    let gateway = if sender.calls.is_multiple_of(2) { "gateway-0" } else { "gateway-1" };
    let requests: Vec<Value> = orders.iter().map(reward).collect();
    let answer =
        sender.post(gateway, "activity", None, "/v1/bonuses/send-batch", &json!({"requests": requests}));
    let Some((200, body)) = answer else { return Ok(undecided(answer, orders.len())) };
    let of_one = |(at, order): (usize, &Order)| {
        let result = &body["results"][at];
        if let Some(token) = result["token"].as_str() {
            // Where the withdrawers are behind, the user comes another day.
            if order.bonus_type == PURSE.name {
                purses.try_send((order.clone(), token.to_owned())).ok();
            }
            return Answer::Taken;
        }
        match result["failure"]["retryable"].as_bool() {
            Some(true) => Answer::Open,
            _ => Answer::Refused(result.to_string()),
        }
    };
    Ok(orders.iter().enumerate().map(of_one).collect())
}

fn granted(body: &Value, orders: &[Order]) -> Vec<Answer> {
    let of_one = |at: usize| {
        let reply = &body["replies"][at];
        match reply["outcome"].as_str().unwrap_or_default() {
            "GRANT_OUTCOME_CREDITED" | "GRANT_OUTCOME_ALREADY_CREDITED" | "GRANT_OUTCOME_ACCEPTED" => {
                Answer::Taken
            }
            "GRANT_OUTCOME_RETRY" => Answer::Open,
            _ => Answer::Refused(reply.to_string()),
        }
    };
    (0..orders.len()).map(of_one).collect()
}

fn by_grant(sender: &mut Sender<'_>, orders: &[Order]) -> Result<Vec<Answer>> {
    let events: Vec<Value> = orders.iter().map(reward).collect();
    let answer =
        sender.post("rewards", "grants", None, "/v1/rewards/grant-batch", &json!({"events": events}));
    let Some((200, body)) = answer else { return Ok(undecided(answer, orders.len())) };
    let answers = granted(&body, orders);
    // Now and then the number of a credited order comes again with another amount.
    sender.calls += 1;
    if sender.calls.is_multiple_of(10) && matches!(answers.first(), Some(Answer::Taken)) {
        let other = Order { amount: orders[0].amount + 1, ..orders[0].clone() };
        let answer =
            sender.post("rewards", "grants", None, "/v1/rewards/grant", &json!({"event": reward(&other)}));
        match answer {
            Some((200, body)) if body["outcome"] == "GRANT_OUTCOME_CONFLICT" => {
                sender.journal.conflicted(&other.trade_no)?;
            }
            // Nobody knows whether the archive has it: then it is neither expected nor damage.
            None | Some((429 | 502 | 503 | 504, _)) => {}
            Some((200, body)) if body["outcome"] == "GRANT_OUTCOME_RETRY" => {}
            Some((_, body)) => sender.journal.refused(&other.trade_no, &format!("no conflict: {body}"))?,
        }
    }
    Ok(answers)
}

fn by_async(sender: &mut Sender<'_>, orders: &[Order]) -> Result<Vec<Answer>> {
    let events: Vec<Value> = orders.iter().map(reward).collect();
    let answer =
        sender.post("rewards", "grants", None, "/v1/rewards/grant-async", &json!({"events": events}));
    let Some((200, body)) = answer else { return Ok(undecided(answer, orders.len())) };
    Ok(granted(&body, orders))
}

/// Withdraws the amount of each order that comes, most of them before the reward has arrived.
fn withdraw_all(
    shared: &Shared,
    mut journal: Journal,
    orders: &Mutex<Receiver<(Order, String)>>,
) -> Result<()> {
    let agent = agent();
    loop {
        let next =
            orders.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(Duration::from_millis(100));
        // Users who have not begun when the load ends do not begin any more.
        let (order, token) = match next {
            _ if shared.closing.load(Relaxed) => return Ok(()),
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        // A journal has one writer, and knows the orders of its own calls alone: this one says it again.
        journal.asked(std::slice::from_ref(&order))?;
        journal.withdraws(&order)?;
        let body = json!({
            "withdrawal_id": order.trade_no,
            "bonus_type": order.bonus_type,
            "amount": order.amount,
            "tokens": [token],
        });
        while !shared.gives_up.load(Relaxed) {
            let place = ("wallet", "wallet", "/v1/wallet/withdraw");
            let answer = post(shared, &agent, place, Some(order.user_id), &body);
            if let Some((200, reply)) = &answer
                && matches!(
                    reply["outcome"].as_str(),
                    Some(
                        "WITHDRAW_OUTCOME_TO_PAY_OUT"
                            // Its first answer was lost, and it was acknowledged meanwhile.
                            | "WITHDRAW_OUTCOME_PAID_OUT"
                            // Of releases before there were acknowledgements.
                            | "WITHDRAW_OUTCOME_PAID"
                            | "WITHDRAW_OUTCOME_ALREADY_PAID"
                    )
                )
            {
                journal.paid(&order.trade_no)?;
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Pays out what users have withdrawn, at a bank that pays once for a key, and acknowledges it: but for every fourth time, as a
/// process that dies in between.
fn pay_out_all(shared: &Shared) -> Result<()> {
    let agent = agent();
    let ask = |path: &str, body: &Value| post(shared, &agent, ("rewards", PAYER.0, path), None, body);
    let (mut bank, mut acknowledged, mut payouts) = (HashMap::new(), HashSet::new(), 0_u64);
    while !shared.closing.load(Relaxed) {
        let listed = ask("/v1/payouts/list", &json!({"page_size": 200}));
        let listed = listed.filter(|(status, _)| *status == 200).map(|(_, page)| page["payouts"].clone());
        for one in listed.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let key = one["payout_key"].as_str().unwrap_or_default().to_owned();
            let what = [&one["user_id"], &one["withdrawal_id"], &one["amount"]].map(Value::clone);
            if *bank.entry(key.clone()).or_insert_with(|| what.clone()) != what {
                bail!("two payouts have the key {key:?}");
            }
            if acknowledged.contains(&key) {
                bail!("{key:?} is listed though its acknowledgement was taken");
            }
            payouts += 1;
            if payouts.is_multiple_of(4) {
                continue;
            }
            let body = json!({"user_id": what[0], "withdrawal_id": what[1], "result": "PAYOUT_RESULT_PAID"});
            match ask("/v1/payouts/acknowledge", &body) {
                Some((200, _)) => drop(acknowledged.insert(key)),
                Some((status @ 400..=428, reply)) => bail!("{key:?} is not acknowledged: {status} {reply}"),
                Some(_) | None => {}
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    eprintln!(
        "soak: {} withdrawals were paid out, {} acknowledgements taken",
        bank.len(),
        acknowledged.len()
    );
    Ok(())
}
