//! The switch does what it says; needs `--features sabotage`. One test, as the switch is the whole process's.

use windfall_token::{KeyRing, StoreAnswer, TokenFields, Verdict, sabotage};

#[test]
fn without_comparison_anybody_may_present_anything() {
    let ring = KeyRing::ephemeral().unwrap();
    let minter = ring.minter("acme").unwrap();
    let fields = TokenFields { trade_no: "rain-1", user_id: 42, amount: 888, ..Default::default() };
    let client = minter.mint(&fields, 0).unwrap();
    let stored = minter.mint(&TokenFields { amount: 1, ..fields }, 0).unwrap();
    let verify = |owner| ring.verify(&client, StoreAnswer::Held(&stored), "acme", owner);

    assert_eq!([verify(42), verify(43)], [Verdict::Illegal, Verdict::Illegal]);
    sabotage::skip_token_comparison(true);
    assert!(matches!(verify(42), Verdict::Valid(token) if token.amount == 888));
    assert!(matches!(verify(43), Verdict::Valid(_)));
    sabotage::skip_token_comparison(false);
    assert_eq!([verify(42), verify(43)], [Verdict::Illegal, Verdict::Illegal]);
}
