//! As much of zip (PKWARE's APPNOTE, 4.3) and of Java's class files (JVM specification, 4.4) as brings out string
//! constants.

use flate2::read::DeflateDecoder;
use std::io::Read as _;

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// Java's order.
    fn big(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_be_bytes(self.take(2)?.try_into().ok()?)))
    }

    /// Zip's order.
    fn little(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_le_bytes(self.take(2)?.try_into().ok()?)))
    }

    fn little_long(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.take(4)?.try_into().ok()?)).ok()
    }
}

/// The file `name` of an archive, by its directory at the end.
pub fn unzip(archive: &[u8], name: &str) -> Option<Vec<u8>> {
    let end = archive.windows(4).rposition(|four| four == b"PK\x05\x06")?;
    let mut end = Bytes(archive.get(end + 10..)?);
    let (count, _size, start) = (end.little()?, end.little_long()?, end.little_long()?);
    let mut directory = Bytes(archive.get(start..)?);
    for _ in 0..count {
        directory.take(10)?;
        let method = directory.little()?;
        directory.take(8)?;
        let (packed, _plain) = (directory.little_long()?, directory.little_long()?);
        let (name_length, extra, comment) = (directory.little()?, directory.little()?, directory.little()?);
        directory.take(8)?;
        let start = directory.little_long()?;
        let found = directory.take(name_length)?;
        directory.take(extra + comment)?;
        if found != name.as_bytes() {
            continue;
        }
        let mut local = Bytes(archive.get(start + 26..)?);
        let skipped = local.little()? + local.little()?;
        local.take(skipped)?;
        let packed = local.take(packed)?;
        let mut plain = Vec::new();
        match method {
            0 => plain.extend_from_slice(packed),
            _ => drop(DeflateDecoder::new(packed).read_to_end(&mut plain).ok()?),
        }
        return Some(plain);
    }
    None
}

/// All text constants of a class, a character a byte, as `protoc` writes descriptors into Java.
pub fn texts(class: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut class = Bytes(class.get(8..)?);
    let count = class.big()?;
    let (mut texts, mut index) = (Vec::new(), 1);
    while index < count {
        index += 1;
        match class.byte()? {
            1 => {
                let length = class.big()?;
                texts.push(characters(class.take(length)?));
            }
            7 | 8 | 16 | 19 | 20 => drop(class.take(2)?),
            15 => drop(class.take(3)?),
            5 | 6 => {
                class.take(8)?;
                // These take two places.
                index += 1;
            }
            _ => drop(class.take(4)?),
        }
    }
    Some(texts)
}

/// Java's own UTF-8, whose 0 takes two bytes. Characters beyond 255 are of no interest here.
fn characters(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(first) = rest.next() {
        bytes.push(match first {
            0xc0..=0xc3 => first << 6 | rest.next().map_or(0, |second| second & 0x3f),
            _ => *first,
        });
    }
    bytes
}
