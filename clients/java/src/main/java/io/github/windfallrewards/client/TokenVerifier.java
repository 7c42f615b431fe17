package io.github.windfallrewards.client;

import com.google.protobuf.InvalidProtocolBufferException;
import io.github.windfallrewards.v1.BonusToken;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.security.GeneralSecurityException;
import java.security.Signature;
import java.util.Arrays;
import java.util.Base64;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;

/**
 * Opens tokens of one tenant, which is the app that a fleet serves, without a network: it proves that Windfall made a token, for
 * whom and over how much. Threads may share it.
 *
 * <p>It needs a verifier's copy of the key ring, which {@code windfall keys export-verifier} writes from a ring of Ed25519 keys.
 * Such a copy cannot make tokens. A ring of HMAC keys, which is the default, has no such copy, because whoever verifies with it
 * can also mint: ask {@link Tokens#verify} then.
 *
 * <p>A token that opens is genuine, no more: only the token store knows whether its reward is still on its way, and the wallet
 * alone pays. Show it to the user as "on its way or arrived", and never hand out money for it.
 */
public final class TokenVerifier {
    /** The length of the longest token text. */
    private static final int TEXT_MAX_BYTES = 1_024;
    /** The largest key file that is read. A thousand keys take a third of it. */
    private static final int FILE_MAX_BYTES = 1 << 20;
    private static final int VERSION = 1;
    private static final int ID_END = 5;
    private static final int HEADER_BYTES = ID_END + Seal.NONCE_BYTES;
    private static final int SIGNATURE_BYTES = 64;
    private static final int DOMAIN_BLOCK_BYTES = 64;
    private static final byte[] PURPOSE = "bonus-token".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] SIGNATURE_DOMAIN =
            "windfall bonus token signature\0".getBytes(StandardCharsets.US_ASCII);
    private static final Set<PosixFilePermission> OWNERS =
            EnumSet.range(PosixFilePermission.OWNER_READ, PosixFilePermission.OWNER_EXECUTE);

    private final Map<Long, VerifierKey> keys;
    private final byte[] tenant;

    private TokenVerifier(Map<Long, VerifierKey> keys, String tenant) {
        this.keys = keys;
        this.tenant = tenant.getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Reads a verifier's copy, which only its owner may be able to read. After a change of the key ring, export the copy and load
     * it again.
     *
     * @throws KeyFileException where others may read the file, or it is none
     * @throws IOException where it cannot be read
     */
    public static TokenVerifier load(Path path, String tenant) throws IOException {
        if (!OWNERS.containsAll(Files.getPosixFilePermissions(path))) {
            throw new KeyFileException("others may read " + path + "; run: chmod 600 '" + path + "'");
        }
        try (InputStream file = Files.newInputStream(path)) {
            byte[] text = file.readNBytes(FILE_MAX_BYTES + 1);
            if (text.length > FILE_MAX_BYTES) {
                throw KeyFileException.damaged("longer than 1 MiB");
            }
            return parse(new String(text, StandardCharsets.UTF_8), tenant);
        }
    }

    /**
     * Takes the text of a verifier's copy, for those who keep it elsewhere than in a file.
     *
     * @throws KeyFileException where it is none
     */
    public static TokenVerifier parse(String text, String tenant) throws KeyFileException {
        return new TokenVerifier(VerifierKey.parse(text), tenant);
    }

    /**
     * Opens a token that this user presents.
     *
     * @throws IllegalTokenException where the text is not a token of this user
     */
    public BonusToken open(String text, long userId) throws IllegalTokenException {
        try {
            BonusToken token = open(decode(text));
            if (token.getUserId() == userId) {
                return token;
            }
        } catch (GeneralSecurityException | InvalidProtocolBufferException error) {
            // The cause is not for the one who presents the token.
        }
        throw new IllegalTokenException();
    }

    private BonusToken open(byte[] raw) throws GeneralSecurityException, InvalidProtocolBufferException {
        if (raw.length < HEADER_BYTES + Seal.TAG_BYTES || raw[0] != VERSION) {
            throw new GeneralSecurityException("header");
        }
        // The key's number alone fixes the key and its algorithms: nothing is tried in turn.
        VerifierKey key = keys.get(Integer.toUnsignedLong(ByteBuffer.wrap(raw, 1, Integer.BYTES).getInt()));
        if (key == null || key.signer() == null) {
            throw new GeneralSecurityException("key");
        }
        byte[] header = Arrays.copyOf(raw, HEADER_BYTES);
        byte[] associated = concat(PURPOSE, Arrays.copyOf(raw, ID_END), tenant);
        byte[] nonce = Arrays.copyOfRange(raw, ID_END, HEADER_BYTES);
        byte[] inside = Seal.open(key.seal(), nonce, Arrays.copyOfRange(raw, HEADER_BYTES, raw.length), associated);
        if (inside.length < SIGNATURE_BYTES) {
            throw new GeneralSecurityException("signature");
        }
        byte[] content = Arrays.copyOf(inside, inside.length - SIGNATURE_BYTES);
        Signature signature = Signature.getInstance("Ed25519");
        signature.initVerify(key.signer());
        signature.update(concat(signatureDomain(), header, content));
        if (!signature.verify(inside, content.length, SIGNATURE_BYTES)) {
            throw new GeneralSecurityException("signature");
        }
        // Only now are the bytes known to come from a minter; nothing was parsed before.
        BonusToken token = BonusToken.parseFrom(content);
        // One token has one encoding.
        if (!token.getUnknownFields().asMap().isEmpty() || !Arrays.equals(token.toByteArray(), content)) {
            throw new GeneralSecurityException("content");
        }
        return token;
    }

    /** Reads base64url that is canonical: one token has one text. */
    private static byte[] decode(String text) throws GeneralSecurityException {
        // The length comes first: a text of 10 MB costs one comparison.
        if (text.length() > TEXT_MAX_BYTES) {
            throw new GeneralSecurityException("length");
        }
        try {
            byte[] raw = Base64.getUrlDecoder().decode(text);
            if (Base64.getUrlEncoder().withoutPadding().encodeToString(raw).equals(text)) {
                return raw;
            }
        } catch (IllegalArgumentException error) {
            // As any other text that is no token.
        }
        throw new GeneralSecurityException("base64");
    }

    /** What a tenant's signed messages begin with, filled up to a whole block of SHA-256. */
    private byte[] signatureDomain() {
        byte[] domain = concat(SIGNATURE_DOMAIN, ByteBuffer.allocate(Long.BYTES).putLong(tenant.length).array(), tenant);
        int blocks = (domain.length + DOMAIN_BLOCK_BYTES - 1) / DOMAIN_BLOCK_BYTES;
        return Arrays.copyOf(domain, blocks * DOMAIN_BLOCK_BYTES);
    }

    private static byte[] concat(byte[]... parts) {
        ByteBuffer whole = ByteBuffer.allocate(Arrays.stream(parts).mapToInt(part -> part.length).sum());
        for (byte[] part : parts) {
            whole.put(part);
        }
        return whole.array();
    }
}
