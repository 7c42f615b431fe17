//! Double-entry accounts, transfers and orders in SQL, with reconciliation
