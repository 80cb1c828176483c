// The host's part in the handshake (handshake.h), with any number of guests at a time.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/descriptor.h"
#include "dtrain/net/frames.h"
#include "dtrain/net/handshake.h"

namespace dtrain::net {

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
