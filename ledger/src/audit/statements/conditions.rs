//! What the comparison of lines and that of payments ask alike of an order and of a withdrawal.

use crate::audit::db::AuditDb;
use crate::error::LedgerError;

/// The key that the payer of a withdrawal `w` was given.
pub(super) const GIVEN: &str =
    "CASE w.payer_key WHEN '' THEN 'withdrawal ' || w.withdrawal_key ELSE w.payer_key END";

/// Whether two operators took the order `o` back, whose activity's name is `a`.
pub(super) fn taken_back(db: &dyn AuditDb) -> Result<&'static str, LedgerError> {
    Ok(if db.has_acts()? {
        "EXISTS (SELECT 1 FROM acts c JOIN act_ends e ON e.act = c.id WHERE c.kind = 'reverse' AND e.outcome = 1 \
         AND c.subject = 'order ' || CASE WHEN o.order_key LIKE '% %' THEN o.order_key ELSE o.order_key || ' ' || a.name END)"
    } else {
        "1 = 0"
    })
}
