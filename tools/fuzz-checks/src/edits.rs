//! Edits of what was made honestly: what bytes from outside hardly ever come near to.

/// The bytes after edits, four bytes each: what is done, where (two), and which byte is put there.
pub(crate) fn edited(honest: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut bytes = honest.to_vec();
    for one in edits.chunks_exact(4).take(64) {
        let at = usize::from(u16::from_le_bytes([one[1], one[2]])) % (bytes.len() + 1);
        match one[0] % 4 {
            0 if at < bytes.len() => bytes[at] = one[3],
            1 => bytes.insert(at, one[3]),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            _ => {}
        }
    }
    bytes
}
