package io.github.windfallrewards.client;

/** Red-packet rain: users tap packets that fall in rounds. */
public final class RedPacketRain extends Scene {
    /** @throws IllegalArgumentException where a name cannot be */
    public RedPacketRain(Sender sender, String activity, String bonusType) {
        super(sender, "red-packet-rain", "rain", activity, bonusType);
    }
}
