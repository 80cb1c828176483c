// The rendezvous store: its state, admission, and handling of malformed input.
#include "dtrain/comm/internal/rendezvous/rendezvous.h"

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/internal/rendezvous/job_store.h"
#include "dtrain/comm/internal/rendezvous/store_client.h"
#include "dtrain/comm/internal/rendezvous/store_server.h"
#include "dtrain/comm/internal/rendezvous/wire.h"
#include "dtrain/net/handshake.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"
#include "support/messages.h"

namespace dtrain::comm::rendezvous_test {
namespace {

using base::ErrorKind;
using Catch::Contains;
using dtrain::testing::Names;
using std::chrono::milliseconds;

const base::Deadline& soon() {
  static const base::Deadline deadline(std::chrono::seconds(20));
  return deadline;
}

TEST_CASE("A message that is truncated, or has wrong sizes, is detected") {
  const std::string whole = net::MessageWriter().number(7).text("key").text("value").bytes();
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    net::MessageReader reader(std::string_view(whole).substr(0, size));
    (void)reader.number();
    const std::string key = reader.text();
    const std::string value = reader.text();
    CHECK(reader.is_whole() == (size == whole.size()));
    if (reader.is_whole()) CHECK((key == "key" && value == "value"));
  }
  const std::string false_size = net::MessageWriter().number(~std::uint64_t{0}).bytes() + "abc";
  net::MessageReader lies(false_size);
  CHECK(lies.text().empty());
  CHECK_FALSE(lies.is_good());
}

TEST_CASE("A variable-length number takes a byte for each 7 bits, and ends with the message") {
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128},
                                     std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    const std::string bytes = net::MessageWriter().small_number(number).short_text("text").bytes();
    const std::size_t digits = number == 0 ? 1 : (std::bit_width(number) + 6) / 7;
    CHECK(bytes.size() == digits + 5);
    net::MessageReader reader(bytes);
    CHECK(reader.small_number() == number);
    CHECK(reader.short_text() == "text");
    CHECK(reader.is_whole());
  }
  for (const std::string& cut : {std::string(), std::string("\x80"), std::string(11, '\x80')}) {
    net::MessageReader reader(cut);
    (void)reader.small_number();
    CHECK_FALSE(reader.is_good());
  }
}

TEST_CASE("A message announced as too long is rejected before its bytes arrive") {
  net::FrameBuffer buffer(100);
  buffer.add(net::MessageWriter().number(101).bytes());
  CHECK(buffer.is_broken());
  CHECK_FALSE(buffer.take_message());
  net::FrameBuffer fitting(100);
  fitting.add(net::framed("one") + net::framed("two") + net::framed("three").substr(0, 10));
  CHECK(fitting.take_message() == "one");
  CHECK(fitting.take_message() == "two");
  CHECK_FALSE(fitting.take_message());
}

TEST_CASE("Lists of ranks are encoded as runs, and a false count costs no memory") {
  const auto bytes_of = [](const std::vector<std::int64_t>& ranks) {
    net::MessageWriter writer;
    write_ranks(writer, ranks);
    return writer.bytes();
  };
  std::vector<std::int64_t> all(4096);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::int64_t> backwards(all.rbegin(), all.rend());
  const std::vector<std::vector<std::int64_t>> lists{
      {}, {7}, {3, 1}, {0, 8, 16, 24}, {0, 1, 5, 6, 20, 4, 4, 4}, all, backwards};
  for (const auto& ranks : lists) {
    const std::string bytes = bytes_of(ranks);
    net::MessageReader reader(bytes);
    CHECK(read_ranks(reader, 4096) == ranks);
  }
  CHECK(bytes_of(all).size() == 24);
  CHECK(bytes_of(backwards).size() == 24);
  const std::string endless =
      net::MessageWriter().number(0).number(1).number(~std::uint64_t{0}).bytes();
  const std::string cut = bytes_of({0, 1, 2}).substr(0, 20);
  const std::string too_many = bytes_of(all);
  for (const std::string& text : {endless, bytes_of({1}) + endless, cut}) {
    net::MessageReader reader(text);
    CHECK_FALSE(read_ranks(reader, 4096));
  }
  net::MessageReader reader(too_many);
  CHECK_FALSE(read_ranks(reader, 4095));
}

