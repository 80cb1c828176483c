// Proves that processes belong to one job: by its secret, by munge, or by the kernel's word on who
// owns a socket.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::net {

/// 32 random bytes, never used twice.
[[nodiscard]] std::string new_challenge();

/// 32 bytes that only those can make who know the key.
[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view text);

/// Compares in a time that does not depend on where they differ.
[[nodiscard]] bool is_same_proof(std::string_view a, std::string_view b);

/// The user whose process made the other end of a unix socket.
[[nodiscard]] std::optional<uid_t> user_of_unix_peer(int descriptor);

/// The job's secret: `token`, or the content of `token_file` without its last line's end; empty if
/// neither is given.
///
/// Throws: Error{usage} naming the variable, for both at once, a secret below 16 bytes, or a file
///         that cannot be read or that others can read.
[[nodiscard]] std::string job_secret(const std::string& token, const std::string& token_file);

/// Seals a text so that only processes of this user can read it, on machines that share a munge
/// key: munge calls it a credential. No munge is needed to build or to start; libmunge is opened
/// here.
///
/// Returns: nothing, with `reason`, where there is no munge or it does not answer.
[[nodiscard]] std::optional<std::string> seal_for_own_user(std::string_view text,
                                                           std::string& reason);

/// A new secret for a job, if munge can show it to other processes of this user; else empty.
[[nodiscard]] std::string new_sealable_secret();

/// The text that a process of this same user has sealed, at most five minutes ago (by munge's
/// default). A machine opens each credential once.
///
/// Returns: nothing, with `reason`, for what somebody else has sealed, a stale or forged credential,
///          and where munge does not answer.
[[nodiscard]] std::optional<std::string> open_from_own_user(const std::string& credential,
                                                            std::string& reason);

/// The user whose process holds the other end of a TCP connection within this machine; nothing if
/// that end is not in this network namespace, or closed.
///
/// Throws: Error{comm} where the kernel tells neither way.
[[nodiscard]] std::optional<uid_t> user_of_tcp_peer(int descriptor);

/// One end of a TCP connection, seen from it.
struct TcpEnd {
  sockaddr_storage local{};
  sockaddr_storage remote{};
};

/// The kernel's information on such an end.
struct TcpOwner {
  uid_t user = 0;
  std::uint64_t inode = 0;  ///< 0: no process holds it any more, and `user` means nothing
  bool is_connected = false;
};

/// Asks the kernel for this one connection (netlink): the same work however many there are. Nothing
/// where it knows none, or does not answer.
[[nodiscard]] std::optional<TcpOwner> owner_by_netlink(const TcpEnd& end);

/// Reads the tables of all connections, /proc/net/tcp and tcp6: a socket of IPv6 may have a
/// connection of IPv4. Nothing where it is not in there.
///
/// Throws: Error{comm} where the table cannot be read.
[[nodiscard]] std::optional<TcpOwner> owner_by_table(const TcpEnd& end);

}  // namespace dtrain::net
