// Node 0's part in the meeting of launchers.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "dtrain/base/deadline.h"
#include "dtrain/base/error.h"
#include "dtrain/base/readable.h"
#include "dtrain/net/frames.h"
#include "dtrain/net/message.h"
#include "dtrain/net/munge.h"
#include "dtrain/net/packet.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"
#include "dtrain/net/tcp_owner.h"
#include "launcher/address.h"
#include "launcher/nodes/handshake.h"
#include "launcher/nodes/listener.h"
#include "launcher/nodes/meeting.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using dtrain::base::Clock;
using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::net::FrameBuffer;
using dtrain::net::MessageReader;
using dtrain::net::MessageWriter;

constexpr auto kStrangerPatience = 10s;
constexpr std::size_t kMostStrangers = 64;
constexpr auto kToldInterval = 2s;
constexpr auto kRefusalLimit = 500ms;

/// Somebody who has connected.
struct Guest {
  Descriptor socket;
  FrameBuffer input{kMostNodeHelloBytes};
  std::string output;
  NodeExchange exchange;
  Clock::time_point patience;
  bool is_over = false;   // nothing more is read
  bool has_come = false;  // has proved to belong to the job; a stranger until then
  NodeHello hello;
};

/// Breaks the connection when what was sent is not received for that long; 0: as the kernel has it.
/// A machine that vanished closes no connection.
void limit_silence(const Descriptor& socket, std::chrono::milliseconds limit) {
  const auto milliseconds = static_cast<unsigned>(limit.count());
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

std::string framed_message(NodeMessage kind, std::string_view body) {
  return dtrain::net::framed(encode(kind, 0, body));
}

/// A new secret, if there is a munge to hand it out by; else empty.
std::string secret_for_munge() {
  std::string secret = dtrain::net::new_challenge();
  std::string problem;
  return dtrain::net::seal_for_own_user(secret, problem) ? secret : std::string();
}

class Host {
 public:
  Host(const Options& options, std::string token, bool seals_token, Descriptor listener)
      : options_(options),
        token_(std::move(token)),
        seals_token_(seals_token),
        listener_(std::move(listener)),
        waiting_(options) {}

  /// Returns the guests in the order of their nodes, when all have come.
  std::vector<Guest> wait_for_all() {
    while (missing_count() > 0) {
      if (waiting_.deadline().passed()) fail_for_missing();
      serve();
      waiting_.show(missing() + last_turned_away_);
      tell_guests();
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.has_come; });
    std::ranges::sort(guests_, {}, [](const Guest& guest) { return guest.hello.node_rank; });
    return std::move(guests_);
  }

 private:
  [[nodiscard]] std::size_t missing_count() const {
    const auto came = std::ranges::count_if(guests_, [](const Guest& g) { return g.has_come; });
    return static_cast<std::size_t>(options_.num_nodes - 1 - came);
  }

  [[nodiscard]] const Guest* guest_of(int node) const {
    const auto found = std::ranges::find_if(guests_, [&](const Guest& guest) {
      return guest.has_come && !guest.is_over && guest.hello.node_rank == node;
    });
    return found == guests_.end() ? nullptr : &*found;
  }

  /// "node 2", "nodes 1 and 3", ...; the first ten of many.
  [[nodiscard]] std::string missing() const {
    constexpr std::size_t kMostNamed = 10;
    std::string names;
    std::size_t named = 0;
    for (int node = 1; node < options_.num_nodes && named < kMostNamed; ++node) {
      if (guest_of(node) != nullptr) continue;
      names += fmt::format("{}{}", named++ > 0 ? ", " : "", node);
    }
    const std::size_t more = missing_count() - named;
    return fmt::format("node{} {}{}", missing_count() > 1 ? "s" : "", names,
                       more > 0 ? fmt::format(" and {} more", more) : "");
  }

  [[noreturn]] void fail_for_missing() {
    refuse_all(
        ErrorKind::rendezvous,
        fmt::format("{} of {} did not join within {} (--rdzv-timeout){}; start dtrun there "
                    "with the same --master-addr and --master-port",
                    missing(), options_.num_nodes,
                    dtrain::base::readable_time(options_.rdzv_timeout.count()), last_turned_away_));
  }

  void tell_guests() {
    if (Clock::now() < next_told_) return;
    next_told_ = Clock::now() + kToldInterval;
    for (Guest& guest : guests_) {
      if (guest.has_come) guest.output += framed_message(NodeMessage::waiting, missing());
    }
  }

  /// Ends the meeting for everybody who has come.
  [[noreturn]] void refuse_all(ErrorKind kind, const std::string& text) {
    const std::string body =
        MessageWriter().number(static_cast<std::uint64_t>(kind)).text(text).bytes();
    const dtrain::base::Deadline limit(kRefusalLimit);
    for (Guest& guest : guests_) {
      if (guest.has_come) guest.output += framed_message(NodeMessage::refused, body);
      (void)dtrain::net::send_all(guest.socket, guest.output, limit);
    }
    throw dtrain::base::Error(kind, text);
  }

  void serve() {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const Guest& guest : guests_) {
      const int events = guest.output.empty() ? POLLIN : POLLIN | POLLOUT;
      polled.push_back({guest.socket.get(), static_cast<short>(events), 0});
    }
    const auto limit = std::min<std::int64_t>(waiting_.deadline().remaining().count(), 500);
    ::poll(polled.data(), polled.size(), static_cast<int>(limit));
    for (std::size_t index = 0; index < guests_.size(); ++index) {
      if (polled[index + 1].revents != 0) read_from(guests_[index]);
    }
    if (polled[0].revents != 0) accept_one();
    for (Guest& guest : guests_) {
      write_to(guest);
      if (!guest.has_come && Clock::now() >= guest.patience) guest.is_over = true;
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.is_over; });
  }

  void accept_one() {
    Descriptor socket =
        dtrain::net::accept_connection(listener_, [this] { return drop_a_stranger(); });
    if (!socket) return;
    const auto trust = token_.empty() ? NodeTrust::same_user
                       : seals_token_ ? NodeTrust::munge
                                      : NodeTrust::token;
    std::optional<uid_t> user = ::geteuid();
    if (trust == NodeTrust::same_user) user = dtrain::net::user_of_tcp_peer(socket.get());
    if (user && *user != ::geteuid()) {
      turn_away(fmt::format("a process of user {} was turned away: it needs the job's secret; {}",
                            *user, kNodeSecretAdvice));
      return;
    }
    const auto most = std::max(kMostStrangers, 2 * static_cast<std::size_t>(options_.num_nodes));
    if (static_cast<std::size_t>(std::ranges::count_if(guests_, [](const Guest& guest) {
          return !guest.has_come && !guest.is_over;
        })) >= most) {
      (void)drop_a_stranger();
    }
    Guest guest;
    guest.socket = std::move(socket);
    limit_silence(guest.socket, meeting_silence_limit(options_));
    guest.exchange.host_challenge = dtrain::net::new_challenge();
    guest.patience = Clock::now() + kStrangerPatience;
    MessageWriter offer;
    offer.number(static_cast<std::uint64_t>(trust)).text(guest.exchange.host_challenge);
    std::string problem;
    // A launcher that can open none says so.
    if (seals_token_) offer.text(dtrain::net::seal_for_own_user(token_, problem).value_or(""));
    guest.output = std::string(kNodeGreeting) + dtrain::net::framed(offer.bytes());
    write_to(guest);
    if (!user) {  // of another machine: it was greeted, so that it can say what is missing
      turn_away(fmt::format("a launcher on another machine was turned away: there is no secret; {}",
                            kNodeSecretAdvice));
      return;
    }
    guests_.push_back(std::move(guest));
  }

  /// The one that has been here longest; false: there is none.
  bool drop_a_stranger() {
    const auto first = std::ranges::find_if(
        guests_, [](const Guest& guest) { return !guest.has_come && !guest.is_over; });
    if (first == guests_.end()) return false;
    first->is_over = true;
    first->socket = Descriptor();
    return true;
  }

  void turn_away(std::string_view why) { last_turned_away_ = fmt::format(" ({})", why); }

  void read_from(Guest& guest) {
    int reason = 0;
    const auto transfer =
        dtrain::net::receive_some(guest.socket, guest.input, dtrain::base::Deadline(0ms), reason);
    if (transfer == dtrain::net::Transfer::closed || guest.input.is_broken()) {
      guest.is_over = true;  // a launcher that leaves may come again
    }
    // Nothing is awaited of who has come before all have.
    if (guest.has_come && guest.input.bytes().size() > kMostNodeMessageBytes) guest.is_over = true;
    if (guest.is_over || guest.has_come) return;
    if (const auto message = guest.input.take_message()) hear(guest, *message);
  }

  void hear(Guest& guest, const std::string& message) {
    MessageReader reader(message);
    guest.exchange.guest_challenge = reader.text();
    guest.exchange.hello = reader.text();
    const std::string proof = reader.text();
    if (!reader.is_whole()) {
      guest.is_over = true;
      return;
    }
    if (!token_.empty() &&
        !dtrain::net::is_same_proof(proof, guest_proof(token_, guest.exchange))) {
      turn_away(
          "a launcher with another secret was turned away: all need the same DTRAIN_JOB_TOKEN");
      answer(guest, NodeReply::unknown, 0, {});
      guest.is_over = true;
      return;
    }
    const auto hello = decode_hello(guest.exchange.hello);
    if (!hello) {
      guest.is_over = true;
      return;
    }
    const std::string contradiction = contradiction_of(*hello);
    if (!contradiction.empty()) {
      answer(guest, NodeReply::refused, static_cast<int>(ErrorKind::usage), contradiction);
      refuse_all(ErrorKind::usage, contradiction);
    }
    answer(guest, NodeReply::welcome, 0, {});
    guest.hello = *hello;
    guest.has_come = true;
    guest.input.allow(kMostNodeMessageBytes);
  }

  /// Why the job cannot start with this launcher; empty: it can.
  [[nodiscard]] std::string contradiction_of(const NodeHello& hello) const {
    const std::string who = fmt::format("node {} ({})", hello.node_rank, hello.host);
    if (hello.version != DTRAIN_VERSION) {
      return fmt::format("{} runs dtrun {}, but node 0 ({}) runs {}; install one version", who,
                         hello.version, host_name(), DTRAIN_VERSION);
    }
    if (hello.num_nodes != options_.num_nodes) {
      return fmt::format("{} has --nnodes {}, but node 0 ({}) has {}; give all the same", who,
                         hello.num_nodes, host_name(), options_.num_nodes);
    }
    if (hello.node_rank >= options_.num_nodes) {
      return fmt::format("{} is not among --nnodes {}: nodes count from 0", who,
                         options_.num_nodes);
    }
    const Guest* const other = guest_of(hello.node_rank);
    if (hello.node_rank == 0 || other != nullptr) {
      return fmt::format("two launchers have --node-rank {}, on {} and {}; give each its own",
                         hello.node_rank, other == nullptr ? host_name() : other->hello.host,
                         hello.host);
    }
    return {};
  }

  void answer(Guest& guest, NodeReply reply, int kind, std::string_view text) {
    const std::string proof =
        token_.empty() ? "" : host_proof(token_, guest.exchange, reply, kind, text);
    guest.output += dtrain::net::framed(MessageWriter()
                                            .number(static_cast<std::uint64_t>(reply))
                                            .number(static_cast<std::uint64_t>(kind))
                                            .text(text)
                                            .text(proof)
                                            .bytes());
    write_to(guest);
  }

  static void write_to(Guest& guest) {
    while (!guest.output.empty()) {
      const ssize_t count = ::send(guest.socket.get(), guest.output.data(), guest.output.size(),
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count <= 0) return;  // a broken connection shows when it is read
      guest.output.erase(0, static_cast<std::size_t>(count));
    }
  }

  const Options& options_;
  std::string token_;
  bool seals_token_;  // to give it to the guests
  Descriptor listener_;
  WaitingLines waiting_;
  Clock::time_point next_told_{};
  std::string last_turned_away_;
  std::vector<Guest> guests_;
};

