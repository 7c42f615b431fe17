//! The numbers by which the store knows tenants and targets: asked for once, and kept alive in the store.
//!
//! A store may lose numbers that it has answered: it was emptied, or a fail-over lost what was newest. Whoever has them in
//! memory goes on to use them, so [`Names::keep`] says them to the store again and again, which puts them back. Where another
//! name was given a number first, nobody can tell whose tasks lie under it. Such a number is withheld: this process adds
//! nothing under it for the name that had it, and fires nothing that lies under it, until the process ends.

use crate::tenants::Tenants;
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use windfall_contract::due::{KnownName, NameKept, Route, SlotStore, StoreError};

/// Names that one call says to the store: with more names, each has its turn.
const KEPT_AT_ONCE: usize = 100;

/// A cache of numbers and names.
pub(crate) struct Names {
    store: Arc<dyn SlotStore>,
    tenants: RwLock<HashMap<String, u16>>,
    targets: RwLock<HashMap<(u16, String), u16>>,
    routes: RwLock<HashMap<Route, TenantAndTarget>>,
    /// Numbers that other names have by now: of tenants, and of targets.
    withheld: RwLock<HashSet<(u16, Option<u16>)>>,
    /// Names that the store has under another number as well.
    moved: RwLock<BTreeSet<KnownName>>,
    /// Where the next call goes on that says names to the store.
    next: AtomicUsize,
}

type TenantAndTarget = (Arc<str>, Arc<str>);

/// What [`Names::keep`] has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NamesKept {
    /// Names that the store had lost, and has again.
    pub put_back: u64,
    /// Names that have another number by now, beside the one by which they were known.
    pub moved: u64,
    /// Names whose number another name has by now.
    pub taken: u64,
}

impl Names {
    pub fn new(store: Arc<dyn SlotStore>) -> Self {
        Self {
            store,
            tenants: RwLock::default(),
            targets: RwLock::default(),
            routes: RwLock::default(),
            withheld: RwLock::default(),
            moved: RwLock::default(),
            next: AtomicUsize::new(0),
        }
    }

    pub async fn tenant(&self, name: &str) -> Result<u16, StoreError> {
        if let Some(&known) = self.tenants.read().get(name) {
            return Ok(known);
        }
        let number = self.store.tenant(name).await?;
        self.tenants.write().insert(name.to_owned(), number);
        Ok(number)
    }

    pub async fn target(&self, tenant: u16, name: &str) -> Result<u16, StoreError> {
        let key = (tenant, name.to_owned());
        if let Some(&known) = self.targets.read().get(&key) {
            return Ok(known);
        }
        let number = self.store.target(tenant, name).await?;
        self.targets.write().insert(key, number);
        Ok(number)
    }

    /// The names of a tenant and its target; `None` where the store does not know them, or their numbers are withheld.
    pub async fn route(&self, route: Route) -> Result<Option<TenantAndTarget>, StoreError> {
        if self.is_withheld(route) {
            return Ok(None);
        }
        if let Some(known) = self.routes.read().get(&route) {
            return Ok(Some(known.clone()));
        }
        let Some((tenant, target)) = self.store.names(route).await? else { return Ok(None) };
        let names: TenantAndTarget = (tenant.into(), target.into());
        self.routes.write().insert(route, names.clone());
        Ok(Some(names))
    }

    /// Whether tasks of a route may be anybody's.
    pub fn is_withheld(&self, route: Route) -> bool {
        let withheld = self.withheld.read();
        withheld.contains(&(route.tenant, None)) || withheld.contains(&(route.tenant, Some(route.target)))
    }

    /// Asks for the numbers of all targets that the options name, at most so many that are not known: whoever knows them before
    /// the store loses them sees later that another name has one. Says whether all are known.
    pub async fn learn(&self, tenants: &Tenants, asked_max: usize) -> Result<bool, StoreError> {
        let mut asked = 0;
        for (tenant, rules) in &tenants.0 {
            for target in rules.targets.keys() {
                let known = self.tenants.read().get(tenant).copied();
                if known.is_some_and(|number| self.targets.read().contains_key(&(number, target.clone()))) {
                    continue;
                }
                if asked == asked_max {
                    return Ok(false);
                }
                asked += 1;
                let number = self.tenant(tenant).await?;
                let route = Route { tenant: number, target: self.target(number, target).await? };
                self.routes.write().insert(route, (tenant.as_str().into(), target.as_str().into()));
            }
        }
        Ok(true)
    }

