package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.GetWalletReply;
import io.github.windfallrewards.v1.GetWalletRequest;
import io.github.windfallrewards.v1.WalletGrpc;
import io.github.windfallrewards.v1.WithdrawReply;
import io.github.windfallrewards.v1.WithdrawRequest;

/** Shows users' wallets and withdraws. */
public final class Wallet {
    private final Connection connection;

    /** Makes calls over a connection, which may be shared. */
    public Wallet(Connection connection) {
        this.connection = connection;
    }

    /**
     * Balances and newest movements, with the pending rewards.
     *
     * @throws WindfallException where it was not answered
     */
    public GetWalletReply get(EndUser user, GetWalletRequest request) {
        return connection.call(WalletGrpc.getGetWalletMethod(), request, Repeat.SAFE, user);
    }

    /**
     * Takes money off the balance, once for the withdrawal's id: it is safe to repeat, and is repeated where no answer comes. Of its errors
     * {@code UNANSWERED} alone leaves open what became of the withdrawal.
     *
     * @throws WindfallException where it was not answered with an outcome
     */
    public WithdrawReply withdraw(EndUser user, WithdrawRequest request) {
        Connection.Answer<WithdrawReply> answer =
                connection.ask(WalletGrpc.getWithdrawMethod(), request, Repeat.SAFE, user);
        if (answer.failure() != null) {
            throw WindfallException.ofWithdrawal(answer.failure());
        }
        return answer.message();
    }
}
