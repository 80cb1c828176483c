#include "dtrain/net/handshake.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"

namespace dtrain::net {
namespace {

using base::Clock;
using Cause = HandshakeError::Cause;

MessageWriter words_of(std::string_view who, const Exchange& exchange) {
  MessageWriter writer;
  writer.text(exchange.greeting)
      .text(who)
      .text(exchange.host_challenge)
      .text(exchange.guest_challenge)
      .text(exchange.hello);
  return writer;
}

[[noreturn]] void fail_as_foreign(std::string_view found) {
  throw HandshakeError(Cause::foreign, base::printable(found.substr(0, 40)));
}

/// Why processes on several machines do not know each other by munge.
std::string state_of_munge() {
  std::string reason;
  const bool answers = seal_for_own_user("does it answer?", reason).has_value();
  return answers ? "which answers here, but not there" : reason;
}

class GuestHandshake {
 public:
  GuestHandshake(const base::Descriptor& socket, FrameBuffer& input, const GuestOptions& options,
                 const base::Deadline& deadline)
      : socket_(socket), input_(input), options_(options), deadline_(deadline) {}

  Admission run() {
    read_greeting();
    const std::string offer = next_message();
    MessageReader reader(offer);
    const auto trust = static_cast<Trust>(reader.number());
    const Exchange exchange{.greeting = std::string(options_.greeting),
                            .host_challenge = reader.text(),
                            .guest_challenge = new_challenge(),
                            .hello = options_.hello};
    const std::string credential = reader.text();
    if (!reader.is_whole()) fail_as_foreign("words after a greeting");
    check(trust);
    const std::string secret = trust == Trust::munge ? secret_in(credential) : options_.secret;
    const std::string proof = needs_proof(trust) ? guest_proof(secret, exchange) : "";
    const std::string words =
        MessageWriter().text(exchange.guest_challenge).text(exchange.hello).text(proof).bytes();
    examine(send_all(socket_, framed(words), deadline_), 0);
    return {.secret = secret, .reply = hear_reply(trust, secret, exchange)};
  }

 private:
  void read_greeting() {
    // A foreign program need not send as much as a greeting.
    while (input_.bytes().size() < options_.greeting.size() &&
           options_.greeting.starts_with(input_.bytes())) {
      receive();
    }
    const auto greeting = input_.take_bytes(options_.greeting.size());
    if (greeting != options_.greeting) fail_as_foreign(greeting.value_or("") + input_.bytes());
  }

  std::string next_message() {
    while (true) {
      if (auto message = input_.take_message()) return *std::move(message);
      if (input_.is_broken()) fail_as_foreign(input_.bytes());
      receive();
    }
  }

  void receive() {
    constexpr std::chrono::milliseconds kLook(200);
    int error = 0;
    auto transfer = Transfer::late;
    while (transfer == Transfer::late && !deadline_.passed()) {
      const base::Deadline look(std::min(kLook, deadline_.remaining()));
      transfer = receive_some(socket_, input_, look, error);
      if (options_.on_wait) options_.on_wait();
    }
    examine(transfer, error);
  }

  static void examine(Transfer transfer, int error) {
    if (transfer == Transfer::late) throw HandshakeError(Cause::late, "");
    if (transfer != Transfer::closed) return;
    throw HandshakeError(Cause::dropped,
                         error == 0 ? "it closed the connection" : std::strerror(error));
  }

  [[noreturn]] void fail_for_mismatch(const std::string& what) const {
    throw HandshakeError(Cause::mismatch, fmt::format("{}; {}", what, options_.advice));
  }

  void check(Trust trust) const {
    const bool has_secret = !options_.secret.empty();
    if (trust == Trust::handed_down && options_.is_handed_down) return;
    if (trust != Trust::same_user && !needs_proof(trust)) fail_as_foreign("an offer unheard of");
    if (trust == Trust::token && !has_secret) {
      fail_for_mismatch(
          fmt::format("{} wants the job's secret, but {} has none", options_.host, options_.self));
    }
    if (trust != Trust::token && has_secret) {
      fail_for_mismatch(
          fmt::format("{} has a job's secret, but {} has none", options_.self, options_.host));
    }
    if (trust == Trust::same_user) check_user();
  }

