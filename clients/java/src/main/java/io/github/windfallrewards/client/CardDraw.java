package io.github.windfallrewards.client;

/** Card draw: a user draws, and each draw of a day has its number. */
public final class CardDraw extends Scene {
    /** @throws IllegalArgumentException where a name cannot be */
    public CardDraw(Sender sender, String activity, String bonusType) {
        super(sender, "card-draw", "draw", activity, bonusType);
    }
}
