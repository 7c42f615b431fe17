//! The role that each method needs: the one table of it. A method that has no row here does not compile, and a test
//! compares the rows with docs/services.md.
//!
//! What shows the fleet's state and changes nothing needs `observe`; what changes it needs `operate`; what a user's front
//! end does, and what belongs to a tenant of the scheduler, needs the role of that service.

use crate::identity::Role;
use windfall_proto::methods::{
    ActsMethod, ArchiveMethod, AuditsMethod, BackfillsMethod, JobsMethod, PayoutsMethod, RewardsMethod,
    SendMethod, TimersMethod, TokensMethod, WalletMethod,
};

/// What `GET /metrics` needs.
pub(crate) const METRICS: Role = Role::Observe;

pub(super) const fn send(method: SendMethod) -> Role {
    match method {
        SendMethod::SendBonus | SendMethod::SendBonusBatch => Role::Send,
    }
}

pub(super) const fn tokens(method: TokensMethod) -> Role {
    match method {
        TokensMethod::ListTokens | TokensMethod::VerifyTokens => Role::Verify,
    }
}

pub(super) const fn wallet(method: WalletMethod) -> Role {
    match method {
        WalletMethod::GetWallet => Role::Verify,
        WalletMethod::Withdraw => Role::Withdraw,
    }
}

pub(super) const fn payouts(method: PayoutsMethod) -> Role {
    match method {
        PayoutsMethod::ListToPayOut | PayoutsMethod::AcknowledgePayout => Role::PayOut,
    }
}

pub(super) const fn rewards(method: RewardsMethod) -> Role {
    match method {
        RewardsMethod::Grant | RewardsMethod::GrantBatch | RewardsMethod::GrantAsync => Role::Grant,
    }
}

pub(super) const fn archive(method: ArchiveMethod) -> Role {
    match method {
        ArchiveMethod::ListArchive
        | ArchiveMethod::GetArchived
        | ArchiveMethod::ListBudgets
        | ArchiveMethod::ListReserved
        | ArchiveMethod::GetOrder
        | ArchiveMethod::ListHeld
        | ArchiveMethod::GetLedgerMark
        | ArchiveMethod::GetStatement
        | ArchiveMethod::ListWithdrawals => Role::Observe,
        ArchiveMethod::ReplayArchived | ArchiveMethod::ReleaseReserved | ArchiveMethod::AcceptLedger => {
            Role::Operate
        }
    }
}

pub(super) const fn acts(method: ActsMethod) -> Role {
    match method {
        ActsMethod::ListActs | ActsMethod::GetAct | ActsMethod::SurveyOrders => Role::Observe,
        // Who proposed an act may refuse it, too.
        ActsMethod::ProposeAct | ActsMethod::RefuseAct => Role::Operate,
        ActsMethod::ApproveAct | ActsMethod::CarryOutAct => Role::Approve,
    }
}

pub(super) const fn audits(method: AuditsMethod) -> Role {
    match method {
        AuditsMethod::GetAudit | AuditsMethod::ListDifferences | AuditsMethod::ListPayerStatements => {
            Role::Observe
        }
        AuditsMethod::MarkDifference
        | AuditsMethod::BeginPayerStatement
        | AuditsMethod::AppendPayerLines
        | AuditsMethod::ComparePayerStatement => Role::Operate,
    }
}

pub(super) const fn timers(method: TimersMethod) -> Role {
    match method {
        TimersMethod::Add
        | TimersMethod::AddBatch
        | TimersMethod::Update
        | TimersMethod::Cancel
        | TimersMethod::CancelBatch
        | TimersMethod::Get
        | TimersMethod::List
        | TimersMethod::ListDead
        | TimersMethod::EndDead => Role::Schedule,
    }
}

pub(super) const fn backfills(method: BackfillsMethod) -> Role {
    match method {
        BackfillsMethod::GetBackfill => Role::Observe,
        BackfillsMethod::StartBackfill | BackfillsMethod::CancelBackfill => Role::Operate,
    }
}

pub(super) const fn jobs(method: JobsMethod) -> Role {
    match method {
        JobsMethod::Put
        | JobsMethod::PutMany
        | JobsMethod::Get
        | JobsMethod::List
        | JobsMethod::Versions
        | JobsMethod::SetPaused
        | JobsMethod::Remove
        | JobsMethod::Run
        | JobsMethod::ListRuns
        | JobsMethod::GetRun
        | JobsMethod::RunAgain
        | JobsMethod::Kill
        | JobsMethod::Log
        | JobsMethod::ListDead
        | JobsMethod::ListExecutors
        | JobsMethod::Register
        | JobsMethod::Unregister
        | JobsMethod::Report
        | JobsMethod::Preview => Role::Schedule,
    }
}
