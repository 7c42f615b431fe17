//! The name of a queue within its namespace.

use super::NAME_MAX_BYTES;
use std::fmt;
use std::sync::Arc;

/// A namespace and a queue in it. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName {
    /// Both, with a slash between them, which neither has.
    text: Arc<str>,
    namespace_bytes: usize,
}

/// A name is not what it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Longer than [`NAME_MAX_BYTES`].
    #[error("namespace or queue name too long")]
    TooLong,
    /// Of the namespace: empty, or another character than letters, digits, `-` and `_`.
    #[error("namespace name contains forbidden characters")]
    Namespace,
    /// Of the queue: the same, or it begins with `_`.
    #[error("queue name contains forbidden characters")]
    Queue,
}

impl QueueName {
    /// A queue's name.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn new(namespace: &str, queue: &str) -> Result<Self, InvalidName> {
        Self::check_namespace(namespace)?;
        if queue.len() > NAME_MAX_BYTES {
            return Err(InvalidName::TooLong);
        }
        if queue.starts_with('_') || !is_plain(queue) {
            return Err(InvalidName::Queue);
        }
        let mut text = String::with_capacity(namespace.len() + 1 + queue.len());
        text.push_str(namespace);
        text.push('/');
        text.push_str(queue);
        Ok(Self { text: text.into(), namespace_bytes: namespace.len() })
    }

    /// From what [`as_str`](Self::as_str) says.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let (namespace, queue) = text.split_once('/').ok_or(InvalidName::Namespace)?;
        Self::new(namespace, queue)
    }

    /// Checks a namespace alone.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn check_namespace(namespace: &str) -> Result<(), InvalidName> {
        match namespace {
            long if long.len() > NAME_MAX_BYTES => Err(InvalidName::TooLong),
            plain if is_plain(plain) => Ok(()),
            _ => Err(InvalidName::Namespace),
        }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.text[..self.namespace_bytes]
    }

    /// Its name within the namespace.
    pub fn queue(&self) -> &str {
        &self.text[self.namespace_bytes + 1..]
    }

    /// Both, as one text that no other queue has.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_plain_and_of_bounded_length() {
        let name = QueueName::new("shop-1", "Mails_2").unwrap();
        assert_eq!((name.namespace(), name.queue(), name.as_str()), ("shop-1", "Mails_2", "shop-1/Mails_2"));
        assert_eq!(QueueName::parse(name.as_str()), Ok(name));
        let long = "q".repeat(256);
        for (namespace, queue, why) in [
            ("", "q", InvalidName::Namespace),
            ("a/b", "q", InvalidName::Namespace),
            ("n", "", InvalidName::Queue),
            ("n", "_q", InvalidName::Queue),
            ("n", "q,r", InvalidName::Queue),
            ("n", "ü", InvalidName::Queue),
            ("n", &long, InvalidName::TooLong),
            (&long, "q", InvalidName::TooLong),
        ] {
            assert_eq!(QueueName::new(namespace, queue), Err(why), "{namespace}/{queue}");
        }
        assert!(QueueName::new("_n", &long[1..]).is_ok());
    }
}
