package io.github.windfallrewards.client;

/** Fireworks: a show goes up, and everyone who watches gets something of each burst. */
public final class Fireworks extends Scene {
    /** @throws IllegalArgumentException where a name cannot be */
    public Fireworks(Sender sender, String activity, String bonusType) {
        super(sender, "fireworks", "show", activity, bonusType);
    }
}
