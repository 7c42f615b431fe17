//! The identity of a call: the calling service and the end user.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use tonic::Status;
use windfall_proto::order::check_text;

/// The bytes of the name of a person at most, whom a caller names as the one who acts.
const ACTOR_MAX_BYTES: usize = 64;

/// A right of a caller. Which method needs which stands in `router/roles.rs` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Send rewards.
    Send,
    /// List and verify a user's tokens, see a user's wallet.
    Verify,
    /// Grant rewards.
    Grant,
    /// Change what operators change: replay from the archive, release what is reserved, start backfills. It includes
    /// [`Observe`](Self::Observe).
    Operate,
    /// Add, change, cancel and list timers; the same of jobs and their runs.
    Schedule,
    /// Take money off a user's balance.
    Withdraw,
    /// See metrics, the archive, orders, budgets and what has not ended; change nothing.
    Observe,
    /// Agree, as the second person, to what another one has asked for. No other role includes it.
    Approve,
    /// See the withdrawals of all users that a front end pays out elsewhere, and acknowledge them.
    PayOut,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Send,
        Self::Verify,
        Self::Withdraw,
        Self::PayOut,
        Self::Grant,
        Self::Schedule,
        Self::Observe,
        Self::Operate,
        Self::Approve,
    ];

    /// Its name, as in access files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Verify => "verify",
            Self::Withdraw => "withdraw",
            Self::Grant => "grant",
            Self::Schedule => "schedule",
            Self::Observe => "observe",
            Self::Operate => "operate",
            Self::Approve => "approve",
            Self::PayOut => "pay_out",
        }
    }

    /// The role that includes this one: who may change may also look.
    const fn included_in(self) -> Option<Self> {
        match self {
            Self::Observe => Some(Self::Operate),
            _ => None,
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u16);

impl Roles {
    /// Whether the role is among them, or included in one that is.
    pub const fn has(self, role: Role) -> bool {
        let wider = match role.included_in() {
            Some(wider) => wider.bit(),
            None => 0,
        };
        self.0 & (role.bit() | wider) != 0
    }

    /// These roles and one more.
    #[must_use]
    pub const fn and(self, role: Role) -> Self {
        Self(self.0 | role.bit())
    }
}

impl<const N: usize> From<[Role; N]> for Roles {
    fn from(roles: [Role; N]) -> Self {
        roles.into_iter().collect()
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().fold(0, |all, role| all | role.bit()))
    }
}

/// A service that has shown its key or its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its name in the access file, which logs and audits show.
    pub name: Arc<str>,
    /// The app that it belongs to. It reads and creates nothing of another app.
    pub tenant: Arc<str>,
    /// Its roles.
    pub roles: Roles,
    /// The tenants of the scheduler that it may act for, beside the one that has its app's name.
    pub timers_of: Arc<BTreeSet<String>>,
}

impl Caller {
    /// Whose timers a call is about: the tenant that it names, or, where it names none, the caller's app.
    ///
    /// # Errors
    /// `PermissionDenied`, where the access file does not let the caller act for that tenant.
    pub fn timers_tenant<'a>(&'a self, named: &'a str) -> Result<&'a str, Status> {
        if named.is_empty() || named == &*self.tenant {
            return Ok(&self.tenant);
        }
        if self.timers_of.contains(named) {
            return Ok(named);
        }
        Err(Status::permission_denied(format!(
            "tenant: the caller `{}` may not act for `{named}`; its `timers_of` in the access file would have to name it",
            self.name
        )))
    }

    /// Who acts, as books say it: the caller's name, and behind it the person whom the call names, if it names one. The first
    /// comes from the access file, so that no caller acts in another's name.
    ///
    /// # Errors
    /// `InvalidArgument`, as [`check_actor`](Self::check_actor).
    pub fn acts_as(&self, actor: &str) -> Result<String, Status> {
        Self::check_actor(actor)?;
        Ok(if actor.is_empty() { self.name.to_string() } else { format!("{}: {actor}", self.name) })
    }

    /// Checks the name of a person whom a call names as the one who acts; it may be empty.
    ///
    /// # Errors
    /// `InvalidArgument`, where it is longer than 64 bytes or has control characters.
    pub fn check_actor(actor: &str) -> Result<(), Status> {
        let checked = check_text(actor, ACTOR_MAX_BYTES);
        checked.map(drop).map_err(|why| Status::invalid_argument(format!("actor {why}")))
    }
}

/// The calling service and its end user. It is in the extensions of every request that reaches a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The service that calls.
    pub caller: Caller,
    /// The end user, from a signed assertion or a trusted front proxy; never from a message.
    pub user_id: Option<i64>,
    /// The id of the call's trace, where that is sampled.
    pub trace_id: Option<[u8; 16]>,
}

impl Call {
    /// The call that a request belongs to.
    ///
    /// # Errors
    /// `Internal`, where a service was mounted without this crate's layers.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<&Self, Status> {
        request.extensions().get().ok_or_else(|| Status::internal("the call has no identity"))
    }

    /// The end user.
    ///
    /// # Errors
    /// `Unauthenticated`, where the call names none.
    pub fn user(&self) -> Result<i64, Status> {
        self.user_id.ok_or_else(|| Status::unauthenticated("this call needs an end user"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_acts_is_named_behind_the_caller_and_cannot_be_anybody_else() {
        let caller = Caller {
            name: "desk".into(),
            tenant: "windfall".into(),
            roles: [Role::Operate].into(),
            timers_of: Arc::default(),
        };
        let longest = "x".repeat(ACTOR_MAX_BYTES);
        for (actor, acts_as) in
            [("", "desk".to_owned()), ("ann", "desk: ann".into()), (&longest, format!("desk: {longest}"))]
        {
            assert_eq!(caller.acts_as(actor).unwrap(), acts_as);
        }
        for actor in [format!("{longest}x"), "ann\nroot: bob".into(), "ann\u{7f}".into()] {
            let refused = caller.acts_as(&actor).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(refused.message().starts_with("actor "), "{refused}");
        }
    }
}
