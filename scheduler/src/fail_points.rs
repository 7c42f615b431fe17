//! Points at which a test lets a dispatcher stand still, as if its process had died there, or ends the process.
//! Only the feature `sabotage` gives them an effect, and no release build has it.

/// A step on a task's way out of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailPoint {
    /// A shard's lease was acquired.
    Acquired,
    /// It was read what an earlier owner noted of a slot.
    StateRead,
    /// Entries of a slot were read.
    EntriesRead,
    /// Due tasks were put into the queues of their targets.
    Queued,
    /// A target has answered, and the answers are not taken in yet.
    Answered,
    /// It is about to be noted what is over.
    BeforeFinish,
    /// It was noted.
    AfterFinish,
    /// A slot is about to be dropped.
    BeforeDrop,
    /// It was dropped.
    AfterDrop,
    /// A lease is about to be released.
    BeforeRelease,
    /// The instance is about to say that it lives.
    Beat,
}

#[cfg(feature = "sabotage")]
impl FailPoint {
    /// Every point, in the order in which a task passes them.
    pub const ALL: [Self; 11] = [
        Self::Acquired,
        Self::StateRead,
        Self::EntriesRead,
        Self::Queued,
        Self::Answered,
        Self::BeforeFinish,
        Self::AfterFinish,
        Self::BeforeDrop,
        Self::AfterDrop,
        Self::BeforeRelease,
        Self::Beat,
    ];
}

#[cfg(not(feature = "sabotage"))]
pub(crate) async fn reach(_instance: &str, _point: FailPoint) {}

#[cfg(feature = "sabotage")]
pub(crate) use armed::reach;
#[cfg(feature = "sabotage")]
pub use armed::{abort_at, disarm, freeze, is_reached, panic_at, stop_at, thaw};

#[cfg(feature = "sabotage")]
mod armed {
    use super::FailPoint;
    use parking_lot::Mutex;
    use std::time::Duration;

    static ARMED: Mutex<Vec<Armed>> = Mutex::new(Vec::new());
    static FROZEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    const THAW_LOOK: Duration = Duration::from_millis(20);

    struct Armed {
        instance: String,
        point: FailPoint,
        left: u32,
        what: What,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum What {
        Stop,
        Panic,
        Abort,
    }

    /// The task of this instance that reaches the point for the `nth` time (from 1), and each one after it, stands
    /// still for ever.
    pub fn stop_at(instance: &str, point: FailPoint, nth: u32) {
        arm(instance, point, nth, What::Stop);
    }

    /// The task of this instance that reaches the point for the `nth` time panics, once.
    pub fn panic_at(instance: &str, point: FailPoint, nth: u32) {
        arm(instance, point, nth, What::Panic);
    }

    /// The process ends like one that was killed when this instance reaches the point for the `nth` time.
    pub fn abort_at(instance: &str, point: FailPoint, nth: u32) {
        arm(instance, point, nth, What::Abort);
    }

    /// Whether the instance has reached a point at which it stands still.
    pub fn is_reached(instance: &str) -> bool {
        ARMED.lock().iter().any(|armed| armed.instance == instance && armed.left == 0)
    }

    /// Forgets what was armed for instances whose name begins so.
    pub fn disarm(prefix: &str) {
        ARMED.lock().retain(|armed| !armed.instance.starts_with(prefix));
    }

    /// Every task of this instance that reaches a point stands still until it thaws.
    pub fn freeze(instance: &str) {
        FROZEN.lock().push(instance.to_owned());
    }

    /// The instance goes on where it stood.
    pub fn thaw(instance: &str) {
        FROZEN.lock().retain(|frozen| frozen != instance);
    }

    fn is_frozen(instance: &str) -> bool {
        FROZEN.lock().iter().any(|frozen| frozen == instance)
    }

    fn arm(instance: &str, point: FailPoint, nth: u32, what: What) {
        ARMED.lock().push(Armed { instance: instance.to_owned(), point, left: nth.max(1), what });
    }

    pub(crate) async fn reach(instance: &str, point: FailPoint) {
        let what = {
            let mut all = ARMED.lock();
            let armed = all.iter_mut().find(|armed| armed.point == point && armed.instance == instance);
            armed.and_then(|armed| {
                let is_first = armed.left == 1;
                armed.left = armed.left.saturating_sub(1);
                let is_stopped = armed.left == 0 && armed.what == What::Stop;
                (is_first || is_stopped).then_some(armed.what)
            })
        };
        while is_frozen(instance) {
            tokio::time::sleep(THAW_LOOK).await;
        }
        match what {
            None => {}
            Some(What::Stop) => std::future::pending().await,
            Some(What::Panic) => panic!("a test wants a panic at {point:?}"),
            Some(What::Abort) => std::process::abort(),
        }
    }
}
