//! Who calls, for whom: the same rules for both faces, before a byte of a body is read.

use crate::access::{AccessSource, Entry};
use crate::identity::Call;
use crate::refusal::{Reason, Refusal};
use crate::users::{self, Refused, Users};
use http::header::{AUTHORIZATION, HeaderMap};
use std::net::SocketAddr;

/// A JWT about the end user.
pub(crate) const USER_TOKEN: &str = "x-windfall-user-token";
/// The end user's number, from a caller that may name users.
pub(crate) const USER: &str = "x-windfall-user";
const TRACEPARENT: &str = "traceparent";

/// Where a connection comes from.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Names of its verified certificate; empty without one.
    pub(crate) cert_names: Vec<String>,
}

impl Peer {
    pub(crate) fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

/// A header that is there once, or not at all.
enum Single<'a> {
    None,
    One(&'a str),
    /// Twice, or not text: who reads the first and who reads the last would disagree.
    Ambiguous,
}

/// The call of a request with these headers.
pub(crate) async fn authenticate(
    source: &AccessSource,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Call, Refusal> {
    let live = source.live();
    let entry =
        caller(headers, peer, |key| live.access.by_key(key), |names| live.access.by_certificate(names))?;
    let user_id = user(headers, entry, live.users.as_deref(), source.clock().now_s()).await?;
    Ok(Call { caller: entry.caller.clone(), user_id, trace_id: trace_id(headers) })
}

/// A key that is given decides alone, and must be good; without one, the certificate.
fn caller<'a>(
    headers: &HeaderMap,
    peer: &Peer,
    by_key: impl Fn(&str) -> Option<&'a Entry>,
    by_certificate: impl Fn(&[String]) -> Option<&'a Entry>,
) -> Result<&'a Entry, Refusal> {
    let refused = |what| Refusal::new(Reason::NoCaller, what);
    match single(headers, AUTHORIZATION.as_str()) {
        Single::Ambiguous => Err(refused("`authorization` must be given once")),
        Single::One(value) => match value.split_once(' ') {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => {
                by_key(key).ok_or_else(|| refused("the key is not known"))
            }
            _ => Err(refused("`authorization` must be `Bearer` and a key")),
        },
        Single::None if peer.cert_names.is_empty() => {
            Err(refused("give a key as `authorization: Bearer`, or a client certificate"))
        }
        Single::None => by_certificate(&peer.cert_names)
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

/// Of a sampled trace, by W3C Trace Context. What is not well-formed is passed over, as it says.
fn trace_id(headers: &HeaderMap) -> Option<[u8; 16]> {
    let Single::One(value) = single(headers, TRACEPARENT) else { return None };
    let mut parts = value.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, len| {
        text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let has_more = parts.next().is_some();
    if !is_hex(version, 2) || version == "ff" || (version == "00" && has_more) {
        return None;
    }
    if !is_hex(trace, 32) || !is_hex(parent, 16) || !is_hex(flags, 2) || parent == "0".repeat(16) {
        return None;
    }
    let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    let id = u128::from_str_radix(trace, 16).ok()?;
    (is_sampled && id != 0).then(|| id.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(value: &str) -> Option<[u8; 16]> {
        trace_id(&HeaderMap::from_iter([(TRACEPARENT.parse().unwrap(), value.parse().unwrap())]))
    }

    #[test]
    fn a_trace_counts_when_it_is_well_formed_and_sampled() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let expected = Some(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
        assert_eq!(traced(&format!("00-{id}-00f067aa0ba902b7-01")), expected);
        assert_eq!(traced(&format!("01-{id}-00f067aa0ba902b7-03-later")), expected);
        for wrong in [
            format!("00-{id}-00f067aa0ba902b7-00"),
            format!("00-{id}-00f067aa0ba902b7-01-more"),
            format!("ff-{id}-00f067aa0ba902b7-01"),
            format!("00-{id}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(),
            "00".to_owned(),
        ] {
            assert_eq!(traced(&wrong), None, "{wrong}");
        }
    }
}
