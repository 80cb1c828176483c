// Mutual authentication of a new connection, before either end trusts any other input. Used between
// the dtruns of several nodes, and between ranks and rank 0's store.
//
//   server  greeting; AuthMethod, its challenge, a munge credential (empty: none)
//   client  its challenge, its hello, its proof
//   server  Reply, its proof
//
// A proof is an HMAC, keyed with the job's secret, of everything sent before it, so it is valid for
// one connection and one side only. Without a secret both proofs are empty, and the kernel reports
// which user owns the peer's socket.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/net/message.h"

namespace dtrain::net {

/// How the two ends authenticate each other.
enum class AuthMethod : std::uint8_t {
  inherited = 1,  ///< the connection came through a socket that dtrun made
  same_user = 2,  ///< TCP within one machine: the kernel reports the sockets' owners
  token = 3,      ///< both prove that they know the job's secret
  munge = 4,      ///< as token; the server made the secret and sends it in a munge credential
};

/// Returns whether both ends prove that they know the secret.
[[nodiscard]] constexpr bool needs_proof(AuthMethod method) {
  return method == AuthMethod::token || method == AuthMethod::munge;
}

/// The server's verdict. unauthenticated: the client has not proved that it knows the secret.
enum class ReplyStatus : std::uint8_t { accepted = 1, rejected = 2, unauthenticated = 3 };

/// The server's last message of a handshake.
struct Reply {
  ReplyStatus status = ReplyStatus::accepted;
  std::uint64_t kind = 0;  ///< if rejected: the base::ErrorKind
  std::string text = {};   ///< if rejected: the reason
};

/// Everything that both ends have sent before the reply; input of the proofs.
struct HandshakeTranscript {
  std::string greeting;  ///< names the protocol and its version
  std::string server_challenge = {};
  std::string client_challenge = {};
  std::string hello = {};
};

[[nodiscard]] std::string client_proof(std::string_view secret,
                                       const HandshakeTranscript& transcript);
[[nodiscard]] std::string server_proof(std::string_view secret,
                                       const HandshakeTranscript& transcript, const Reply& reply);

/// Encodes the server's first message.
[[nodiscard]] std::string server_hello(AuthMethod method, const HandshakeTranscript& transcript,
                                       std::string_view credential);
[[nodiscard]] std::string reply_message(const Reply& reply, std::string_view proof);

/// Why a client's handshake failed.
class HandshakeError : public std::runtime_error {
 public:
  enum class Cause {
    dropped,          ///< connection closed, or the server did not prove that it knows the secret
    timed_out,        ///< no answer by the deadline; what() is empty
    wrong_protocol,   ///< the server speaks another protocol; what() is its output, printable
    wrong_user,       ///< the server belongs to another user
    secret_mismatch,  ///< an unauthenticated server reports that the secrets differ
  };

  HandshakeError(Cause cause, const std::string& text) : std::runtime_error(text), cause_(cause) {}

  [[nodiscard]] Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

/// Input of a client's handshake.
struct ClientOptions {
  std::string_view greeting;
  std::string secret = {};             ///< the job's; empty: none
  bool is_inherited = false;           ///< the connection came from dtrun: already authenticated
  std::string hello;                   ///< what the client reports about itself
  std::string host;                    ///< for messages: "the store at 127.0.0.1:29500"
  std::string_view self;               ///< likewise: "this rank"
  std::string_view peers;              ///< likewise: "ranks"
  std::string_view advice;             ///< what to do if the secrets differ
  std::function<void()> on_wait = {};  ///< called about five times a second; may be empty
};

/// Outcome of a client's handshake.
struct HandshakeResult {
  std::string secret;  ///< the job's: from ClientOptions or the munge credential; empty: none
  Reply reply;         ///< accepted or rejected, by an authenticated server
};

/// Performs the client's side of the handshake. Messages after the reply stay in `input`.
///
/// Throws: HandshakeError; Error{comm} if the kernel does not report the owner of a connection.
[[nodiscard]] HandshakeResult run_client_handshake(const base::Descriptor& socket,
                                                   FrameBuffer& input, const ClientOptions& options,
                                                   const base::Deadline& deadline);

/// Accepts connections, performs the server's side of the handshake, and returns the authenticated
/// clients. Ignores all other input of unauthenticated processes. Drops their connections if they
/// stay silent or send too much, and drops the oldest if there are more than `max_pending`.
///
/// Threads: one.
class HandshakeServer {
 public:
  struct Options {
    std::string greeting;
    std::vector<base::Descriptor> listeners = {};  ///< non-blocking
    /// The job's secret; empty: clients must be processes of this user on this machine.
    std::string secret = {};
    bool sends_credential = false;  ///< clients receive the secret in a munge credential
    std::size_t max_pending = 64;   ///< unauthenticated connections kept at once
    /// The time in which a client must authenticate, unless its connection was inherited.
    std::chrono::milliseconds auth_timeout = std::chrono::seconds(10);
  };

  /// An authenticated connection that waits for a Reply.
  struct Client {
    FramedStream stream;
    HandshakeTranscript transcript;  ///< includes the client's hello
    AuthMethod method = AuthMethod::inherited;
  };

  explicit HandshakeServer(Options options) : options_(std::move(options)) {}

  /// Appends the descriptors to poll.
  void add_to(std::vector<pollfd>& polled) const;
  /// The time at which serve() must be called even if nothing arrives.
  [[nodiscard]] base::Clock::time_point next_deadline() const;
  /// Accepts connections, reads from pending ones, and returns the newly authenticated clients.
  /// polled: what add_to has appended, after poll.
  ///
  /// Throws: Error{comm} if this process has too many open files for another connection, or the
  ///         kernel does not report its owner.
  [[nodiscard]] std::vector<Client> serve(std::span<const pollfd> polled);
  /// Starts the handshake on a connection that was made elsewhere.
  void begin_handshake(base::Descriptor socket, AuthMethod method);
  /// Sends the reply, with a long rejection text truncated.
  void answer(Client& client, Reply reply) const;
  /// Drops all pending connections and accepts no more. Returns the listeners.
  std::vector<base::Descriptor> close();

  /// Why the last connection was rejected, as a clause; empty: none was.
  [[nodiscard]] const std::string& last_rejection() const { return last_rejection_; }

 private:
  struct PendingConnection {
    Client client;
    base::Clock::time_point deadline = {};
    bool is_done = false;
  };

  void accept_at(std::size_t index);
  bool drop_oldest_pending();
  void receive_from(PendingConnection& pending);
  void verify_hello(PendingConnection& pending, const std::string& message);

  Options options_;
  std::vector<PendingConnection> pending_;
  std::vector<Client> authenticated_;
  std::string last_rejection_;
};

}  // namespace dtrain::net