TEST_CASE("Equal values of consecutive members are sent once, and a false count is rejected") {
  const GatherResult values{.values = {"a", "a", "a", "", "", "a", "b"}};
  const std::string text = packed(values);
  CHECK(unpacked_result(text)->values == values.values);
  CHECK(text.size() == 8 + 4 * 2 + 3);
  CHECK_FALSE(unpacked_result(
      net::MessageWriter().number(0).small_number(std::uint64_t{1} << 40).short_text("").bytes()));
  CHECK_FALSE(unpacked_result(text.substr(0, text.size() - 1)));
}

// The HMAC itself is OpenSSL's; this tests its input.
TEST_CASE("A proof is valid for one handshake, one side and one secret only") {
  const net::HandshakeTranscript transcript{
      .greeting = "g", .server_challenge = "h", .client_challenge = "c", .hello = "1 of 2"};
  const std::string proof = net::client_proof("secret", transcript);
  CHECK(proof.size() == 32);
  CHECK(net::is_same_proof(proof, net::client_proof("secret", transcript)));
  for (const net::HandshakeTranscript& other :
       {net::HandshakeTranscript{"x", "h", "c", "1 of 2"},
        net::HandshakeTranscript{"g", "x", "c", "1 of 2"},
        net::HandshakeTranscript{"g", "h", "x", "1 of 2"},
        net::HandshakeTranscript{"g", "h", "c", "0 of 2"},
        net::HandshakeTranscript{"gh", "", "c", "1 of 2"}}) {
    CHECK_FALSE(net::is_same_proof(proof, net::client_proof("secret", other)));
  }
  CHECK_FALSE(net::is_same_proof(proof, net::server_proof("secret", transcript, {})));
  CHECK_FALSE(net::is_same_proof(proof, net::client_proof("Secret", transcript)));
  CHECK_FALSE(net::is_same_proof(proof, ""));
  const std::string welcome = net::server_proof("secret", transcript, {});
  for (const net::Reply& reply : {net::Reply{.status = net::ReplyStatus::rejected},
                                  net::Reply{.kind = 2}, net::Reply{.text = "no"}}) {
    CHECK_FALSE(net::is_same_proof(welcome, net::server_proof("secret", transcript, reply)));
  }
  CHECK(net::new_challenge() != net::new_challenge());
}

/// A store of `size` ranks with a rendezvous socket, and rank 0's client.
struct StoreFixture {
  explicit StoreFixture(std::int64_t size, milliseconds auth_timeout = std::chrono::seconds(10)) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    rendezvous_socket = base::Descriptor(ends[1]);
    server = std::make_unique<StoreServer>(
        StoreServer::Options{.size = size,
                             .rendezvous_socket = base::Descriptor(ends[0]),
                             .listeners = {},
                             .token = {},
                             .auth_timeout = auth_timeout});
    world_size = size;
    clients[0] =
        std::make_unique<StoreClient>(server->take_own_connection(), join_request(0), soon());
  }

  [[nodiscard]] JoinRequest join_request(std::int64_t rank) const {
    return {.rank = rank, .size = world_size, .is_inherited = true, .token = {}, .where = "here"};
  }
  base::Descriptor connect() const {
    auto [own, handed] = net::connected_pair();
    REQUIRE(net::send_packet(rendezvous_socket, 1, std::array{handed.get()}, soon()) == 0);
    return std::move(own);
  }
  void join(std::int64_t rank) {
    clients[rank] = std::make_unique<StoreClient>(connect(), join_request(rank), soon());
  }

  base::Descriptor rendezvous_socket;
  std::int64_t world_size = 0;
  std::unique_ptr<StoreServer> server;
  std::map<std::int64_t, std::unique_ptr<StoreClient>> clients;
};

TEST_CASE("At most 10 missing ranks are named") {
  JobStore few(3);
  few.admit(1, 3);
  CHECK(few.describe_missing() == "ranks 0, 2 of 3");
  few.admit(0, 3);
  CHECK(few.describe_missing() == "rank 2 of 3");

  JobStore many(1 << 20);
  for (const std::uint64_t rank : {0, 2}) many.admit(rank, 1 << 20);
  CHECK(many.describe_missing() ==
        "ranks 1, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1048564 more of 1048576");
  CHECK_FALSE(many.failure());
}

