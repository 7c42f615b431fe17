//! I6: any document is read or refused, and what is read is written and read again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match windfall_config::parse_rules_bytes(data, None) {
        Ok(rules) => {
            let text = windfall_config::rules_text(&rules);
            let again = windfall_config::parse_rules(&text, None).expect("what we write we read");
            assert_eq!(again, rules);
            assert_eq!(windfall_config::rules_text(&again), text);
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty(), "a refusal says why"),
    }
});
