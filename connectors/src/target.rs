//! The operator's URL: the host to connect to, and the path of an order.

use crate::allow::AllowList;
use crate::options::SetupError;
use hyper::Uri;
use std::fmt::Write as _;
use windfall_contract::connector::PayOrder;

/// Bytes of a URL: at most 2,048.
const URL_MAX_BYTES: usize = 2_048;

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub tls: bool,
    pub host: String,
    pub port: u16,
}

impl Target {
    /// Reads `scheme://host[:port]`, the part of a URL in front of its path.
    pub fn parse(origin: &str, allow: &AllowList, plaintext: bool) -> Result<Self, SetupError> {
        let bad = |what: &str| SetupError::option("url", what);
        let (tls, authority) = match origin.split_once("://") {
            Some(("https", authority)) => (true, authority),
            Some(("http", authority)) => (false, authority),
            _ => return Err(bad("does not begin with https:// or http://")),
        };
        if !tls && !plaintext {
            return Err(bad("is http://, which needs wire.plaintext = true"));
        }
        let parsed: Uri = format!("http://{authority}/").parse().map_err(|_| bad("is no URL"))?;
        let host = parsed.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if authority.contains('@') || host.is_empty() {
            return Err(bad("has a user in it, or no host"));
        }
        let port = parsed.port_u16().unwrap_or(if tls { 443 } else { 80 });
        if !allow.host(&host, port) {
            return Err(bad("names a host that `allow` does not list"));
        }
        Ok(Self { tls, host, port })
    }

    /// The host with its port, unless that is the scheme's own: what the request's `host` says, and the signature covers.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// `scheme://host:port`, in the form that goes into requests.
    pub fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        if self.host.contains(':') {
            format!("{scheme}://[{}]:{}", self.host, self.port)
        } else {
            format!("{scheme}://{}:{}", self.host, self.port)
        }
    }
}

/// A URL's host, and its path and query with places for what differs between orders.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub target: Target,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Activity,
    Scene,
    BonusType,
}

impl Template {
    pub fn parse(url: &str, allow: &AllowList, plaintext: bool) -> Result<Self, SetupError> {
        let bad = |what: &str| SetupError::option("url", what);
        let visible = url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if url.len() > URL_MAX_BYTES || !visible {
            return Err(bad("is longer than 2,048 bytes, or has a fragment or what is not visible ASCII"));
        }
        let scheme = url.find("://").map_or(0, |at| at + 3);
        let path_at = url[scheme..].find('/').map(|at| at + scheme).ok_or_else(|| bad("has no path"))?;
        let target = Target::parse(&url[..path_at], allow, plaintext)?;
        let mut parts = Vec::new();
        let mut rest = &url[path_at..];
        while let Some((text, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| bad("has a { without a }"))?;
            parts.push(Part::Text(text.to_owned()));
            parts.push(match name {
                "activity" => Part::Activity,
                "scene" => Part::Scene,
                "bonus_type" => Part::BonusType,
                _ => return Err(bad("knows {activity}, {scene} and {bonus_type} alone")),
            });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let template = Self { target, parts };
        let filled = template.fill_with("a", "b", "c").ok_or_else(|| bad("is no URL"))?;
        let uri: Uri = filled.parse().map_err(|_| bad("has a path that is none"))?;
        // What goes over the wire must be what was signed.
        if uri.path_and_query().map(ToString::to_string) != Some(filled) {
            return Err(bad("has a path that is written in another way on the wire"));
        }
        Ok(template)
    }

    /// Path and query for an order; `None` where a name is `.` or `..`, which would lead elsewhere.
    pub fn fill(&self, order: &PayOrder<'_>) -> Option<String> {
        self.fill_with(order.activity, order.scene, order.bonus_type)
    }

    /// Path and query where nothing in them differs between requests.
    pub fn fixed(&self) -> Option<&str> {
        match &self.parts[..] {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    fn fill_with(&self, activity: &str, scene: &str, bonus_type: &str) -> Option<String> {
        let mut path = String::with_capacity(128);
        for part in &self.parts {
            match part {
                Part::Text(text) => path.push_str(text),
                Part::Activity => push_encoded(&mut path, activity)?,
                Part::Scene => push_encoded(&mut path, scene)?,
                Part::BonusType => push_encoded(&mut path, bonus_type)?,
            }
        }
        Some(path)
    }
}

/// Appends a name, percent-encoded but for RFC 3986's unreserved characters.
fn push_encoded(path: &mut String, name: &str) -> Option<()> {
    if name == "." || name == ".." {
        return None;
    }
    // A withdrawal has no activity and no scene.
    let name = if name.is_empty() { "-" } else { name };
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            write!(path, "%{byte:02X}").ok()?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow() -> AllowList {
        AllowList::parse(&["pay.example.com", "::1"]).unwrap()
    }

    fn refused(url: &str) -> String {
        Template::parse(url, &allow(), false).unwrap_err().to_string()
    }

    #[test]
    fn names_are_encoded_and_stay_inside_their_place() {
        let url = "https://pay.example.com/v1/{bonus_type}/pay?scene={scene}&a={activity}";
        let template = Template::parse(url, &allow(), false).unwrap();
        let target = Target { tls: true, host: "pay.example.com".into(), port: 443 };
        assert_eq!(template.target, target);
        let mut order = PayOrder {
            trade_no: "t",
            user_id: 1,
            activity: "a&b=c",
            scene: "x/../y#?",
            bonus_type: "badge",
            amount: 1,
        };
        assert_eq!(template.fill(&order).unwrap(), "/v1/badge/pay?scene=x%2F..%2Fy%23%3F&a=a%26b%3Dc");
        (order.activity, order.scene) = ("", "");
        assert_eq!(template.fill(&order).unwrap(), "/v1/badge/pay?scene=-&a=-");
        order.bonus_type = "..";
        assert_eq!(template.fill(&order), None);
    }

    #[test]
    fn a_url_is_checked() {
        for (url, why) in [
            ("ftp://pay.example.com/", "https://"),
            ("http://pay.example.com/", "plaintext"),
            ("https://evil.example.com/", "does not list"),
            ("https://pay.example.com@evil.example.com/", "user"),
            ("https://evil.example.com\\@pay.example.com/", "URL"),
            ("https://pay.example.com", "no path"),
            ("https://pay.example.com/#x", "fragment"),
            ("https://pay.example.com/{user}", "alone"),
            ("https://{scene}.example.com/", "URL"),
            ("https://pay.example.com/{scene", "without"),
            ("https:///path", "URL"),
        ] {
            let found = refused(url);
            assert!(found.contains(why), "{url}: {found}");
        }
        let v6 = Template::parse("http://[::1]:80/p", &allow(), true).unwrap();
        assert_eq!(v6.target.origin(), "http://[::1]:80");
        let authority =
            |url| Template::parse(url, &allow(), true).map(|template| template.target.authority()).unwrap();
        for (url, expected) in [
            ("http://[::1]:80/p", "[::1]"),
            ("http://[::1]:443/p", "[::1]:443"),
            ("https://pay.example.com/p", "pay.example.com"),
            ("https://pay.example.com:443/p", "pay.example.com"),
            ("https://pay.example.com:8443/p", "pay.example.com:8443"),
        ] {
            assert_eq!(authority(url), expected, "{url}");
        }
    }
}
