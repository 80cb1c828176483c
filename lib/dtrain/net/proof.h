// Authentication primitives: HMAC proofs of the job's secret, munge credentials, and the owners of
// sockets as the kernel reports them.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::net {

/// Returns the challenge of a handshake: 32 new random bytes.
[[nodiscard]] std::string new_challenge();

/// HMAC-SHA-256 of `text`; 32 bytes.
[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view text);

/// Compares in constant time.
[[nodiscard]] bool is_same_proof(std::string_view a, std::string_view b);

/// The user whose process created the other end of a unix socket; empty if unknown.
[[nodiscard]] std::optional<uid_t> user_of_unix_peer(int descriptor);

/// The job's secret: `token`, or the content of `token_file` without trailing newlines; empty if
/// neither is given.
///
/// Throws: Error{usage} naming the variable if both are given, if the secret is shorter than 16
///         bytes, or if the file cannot be read or other users can read it.
[[nodiscard]] std::string job_secret(const std::string& token, const std::string& token_file);

/// Encrypts a text as a munge credential, which only processes of this user can decode, on machines
/// that share a munge key. libmunge is loaded at the first call; builds do not need it.
///
/// Returns: empty, with `reason`, if munge is missing or does not answer.
[[nodiscard]] std::optional<std::string> encode_credential(std::string_view text,
                                                           std::string& reason);

/// Creates a random job secret; empty if munge cannot encode credentials.
[[nodiscard]] std::string new_munge_secret();

/// Decodes a munge credential that a process of this user encoded at most five minutes ago (munge's
/// default). A machine decodes each credential once.
///
/// Returns: empty, with `reason`, for another user's, a stale or a forged credential, and if munge
///          does not answer.
[[nodiscard]] std::optional<std::string> decode_credential(const std::string& credential,
                                                           std::string& reason);

/// The user whose process holds the other end of a TCP connection within this machine; empty if
/// that end is outside this network namespace, or closed.
///
/// Throws: Error{comm} if the kernel reports it neither by netlink nor in /proc.
[[nodiscard]] std::optional<uid_t> user_of_tcp_peer(int descriptor);

/// One end of a TCP connection.
struct TcpEnd {
  sockaddr_storage local{};
  sockaddr_storage remote{};
};

/// The kernel's report about one end of a connection.
struct TcpOwner {
  uid_t user = 0;
  std::uint64_t inode = 0;  ///< 0: no process holds it any more, and `user` is meaningless
  bool is_connected = false;
};

/// Queries the kernel for one connection by netlink, in constant time. Empty if the kernel knows no
/// such connection, or does not answer.
[[nodiscard]] std::optional<TcpOwner> owner_by_netlink(const TcpEnd& end);

/// Looks the connection up in /proc/net/tcp and tcp6: an IPv6 socket may hold an IPv4 connection.
/// Empty if neither lists it.
///
/// Throws: Error{comm} if the table cannot be read.
[[nodiscard]] std::optional<TcpOwner> owner_by_table(const TcpEnd& end);

}  // namespace dtrain::net
