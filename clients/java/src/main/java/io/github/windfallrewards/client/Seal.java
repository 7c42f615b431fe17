package io.github.windfallrewards.client;

import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * XAES-256-GCM (https://c2sp.org/XAES-256-GCM): the nonce's first half picks a derived key, and its second half is the nonce of
 * AES-256-GCM under that key.
 */
final class Seal {
    static final int NONCE_BYTES = 24;
    static final int TAG_BYTES = 16;
    private static final int PREFIX_BYTES = 12;
    private static final int BLOCK_BYTES = 16;

    private Seal() {}

    /** @throws GeneralSecurityException where the tag does not fit */
    static byte[] open(byte[] secret, byte[] nonce, byte[] sealed, byte[] associated) throws GeneralSecurityException {
        Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
        GCMParameterSpec count = new GCMParameterSpec(8 * TAG_BYTES, nonce, PREFIX_BYTES, NONCE_BYTES - PREFIX_BYTES);
        cipher.init(Cipher.DECRYPT_MODE, new SecretKeySpec(derive(secret, nonce), "AES"), count);
        cipher.updateAAD(associated);
        return cipher.doFinal(sealed);
    }

    /** The key that the nonce's first half picks: two blocks of CMAC. */
    private static byte[] derive(byte[] secret, byte[] nonce) throws GeneralSecurityException {
        Cipher block = Cipher.getInstance("AES/ECB/NoPadding");
        block.init(Cipher.ENCRYPT_MODE, new SecretKeySpec(secret, "AES"));
        byte[] k1 = block.doFinal(new byte[BLOCK_BYTES]);
        int carry = 0;
        for (int at = BLOCK_BYTES - 1; at >= 0; at--) {
            int shifted = (k1[at] & 0xff) << 1 | carry;
            k1[at] = (byte) shifted;
            carry = shifted >> 8;
        }
        // The field's polynomial goes back in where the top bit fell out.
        k1[BLOCK_BYTES - 1] ^= (byte) (0x87 * carry);
        ByteBuffer derived = ByteBuffer.allocate(2 * BLOCK_BYTES);
        for (byte half = 1; half <= 2; half++) {
            byte[] message = ByteBuffer.allocate(BLOCK_BYTES)
                    .put(new byte[] {0, half, 'X', 0})
                    .put(nonce, 0, PREFIX_BYTES)
                    .array();
            for (int at = 0; at < BLOCK_BYTES; at++) {
                message[at] ^= k1[at];
            }
            derived.put(block.doFinal(message));
        }
        return derived.array();
    }
}
