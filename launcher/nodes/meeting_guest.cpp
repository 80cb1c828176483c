// The part of nodes 1 and above in the meeting of launchers.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/deadline.h"
#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"
#include "dtrain/net/frames.h"
#include "dtrain/net/message.h"
#include "dtrain/net/munge.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"
#include "dtrain/net/tcp_owner.h"
#include "launcher/nodes/handshake.h"
#include "launcher/nodes/meeting.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using dtrain::base::Deadline;
using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;
using dtrain::net::FrameBuffer;
using dtrain::net::MessageReader;
using dtrain::net::MessageWriter;
using dtrain::net::Transfer;

// An address that does not answer costs seconds, not the kernel's minutes.
constexpr std::chrono::milliseconds kConnectLimit = 2s;
constexpr std::chrono::milliseconds kHandshakeLimit = 10s;
constexpr std::chrono::milliseconds kShortPause = 5ms;
constexpr std::chrono::milliseconds kLongPause = 500ms;

// How long an answer that ends the wait must stay the same before it counts. A program that held
// node 0's port before node 0 came has gone by then.
constexpr double kInsistence = 2;  // seconds

/// This attempt came to nothing; a later one may succeed.
struct TryAgain {
  std::string reason;
  bool is_final = false;  ///< it was an answer that ends the wait, if it stays the same
};

class Guest {
 public:
  Guest(Options& options, const std::string& token)
      : options_(options),
        own_token_(token),
        token_(token),
        where_(fmt::format("node 0 at {}:{}", options.master_addr, options.master_port)),
        waiting_(options) {}

  Meeting run() {
    for (std::chrono::milliseconds pause = kShortPause;; pause = std::min(2 * pause, kLongPause)) {
      try {
        return attend();
      } catch (const TryAgain& again) {
        weigh(again);
      }
      check_time();
      std::this_thread::sleep_for(std::min(pause, waiting_.deadline().remaining()));
    }
  }

 private:
  Meeting attend() {
    std::string reason = "no address";
    socket_ = dtrain::net::connect_to(options_.master_addr, options_.master_port,
                                      Deadline(shortened(kConnectLimit)), reason);
    if (!socket_) throw TryAgain{reason};
    input_ = FrameBuffer(kMostNodeHelloBytes);
    introduce();
    input_.allow(kMostNodeMessageBytes);
    missing_ = "the other nodes";
    return wait_for_start();
  }

  /// Nobody has proved that such an answer is node 0's: it counts when it is given for a while.
  void weigh(const TryAgain& again) {
    if (!again.is_final || again.reason != reason_) first_told_ = dtrain::base::Clock::now();
    reason_ = again.reason;
    if (!again.is_final) return;
    answer_ = reason_;
    const bool insists = dtrain::base::seconds_since(first_told_) >= kInsistence;
    if (insists) fail(ErrorKind::usage, "{}", answer_);
  }

  [[nodiscard]] static TryAgain final_answer(std::string reason) {
    return {.reason = std::move(reason), .is_final = true};
  }

  [[nodiscard]] std::chrono::milliseconds shortened(std::chrono::milliseconds limit) const {
    return std::min(limit, waiting_.deadline().remaining());
  }

  /// Prints a line now and then; ends the wait when its time is over.
  void check_time() {
    const std::string what = missing_.empty() ? fmt::format("{} ({})", where_, reason_) : missing_;
    waiting_.show(what);
    if (!waiting_.deadline().passed()) return;
    // Node 0 may have left by now, and tells more by what it said than by its silence.
    if (missing_.empty() && !answer_.empty()) fail(ErrorKind::usage, "{}", answer_);
    fail(ErrorKind::rendezvous, "{} did not join within {} (--rdzv-timeout); {}", what,
         dtrain::base::readable_time(options_.rdzv_timeout.count()),
         missing_.empty()
             ? "check the name, the port and the reason above, and that dtrun runs there"
             : "start dtrun there with the same --master-addr and --master-port");
  }