/// The address at which the other nodes reach this one: a name may mean another address here.
std::string reached_address(const std::vector<Guest>& guests) {
  std::string address;
  for (const Guest& guest : guests) {
    constexpr std::string_view kMapped = "::ffff:";  // an IPv4 connection to an IPv6 socket
    std::string reached = dtrain::net::own_address_of(guest.socket);
    if (reached.starts_with(kMapped)) reached.erase(0, kMapped.size());
    if (address.empty() || is_loopback(address)) address = reached;
  }
  return address;
}

Placement placement_of(const Options& options, const std::vector<Guest>& guests) {
  Placement placement;
  placement.nodes.push_back({host_name(), 0, options.num_ranks});
  for (const Guest& guest : guests) {
    placement.nodes.push_back({guest.hello.host, placement.world_size(), guest.hello.num_ranks});
  }
  return placement;
}

}  // namespace

Meeting host_meeting(const Options& options, const std::string& token, const std::string& run_id,
                     Descriptor listener) {
  Meeting meeting;
  meeting.token = token;
  const bool is_emulated = static_cast<bool>(listener);
  if (!listener) listener = listen_for_nodes(options.master_addr, options.master_port);
  if (token.empty() && !is_emulated) meeting.token = secret_for_munge();
  const bool seals_token = token.empty() && !meeting.token.empty();
  std::vector<Guest> guests =
      Host(options, meeting.token, seals_token, std::move(listener)).wait_for_all();

  Placement& placement = meeting.placement;
  placement = placement_of(options, guests);
  placement.run_id = run_id;
  placement.master_addr = reached_address(guests);
  meeting.port = reserve_port(placement.master_addr, 0);
  placement.master_port = meeting.port.port;
  meeting.store_listener = listen_at_free_port(placement.master_addr);
  placement.store_port = Address::of_socket(meeting.store_listener).port();
  if (meeting.token.empty()) placement.rank_token = random_rank_token();

  std::vector<NodeLink> links;
  for (Guest& guest : guests) {
    limit_silence(guest.socket, 0ms);  // from here on heartbeats tell
    links.push_back({guest.hello.node_rank, std::move(guest.socket), std::move(guest.input)});
  }
  meeting.channel = std::make_shared<Channel>(0, std::move(links), silence_limits(options));
  meeting.channel->send_to_all(
      NodeMessage::start, encode(JobStart{.placement = placement,
                                          .abort_grace = options.abort_grace.count(),
                                          .stop_grace = options.stop_grace.count(),
                                          .heartbeat_timeout = options.heartbeat_timeout.count(),
                                          .max_restarts = options.max_restarts}));
  return meeting;
}

}  // namespace launcher
