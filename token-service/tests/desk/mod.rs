//! A verifier over a store in memory that can be down, slow or wrong.
#![allow(dead_code, reason = "each test file uses a part")]

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use windfall_config::{Applier, LiveRules};
use windfall_contract::rules::Rules;
use windfall_contract::rules::{Revocation, Revoked};
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, TokenStore, Unavailable};
use windfall_token::{KeyRing, TokenFields};
use windfall_token_service::{KeyRingVerifier, TokenOptions, TokenParts};

pub const TENANT: &str = "acme";
pub const USER: i64 = 42;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Fine,
    Refuses,
    Hangs,
    /// Answers one thing less than was asked.
    Short,
}

#[derive(Default)]
pub struct Fake {
    pub tokens: Mutex<BTreeMap<(i64, String), String>>,
    pub mood: Mutex<Mood>,
    pub reads: AtomicUsize,
}

impl Fake {
    pub fn put_text(&self, user_id: i64, trade_no: &str, text: &str) {
        self.tokens.lock().insert((user_id, trade_no.into()), text.into());
    }

    async fn pass(&self) -> Result<Mood, Unavailable> {
        self.reads.fetch_add(1, SeqCst);
        let mood = *self.mood.lock();
        match mood {
            Mood::Refuses => Err(Unavailable("switched off".into())),
            Mood::Hangs => std::future::pending().await,
            fine => Ok(fine),
        }
    }
}

#[async_trait]
impl TokenStore for Fake {
    async fn put(&self, batch: &[TokenPut]) -> Result<(), Unavailable> {
        for put in batch {
            self.put_text(put.user_id, &put.name, &put.token);
        }
        Ok(())
    }

    async fn remove(&self, batch: &[TokenKey]) -> Result<(), Unavailable> {
        let mut tokens = self.tokens.lock();
        batch.iter().for_each(|key| drop(tokens.remove(&(key.user_id, key.name.to_string()))));
        Ok(())
    }

    async fn get(&self, keys: &[TokenKey]) -> Result<Vec<Option<Box<str>>>, Unavailable> {
        let mood = self.pass().await?;
        let tokens = self.tokens.lock();
        let one = |key: &TokenKey| {
            tokens.get(&(key.user_id, key.name.to_string())).map(|text| text.as_str().into())
        };
        let mut found: Vec<_> = keys.iter().map(one).collect();
        if mood == Mood::Short {
            found.pop();
        }
        Ok(found)
    }

    async fn list(
        &self,
        user_id: i64,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredToken>, Unavailable> {
        self.pass().await?;
        let tokens = self.tokens.lock();
        let of_user = tokens.iter().filter(|((user, trade_no), _)| {
            *user == user_id && after.is_none_or(|after| trade_no.as_str() > after)
        });
        let stored = |((_, trade_no), text): (&(i64, String), &String)| StoredToken {
            name: trade_no.as_str().into(),
            token: text.as_str().into(),
        };
        Ok(of_user.take(limit).map(stored).collect())
    }
}

pub struct Desk {
    pub ring: KeyRing,
    pub store: Arc<Fake>,
    pub verifier: KeyRingVerifier,
    rules: Rules,
    applier: Applier,
}

impl Desk {
    pub fn new() -> Self {
        Self::with(KeyRing::ephemeral().unwrap())
    }

    pub fn with(ring: KeyRing) -> Self {
        let mut rules =
            windfall_config::parse_rules(include_str!("../../../config/samples/rules.toml"), None).unwrap();
        rules.revocations = std::iter::empty().collect();
        let (live, applier) = LiveRules::adjustable(rules.clone(), None);
        let store = Arc::new(Fake::default());
        let parts = TokenParts { keys: ring.clone(), store: store.clone(), rules: live };
        let verifier = KeyRingVerifier::open(TokenOptions::default(), parts).unwrap();
        Self { ring, store, verifier, rules, applier }
    }

    pub fn mint(&self, fields: &TokenFields<'_>) -> String {
        mint(&self.ring, TENANT, fields)
    }

    /// Mints a token and stores it.
    pub fn hold(&self, fields: &TokenFields<'_>) -> String {
        let text = self.mint(fields);
        self.store.put_text(fields.user_id, fields.trade_no, &text);
        text
    }

    pub fn revoke(&mut self, what: impl IntoIterator<Item = Revoked>) {
        self.rules.version += 1;
        let entry = |what| Revocation { what, why: "a test".into() };
        self.rules.revocations = what.into_iter().map(entry).collect();
        self.applier.apply(windfall_config::rules_text(&self.rules).as_bytes(), 0).unwrap();
    }

    pub fn mood(&self, mood: Mood) {
        *self.store.mood.lock() = mood;
    }

    pub fn reads(&self) -> usize {
        self.store.reads.load(SeqCst)
    }
}

pub fn mint(ring: &KeyRing, tenant: &str, fields: &TokenFields<'_>) -> String {
    ring.minter(tenant).unwrap().mint(fields, 0).unwrap()
}

/// What a token of the tests says.
pub fn fields(trade_no: &str) -> TokenFields<'_> {
    TokenFields {
        trade_no,
        user_id: USER,
        app_id: TENANT,
        activity: "spring-2027",
        scene: "red-packet-rain",
        bonus_type: "cash",
        amount: 888,
        award_time_ms: 1_800_000_000_000,
        description: "red packet",
    }
}
