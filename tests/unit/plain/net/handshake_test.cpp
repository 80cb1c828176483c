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
using dtrain::net::decode_credential;
using dtrain::net::encode_credential;
using std::chrono::milliseconds;

// Handshakes: which clients are authenticated, and which are dropped.
constexpr const char* kGreeting = "test/1\n";
constexpr const char* kSecret = "0123456789abcdef";

ClientOptions client_with(const std::string& secret) {
  return {.greeting = kGreeting,
          .secret = secret,
          .hello = "hello",
          .host = "the server",
          .self = "this client",
          .peers = "clients",
          .advice = "use one secret"};
}

/// The result of a handshake, or why it failed.
struct Outcome {
  std::optional<HandshakeResult> result;
  std::optional<Cause> cause;
};

Outcome run_client(const base::Descriptor& socket, const ClientOptions& options) {
  FrameBuffer input;
  try {
    return {run_client_handshake(socket, input, options, base::Deadline(milliseconds(2000))), {}};
  } catch (const HandshakeError& error) {
    return {{}, error.cause()};
  }
}

/// A server for clients that know a secret.
struct TestServer {
  explicit TestServer(milliseconds auth_timeout = std::chrono::seconds(10))
      : handshakes({.greeting = kGreeting, .secret = kSecret, .auth_timeout = auth_timeout}) {}

  base::Descriptor connect() {
    auto [own, served] = connected_pair();
    handshakes.begin_handshake(std::move(served), AuthMethod::token);
    return std::move(own);
  }
  std::vector<HandshakeServer::Client> serve() {
    std::vector<pollfd> polled;
    handshakes.add_to(polled);
    ::poll(polled.data(), polled.size(), 10);
    return handshakes.serve(polled);
  }
  /// Returns whether the server has closed this connection.
  static bool is_closed(const base::Descriptor& own) {
    char bytes[256];
    ssize_t count = 1;
    while (count > 0) count = ::read(own.get(), bytes, sizeof bytes);
    return count == 0;
  }

  HandshakeServer handshakes;
};

TEST_CASE("A client that knows the secret is authenticated, and its hello is delivered") {
  TestServer server;
  const base::Descriptor socket = server.connect();
  Outcome outcome;
  std::thread client([&] { outcome = run_client(socket, client_with(kSecret)); });
  std::vector<HandshakeServer::Client> clients;
  while (clients.empty()) clients = server.serve();
  CHECK(clients.front().transcript.hello == "hello");
  server.handshakes.answer(
      clients.front(),
      {.status = ReplyStatus::rejected, .kind = 2, .text = std::string(9000, 'x')});
  client.join();
  REQUIRE(outcome.result);
  CHECK(outcome.result->secret == kSecret);
  CHECK(outcome.result->reply.status == ReplyStatus::rejected);
  CHECK(outcome.result->reply.kind == 2);
  CHECK(outcome.result->reply.text == std::string(kMaxHandshakeBytes / 2, 'x'));
}

TEST_CASE("A client with another secret, or none, is rejected with the reason") {
  TestServer server;
  for (const char* secret : {"another secret...", ""}) {
    const base::Descriptor socket = server.connect();
    Outcome outcome;
    std::atomic<bool> has_ended{false};
    std::thread client([&] {
      outcome = run_client(socket, client_with(secret));
      has_ended = true;
    });
    while (!has_ended) CHECK(server.serve().empty());
    client.join();
    CHECK(outcome.cause == Cause::secret_mismatch);
  }
  CHECK_FALSE(server.handshakes.last_rejection().empty());
}

TEST_CASE("Connections that stay silent, send too much or send garbage are dropped") {
  TestServer server(milliseconds(300));
  const base::Descriptor silent = server.connect();
  const base::Descriptor loud = server.connect();
  const base::Descriptor liar = server.connect();
  const std::string size = MessageWriter().number(kMaxHandshakeBytes + 1).bytes();
  const base::Deadline soon(milliseconds(2000));
  REQUIRE(send_all(loud, size, soon) == Transfer::done);
  REQUIRE(send_all(liar, framed("nonsense"), soon) == Transfer::done);
  for (int turn = 0; turn < 5; ++turn) CHECK(server.serve().empty());
  CHECK(TestServer::is_closed(loud));
  CHECK(TestServer::is_closed(liar));
  CHECK_FALSE(TestServer::is_closed(silent));
  std::this_thread::sleep_for(milliseconds(400));
  CHECK(server.serve().empty());
  CHECK(TestServer::is_closed(silent));
}

TEST_CASE("A client rejects a server that does not prove the secret, and weaker methods") {
  for (const auto& [method, cause] : {std::pair(AuthMethod::token, Cause::dropped),
                                      std::pair(AuthMethod::same_user, Cause::secret_mismatch),
                                      std::pair(AuthMethod::munge, Cause::secret_mismatch),
                                      std::pair(AuthMethod::inherited, Cause::wrong_protocol)}) {
    auto [own, other] = connected_pair();
    const HandshakeTranscript transcript{.greeting = kGreeting,
                                         .server_challenge = std::string(32, 'c')};
    const std::string words = server_hello(method, transcript, "") +
                              framed(reply_message({.status = ReplyStatus::rejected}, "no proof"));
    REQUIRE(send_all(other, words, base::Deadline(milliseconds(2000))) == Transfer::done);
    CHECK(run_client(own, client_with(kSecret)).cause == cause);
  }
}

// Uses the machine's munge, if any; tests/cli/launcher/slurm_test.py starts its own.
TEST_CASE("A credential is encoded and decoded once, or a reason is given") {
  std::string reason;
  const auto sealed = encode_credential("a secret", reason);
  if (!sealed) {
    CHECK_FALSE(reason.empty());
    return;
  }
  CHECK(sealed->starts_with("MUNGE:"));
  CHECK(decode_credential(*sealed, reason) == "a secret");
  CHECK_FALSE(decode_credential(*sealed, reason));  // once
  CHECK_FALSE(reason.empty());
}

TEST_CASE("Invalid credentials are rejected") {
  for (const char* text : {"", "MUNGE:", "MUNGE:AAAA:", "nonsense"}) {
    std::string reason;
    CHECK_FALSE(decode_credential(text, reason));
    CHECK_FALSE(reason.empty());
  }
}

}  // namespace
}  // namespace dtrain::net::handshake_test
