//! What a fake executor is, and how it answers runs.

use crate::xxl::{AccessToken, AppName, HandleCode, RunRequest};
use bytes::Bytes;
use std::sync::Arc;

/// Which jars it behaves like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// 2.4.
    Two,
    /// 3.3.
    #[default]
    Three,
    /// After 3.3: runs come by `/trigger`, and each call names the application.
    Next,
}

/// What becomes of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is taken, and no result follows by itself.
    Take,
    /// It is taken and reported at once.
    Finish(HandleCode, String),
    /// It is refused with these words.
    Refuse(String),
    /// No answer ever comes.
    Hang,
    /// The connection ends without an answer.
    Reset,
    /// This answer comes, whatever it is.
    Raw(u16, Bytes),
}

/// Answers each run; called many times at once.
pub type Script = Arc<dyn Fn(&RunRequest) -> Reply + Send + Sync>;

/// What a fake executor is.
#[derive(Clone)]
pub struct FakeOptions {
    /// Its application.
    pub app: AppName,
    /// The token that it asks for and sends. None: any.
    pub token: Option<AccessToken>,
    /// Which jars it behaves like.
    pub generation: Generation,
    /// The server that it registers and reports at (`http://host:port/xxl-job-admin`). None: it does neither.
    pub admin_url: Option<String>,
    /// How often it registers again, in milliseconds. Default 30,000.
    pub beat_ms: u64,
    /// How many runs it keeps to show them. Default 10,000.
    pub keep_max: usize,
    /// The results that may wait for their report; the answers to runs wait for a free place. Default 65,536.
    pub results_max: usize,
    /// The lines that it shows for every run. Default: two.
    pub log_text: String,
    /// How it answers runs. Default: each one succeeds.
    pub script: Script,
}

impl FakeOptions {
    /// An executor of 3.3 without a token, where each run succeeds.
    pub fn new(app: AppName) -> Self {
        Self {
            app,
            token: None,
            generation: Generation::default(),
            admin_url: None,
            beat_ms: 30_000,
            keep_max: 10_000,
            results_max: 65_536,
            log_text: "begun\nended\n".into(),
            script: Arc::new(|_| Reply::Finish(HandleCode::Success, String::new())),
        }
    }
}

impl Generation {
    pub(super) const fn run_path(self) -> &'static str {
        match self {
            Self::Two | Self::Three => "/run",
            Self::Next => "/trigger",
        }
    }
}
