package windfall

import "strconv"

// EndUser is the end user of a call.
type EndUser struct {
	header, value string
}

// SignedUser is a user by a signed assertion (JWT), as the user's front end holds it.
func SignedUser(token string) *EndUser {
	return &EndUser{"x-windfall-user-token", token}
}

// NamedUser is a user by number. Servers believe it of callers that may name users.
func NamedUser(userID int64) *EndUser {
	return &EndUser{"x-windfall-user", strconv.FormatInt(userID, 10)}
}

// String shows the user without the assertion.
func (u *EndUser) String() string {
	if u.header == "x-windfall-user" {
		return "user " + u.value
	}
	return "a signed user"
}

// GoString shows the user without the assertion.
func (u *EndUser) GoString() string { return u.String() }
