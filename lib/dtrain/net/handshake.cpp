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

MessageWriter proof_input(std::string_view who, const HandshakeTranscript& transcript) {
  MessageWriter writer;
  writer.text(transcript.greeting)
      .text(who)
      .text(transcript.server_challenge)
      .text(transcript.client_challenge)
      .text(transcript.hello);
  return writer;
}

[[noreturn]] void fail_for_wrong_protocol(std::string_view found) {
  throw HandshakeError(Cause::wrong_protocol, base::printable(found.substr(0, 40)));
}

/// Why munge does not authenticate processes on several machines.
std::string describe_munge() {
  std::string reason;
  const bool answers = encode_credential("probe", reason).has_value();
  return answers ? "it works on this machine, but not on the other one" : reason;
}

class ClientHandshake {
 public:
  ClientHandshake(const base::Descriptor& socket, FrameBuffer& input, const ClientOptions& options,
                  const base::Deadline& deadline)
      : socket_(socket), input_(input), options_(options), deadline_(deadline) {}

  HandshakeResult run() {
    read_greeting();
    const std::string offer = next_message();
    MessageReader reader(offer);
    const auto method = static_cast<AuthMethod>(reader.number());
    const HandshakeTranscript transcript{.greeting = std::string(options_.greeting),
                                         .server_challenge = reader.text(),
                                         .client_challenge = new_challenge(),
                                         .hello = options_.hello};
    const std::string credential = reader.text();
    if (!reader.is_whole()) fail_for_wrong_protocol("malformed message after the greeting");
    check(method);
    const std::string secret =
        method == AuthMethod::munge ? decode_secret(credential) : options_.secret;
    const std::string proof = needs_proof(method) ? client_proof(secret, transcript) : "";
    const std::string words = MessageWriter()
                                  .text(transcript.client_challenge)
                                  .text(transcript.hello)
                                  .text(proof)
                                  .bytes();
    check_transfer(send_all(socket_, framed(words), deadline_), 0);
    return {.secret = secret, .reply = receive_reply(method, secret, transcript)};
  }

 private:
  void read_greeting() {
    // Another program may send less than a greeting.
    while (input_.bytes().size() < options_.greeting.size() &&
           options_.greeting.starts_with(input_.bytes())) {
      receive();
    }
    const auto greeting = input_.take_bytes(options_.greeting.size());
    if (greeting != options_.greeting)
      fail_for_wrong_protocol(greeting.value_or("") + input_.bytes());
  }

  std::string next_message() {
    while (true) {
      if (auto message = input_.take_message()) return *std::move(message);
      if (input_.is_broken()) fail_for_wrong_protocol(input_.bytes());
      receive();
    }
  }

  void receive() {
    constexpr std::chrono::milliseconds kPollInterval(200);
    int error = 0;
    auto transfer = Transfer::timed_out;
    while (transfer == Transfer::timed_out && !deadline_.passed()) {
      const base::Deadline look(std::min(kPollInterval, deadline_.remaining()));
      transfer = receive_some(socket_, input_, look, error);
      if (options_.on_wait) options_.on_wait();
    }
    check_transfer(transfer, error);
  }

  static void check_transfer(Transfer transfer, int error) {
    if (transfer == Transfer::timed_out) throw HandshakeError(Cause::timed_out, "");
    if (transfer != Transfer::closed) return;
    throw HandshakeError(Cause::dropped,
                         error == 0 ? "it closed the connection" : std::strerror(error));
  }

  [[noreturn]] void fail_for_mismatch(const std::string& what) const {
    throw HandshakeError(Cause::secret_mismatch, fmt::format("{}; {}", what, options_.advice));
  }

  void check(AuthMethod method) const {
    const bool has_secret = !options_.secret.empty();
    if (method == AuthMethod::inherited && options_.is_inherited) return;
    if (method != AuthMethod::same_user && !needs_proof(method))
      fail_for_wrong_protocol("unknown authentication method");
    if (method == AuthMethod::token && !has_secret) {
      fail_for_mismatch(fmt::format("{} requires the job's secret, but {} has none", options_.host,
                                    options_.self));
    }
    if (method != AuthMethod::token && has_secret) {
      fail_for_mismatch(
          fmt::format("{} has a job's secret, but {} has none", options_.self, options_.host));
    }
    if (method == AuthMethod::same_user) check_user();
  }