  void check_user() const {
    const auto user = user_of_tcp_peer(socket_.get());
    if (!user) {
      fail_for_mismatch(
          fmt::format("{} is on another machine, where {} must know each other by munge ({}) or by "
                      "a secret",
                      options_.host, options_.peers, state_of_munge()));
    }
    if (*user == ::geteuid()) return;
    throw HandshakeError(Cause::stranger,
                         fmt::format("{} belongs to user {}, and {} to user {}", options_.host,
                                     *user, options_.self, ::geteuid()));
  }

  [[nodiscard]] std::string secret_in(const std::string& credential) const {
    std::string reason = "it sent no credential";
    if (!credential.empty()) {
      if (auto secret = open_from_own_user(credential, reason)) return *std::move(secret);
    }
    throw HandshakeError(Cause::mismatch,
                         fmt::format("{} relies on munge, which does not help {} ({}); let munged "
                                     "run on every node with the same key, or {}",
                                     options_.host, options_.self, reason, options_.advice));
  }

  Reply hear_reply(Trust trust, std::string_view secret, const Exchange& exchange) {
    const std::string message = next_message();
    MessageReader reader(message);
    Reply reply{.answer = static_cast<Answer>(reader.number()),
                .kind = reader.number(),
                .text = reader.text()};
    const std::string proof = reader.text();
    const bool is_whole = reader.is_whole();
    if (is_whole && reply.answer == Answer::unknown) {
      fail_for_mismatch(fmt::format("{} does not take {}'s secret", options_.host, options_.self));
    }
    // What it says otherwise does not matter; the job's host may still come.
    const bool is_proved = !needs_proof(trust) ||
                           (is_whole && is_same_proof(proof, host_proof(secret, exchange, reply)));
    if (!is_proved) throw HandshakeError(Cause::dropped, "it does not know the job's secret");
    const bool is_known = reply.answer == Answer::welcome || reply.answer == Answer::refused;
    if (!is_whole || !is_known) fail_as_foreign("an answer unheard of");
    return reply;
  }

  const base::Descriptor& socket_;
  FrameBuffer& input_;
  const GuestOptions& options_;
  const base::Deadline& deadline_;
};

}  // namespace

std::string guest_proof(std::string_view secret, const Exchange& exchange) {
  return hmac_sha256(secret, words_of("guest", exchange).bytes());
}

std::string host_proof(std::string_view secret, const Exchange& exchange, const Reply& reply) {
  return hmac_sha256(secret, words_of("host", exchange)
                                 .number(static_cast<std::uint64_t>(reply.answer))
                                 .number(reply.kind)
                                 .text(reply.text)
                                 .bytes());
}

std::string offer_message(Trust trust, const Exchange& exchange, std::string_view credential) {
  return exchange.greeting + framed(MessageWriter()
                                        .number(static_cast<std::uint64_t>(trust))
                                        .text(exchange.host_challenge)
                                        .text(credential)
                                        .bytes());
}

std::string reply_message(const Reply& reply, std::string_view proof) {
  return MessageWriter()
      .number(static_cast<std::uint64_t>(reply.answer))
      .number(reply.kind)
      .text(reply.text)
      .text(proof)
      .bytes();
}

Admission be_admitted(const base::Descriptor& socket, FrameBuffer& input,
                      const GuestOptions& options, const base::Deadline& deadline) {
  return GuestHandshake(socket, input, options, deadline).run();
}

void Reception::add_to(std::vector<pollfd>& polled) const {
  for (const base::Descriptor& each : options_.listeners) {
    polled.push_back({.fd = each.get(), .events = POLLIN, .revents = 0});
  }
  for (const Stranger& each : strangers_) polled.push_back(each.guest.stream.polled());
}

Clock::time_point Reception::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const Stranger& each : strangers_) next = std::min(next, each.patience);
  return arrived_.empty() ? next : Clock::now();  // an error came between them and the caller
}