TEST_CASE("Members of a gather get all values in group order, and late ones are named") {
  StoreFixture fixture(4);
  for (const std::int64_t rank : {1, 2, 3}) fixture.join(rank);
  const std::vector<std::int64_t> members{3, 0, 2};
  std::vector<std::thread> others;
  for (const std::int64_t rank : {0, 3}) {
    others.emplace_back([&, rank] {
      const auto value = std::string(static_cast<std::size_t>(rank), 'n');
      const auto values = fixture.clients[rank]->all_gather("all", members, value, soon()).values;
      CHECK(values == std::vector<std::string>{"nnn", "", "2"});
    });
  }
  CHECK(fixture.clients[2]->all_gather("all", members, "2", soon()).values.at(0) == "nnn");
  for (std::thread& other : others) other.join();

  const GatherResult late = fixture.clients[2]->all_gather("late", members, "", base::Deadline({}));
  CHECK(late.missing == std::vector<std::int64_t>{3, 0});
  CHECK(late.values.empty());
}

TEST_CASE("Members that disagree fail the job, and so does one that joins twice") {
  for (const std::vector<std::int64_t>& other : {std::vector<std::int64_t>{0}, {0, 1}, {1, 2}}) {
    StoreFixture fixture(2);
    fixture.join(1);
    (void)fixture.clients[0]->all_gather("key", {0, 1}, "", base::Deadline({}));
    const bool is_right = other == std::vector<std::int64_t>{0, 1};
    auto& client = *fixture.clients[is_right ? 0 : 1];  // rank 0 for the second time
    CHECK_THROWS_WITH(client.all_gather("key", other, "", soon()),
                      Names(is_right ? "rank 0" : "rank 1", "key"));
  }
}

/// Forwards the messages between ranks and the store, and counts those of the ranks.
class Wiretap {
 public:
  /// `taps`: at most.
  explicit Wiretap(std::size_t taps) : ends_(taps) {}

  /// The connection for a rank that goes on to `store`.
  base::Descriptor tap(std::size_t index, base::Descriptor store) {
    auto [own, rank] = net::connected_pair();
    ends_[index] = {.rank = std::move(own), .store = std::move(store)};
    return std::move(rank);
  }
  void start() {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) pass_on();
    });
  }
  [[nodiscard]] std::int64_t messages() const { return messages_; }

 private:
  struct Tap {
    base::Descriptor rank;
    base::Descriptor store;
    net::FrameBuffer words{kMaxMessageBytes};
  };

  static bool forward(const base::Descriptor& from, const base::Descriptor& to,
                      net::FrameBuffer& bytes) {
    int reason = 0;
    const std::size_t before = bytes.bytes().size();
    if (net::receive_some(from, bytes, base::Deadline({}), reason) != net::Transfer::done) {
      return false;
    }
    return net::send_all(to, bytes.bytes().substr(before), soon()) == net::Transfer::done;
  }

  void pass_on() {
    for (Tap& tap : ends_) {
      if (tap.rank.get() < 0) continue;
      net::FrameBuffer answers{kMaxMessageBytes};
      (void)forward(tap.store, tap.rank, answers);
      (void)forward(tap.rank, tap.store, tap.words);
      while (tap.words.take_message()) ++messages_;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }

  std::vector<Tap> ends_;
  std::atomic<std::int64_t> messages_{0};
  std::jthread thread_;
};

TEST_CASE("A gather takes one request per rank") {
  constexpr std::int64_t kRanks = 64;
  StoreFixture fixture(kRanks);
  Wiretap wiretap(kRanks);
  std::vector<base::Descriptor> connections(kRanks);
  for (std::size_t rank = 1; rank < kRanks; ++rank) {
    connections[rank] = wiretap.tap(rank, fixture.connect());
  }
  wiretap.start();
  std::vector<std::int64_t> everybody(kRanks);
  std::iota(everybody.begin(), everybody.end(), std::int64_t{0});
  const auto meet_as = [&](std::int64_t rank, StoreClient& client) {
    for (const char* name : {"first", "second"}) {
      const auto values = store_all_gather(client, name, everybody, std::to_string(rank), soon());
      CHECK(values.at(63) == "63");
    }
  };
  std::vector<std::thread> ranks;
  for (std::int64_t rank = 1; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      StoreClient client(std::move(connections[static_cast<std::size_t>(rank)]),
                         fixture.join_request(rank), soon());
      meet_as(rank, client);
      client.leave();
    });
  }
  meet_as(0, *fixture.clients[0]);
  for (std::thread& rank : ranks) rank.join();
  // Each also sends a hello and a leave.
  CHECK(wiretap.messages() <= (kRanks - 1) * 4);
  CHECK(wiretap.messages() >= (kRanks - 1) * 3);
}

