//! A target that does as it is told.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::due::{Fired, Firing, Target};

type Answers = Arc<dyn Fn(&Firing) -> Fired + Send + Sync>;

/// The tenant `t` has it under the name `hook`.
pub(crate) struct FakeTarget {
    pub fired: Mutex<Vec<Firing>>,
    answers: Mutex<Answers>,
}

impl Default for FakeTarget {
    fn default() -> Self {
        Self { fired: Mutex::default(), answers: Mutex::new(Arc::new(|_| Fired::Done)) }
    }
}

impl FakeTarget {
    pub fn answer(&self, answers: impl Fn(&Firing) -> Fired + Send + Sync + 'static) {
        *self.answers.lock() = Arc::new(answers);
    }

    pub fn named(self: &Arc<Self>) -> BTreeMap<(String, String), Arc<dyn Target>> {
        let target: Arc<dyn Target> = Arc::<Self>::clone(self);
        BTreeMap::from([(("t".to_owned(), "hook".to_owned()), target)])
    }
}

#[async_trait]
impl Target for FakeTarget {
    async fn fire(&self, batch: Vec<Firing>) -> Vec<Fired> {
        let answers = Arc::clone(&self.answers.lock());
        let fired = batch.iter().map(|firing| answers(firing)).collect();
        self.fired.lock().extend(batch);
        fired
    }
}