  void receive(const Deadline& deadline) {
    int error = 0;
    const Transfer transfer = dtrain::net::receive_some(socket_, input_, deadline, error);
    if (transfer == Transfer::done) return;
    missing_.clear();
    if (transfer == Transfer::late) {
      throw TryAgain{"something accepts connections there, but does not answer as a dtrun"};
    }
    if (error != 0) throw TryAgain{std::strerror(error)};
    throw TryAgain{"it closed the connection: it may belong to another user, or be no dtrun"};
  }

  std::string next_message(const Deadline& deadline) {
    while (true) {
      if (auto message = input_.take_message()) return *std::move(message);
      if (input_.is_broken()) throw TryAgain{"what answers there is no dtrun"};
      receive(deadline);
    }
  }

  void read_greeting(const Deadline& deadline) {
    while (input_.bytes().size() < kNodeGreeting.size() &&
           kNodeGreeting.starts_with(input_.bytes())) {
      receive(deadline);
    }
    const auto greeting = input_.take_bytes(kNodeGreeting.size());
    if (greeting == kNodeGreeting) return;
    const std::string found = greeting.value_or("") + input_.bytes();
    throw TryAgain{fmt::format("what answers there is no dtrun of this version: \"{}\"",
                               dtrain::base::printable(found.substr(0, 40)))};
  }

  void introduce() {
    const Deadline deadline(shortened(kHandshakeLimit));
    read_greeting(deadline);
    const std::string offer = next_message(deadline);
    MessageReader reader(offer);
    const auto trust = static_cast<NodeTrust>(reader.number());
    NodeExchange exchange;
    exchange.host_challenge = reader.text();
    const std::string credential = trust == NodeTrust::munge ? reader.text() : "";
    if (!reader.is_whole()) throw TryAgain{"what answers there is no dtrun"};
    check(trust);
    if (trust == NodeTrust::munge) token_ = secret_in(credential);
    exchange.guest_challenge = dtrain::net::new_challenge();
    exchange.hello = encode(NodeHello{.version = DTRAIN_VERSION,
                                      .node_rank = options_.node_rank,
                                      .num_nodes = options_.num_nodes,
                                      .num_ranks = options_.num_ranks,
                                      .host = host_name()});
    const std::string proof = token_.empty() ? "" : guest_proof(token_, exchange);
    const std::string words =
        MessageWriter().text(exchange.guest_challenge).text(exchange.hello).text(proof).bytes();
    (void)dtrain::net::send_all(socket_, dtrain::net::framed(words), deadline);
    hear_reply(exchange, next_message(deadline));
  }

  [[nodiscard]] std::string secret_in(const std::string& credential) const {
    std::string problem = "it sent no credential";
    if (!credential.empty()) {
      if (auto secret = dtrain::net::open_from_own_user(credential, problem)) {
        return *std::move(secret);
      }
    }
    throw final_answer(fmt::format(
        "{} relies on munge, which does not help this dtrun ({}); let munged run on every node "
        "with the same key, or {}",
        where_, problem, kNodeSecretAdvice));
  }

  void check(NodeTrust trust) const {
    if (trust == NodeTrust::token && own_token_.empty()) {
      throw final_answer(fmt::format("{} wants the job's secret, but this dtrun has none; {}",
                                     where_, kNodeSecretAdvice));
    }
    if (trust == NodeTrust::token) return;
    if (!own_token_.empty()) {
      throw final_answer(fmt::format("this dtrun has a job's secret, but {} has none; {}", where_,
                                     kNodeSecretAdvice));
    }
    if (trust == NodeTrust::munge) return;
    const auto user = dtrain::net::user_of_tcp_peer(socket_.get());
    if (!user) {
      throw final_answer(
          fmt::format("{} is another machine, so the launchers need munge there, or a secret; {}",
                      where_, kNodeSecretAdvice));
    }
    if (*user != ::geteuid()) {
      throw TryAgain{fmt::format("it belongs to user {}, not {}", *user, ::geteuid())};
    }
  }