  void check_user() const {
    const auto user = user_of_tcp_peer(socket_.get());
    if (!user) {
      fail_for_mismatch(
          fmt::format("{} is on another machine, so {} must authenticate by munge ({}) or by a "
                      "secret",
                      options_.host, options_.peers, describe_munge()));
    }
    if (*user == ::geteuid()) return;
    throw HandshakeError(Cause::wrong_user,
                         fmt::format("{} belongs to user {}, and {} to user {}", options_.host,
                                     *user, options_.self, ::geteuid()));
  }

  [[nodiscard]] std::string decode_secret(const std::string& credential) const {
    std::string reason = "it sent no credential";
    if (!credential.empty()) {
      if (auto secret = decode_credential(credential, reason)) return *std::move(secret);
    }
    throw HandshakeError(Cause::secret_mismatch,
                         fmt::format("{} relies on munge, which fails on {} ({}); run munged on "
                                     "every node with the same key, or {}",
                                     options_.host, options_.self, reason, options_.advice));
  }

  Reply receive_reply(AuthMethod method, std::string_view secret,
                      const HandshakeTranscript& transcript) {
    const std::string message = next_message();
    MessageReader reader(message);
    Reply reply{.status = static_cast<ReplyStatus>(reader.number()),
                .kind = reader.number(),
                .text = reader.text()};
    const std::string proof = reader.text();
    const bool is_whole = reader.is_whole();
    if (is_whole && reply.status == ReplyStatus::unauthenticated) {
      fail_for_mismatch(fmt::format("{} rejects {}'s secret", options_.host, options_.self));
    }
    // An unproven reply is ignored; the job's own server may still come up.
    const bool is_proved =
        !needs_proof(method) ||
        (is_whole && is_same_proof(proof, server_proof(secret, transcript, reply)));
    if (!is_proved) throw HandshakeError(Cause::dropped, "it does not know the job's secret");
    const bool is_known =
        reply.status == ReplyStatus::accepted || reply.status == ReplyStatus::rejected;
    if (!is_whole || !is_known) fail_for_wrong_protocol("unknown reply");
    return reply;
  }

  const base::Descriptor& socket_;
  FrameBuffer& input_;
  const ClientOptions& options_;
  const base::Deadline& deadline_;
};

}  // namespace

std::string client_proof(std::string_view secret, const HandshakeTranscript& transcript) {
  return hmac_sha256(secret, proof_input("guest", transcript).bytes());
}

std::string server_proof(std::string_view secret, const HandshakeTranscript& transcript,
                         const Reply& reply) {
  return hmac_sha256(secret, proof_input("host", transcript)
                                 .number(static_cast<std::uint64_t>(reply.status))
                                 .number(reply.kind)
                                 .text(reply.text)
                                 .bytes());
}

std::string server_hello(AuthMethod method, const HandshakeTranscript& transcript,
                         std::string_view credential) {
  return transcript.greeting + framed(MessageWriter()
                                          .number(static_cast<std::uint64_t>(method))
                                          .text(transcript.server_challenge)
                                          .text(credential)
                                          .bytes());
}

std::string reply_message(const Reply& reply, std::string_view proof) {
  return MessageWriter()
      .number(static_cast<std::uint64_t>(reply.status))
      .number(reply.kind)
      .text(reply.text)
      .text(proof)
      .bytes();
}

HandshakeResult run_client_handshake(const base::Descriptor& socket, FrameBuffer& input,
                                     const ClientOptions& options, const base::Deadline& deadline) {
  return ClientHandshake(socket, input, options, deadline).run();
}

void HandshakeServer::add_to(std::vector<pollfd>& polled) const {
  for (const base::Descriptor& each : options_.listeners) {
    polled.push_back({.fd = each.get(), .events = POLLIN, .revents = 0});
  }
  for (const PendingConnection& each : pending_) polled.push_back(each.client.stream.polled());
}

Clock::time_point HandshakeServer::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const PendingConnection& each : pending_) next = std::min(next, each.deadline);
  return authenticated_.empty() ? next : Clock::now();  // serve() threw before it returned them
}

