//! Authenticates the caller and the end user, by the same rules for both transports, before a byte of a body is read.

use crate::access::{Access, AccessSource, Entry};
use crate::identity::Call;
use crate::refusal::{Reason, Refusal};
use crate::users::{self, Refused, Users};
use http::header::{AUTHORIZATION, HeaderMap};
use std::net::SocketAddr;

/// The header with a JWT about the end user.
pub(crate) const USER_TOKEN: &str = "x-windfall-user-token";
/// The header with the end user's number, from a caller that may name users.
pub(crate) const USER: &str = "x-windfall-user";

/// The peer of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Whether the connection is encrypted.
    pub(crate) is_tls: bool,
    /// The names in its verified certificate; empty without one.
    pub(crate) cert_names: Vec<String>,
}

impl Peer {
    pub(crate) fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

/// A header that must be there once or not at all.
enum Single<'a> {
    None,
    One(&'a str),
    /// The header is there twice, or is not text: readers of the first and of the last one would disagree.
    Ambiguous,
}

/// The call of a request with these headers. `is_known` is called once the caller is: to tell the user may take a
/// while.
pub(crate) async fn authenticate(
    source: &AccessSource,
    peer: &Peer,
    headers: &HeaderMap,
    is_known: impl FnOnce(),
) -> Result<Call, Refusal> {
    let live = source.live();
    let entry = caller(headers, peer, &live.access)?;
    is_known();
    let user_id = user(headers, entry, live.users.as_deref(), source.clock().unix_s()).await?;
    Ok(Call { caller: entry.caller.clone(), user_id, trace_id: None })
}

/// Whether these headers come from a caller that is known, whatever the call is.
pub(crate) fn is_known(source: &AccessSource, peer: &Peer, headers: &HeaderMap) -> bool {
    caller(headers, peer, &source.live().access).is_ok()
}

/// A key that is given decides alone, and must be good; without one, the certificate.
fn caller<'a>(headers: &HeaderMap, peer: &Peer, access: &'a Access) -> Result<&'a Entry, Refusal> {
    let refused = |what| Refusal::new(Reason::NoCaller, what);
    match single(headers, AUTHORIZATION.as_str()) {
        Single::Ambiguous => Err(refused("`authorization` must be given once")),
        Single::One(value) => match value.split_once(' ') {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => {
                access.by_key(key).ok_or_else(|| refused("the key is not known"))
            }
            _ => Err(refused("`authorization` must be `Bearer` and a key")),
        },
        Single::None if peer.cert_names.is_empty() => {
            Err(refused("give a key as `authorization: Bearer`, or a client certificate"))
        }
        Single::None => access
            .by_certificate(&peer.cert_names)
            .ok_or_else(|| refused("the client certificate has no name that is known here")),
    }
}

async fn user(
    headers: &HeaderMap,
    entry: &Entry,
    users: Option<&Users>,
    now_s: u64,
) -> Result<Option<i64>, Refusal> {
    let refused = |what| Refusal::new(Reason::BadUser, what);
    match (single(headers, USER_TOKEN), single(headers, USER)) {
        (Single::None, Single::None) => Ok(None),
        (_, Single::One(_) | Single::Ambiguous) if !entry.may_name_users => Err(Refusal::new(
            Reason::UserNotAllowed,
            "this caller may not name users; send their token as `x-windfall-user-token`",
        )),
        (Single::Ambiguous, _) | (_, Single::Ambiguous) => Err(refused("the user must be named once")),
        (Single::One(_), Single::One(_)) => {
            Err(refused("name the user by `x-windfall-user-token` or by `x-windfall-user`, not by both"))
        }
        (Single::None, Single::One(id)) => {
            users::parse_user_id(id).map(Some).ok_or_else(|| refused("`x-windfall-user` is no user's number"))
        }
        (Single::One(token), Single::None) => {
            let users = users.ok_or_else(|| refused("no issuer of user tokens is configured here"))?;
            users.user_of(token, now_s).await.map(Some).map_err(|why| match why {
                Refused::Unavailable => {
                    Refusal::new(Reason::UsersUnavailable, why.to_string()).retry_after_ms(1_000)
                }
                _ => refused_user(why),
            })
        }
    }
}

fn refused_user(why: Refused) -> Refusal {
    Refusal::new(Reason::BadUser, why.to_string())
}

fn single<'a>(headers: &'a HeaderMap, name: &str) -> Single<'a> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Single::None,
        (Some(value), None) => value.to_str().map_or(Single::Ambiguous, Single::One),
        _ => Single::Ambiguous,
    }
}
