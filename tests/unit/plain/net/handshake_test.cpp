#include "dtrain/net/handshake.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"

namespace dtrain::net::handshake_test {
namespace {

using Cause = HandshakeError::Cause;
using dtrain::net::open_from_own_user;
using dtrain::net::seal_for_own_user;
using std::chrono::milliseconds;

// Who is admitted by a handshake, and who has no effect.
constexpr const char* kGreeting = "test/1\n";
constexpr const char* kSecret = "0123456789abcdef";

GuestOptions guest_with(const std::string& secret) {
  return {.greeting = kGreeting,
          .secret = secret,
          .hello = "hello",
          .host = "the host",
          .self = "this guest",
          .peers = "guests",
          .advice = "use one secret"};
}

/// The guest's admission, or why there was none.
struct Outcome {
  std::optional<Admission> admission;
  std::optional<Cause> cause;
};

Outcome come(const base::Descriptor& socket, const GuestOptions& options) {
  FrameBuffer input;
  try {
    return {be_admitted(socket, input, options, base::Deadline(milliseconds(2000))), {}};
  } catch (const HandshakeError& error) {
    return {{}, error.cause()};
  }
}

/// A reception for guests that know a secret.
struct Host {
  explicit Host(milliseconds patience = std::chrono::seconds(10))
      : reception({.greeting = kGreeting, .secret = kSecret, .patience = patience}) {}

  base::Descriptor connect() {
    auto [own, served] = connected_pair();
    reception.greet(std::move(served), Trust::token);
    return std::move(own);
  }
  std::vector<Reception::Guest> serve() {
    std::vector<pollfd> polled;
    reception.add_to(polled);
    ::poll(polled.data(), polled.size(), 10);
    return reception.serve(polled);
  }
  /// Returns whether the host has closed this connection.
  static bool is_closed(const base::Descriptor& own) {
    char bytes[256];
    ssize_t count = 1;
    while (count > 0) count = ::read(own.get(), bytes, sizeof bytes);
    return count == 0;
  }

  Reception reception;
};

TEST_CASE("Who knows the secret is admitted, with what it says of itself") {
  Host host;
  const base::Descriptor socket = host.connect();
  Outcome outcome;
  std::thread guest([&] { outcome = come(socket, guest_with(kSecret)); });
  std::vector<Reception::Guest> guests;
  while (guests.empty()) guests = host.serve();
  CHECK(guests.front().exchange.hello == "hello");
  host.reception.answer(guests.front(),
                        {.answer = Answer::refused, .kind = 2, .text = std::string(9000, 'x')});
  guest.join();
  REQUIRE(outcome.admission);
  CHECK(outcome.admission->secret == kSecret);
  CHECK(outcome.admission->reply.answer == Answer::refused);
  CHECK(outcome.admission->reply.kind == 2);
  CHECK(outcome.admission->reply.text == std::string(kMostHandshakeBytes / 2, 'x'));
}

TEST_CASE("Who has another secret, or none, is not admitted, and hears of it") {
  Host host;
  for (const char* secret : {"another secret...", ""}) {
    const base::Descriptor socket = host.connect();
    Outcome outcome;
    std::atomic<bool> has_ended{false};
    std::thread guest([&] {
      outcome = come(socket, guest_with(secret));
      has_ended = true;
    });
    while (!has_ended) CHECK(host.serve().empty());
    guest.join();
    CHECK(outcome.cause == Cause::mismatch);
  }
  CHECK_FALSE(host.reception.last_turned_away().empty());
}

TEST_CASE("Strangers that say nothing, too much or nonsense are dropped") {
  Host host(milliseconds(300));
  const base::Descriptor silent = host.connect();
  const base::Descriptor loud = host.connect();
  const base::Descriptor liar = host.connect();
  const std::string size = MessageWriter().number(kMostHandshakeBytes + 1).bytes();
  const base::Deadline soon(milliseconds(2000));
  REQUIRE(send_all(loud, size, soon) == Transfer::done);
  REQUIRE(send_all(liar, framed("nonsense"), soon) == Transfer::done);
  for (int turn = 0; turn < 5; ++turn) CHECK(host.serve().empty());
  CHECK(Host::is_closed(loud));
  CHECK(Host::is_closed(liar));
  CHECK_FALSE(Host::is_closed(silent));
  std::this_thread::sleep_for(milliseconds(400));
  CHECK(host.serve().empty());
  CHECK(Host::is_closed(silent));
}

TEST_CASE("A guest believes no host that does not prove the secret, and no weaker offer") {
  for (const auto& [trust, cause] :
       {std::pair(Trust::token, Cause::dropped), std::pair(Trust::same_user, Cause::mismatch),
        std::pair(Trust::munge, Cause::mismatch), std::pair(Trust::handed_down, Cause::foreign)}) {
    auto [own, other] = connected_pair();
    const Exchange exchange{.greeting = kGreeting, .host_challenge = std::string(32, 'c')};
    const std::string words = offer_message(trust, exchange, "") +
                              framed(reply_message({.answer = Answer::refused}, "no proof"));
    REQUIRE(send_all(other, words, base::Deadline(milliseconds(2000))) == Transfer::done);
    CHECK(come(own, guest_with(kSecret)).cause == cause);
  }
}

// tests/cli/launcher/slurm_test.py starts a munge of its own; here it is what the machine has.
TEST_CASE("A text is sealed and opened, or a reason says why not") {
  std::string reason;
  const auto sealed = seal_for_own_user("a secret", reason);
  if (!sealed) {
    CHECK_FALSE(reason.empty());
    return;
  }
  CHECK(sealed->starts_with("MUNGE:"));
  CHECK(open_from_own_user(*sealed, reason) == "a secret");
  CHECK_FALSE(open_from_own_user(*sealed, reason));  // once
  CHECK_FALSE(reason.empty());
}

TEST_CASE("What is no credential is not opened") {
  for (const char* text : {"", "MUNGE:", "MUNGE:AAAA:", "nonsense"}) {
    std::string reason;
    CHECK_FALSE(open_from_own_user(text, reason));
    CHECK_FALSE(reason.empty());
  }
}

}  // namespace
}  // namespace dtrain::net::handshake_test
