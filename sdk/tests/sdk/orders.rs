//! The helpers' order numbers are those of `docs/order-numbers.md`, which other languages follow.

use crate::stage::{Stage, rules};
use serde_json::Value;
use windfall_proto::scene::{Scene, SceneOrders};
use windfall_sdk::{CardDraw, Fireworks, RedPacketRain, SdkOptions};

fn vectors() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/order-numbers.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn helpers_and_the_format_for_others_make_the_numbers_of_the_vectors() {
    let mut types: Vec<String> = Vec::new();
    for vector in vectors() {
        types.push(vector["bonus_type"].as_str().unwrap().to_owned());
    }
    types.sort();
    types.dedup();
    let text = rules(1, &[("q", 100)], &[("*", "q")]);
    let text = text.replace("types = [\"cash\", \"coin\"]", &format!("types = {types:?}"));
    let stage = Stage::open(SdkOptions::default(), &text);
    for vector in vectors() {
        let (name, of) =
            (|key: &str| vector[key].as_str().unwrap(), |key: &str| vector[key].as_u64().unwrap());
        let (activity, bonus_type) = (name("activity"), name("bonus_type"));
        let round = u32::try_from(of("round")).unwrap();
        let user_id = i64::try_from(of("user_id")).unwrap();
        let number = u32::try_from(of("number")).unwrap();
        let by_helper = match name("scene") {
            RedPacketRain::SCENE => {
                RedPacketRain::new(&stage.sdk, activity, bonus_type).unwrap().trade_no(round, user_id, number)
            }
            CardDraw::SCENE => {
                CardDraw::new(&stage.sdk, activity, bonus_type).unwrap().trade_no(round, user_id, number)
            }
            Fireworks::SCENE => {
                Fireworks::new(&stage.sdk, activity, bonus_type).unwrap().trade_no(round, user_id, number)
            }
            other => panic!("no helper sends {other}"),
        };
        assert_eq!(by_helper, name("trade_no"));
        let scene = Scene::ALL.into_iter().find(|scene| scene.name() == name("scene")).unwrap();
        let orders = SceneOrders::new(scene, activity, bonus_type).unwrap();
        assert_eq!(orders.trade_no(round, user_id, number), name("trade_no"));
    }
    stage.end();
}

/// The ledger credits an order number once within its activity, where user, type, scene and amount agree.
#[cfg(feature = "rpc")]
#[tokio::test]
async fn the_same_reward_by_a_helper_and_by_the_gateway_is_one_order() {
    use windfall_edge::{Call, Caller, Role};
    use windfall_proto::v1::send_server::Send as _;
    use windfall_proto::v1::{Bonus, BonusEvent, SendBonusRequest, User as WireUser};
    use windfall_sdk::{Prize, User};

    let stage = Stage::open(SdkOptions::default(), &rules(1, &[("q", 100)], &[("*", "q")]));
    let rain = RedPacketRain::new(&stage.sdk, "spring-2027", "cash").unwrap();
    rain.send(1, User::id(42), 0, Prize { amount: 888, description: "red packet" }).unwrap();

    // What docs/order-numbers.md sends by curl; HTTP and gRPC reach the service by this one method.
    let gateway = windfall_sdk::rpc::Gateway::new([("acme".to_owned(), stage.sdk.clone())].into());
    let mut request = tonic::Request::new(SendBonusRequest {
        trade_no: "spring-2027/rain/0000000001/cash/42/0".into(),
        user: Some(WireUser { user_id: 42, ..WireUser::default() }),
        activity: "spring-2027".into(),
        scene: "red-packet-rain".into(),
        bonus: Some(Bonus { r#type: "cash".into(), amount: 888, description: "red packet".into() }),
        ..SendBonusRequest::default()
    });
    let caller = Caller {
        name: "rain".into(),
        tenant: "acme".into(),
        roles: [Role::Send].into(),
        timers_of: Default::default(),
    };
    request.extensions_mut().insert(Call { caller, user_id: None, trace_id: None });
    gateway.send_bonus(request).await.unwrap();

    stage.wait_for_events(2);
    let order = |event: BonusEvent| {
        (event.activity, event.trade_no, event.user.unwrap().user_id, event.scene, event.bonus)
    };
    let mut orders = stage.events().into_iter().map(order);
    assert_eq!(orders.next(), orders.next());
    assert_eq!(orders.next(), None);
}