    /// Says to the store what it has answered, so that it puts back what it has lost; a part of it at a time, and all of it
    /// where something was lost.
    pub async fn keep(&self) -> Result<NamesKept, StoreError> {
        let mut known: Vec<KnownName> = self.known().into_iter().collect();
        let mut kept = NamesKept::default();
        if known.is_empty() {
            return Ok(kept);
        }
        let from = self.next.load(Ordering::Relaxed) % known.len();
        known.rotate_left(from);
        for (nth, part) in known.chunks(KEPT_AT_ONCE).enumerate() {
            let answers = self.store.keep_names(part).await?;
            let before = kept;
            for (name, answer) in part.iter().zip(answers) {
                self.take(name, answer, &mut kept);
            }
            self.next.store(from + nth * KEPT_AT_ONCE + part.len(), Ordering::Relaxed);
            if kept == before {
                break;
            }
        }
        if kept != NamesKept::default() {
            let NamesKept { put_back, moved, taken } = kept;
            tracing::warn!(
                put_back,
                moved,
                taken,
                "the timers' store had lost names of tenants and targets that it had answered: it was emptied, or a \
                 fail-over lost its newest writes"
            );
        }
        Ok(kept)
    }

    /// All numbers whose names are known.
    fn known(&self) -> BTreeSet<KnownName> {
        let mut known = BTreeSet::new();
        let (mut names, mut ambiguous) = (HashMap::new(), HashSet::new());
        for (name, &number) in &*self.tenants.read() {
            if names.insert(number, name.clone()).is_some() {
                ambiguous.insert(number);
            }
            known.insert(KnownName { tenant: (number, name.clone()), target: None });
        }
        for ((tenant, target), &number) in &*self.targets.read() {
            // Until the store has said which of two tenants has the number, nobody knows whose target it is.
            if let Some(name) = names.get(tenant).filter(|_| !ambiguous.contains(tenant)) {
                let target = Some((number, target.clone()));
                known.insert(KnownName { tenant: (*tenant, name.clone()), target });
            }
        }
        for (route, (tenant, target)) in &*self.routes.read() {
            let target = Some((route.target, target.to_string()));
            known.insert(KnownName { tenant: (route.tenant, tenant.to_string()), target });
        }
        known
    }

    /// Takes an answer of the store in.
    fn take(&self, name: &KnownName, answer: NameKept, kept: &mut NamesKept) {
        match answer {
            NameKept::Same => {}
            NameKept::PutBack => kept.put_back += 1,
            // What lies under either number fires, for the store knows whose it is. This process goes on with the one that it knows:
            // under the other one it would find none of the tasks that it has added, to cancel them or to tell that a key was used.
            NameKept::Moved => kept.moved += u64::from(self.moved.write().insert(name.clone())),
            NameKept::Taken => {
                self.forget(name);
                self.withhold(name);
                kept.taken += 1;
                let (tenant, target) = (&name.tenant, &name.target);
                tracing::error!(
                    ?tenant,
                    ?target,
                    "another name has the number of a tenant or a target by now; nobody can tell whose timers lie under it, so \
                     this process fires none of them"
                );
            }
        }
    }

    /// Lets a name be asked for again when it is needed.
    fn forget(&self, KnownName { tenant: (number, tenant), target }: &KnownName) {
        match target {
            Some((of_target, target)) => {
                let mut targets = self.targets.write();
                let key = (*number, target.clone());
                if targets.get(&key) == Some(of_target) {
                    targets.remove(&key);
                }
            }
            None => {
                let mut tenants = self.tenants.write();
                if tenants.get(tenant) == Some(number) {
                    tenants.remove(tenant);
                }
                drop(tenants);
                self.targets.write().retain(|(of, _), _| of != number);
            }
        }
    }

    fn withhold(&self, KnownName { tenant: (number, _), target }: &KnownName) {
        let of_target = target.as_ref().map(|(of_target, _)| *of_target);
        self.withheld.write().insert((*number, of_target));
        let is_of = |route: &Route| {
            route.tenant == *number && of_target.is_none_or(|of_target| route.target == of_target)
        };
        self.routes.write().retain(|route, _| !is_of(route));
    }
}
