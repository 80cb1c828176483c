#include "launcher/nodes/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/handshake.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using dtrain::base::Deadline;
using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;
using dtrain::net::FrameBuffer;
using dtrain::net::Transfer;

// Advice for a shell in one of several tasks, where no other task starts a dtrun.
std::string advice_on_waiting(const Options& options) {
  if (!options.follows_slurm) return {};
  return fmt::format(
      "; srun must start one dtrun on each of the {} nodes of its step; for a job on this node "
      "only, as in an srun --pty shell, use dtrun --standalone",
      options.num_nodes);
}

// --- the part of nodes 1 and above --------------------------------------------------------------

// Limit for an address that does not answer; the kernel's own limit is minutes.
constexpr std::chrono::milliseconds kConnectLimit = 2s;
constexpr std::chrono::milliseconds kHandshakeLimit = 10s;
constexpr std::chrono::milliseconds kShortPause = 5ms;
constexpr std::chrono::milliseconds kLongPause = 500ms;

// How long an answer that ends the wait must stay the same before it counts. By then, a program
// that held node 0's port before node 0 started has exited.
constexpr double kRefusalConfirmation = 2;  // seconds

/// This attempt failed; a later one may succeed.
struct RetryableError {
  std::string reason;
  bool is_final = false;  ///< it was an answer that ends the wait, if it stays the same
};

class RendezvousClient {
 public:
  RendezvousClient(Options& options, const std::string& token)
      : options_(options),
        own_token_(token),
        where_(fmt::format("node 0 at {}:{}", options.master_addr, options.master_port)),
        waiting_(options) {}

  Rendezvous run() {
    for (std::chrono::milliseconds pause = kShortPause;; pause = std::min(2 * pause, kLongPause)) {
      try {
        return join();
      } catch (const RetryableError& again) {
        consider(again);
      }
      check_time();
      std::this_thread::sleep_for(std::min(pause, waiting_.deadline().remaining()));
    }
  }

 private:
  Rendezvous join() {
    std::string reason = "no address";
    socket_ = dtrain::net::connect_to(options_.master_addr, options_.master_port,
                                      Deadline(shortened(kConnectLimit)), reason);
    if (!socket_) throw RetryableError{reason};
    input_ = FrameBuffer();
    handshake();
    missing_ = "the other nodes";
    return wait_for_start();
  }

  void handshake() {
    using Cause = dtrain::net::HandshakeError::Cause;
    const dtrain::net::ClientOptions self{.greeting = kNodeGreeting,
                                          .secret = own_token_,
                                          .hello = encode(NodeHello{.version = DTRAIN_VERSION,
                                                                    .node_rank = options_.node_rank,
                                                                    .num_nodes = options_.num_nodes,
                                                                    .num_ranks = options_.num_ranks,
                                                                    .host = host_name()}),
                                          .host = where_,
                                          .self = "this dtrun",
                                          .peers = "dtruns",
                                          .advice = kNodeSecretAdvice};
    try {
      auto [secret, reply] = dtrain::net::run_client_handshake(
          socket_, input_, self, Deadline(shortened(kHandshakeLimit)));
      if (reply.status == dtrain::net::ReplyStatus::rejected) refused(reply.kind, reply.text);
      token_ = std::move(secret);
      input_.allow(kMostNodeMessageBytes);
    } catch (const dtrain::net::HandshakeError& error) {
      const std::string what = error.what();
      if (error.cause() == Cause::timed_out) {
        throw RetryableError{
            "the program that listens there does not respond: it is not a dtrun, or its job has "
            "begun"};
      }
      if (error.cause() == Cause::wrong_protocol) {
        throw RetryableError{
            fmt::format("the program that responds there is not a dtrun of this version, or its "
                        "job has begun: \"{}\"",
                        what)};
      }
      if (error.cause() == Cause::dropped) {
        throw RetryableError{
            what + "; the program that listens there may be another user's, or not a dtrun"};
      }
      throw RetryableError{.reason = what, .is_final = error.cause() == Cause::secret_mismatch};
    }
  }

  /// Such an answer is not authenticated as that of node 0, so it counts only if it stays the same
  /// for a while.
  void consider(const RetryableError& again) {
    if (!again.is_final || again.reason != reason_) reason_since_ = dtrain::base::Clock::now();
    reason_ = again.reason;
    if (!again.is_final) return;
    answer_ = reason_;
    const bool insists = dtrain::base::seconds_since(reason_since_) >= kRefusalConfirmation;
    if (insists) fail(ErrorKind::usage, "{}", answer_);
  }

  [[nodiscard]] std::chrono::milliseconds shortened(std::chrono::milliseconds limit) const {
    return std::min(limit, waiting_.deadline().remaining());
  }

  /// Prints a line now and then; throws when the time is over.
  void check_time() {
    const std::string what = missing_.empty() ? fmt::format("{} ({})", where_, reason_) : missing_;
    waiting_.show(what);
    if (!waiting_.deadline().passed()) return;
    // Node 0 may have exited by now; its last answer explains more than its silence.
    if (missing_.empty() && !answer_.empty()) fail(ErrorKind::usage, "{}", answer_);
    fail(ErrorKind::rendezvous, "{} did not join within {} (--rdzv-timeout); {}", what,
         dtrain::base::readable_time(options_.rdzv_timeout.count()),
         missing_.empty()
             ? "check the name, the port and the reason above, and that dtrun runs there"
             : "start dtrun there with the same --master-addr and --master-port");
  }

