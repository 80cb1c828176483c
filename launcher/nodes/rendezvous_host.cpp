// Node 0's part in the rendezvous of launchers.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/addresses.h"
#include "dtrain/net/handshake.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"
#include "launcher/nodes/rendezvous.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using dtrain::base::Clock;
using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::net::HandshakeServer;

constexpr std::size_t kLeastStrangers = 64;
constexpr auto kReportInterval = 2s;
constexpr auto kRefusalLimit = 500ms;

/// A launcher of another node that has connected.
struct JoinedNode {
  dtrain::net::FramedStream stream;
  NodeHello hello;
  bool is_over = false;  // it has disconnected
};

/// Breaks the connection if sent data is not acknowledged for that long; 0: the kernel's default. A
/// machine that vanished closes no connection.
void limit_silence(const Descriptor& socket, std::chrono::milliseconds limit) {
  const auto milliseconds = static_cast<unsigned>(limit.count());
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

class RendezvousServer {
 public:
  RendezvousServer(const Options& options, std::string token, bool seals_token, Descriptor listener)
      : options_(options),
        reception_([&] {
          HandshakeServer::Options own{
              .greeting = std::string(kNodeGreeting),
              .secret = std::move(token),
              .sends_credential = seals_token,
              .max_pending =
                  std::max(kLeastStrangers, 2 * static_cast<std::size_t>(options.num_nodes))};
          own.listeners.push_back(std::move(listener));
          return own;
        }()),
        waiting_(options) {}

  /// Waits until all nodes have joined; returns them in node order.
  std::vector<JoinedNode> wait_for_all() {
    while (missing_count() > 0) {
      if (waiting_.deadline().passed()) fail_for_missing();
      serve();
      waiting_.show(missing() + last_rejection());
      report_missing();
    }
    std::ranges::sort(guests_, {}, [](const JoinedNode& guest) { return guest.hello.node_rank; });
    return std::move(guests_);
  }

  /// Stops admitting launchers.
  Descriptor take_listener() { return std::move(reception_.close().front()); }

 private:
  [[nodiscard]] std::size_t missing_count() const {
    return static_cast<std::size_t>(options_.num_nodes - 1) - guests_.size();
  }

  [[nodiscard]] const JoinedNode* guest_of(int node) const {
    const auto found = std::ranges::find_if(guests_, [&](const JoinedNode& guest) {
      return !guest.is_over && guest.hello.node_rank == node;
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

  /// " (a process of user 33 was turned away ...)"; empty if none was.
  [[nodiscard]] std::string last_rejection() const {
    const std::string& why = reception_.last_rejection();
    return why.empty() ? "" : fmt::format(" ({}; {})", why, kNodeSecretAdvice);
  }

  [[noreturn]] void fail_for_missing() {
    refuse_all(
        ErrorKind::rendezvous,
        fmt::format("{} of {} did not join within {} (--rdzv-timeout){}; start dtrun there "
                    "with the same --master-addr and --master-port",
                    missing(), options_.num_nodes,
                    dtrain::base::readable_time(options_.rdzv_timeout.count()), last_rejection()));
  }

  void report_missing() {
    if (Clock::now() < next_report_) return;
    next_report_ = Clock::now() + kReportInterval;
    for (JoinedNode& guest : guests_) guest.stream.send(encode(NodeMessage::waiting, 0, missing()));
  }

  /// Ends the rendezvous for all connected nodes.
  [[noreturn]] void refuse_all(ErrorKind kind, const std::string& text) {
    const std::string body =
        dtrain::net::MessageWriter().number(static_cast<std::uint64_t>(kind)).text(text).bytes();
    const dtrain::base::Deadline limit(kRefusalLimit);
    for (JoinedNode& guest : guests_) {
      guest.stream.send(encode(NodeMessage::refused, 0, body));
      (void)dtrain::net::send_all(guest.stream.socket, guest.stream.output, limit);
    }
    throw dtrain::base::Error(kind, text);
  }

  void serve() {
    std::vector<pollfd> polled;
    reception_.add_to(polled);
    const std::size_t first = polled.size();
    for (const JoinedNode& guest : guests_) polled.push_back(guest.stream.polled());
    const auto limit = std::min<std::int64_t>(waiting_.deadline().remaining().count(), 500);
    ::poll(polled.data(), polled.size(), static_cast<int>(limit));
    for (std::size_t index = first; index < polled.size(); ++index) {
      if (polled[index].revents != 0) read_from(guests_[index - first]);
    }
    for (HandshakeServer::Client& guest : reception_.serve(std::span(polled).first(first))) {
      admit(std::move(guest));
    }
    for (JoinedNode& guest : guests_) guest.stream.flush();
    std::erase_if(guests_, [](const JoinedNode& guest) { return guest.is_over; });
  }

  /// A launcher sends nothing before all nodes have joined; reading only detects that it has left.
  static void read_from(JoinedNode& guest) {
    const auto transfer = guest.stream.receive();
    guest.is_over = transfer == dtrain::net::Transfer::closed || guest.stream.input.is_broken() ||
                    guest.stream.input.bytes().size() > kMostNodeMessageBytes;
  }

  void admit(HandshakeServer::Client guest) {
    const auto hello = decode_hello(guest.transcript.hello);
    if (!hello) return;
    const std::string contradiction = contradiction_of(*hello);
    if (!contradiction.empty()) {
      reception_.answer(guest, {.status = dtrain::net::ReplyStatus::rejected,
                                .kind = static_cast<std::uint64_t>(ErrorKind::usage),
                                .text = contradiction});
      refuse_all(ErrorKind::usage, contradiction);
    }
    reception_.answer(guest, {.status = dtrain::net::ReplyStatus::accepted});
    guest.stream.input.allow(kMostNodeMessageBytes);
    limit_silence(guest.stream.socket, rendezvous_silence_limit(options_));
    guests_.push_back({.stream = std::move(guest.stream), .hello = *hello});
  }

  /// Why the job cannot start with this launcher; empty if it can.
  [[nodiscard]] std::string contradiction_of(const NodeHello& hello) const {
    const std::string who = fmt::format("node {} ({})", hello.node_rank, hello.host);
    if (hello.version != DTRAIN_VERSION) {
      return fmt::format(
          "{} runs dtrun {}, but node 0 ({}) runs {}; install the same version on all nodes", who,
          hello.version, host_name(), DTRAIN_VERSION);
    }
    if (hello.num_nodes != options_.num_nodes) {
      return fmt::format(
          "{} has --nnodes {}, but node 0 ({}) has {}; give all nodes the same number", who,
          hello.num_nodes, host_name(), options_.num_nodes);
    }
    if (hello.node_rank >= options_.num_nodes) {
      return fmt::format("{} is outside --nnodes {}: number the nodes from 0", who,
                         options_.num_nodes);
    }
    const JoinedNode* const other = guest_of(hello.node_rank);
    if (hello.node_rank == 0 || other != nullptr) {
      return fmt::format("two launchers have --node-rank {}, on {} and {}; give each its own",
                         hello.node_rank, other == nullptr ? host_name() : other->hello.host,
                         hello.host);
    }
    return {};
  }

  const Options& options_;
  HandshakeServer reception_;
  WaitingLines waiting_;
  Clock::time_point next_report_{};
  std::vector<JoinedNode> guests_;
};

/// The address at which the other nodes reach this one: a name may resolve to another address here.
std::string reached_address(const std::vector<JoinedNode>& guests) {
  std::string address;
  for (const JoinedNode& guest : guests) {
    constexpr std::string_view kMapped = "::ffff:";  // an IPv4 connection to an IPv6 socket
    std::string reached = dtrain::net::own_address_of(guest.stream.socket);
    if (reached.starts_with(kMapped)) reached.erase(0, kMapped.size());
    if (address.empty() || dtrain::net::is_loopback(address)) address = reached;
  }
  return address;
}

Placement placement_of(const Options& options, const std::vector<JoinedNode>& guests) {
  Placement placement;
  placement.nodes.push_back({host_name(), 0, options.num_ranks});
  for (const JoinedNode& guest : guests) {
    placement.nodes.push_back({guest.hello.host, placement.world_size(), guest.hello.num_ranks});
  }
  return placement;
}

}  // namespace

Rendezvous host_rendezvous(const Options& options, const std::string& token,
                           const std::string& run_id, Descriptor listener) {
  Rendezvous rendezvous;
  rendezvous.token = token;
  const bool is_emulated = static_cast<bool>(listener);
  if (!is_emulated) {
    NodeListener own = listen_for_nodes(options.master_addr, options.master_port);
    listener = std::move(own.socket);
    rendezvous.store_claim = std::move(own.claim);
  }
  if (token.empty() && !is_emulated) rendezvous.token = dtrain::net::new_munge_secret();
  const bool seals_token = token.empty() && !rendezvous.token.empty();
  RendezvousServer host(options, rendezvous.token, seals_token, std::move(listener));
  std::vector<JoinedNode> guests = host.wait_for_all();
  rendezvous.store_listener = host.take_listener();

  Placement& placement = rendezvous.placement;
  placement = placement_of(options, guests);
  placement.run_id = run_id;
  placement.master_addr = reached_address(guests);
  rendezvous.port = reserve_port(placement.master_addr, 0);
  placement.master_port = rendezvous.port.port;
  placement.store_port = options.master_port;
  if (rendezvous.token.empty())
    placement.rank_token = rank_token_of(dtrain::net::new_challenge(), run_id);

  std::vector<NodeConnection> links;
  for (JoinedNode& guest : guests) {
    limit_silence(guest.stream.socket, 0ms);  // from here on heartbeats detect a lost node
    links.push_back({guest.hello.node_rank, std::move(guest.stream)});
  }
  rendezvous.connections =
      std::make_shared<NodeConnections>(0, std::move(links), silence_limits(options));
  rendezvous.connections->send_to_all(
      NodeMessage::start, encode(JobStart{.placement = placement,
                                          .abort_grace = options.abort_grace.count(),
                                          .stop_grace = options.stop_grace.count(),
                                          .heartbeat_timeout = options.heartbeat_timeout.count(),
                                          .max_restarts = options.max_restarts}));
  return rendezvous;
}

}  // namespace launcher
