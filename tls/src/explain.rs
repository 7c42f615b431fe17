//! Why a TLS connection failed, in an operator's words.

use rustls::{AlertDescription, CertificateError, Error};
use std::error::Error as AnyError;
use std::io;

/// What to add to the error of a plain connection that a server has closed before it said anything.
pub const WANTS_TLS: &str = "perhaps it takes TLS alone (set tls)";

/// What TLS has to say about an error, wherever it is among its causes. `None` where it has nothing to do with TLS.
pub fn explain(error: &(dyn AnyError + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return Some(word(error));
        }
        // An I/O error hides what it was made from from those who ask for its source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(said) = inner.and_then(|inner| explain(inner)) {
            return Some(said);
        }
        next = error.source();
    }
    None
}

fn word(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => certificate(why),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it demands a client certificate; set tls.cert_file and tls.key_file".into()
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            "it refuses the handshake; it may demand a client certificate (tls.cert_file and tls.key_file)"
                .into()
        }
        Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied),
        ) => format!("it refuses the client certificate of tls.cert_file, or misses one: {alert:?}"),
        Error::InvalidMessage(_) => {
            "what answers there speaks no TLS; check the port, or leave tls out".into()
        }
        other => other.to_string(),
    }
}

fn certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; renew it, and check the clocks of both machines".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not in force yet; check the clocks of both machines".into()
        }
        // The second: an authority of the same name, with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is signed by no authority that is trusted here; set tls.ca_file to the authority's certificate"
                .into()
        }
        CertificateError::NotValidForName => {
            "its certificate bears another name; address it by one that it bears, or set tls.server_name".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate bears another name than {} (it bears {}); address it by one of these, or set tls.server_name",
            expected.to_str(),
            names(presented)
        ),
        other => format!("its certificate cannot be trusted: {other}"),
    }
}

/// The names of a certificate, which rustls shows as `DnsName("host")` and `IpAddress(127.0.0.1)`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    if presented.is_empty() {
        "none".into()
    } else {
        presented.iter().map(bare).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_found_below_other_errors() {
        let tls = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let inner = io::Error::new(io::ErrorKind::InvalidData, tls);
        let outer = io::Error::other(inner);
        assert!(explain(&outer).is_some_and(|said| said.contains("tls.ca_file")));
        assert_eq!(explain(&io::Error::from(io::ErrorKind::ConnectionReset)), None);
        assert_eq!(explain(&io::Error::other("no TLS")), None);
    }

    #[test]
    fn names_are_shown_as_they_are_written() {
        let presented =
            ["IpAddress(127.0.0.1)".to_owned(), "DnsName(\"db.test\")".to_owned(), "odd".to_owned()];
        assert_eq!(names(&presented), "127.0.0.1, db.test, odd");
    }
}