std::vector<HandshakeServer::Client> HandshakeServer::serve(std::span<const pollfd> polled) {
  const std::size_t listeners = options_.listeners.size();
  for (std::size_t index = listeners; index < polled.size(); ++index) {
    if (polled[index].revents != 0) receive_from(pending_[index - listeners]);
  }
  for (std::size_t index = 0; index < listeners; ++index) {
    if (polled[index].revents != 0) accept_at(index);
  }
  const auto now = Clock::now();
  for (PendingConnection& each : pending_) {
    each.client.stream.flush();
    if (now >= each.deadline) each.is_done = true;
  }
  std::erase_if(pending_, [](const PendingConnection& each) { return each.is_done; });
  return std::exchange(authenticated_, {});
}

void HandshakeServer::accept_at(std::size_t index) {
  // If this throws, the listener is closed: poll would report the same connection at once.
  base::Descriptor listener = std::exchange(options_.listeners[index], base::Descriptor());
  base::Descriptor socket = accept_connection(listener, [this] { return drop_oldest_pending(); });
  options_.listeners[index] = std::move(listener);
  if (!socket) return;
  if (options_.sends_credential) return begin_handshake(std::move(socket), AuthMethod::munge);
  if (!options_.secret.empty()) return begin_handshake(std::move(socket), AuthMethod::token);
  const auto user = user_of_tcp_peer(socket.get());
  if (user && *user != ::geteuid()) {
    last_rejection_ =
        fmt::format("rejected a process of user {}, which needs the job's secret", *user);
    return;
  }
  begin_handshake(std::move(socket), AuthMethod::same_user);
  if (user) return;
  // From another machine: it was greeted, so that it can report the missing secret.
  pending_.back().is_done = true;
  last_rejection_ = "rejected a process on another machine, because the job has no secret";
}

// Drops the oldest pending connection; false if there is none.
bool HandshakeServer::drop_oldest_pending() {
  const auto first = std::ranges::find(pending_, false, &PendingConnection::is_done);
  if (first == pending_.end()) return false;
  first->is_done = true;
  first->client.stream.socket.reset();
  return true;
}

void HandshakeServer::begin_handshake(base::Descriptor socket, AuthMethod method) {
  const auto count = std::ranges::count(pending_, false, &PendingConnection::is_done);
  if (static_cast<std::size_t>(count) >= options_.max_pending) (void)drop_oldest_pending();
  PendingConnection pending{.client = {.stream = {.socket = std::move(socket)},
                                       .transcript = {.greeting = options_.greeting},
                                       .method = method}};
  pending.deadline = method == AuthMethod::inherited ? Clock::time_point::max()
                                                     : Clock::now() + options_.auth_timeout;
  pending.client.transcript.server_challenge = new_challenge();
  std::string credential;
  std::string problem;
  // If sealing fails, the client reports the missing credential.
  if (method == AuthMethod::munge)
    credential = encode_credential(options_.secret, problem).value_or("");
  pending.client.stream.output = server_hello(method, pending.client.transcript, credential);
  pending.client.stream.flush();
  pending_.push_back(std::move(pending));
}

void HandshakeServer::receive_from(PendingConnection& pending) {
  if (pending.is_done) return;
  FramedStream& stream = pending.client.stream;
  const bool is_closed = stream.receive() == Transfer::closed;
  if (const auto message = stream.input.take_message()) return verify_hello(pending, *message);
  pending.is_done = is_closed || stream.input.is_broken();
}

void HandshakeServer::verify_hello(PendingConnection& pending, const std::string& message) {
  pending.is_done = true;  // authenticated or rejected below
  Client& client = pending.client;
  MessageReader reader(message);
  client.transcript.client_challenge = reader.text();
  client.transcript.hello = reader.text();
  const std::string proof = reader.text();
  if (!reader.is_whole()) return;
  if (needs_proof(client.method) &&
      !is_same_proof(proof, client_proof(options_.secret, client.transcript))) {
    last_rejection_ = "rejected a process with another secret";
    client.stream.send(reply_message({.status = ReplyStatus::unauthenticated}, ""));
    return;
  }
  authenticated_.push_back(std::move(client));
}

void HandshakeServer::answer(Client& client, Reply reply) const {
  reply.text.resize(std::min<std::size_t>(reply.text.size(), kMaxHandshakeBytes / 2));
  const bool proves = needs_proof(client.method);
  client.stream.send(
      reply_message(reply, proves ? server_proof(options_.secret, client.transcript, reply) : ""));
}

std::vector<base::Descriptor> HandshakeServer::close() {
  pending_.clear();
  return std::exchange(options_.listeners, {});
}

}  // namespace dtrain::net
