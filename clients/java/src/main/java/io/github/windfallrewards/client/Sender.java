package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.SendBonusReply;
import io.github.windfallrewards.v1.SendBonusRequest;

/** Takes rewards: a {@link Gateway}, or a stand-in for it in tests. */
public interface Sender {
    /** @throws WindfallException where it was not answered with a token */
    SendBonusReply sendBonus(SendBonusRequest request);
}