  void hear_reply(const NodeExchange& exchange, const std::string& message) const {
    MessageReader reader(message);
    const auto reply = static_cast<NodeReply>(reader.number());
    const std::uint64_t kind = reader.number();
    const std::string text = reader.text();
    const std::string proof = reader.text();
    if (!reader.is_whole()) throw TryAgain{"what answers there is no dtrun"};
    if (reply == NodeReply::unknown) {
      throw final_answer(
          fmt::format("{} has another secret than this dtrun; {}", where_, kNodeSecretAdvice));
    }
    const int code = static_cast<int>(kind);
    if (!token_.empty() &&
        !dtrain::net::is_same_proof(proof, host_proof(token_, exchange, reply, code, text))) {
      throw TryAgain{"it does not know the job's secret"};
    }
    if (reply == NodeReply::refused) refused(kind, text);
  }

  [[noreturn]] static void refused(std::uint64_t kind, const std::string& text) {
    const bool is_late = kind == static_cast<std::uint64_t>(ErrorKind::rendezvous);
    throw dtrain::base::Error(is_late ? ErrorKind::rendezvous : ErrorKind::usage,
                              dtrain::base::printable(text));
  }

  Meeting wait_for_start() {
    auto heard = dtrain::base::Clock::now();
    while (true) {
      while (auto message = input_.take_message()) {
        if (auto meeting = handle(*message)) return *std::move(meeting);
      }
      check_time();
      const Deadline soon(shortened(500ms));
      int error = 0;
      const Transfer transfer = dtrain::net::receive_some(socket_, input_, soon, error);
      if (transfer == Transfer::done) heard = dtrain::base::Clock::now();
      const bool is_silent = dtrain::base::Clock::now() - heard > meeting_silence_limit(options_);
      if (transfer == Transfer::closed || input_.is_broken() || is_silent) {
        missing_.clear();
        throw TryAgain{is_silent ? "nothing is heard of it any more" : "its dtrun has left"};
      }
    }
  }

  std::optional<Meeting> handle(const std::string& message) {
    const auto envelope = decode_envelope(message);
    if (!envelope) return std::nullopt;
    const std::string& body = envelope->body;
    if (envelope->kind == NodeMessage::waiting) missing_ = dtrain::base::printable(body);
    if (envelope->kind == NodeMessage::refused) {
      MessageReader reader(body);
      const std::uint64_t error = reader.number();
      refused(error, reader.text());
    }
    if (envelope->kind != NodeMessage::start) return std::nullopt;
    const auto start = decode_start(body);
    if (!start || start->placement.num_nodes() != options_.num_nodes) {
      fail(ErrorKind::internal, "{} sent a start message that cannot be decoded", where_);
    }
    using Seconds = std::chrono::duration<double>;
    options_.abort_grace = Seconds(start->abort_grace);
    options_.stop_grace = Seconds(start->stop_grace);
    options_.heartbeat_timeout = Seconds(start->heartbeat_timeout);
    options_.max_restarts = start->max_restarts;
    Meeting meeting;
    meeting.token = token_;
    meeting.placement = start->placement;
    std::vector<NodeLink> links;
    links.push_back({0, std::move(socket_), std::move(input_)});
    meeting.channel =
        std::make_shared<Channel>(options_.node_rank, std::move(links), silence_limits(options_));
    return meeting;
  }

  Options& options_;
  const std::string& own_token_;
  std::string token_;  // own_token_, or what munge has shown
  std::string where_;
  WaitingLines waiting_;
  dtrain::base::Clock::time_point first_told_{};  // of reason_
  std::string reason_;
  std::string answer_;   // the last one that would have been final
  std::string missing_;  // as node 0 told; empty: it is itself missing
  Descriptor socket_;
  FrameBuffer input_{kMostNodeHelloBytes};
};

}  // namespace

Meeting join_meeting(Options& options, const std::string& token) {
  return Guest(options, token).run();
}

}  // namespace launcher
