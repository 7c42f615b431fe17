//! The session's cookie, and where a request comes from.

use crate::answer::Refused;
use http::{HeaderMap, HeaderValue, Method, Uri, header};

/// The header that proves that a changing request comes from the console's own page.
pub(crate) const CSRF: &str = "x-windfall-csrf";
/// The cookie where the connection is not encrypted.
const PLAIN: &str = "windfall-console";
/// The cookie where it is: browsers take it only with `Secure`, for this host alone, and for all of its paths.
const SECURE: &str = "__Host-windfall-console";

/// The cookie that begins a session.
pub(crate) fn begin(name: &str, is_secure: bool) -> Result<HeaderValue, Refused> {
    let cookie = match is_secure {
        true => format!("{SECURE}={name}; Path=/; HttpOnly; SameSite=Strict; Secure"),
        false => format!("{PLAIN}={name}; Path=/console/; HttpOnly; SameSite=Strict"),
    };
    let mut value = HeaderValue::from_str(&cookie).map_err(|_| Refused::unavailable("there is no cookie"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The cookie that takes it away.
pub(crate) const fn end(is_secure: bool) -> HeaderValue {
    HeaderValue::from_static(match is_secure {
        true => "__Host-windfall-console=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0",
        false => "windfall-console=; Path=/console/; HttpOnly; SameSite=Strict; Max-Age=0",
    })
}

/// The session's name in a request.
pub(crate) fn find(headers: &HeaderMap, is_secure: bool) -> Option<&str> {
    let own = if is_secure { SECURE } else { PLAIN };
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(';'))
        .find_map(|one| one.trim().split_once('=').filter(|(name, _)| *name == own).map(|(_, value)| value))
}

/// Refuses what another site lets a browser send. A browser says where a request comes from by `sec-fetch-site` or by
/// `origin`; a program that says neither has no cookie that was not given to it.
pub(crate) fn check_origin(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match text("sec-fetch-site") {
        // A proxy may have put another host into the request.
        Some("same-origin") => return Ok(()),
        Some(_) => return Err(Refused::forbidden("the request comes from another site")),
        None => {}
    }
    let own = uri.authority().map(http::uri::Authority::as_str).or_else(|| text("host"));
    match text("origin") {
        Some(origin) if origin.split_once("://").map(|(_, host)| host) != own => {
            Err(Refused::forbidden("the request comes from another origin"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_cookie_is_out_of_reach_of_scripts_and_of_other_sites() {
        let secure = begin("n", true).unwrap();
        assert_eq!(secure, "__Host-windfall-console=n; Path=/; HttpOnly; SameSite=Strict; Secure");
        let plain = begin("n", false).unwrap();
        assert_eq!(plain, "windfall-console=n; Path=/console/; HttpOnly; SameSite=Strict");
        assert!(secure.is_sensitive());
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name_and_never_by_the_other_one() {
        let sent = headers(&[("cookie", "a=1; xwindfall-console=2"), ("cookie", "windfall-console=3; b=4")]);
        assert_eq!((find(&sent, false), find(&sent, true)), (Some("3"), None));
        assert_eq!(find(&headers(&[]), false), None);
    }

    #[test]
    fn another_site_is_refused() {
        let uri = Uri::from_static("/console/api/session");
        let check =
            |all: &[(&'static str, &'static str)]| check_origin(&Method::POST, &uri, &headers(all)).is_ok();
        assert!(check(&[]));
        assert!(check(&[("host", "h:1"), ("origin", "http://h:1")]));
        assert!(check(&[("host", "inner"), ("origin", "https://outer"), ("sec-fetch-site", "same-origin")]));
        for wrong in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("host", "h:1"), ("origin", "http://h:2")],
            &[("host", "h:1"), ("origin", "null")],
            &[("origin", "http://h:1")],
        ] {
            assert!(!check(wrong), "{wrong:?}");
        }
        let of_another = headers(&[("sec-fetch-site", "cross-site")]);
        assert!(
            check_origin(&Method::GET, &uri, &of_another).is_ok(),
            "reading needs the cookie, which is not sent"
        );
    }
}
