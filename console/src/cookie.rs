//! The session's cookie, and where a request comes from.

use crate::answer::Refused;
use http::{HeaderMap, HeaderValue, Method, Uri, header};

/// The header that proves that a changing request comes from the console's own page.
pub(crate) const CSRF: &str = "x-windfall-csrf";
/// The cookie's name where the connection is not encrypted.
const PLAIN: &str = "windfall-console";
/// The cookie's name where it is: browsers take it only with `Secure`, for this host alone, and for all of its paths.
const SECURE: &str = "__Host-windfall-console";

/// The cookie of a console. Browsers keep cookies apart by host and not by port, so its name has the port that the browser
/// asked: consoles at two ports of one host, such as those of two tunnels, do not end each other's sessions.
pub(crate) struct Cookie {
    name: String,
    is_secure: bool,
}

impl Cookie {
    pub(crate) fn of(uri: &Uri, headers: &HeaderMap, is_secure: bool) -> Self {
        let own = if is_secure { SECURE } else { PLAIN };
        let port = own_authority(uri, headers)
            .and_then(|authority| authority.rsplit_once(':'))
            .and_then(|(_, port)| port.parse::<u16>().ok());
        let name = port.map_or_else(|| own.to_owned(), |port| format!("{own}-{port}"));
        Self { name, is_secure }
    }

    /// What begins a session.
    pub(crate) fn begin(&self, session: &str) -> Result<HeaderValue, Refused> {
        self.value(session, "")
    }

    /// What takes the cookie away.
    pub(crate) fn end(&self) -> Result<HeaderValue, Refused> {
        self.value("", "; Max-Age=0")
    }

    /// The session's name in a request.
    pub(crate) fn find<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        all.flat_map(|text| text.split(';'))
            .find_map(|one| one.trim().split_once('=').filter(|(name, _)| *name == self.name))
            .map(|(_, session)| session)
    }

    fn value(&self, session: &str, rest: &str) -> Result<HeaderValue, Refused> {
        let (name, shared) = (&self.name, "HttpOnly; SameSite=Strict");
        let cookie = match self.is_secure {
            true => format!("{name}={session}; Path=/; {shared}; Secure{rest}"),
            false => format!("{name}={session}; Path=/console/; {shared}{rest}"),
        };
        let mut value =
            HeaderValue::from_str(&cookie).map_err(|_| Refused::unavailable("there is no cookie"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// The host and port that the browser asked for.
fn own_authority<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let host = || headers.get(header::HOST).map(|value| value.to_str().unwrap_or("?"));
    uri.authority().map(http::uri::Authority::as_str).or_else(host)
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
    let own = own_authority(uri, headers);
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

    fn cookie(host: &'static str, is_secure: bool) -> Cookie {
        Cookie::of(&Uri::from_static("/console/"), &headers(&[("host", host)]), is_secure)
    }

    #[test]
    fn a_cookie_is_out_of_reach_of_scripts_and_of_other_sites() {
        let secure = cookie("h", true).begin("n").unwrap();
        assert_eq!(secure, "__Host-windfall-console=n; Path=/; HttpOnly; SameSite=Strict; Secure");
        let plain = cookie("h", false).begin("n").unwrap();
        assert_eq!(plain, "windfall-console=n; Path=/console/; HttpOnly; SameSite=Strict");
        let gone = cookie("h", true).end().unwrap();
        assert_eq!(gone, "__Host-windfall-console=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0");
        assert!(secure.is_sensitive() && plain.is_sensitive());
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name_and_never_by_another_one() {
        let sent = headers(&[
            ("cookie", "a=1; xwindfall-console=2; windfall-console-8450=5"),
            ("cookie", "windfall-console=3; b=4"),
        ]);
        assert_eq!((cookie("h", false).find(&sent), cookie("h", true).find(&sent)), (Some("3"), None));
        assert_eq!(cookie("h", false).find(&headers(&[])), None);
        let of_port = ["h:8450", "h:8449", "[::1]:8450", "[::1]", "h:"];
        let found = of_port.map(|host| cookie(host, false).find(&sent));
        assert_eq!(found, [Some("5"), None, Some("5"), Some("3"), Some("3")]);
        let over_http2 = Cookie::of(&Uri::from_static("https://h:8450/console/"), &headers(&[]), false);
        assert_eq!(over_http2.find(&sent), Some("5"));
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
