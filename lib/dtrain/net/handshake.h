// The handshake of a connection: both ends make sure that they belong to one job before either
// believes anything else that the other says. Of dtrun's nodes, and of ranks and rank 0's store.
//
//   host    greeting; Trust, its challenge, a credential of munge (empty: none)
//   guest   its challenge, its hello, its proof
//   host    Reply, its proof
//
// A proof is an HMAC of the job's secret over all words before it, so it holds for one connection
// and one end. Without a secret both proofs are empty, and the kernel tells whose the other end is.
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

/// How the two ends know each other.
enum class Trust : std::uint8_t {
  handed_down = 1,  ///< the connection came through a socket that dtrun made
  same_user = 2,    ///< TCP within one machine: the kernel says whose the sockets are
  token = 3,        ///< both prove that they know the job's secret
  munge = 4,        ///< the same; the host made the secret, and munge shows it to this user alone
};

/// Returns whether both ends prove that they know the secret.
[[nodiscard]] constexpr bool needs_proof(Trust trust) {
  return trust == Trust::token || trust == Trust::munge;
}

/// The host's answer. unknown: the guest has not proved that it knows the secret.
enum class Answer : std::uint8_t { welcome = 1, refused = 2, unknown = 3 };

struct Reply {
  Answer answer = Answer::welcome;
  std::uint64_t kind = 0;  ///< of a refusal: its base::ErrorKind
  std::string text = {};   ///< of a refusal
};

/// What both ends have said before the reply.
struct Exchange {
  std::string greeting;  ///< names the protocol and its version
  std::string host_challenge = {};
  std::string guest_challenge = {};
  std::string hello = {};
};

[[nodiscard]] std::string guest_proof(std::string_view secret, const Exchange& exchange);
[[nodiscard]] std::string host_proof(std::string_view secret, const Exchange& exchange,
                                     const Reply& reply);

/// The host's first words.
[[nodiscard]] std::string offer_message(Trust trust, const Exchange& exchange,
                                        std::string_view credential);
[[nodiscard]] std::string reply_message(const Reply& reply, std::string_view proof);

/// Why a guest was not answered as one of the job.
class HandshakeError : public std::runtime_error {
 public:
  enum class Cause {
    dropped,   ///< the connection was closed, or the host did not prove to know the secret
    late,      ///< no answer by the deadline; what() is empty
    foreign,   ///< no host of this protocol; what() is what it sent, printable
    stranger,  ///< another user's host
    mismatch,  ///< secrets that do not fit together, as far as an unproved host says
  };

  HandshakeError(Cause cause, const std::string& text) : std::runtime_error(text), cause_(cause) {}

  [[nodiscard]] Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

/// A process that wants to be admitted.
struct GuestOptions {
  std::string_view greeting;
  std::string secret = {};             ///< the job's; empty: none
  bool is_handed_down = false;         ///< the connection came from dtrun, so there is no stranger
  std::string hello;                   ///< its words about itself
  std::string host;                    ///< for messages: "the store at 127.0.0.1:29500"
  std::string_view self;               ///< likewise: "this rank"
  std::string_view peers;              ///< likewise: "ranks"
  std::string_view advice;             ///< what to do about secrets that do not fit
  std::function<void()> on_wait = {};  ///< called about five times a second; may be empty
};

struct Admission {
  std::string secret;  ///< the job's, the own or the one that munge has shown; empty: none
  Reply reply;         ///< welcome or refused, by a host that has proved who it is
};

/// Performs a guest's part. Messages behind the reply stay in `input`.
///
/// Throws: HandshakeError; Error{comm} where the kernel does not tell whose a connection is.
[[nodiscard]] Admission be_admitted(const base::Descriptor& socket, FrameBuffer& input,
                                    const GuestOptions& options, const base::Deadline& deadline);

/// Greets processes that connect, and hands over those that have proved to belong to the job. All
/// others have no effect: it believes nothing that they say, drops those that are silent for too
/// long or send too much, and, where there are too many, the one that has waited longest.
///
/// Threads: one.
class Reception {
 public:
  struct Options {
    std::string greeting;
    std::vector<base::Descriptor> listeners = {};  ///< do not block
    /// The job's; empty: guests must be processes of this user on this machine.
    std::string secret = {};
    bool seals_secret = false;  ///< guests are given it, in a credential of munge
    std::size_t most_strangers = 64;
    /// The time in which a stranger must prove to be of the job, unless it was handed down.
    std::chrono::milliseconds patience = std::chrono::seconds(10);
  };

  /// A connection whose other end has proved to belong to the job, and waits for a Reply.
  struct Guest {
    FramedStream stream;
    Exchange exchange;  ///< with its hello
    Trust trust = Trust::handed_down;
  };

  explicit Reception(Options options) : options_(std::move(options)) {}

  /// Appends what poll is to wait for.
  void add_to(std::vector<pollfd>& polled) const;
  /// The moment at which serve() has something to do even if nothing comes.
  [[nodiscard]] base::Clock::time_point next_deadline() const;
  /// Takes in who connects, hears strangers, and returns those that were found to be guests.
  /// polled: what add_to has appended, after poll.
  ///
  /// Throws: Error{comm} if this process has too many open files for another connection, or the
  ///         kernel does not tell whose it is.
  [[nodiscard]] std::vector<Guest> serve(std::span<const pollfd> polled);
  /// Greets the other end of a connection that was made elsewhere.
  void greet(base::Descriptor socket, Trust trust);
  /// Cuts the text of a refusal to what a guest takes.
  void answer(Guest& guest, Reply reply) const;
  /// Drops all strangers and admits nobody any more. Returns the listeners.
  std::vector<base::Descriptor> close();

  /// Why somebody was turned away last, in half a sentence; empty: nobody was.
  [[nodiscard]] const std::string& last_turned_away() const { return last_turned_away_; }

 private:
  struct Stranger {
    Guest guest;
    base::Clock::time_point patience = {};
    bool is_over = false;
  };

  void accept_at(std::size_t index);
  bool drop_a_stranger();
  void hear(Stranger& stranger);
  void hear_hello(Stranger& stranger, const std::string& message);

  Options options_;
  std::vector<Stranger> strangers_;
  std::vector<Guest> arrived_;
  std::string last_turned_away_;
};

}  // namespace dtrain::net