TEST_CASE("A rank from the rendezvous socket has no authentication timeout") {
  StoreFixture fixture(2, milliseconds(1));
  base::Descriptor connection = fixture.connect();
  std::this_thread::sleep_for(milliseconds(30));
  CHECK_NOTHROW(StoreClient(std::move(connection), fixture.join_request(1), soon()));
}

TEST_CASE("No connection is accepted once every rank has joined") {
  StoreFixture fixture(2);
  fixture.join(1);
  REQUIRE(fixture.clients[0]->all_gather("come", {0}, "", soon()).missing.empty());
  const auto [own, handed] = net::connected_pair();
  CHECK(net::send_packet(fixture.rendezvous_socket, 1, std::array{handed.get()}, soon()) == EPIPE);
}

TEST_CASE("A failure reaches waiting ranks, with its kind and without control characters") {
  StoreFixture fixture(2);
  fixture.join(1);
  std::thread refuser([&] {
    CHECK_THROWS_AS(fixture.clients[1]->fail_job(ErrorKind::usage, "no\x1b[31m"), base::Error);
  });
  try {
    fixture.clients[0]->wait_for_failure(soon());
    FAIL("expected the failure");
  } catch (const base::Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()) == "no?[31m");
  }
  refuser.join();
}

TEST_CASE("Malformed messages of a rank fail the job, those of unauthenticated processes do not") {
  StoreFixture fixture(2);
  const base::Descriptor stranger = fixture.connect();
  REQUIRE(net::send_all(stranger, net::framed("nonsense"), soon()) == net::Transfer::done);
  const base::Descriptor liar = fixture.connect();
  REQUIRE(net::send_all(liar, net::MessageWriter().number(~std::uint64_t{0}).bytes(), soon()) ==
          net::Transfer::done);
  CHECK_NOTHROW(fixture.clients[0]->wait_for_failure(base::Deadline(milliseconds(50))));

  const base::Descriptor rank = fixture.connect();
  net::FrameBuffer input(kMaxMessageBytes);
  join_store(rank, input, fixture.join_request(1), soon());
  REQUIRE(net::send_all(rank, net::framed(net::MessageWriter().number(99).bytes()), soon()) ==
          net::Transfer::done);
  CHECK_THROWS_WITH(fixture.clients[0]->wait_for_failure(soon()), Names("rank 1", "store"));
}

TEST_CASE("A rank that disconnects is named to waiting ranks, one that has left is not") {
  StoreFixture fixture(3);
  fixture.join(1);
  fixture.join(2);
  fixture.clients[1]->leave();
  CHECK_NOTHROW(fixture.clients[0]->wait_for_failure(base::Deadline(milliseconds(50))));
  {
    StoreFixture other(2);
    const base::Descriptor rank = other.connect();
    net::FrameBuffer input(kMaxMessageBytes);
    join_store(rank, input, other.join_request(1), soon());
    REQUIRE(::shutdown(rank.get(), SHUT_RDWR) == 0);
    CHECK_THROWS_WITH(other.clients[0]->wait_for_failure(soon()), Contains("rank 1 exited"));
  }
}

TEST_CASE("A finished server ends by itself when the last rank has left") {
  StoreFixture fixture(2);
  fixture.join(1);
  fixture.server->finish();
  fixture.clients[0]->leave();
  CHECK_NOTHROW(fixture.clients[1]->wait_for_failure(base::Deadline(milliseconds(1))));
  fixture.clients[1]->leave();
}

}  // namespace
}  // namespace dtrain::comm::rendezvous_test
