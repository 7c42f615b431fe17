package token

import (
	"crypto/aes"
	"crypto/cipher"
)

const (
	prefixBytes = 12
	countBytes  = 12
	tagBytes    = 16
)

// unseal opens XAES-256-GCM (https://c2sp.org/XAES-256-GCM): the nonce's first half picks a derived key, and its second half
// is the nonce of AES-256-GCM under that key.
func unseal(secret, nonce, sealed, associated []byte) ([]byte, error) {
	block, err := aes.NewCipher(derive(secret, nonce[:prefixBytes]))
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return gcm.Open(nil, nonce[prefixBytes:], sealed, associated)
}

// derive is the key that the nonce's first half picks: two blocks of CMAC.
func derive(secret, prefix []byte) []byte {
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic("token: a sealing key that is not of 32 bytes got past the key file")
	}
	var k1 [aes.BlockSize]byte
	block.Encrypt(k1[:], k1[:])
	var carry byte
	for at := len(k1) - 1; at >= 0; at-- {
		carry, k1[at] = k1[at]>>7, k1[at]<<1|carry
	}
	// The field's polynomial goes back in where the top bit fell out.
	k1[len(k1)-1] ^= 0x87 * carry

	derived := make([]byte, 2*aes.BlockSize)
	for half := range 2 {
		message := append([]byte{0, byte(half + 1), 'X', 0}, prefix...)
		for at := range message {
			message[at] ^= k1[at]
		}
		block.Encrypt(derived[half*aes.BlockSize:], message)
	}
	return derived
}