std::vector<Reception::Guest> Reception::serve(std::span<const pollfd> polled) {
  const std::size_t listeners = options_.listeners.size();
  for (std::size_t index = listeners; index < polled.size(); ++index) {
    if (polled[index].revents != 0) hear(strangers_[index - listeners]);
  }
  for (std::size_t index = 0; index < listeners; ++index) {
    if (polled[index].revents != 0) accept_at(index);
  }
  const auto now = Clock::now();
  for (Stranger& each : strangers_) {
    each.guest.stream.flush();
    if (now >= each.patience) each.is_over = true;
  }
  std::erase_if(strangers_, [](const Stranger& each) { return each.is_over; });
  return std::exchange(arrived_, {});
}

void Reception::accept_at(std::size_t index) {
  // Without the listener if this throws: what cannot be taken would be there again at once.
  base::Descriptor listener = std::exchange(options_.listeners[index], base::Descriptor());
  base::Descriptor socket = accept_connection(listener, [this] { return drop_a_stranger(); });
  options_.listeners[index] = std::move(listener);
  if (!socket) return;
  if (options_.seals_secret) return greet(std::move(socket), Trust::munge);
  if (!options_.secret.empty()) return greet(std::move(socket), Trust::token);
  const auto user = user_of_tcp_peer(socket.get());
  if (user && *user != ::geteuid()) {
    last_turned_away_ =
        fmt::format("a process of user {} was turned away: it needs the job's secret", *user);
    return;
  }
  greet(std::move(socket), Trust::same_user);
  if (user) return;
  // Of another machine: it was greeted, so that it can say what is missing.
  strangers_.back().is_over = true;
  last_turned_away_ = "a process on another machine was turned away: there is no secret";
}

// The one that has been here longest; false: there is none.
bool Reception::drop_a_stranger() {
  const auto first = std::ranges::find(strangers_, false, &Stranger::is_over);
  if (first == strangers_.end()) return false;
  first->is_over = true;
  first->guest.stream.socket.reset();
  return true;
}

void Reception::greet(base::Descriptor socket, Trust trust) {
  const auto count = std::ranges::count(strangers_, false, &Stranger::is_over);
  if (static_cast<std::size_t>(count) >= options_.most_strangers) (void)drop_a_stranger();
  Stranger stranger{.guest = {.stream = {.socket = std::move(socket)},
                              .exchange = {.greeting = options_.greeting},
                              .trust = trust}};
  stranger.patience =
      trust == Trust::handed_down ? Clock::time_point::max() : Clock::now() + options_.patience;
  stranger.guest.exchange.host_challenge = new_challenge();
  std::string credential;
  std::string problem;
  // A guest that can open none says so.
  if (trust == Trust::munge) credential = seal_for_own_user(options_.secret, problem).value_or("");
  stranger.guest.stream.output = offer_message(trust, stranger.guest.exchange, credential);
  stranger.guest.stream.flush();
  strangers_.push_back(std::move(stranger));
}

void Reception::hear(Stranger& stranger) {
  if (stranger.is_over) return;
  FramedStream& stream = stranger.guest.stream;
  const bool is_closed = stream.receive() == Transfer::closed;
  if (const auto message = stream.input.take_message()) return hear_hello(stranger, *message);
  stranger.is_over = is_closed || stream.input.is_broken();
}

void Reception::hear_hello(Stranger& stranger, const std::string& message) {
  stranger.is_over = true;  // no stranger any more, or a liar
  Guest& guest = stranger.guest;
  MessageReader reader(message);
  guest.exchange.guest_challenge = reader.text();
  guest.exchange.hello = reader.text();
  const std::string proof = reader.text();
  if (!reader.is_whole()) return;
  if (needs_proof(guest.trust) &&
      !is_same_proof(proof, guest_proof(options_.secret, guest.exchange))) {
    last_turned_away_ = "a process with another secret was turned away";
    guest.stream.send(reply_message({.answer = Answer::unknown}, ""));
    return;
  }
  arrived_.push_back(std::move(guest));
}

void Reception::answer(Guest& guest, Reply reply) const {
  reply.text.resize(std::min<std::size_t>(reply.text.size(), kMostHandshakeBytes / 2));
  const bool proves = needs_proof(guest.trust);
  guest.stream.send(
      reply_message(reply, proves ? host_proof(options_.secret, guest.exchange, reply) : ""));
}

std::vector<base::Descriptor> Reception::close() {
  strangers_.clear();
  return std::exchange(options_.listeners, {});
}

}  // namespace dtrain::net
