//! Drains a topic: window, lanes, dispatch, requeue, commit
