#include "dtrain/net/handshake.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "dtrain/base/text.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/tcp_owner.h"

namespace dtrain::net {

namespace {

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

}  // namespace dtrain::net
