//! I6: any document is read or refused, and what is read is written and read again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windfall_config::Rules;

fuzz_target!(|data: &[u8]| {
    match Rules::parse_bytes(data, None) {
        Ok(rules) => {
            let text = rules.to_text();
            let again = Rules::parse(&text, None).expect("what we write we read");
            assert_eq!(again, rules);
            assert_eq!(again.to_text(), text);
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty(), "a refusal says why"),
    }
});