  [[noreturn]] static void refused(std::uint64_t kind, const std::string& text) {
    const bool is_late = kind == static_cast<std::uint64_t>(ErrorKind::rendezvous);
    throw dtrain::base::Error(is_late ? ErrorKind::rendezvous : ErrorKind::usage,
                              dtrain::base::printable(text));
  }

  Rendezvous wait_for_start() {
    auto heard = dtrain::base::Clock::now();
    while (true) {
      while (auto message = input_.take_message()) {
        if (auto rendezvous = handle(*message)) return *std::move(rendezvous);
      }
      check_time();
      const Deadline soon(shortened(500ms));
      int error = 0;
      const Transfer transfer = dtrain::net::receive_some(socket_, input_, soon, error);
      if (transfer == Transfer::done) heard = dtrain::base::Clock::now();
      const bool is_silent =
          dtrain::base::Clock::now() - heard > rendezvous_silence_limit(options_);
      if (transfer == Transfer::closed || input_.is_broken() || is_silent) {
        missing_.clear();
        throw RetryableError{is_silent ? "it has stopped responding" : "its dtrun has exited"};
      }
    }
  }

  std::optional<Rendezvous> handle(const std::string& message) {
    const auto envelope = decode_envelope(message);
    if (!envelope) return std::nullopt;
    const std::string& body = envelope->body;
    if (envelope->kind == NodeMessage::waiting) missing_ = dtrain::base::printable(body);
    if (envelope->kind == NodeMessage::refused) {
      dtrain::net::MessageReader reader(body);
      const std::uint64_t error = reader.number();
      refused(error, reader.text());
    }
    if (envelope->kind != NodeMessage::start) return std::nullopt;
    const auto start = decode_start(body);
    if (!start || start->placement.num_nodes() != options_.num_nodes) {
      fail(ErrorKind::internal, "{} sent a start message that cannot be decoded", where_);
    }
    options_.abort_grace = std::chrono::duration<double>(start->abort_grace);
    options_.stop_grace = std::chrono::duration<double>(start->stop_grace);
    options_.heartbeat_timeout = std::chrono::duration<double>(start->heartbeat_timeout);
    options_.max_restarts = start->max_restarts;
    Rendezvous rendezvous;
    rendezvous.token = token_;
    rendezvous.placement = start->placement;
    rendezvous.placement.store_port = options_.master_port;
    std::vector<NodeConnection> links;
    links.push_back({0, {.socket = std::move(socket_), .input = std::move(input_)}});
    rendezvous.connections = std::make_shared<NodeConnections>(options_.node_rank, std::move(links),
                                                               silence_limits(options_));
    return rendezvous;
  }

  Options& options_;
  const std::string& own_token_;
  std::string token_;  // own_token_, or the one received through munge
  std::string where_;
  WaitingLines waiting_;
  dtrain::base::Clock::time_point reason_since_{};  // when reason_ was first seen
  std::string reason_;
  std::string answer_;   // the last answer that would end the wait
  std::string missing_;  // as node 0 reported; empty: node 0 itself is missing
  Descriptor socket_;
  FrameBuffer input_;
};

}  // namespace

Rendezvous join_rendezvous(Options& options, const std::string& token, const std::string& run_id,
                           dtrain::base::Descriptor listener) {
  Rendezvous rendezvous = options.node_rank == 0
                              ? host_rendezvous(options, token, run_id, std::move(listener))
                              : RendezvousClient(options, token).run();
  Placement& placement = rendezvous.placement;
  placement.node_rank = options.node_rank;
  if (!rendezvous.token.empty()) {
    placement.rank_token = rank_token_of(rendezvous.token, placement.run_id);
  }
  return rendezvous;
}

std::string rank_token_of(const std::string& token, const std::string& run_id) {
  using dtrain::net::MessageWriter;
  const std::string bytes = dtrain::net::hmac_sha256(
      token, MessageWriter().text(kNodeGreeting).text("ranks").text(run_id).bytes());
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

SilenceLimits silence_limits(const Options& options) {
  return {.running = options.heartbeat_timeout,
          .starting = std::max(options.heartbeat_timeout, options.rdzv_timeout)};
}

std::chrono::milliseconds rendezvous_silence_limit(const Options& options) {
  constexpr std::chrono::duration<double> kLeast{5.0};
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max(kLeast, options.heartbeat_timeout));
}

WaitingLines::WaitingLines(const Options& options)
    : prefix_(own_prefix(options)),
      advice_(advice_on_waiting(options)),
      deadline_(std::chrono::duration_cast<std::chrono::milliseconds>(options.rdzv_timeout)) {}

void WaitingLines::show(const std::string& what) {
  if (!times_.is_due()) return;
  if (!writer_) writer_.emplace(STDERR_FILENO, std::make_shared<Waker>(), Pieces::atomic);
  writer_->write(fmt::format(
      "{}waiting for {}, {} of {}{}\n", prefix_, what, dtrain::base::readable_time(times_.waited()),
      dtrain::base::readable_time(dtrain::base::Seconds(deadline_.limit()).count()),
      std::exchange(advice_, "")));
}

}  // namespace launcher
