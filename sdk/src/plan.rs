//! The rules in force, prepared for the send path: which lane an event goes to.

use crate::lane::{Lane, LaneKey};
use parking_lot::Mutex;
use std::sync::Arc;
use windfall_contract::rules::{Pattern, Ratio, Route, Rules};
use windfall_queue_virtual::{Fanout, Side};

/// The routes of one version of the rules.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) version: u64,
    routes: Vec<PlannedRoute>,
}

struct PlannedRoute {
    activity: Pattern,
    scene: Pattern,
    ratio: Ratio,
    /// For each bonus type, the master's lane and the backup's.
    lanes: Vec<(Box<str>, [Arc<Lane>; 2])>,
}

impl Plan {
    /// The lane of an event.
    #[inline]
    pub(crate) fn lane(
        &self,
        activity: &str,
        scene: &str,
        bonus_type: &str,
        user_id: i64,
    ) -> Option<&Arc<Lane>> {
        for route in &self.routes {
            if route.activity.matches(activity)
                && route.scene.matches(scene)
                && let Some((_, lanes)) = route.lanes.iter().find(|(own, _)| **own == *bonus_type)
            {
                return Some(&lanes[usize::from(!route.ratio.takes_master(user_id))]);
            }
        }
        None
    }
}

/// Every lane that this process has ever had.
pub(crate) struct LaneTable {
    lanes: Mutex<Vec<Arc<Lane>>>,
    shards: usize,
    pack_events_max: u32,
}

impl LaneTable {
    pub(crate) fn new(shards: usize, pack_events_max: u32) -> Self {
        Self { lanes: Mutex::default(), shards, pack_events_max }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().clone()
    }

    /// The lane of this key, made if it is new.
    pub(crate) fn lane(&self, key: LaneKey) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.iter().find(|lane| lane.key == key) {
            return Arc::clone(lane);
        }
        let lane = Arc::new(Lane::new(key, self.shards, self.pack_events_max));
        lanes.push(Arc::clone(&lane));
        lane
    }

    /// Prepares `rules`, whose queues `fanout` has taken over already.
    pub(crate) fn plan(&self, rules: &Rules, fanout: &Fanout) -> Plan {
        let routes = rules.routes.iter().filter_map(|route| self.plan_route(route, rules, fanout)).collect();
        Plan { version: rules.version, routes }
    }

    fn plan_route(&self, route: &Route, rules: &Rules, fanout: &Fanout) -> Option<PlannedRoute> {
        // Both hold for rules that were validated and applied; a route without its queue would take nothing.
        let ratio = rules.queues.get(&route.queue)?.ratio;
        let queue = fanout.queue(&route.queue)?;
        let types = rules.bonus_types.iter().filter(|bonus_type| route.bonus_type.matches(bonus_type));
        let lanes = types.map(|bonus_type| {
            let lane = |side| {
                let queue_name = route.queue.clone();
                let lane = self.lane(LaneKey { queue_name, queue, side, bonus_type: bonus_type.clone() });
                lane.set_first(rules.limits.types.get(bonus_type).is_some_and(|own| own.priority == 0));
                lane
            };
            (bonus_type.as_str().into(), [lane(Side::Master), lane(Side::Backup)])
        });
        Some(PlannedRoute {
            activity: route.activity.clone(),
            scene: route.scene.clone(),
            ratio,
            lanes: lanes.collect(),
        })
    }
}
