#include "dtrain/comm/rendezvous/handshake.h"

#include <unistd.h>

#include <cstring>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"
#include "dtrain/comm/rendezvous/job_store.h"
#include "dtrain/comm/rendezvous/store_proof.h"
#include "dtrain/comm/rendezvous/wire.h"
#include "dtrain/net/message.h"
#include "dtrain/net/munge.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/tcp_owner.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using base::fail;

constexpr std::string_view kGreetingOfAnyBuild = "dtrain/";

constexpr const char* kSecretAdvice =
    "give every rank the same DTRAIN_JOB_TOKEN or DTRAIN_JOB_TOKEN_FILE";

/// Why ranks on several machines do not know each other by munge.
std::string state_of_munge() {
  std::string reason;
  const bool answers = net::seal_for_own_user("does it answer?", reason).has_value();
  return answers ? "which answers here, but not rank 0" : reason;
}

class Handshake {
 public:
  Handshake(const base::Descriptor& connection, net::FrameBuffer& input, const Newcomer& self,
            const base::Deadline& deadline)
      : connection_(connection),
        input_(input),
        self_(self),
        deadline_(deadline),
        secret_(self.token) {}

  std::string run() {
    read_greeting();
    net::MessageReader reader(next_message());
    const auto trust = static_cast<Trust>(reader.number());
    const Exchange exchange{.store_challenge = reader.text(),
                            .rank_challenge = net::new_challenge(),
                            .rank = static_cast<std::uint64_t>(self_.rank),
                            .size = static_cast<std::uint64_t>(self_.size)};
    const std::string credential = trust == Trust::munge ? reader.text() : "";
    if (!reader.is_whole()) fail_as_foreign("words after a greeting");
    check(trust);
    if (trust == Trust::munge) secret_ = secret_in(credential);
    const bool proves = trust == Trust::token || trust == Trust::munge;
    send(net::MessageWriter()
             .text(exchange.rank_challenge)
             .number(exchange.rank)
             .number(exchange.size)
             .text(proves ? proof_of(secret_, "rank", exchange) : "")
             .bytes());
    const std::string& reply = next_message();
    if (proves) check_known(reply);
    // The reply's other content does not matter; the job's store may still come.
    if (proves && !is_proved(reply, exchange))
      throw ClosedEarly{"it does not know the job's secret"};
    (void)text_of_reply(reply);
    return secret_;
  }

 private:
  void read_greeting() {
    while (input_.bytes().size() < kStoreGreeting.size()) {
      // A foreign program need not send as much as a greeting.
      if (!kStoreGreeting.starts_with(input_.bytes())) break;
      receive();
    }
    const auto greeting = input_.take_bytes(kStoreGreeting.size());
    if (greeting == kStoreGreeting) return;
    if (greeting && greeting->starts_with(kGreetingOfAnyBuild)) {
      fail(ErrorKind::usage,
           "ranks run different builds of dtrain: the store {} greets with \"{}\", and this rank "
           "expects \"{}\"; start every rank with the same program",
           self_.where, base::printable(*greeting), kStoreGreeting);
    }
    fail_as_foreign(greeting.value_or("") + input_.bytes());
  }

  /// Keeps bytes beyond the message until the next call.
  const std::string& next_message() {
    while (true) {
      if (auto message = input_.take_message()) return message_ = *std::move(message);
      if (input_.is_broken()) fail_as_foreign(input_.bytes());
      receive();
    }
  }

  void check_known(const std::string& reply) const {
    if (static_cast<StoreReply>(net::MessageReader(reply).number()) != StoreReply::unknown) return;
    fail(ErrorKind::usage, "the store {} does not take this rank's secret; {}", self_.where,
         kSecretAdvice);
  }

  /// Returns whether the store that sent this reply has proved that it knows the secret.
  bool is_proved(const std::string& reply, const Exchange& exchange) const {
    net::MessageReader reader(reply);
    std::string who = "store";
    if (static_cast<StoreReply>(reader.number()) == StoreReply::refused) {
      const std::uint64_t kind = reader.number();
      who = refusing_store(kind, reader.text());
    }
    return net::is_same_proof(reader.text(), proof_of(secret_, who, exchange));
  }

  void receive() {
    constexpr std::chrono::milliseconds kLook(200);
    int error = 0;
    auto transfer = net::Transfer::late;
    while (transfer == net::Transfer::late && !deadline_.passed()) {
      const base::Deadline look(std::min(kLook, deadline_.remaining()));
      transfer = net::receive_some(connection_, input_, look, error);
      if (self_.waiting == nullptr) continue;
      self_.waiting->show(
          [this] { return fmt::format("rank 0, which serves the store {}", self_.where); });
    }
    examine(transfer, error);
  }

  void send(const std::string& message) {
    examine(net::send_all(connection_, net::framed(message), deadline_), 0);
  }

  void examine(net::Transfer transfer, int error) const {
    if (transfer == net::Transfer::closed) {
      throw ClosedEarly{error == 0 ? "it closed the connection" : std::strerror(error)};
    }
    if (transfer != net::Transfer::late) return;
    const std::string time =
        base::readable_time(base::seconds_since(deadline_.end() - deadline_.limit()));
    if (self_.waits_for_rank_0) {
      fail(
          ErrorKind::timeout,
          "rank 0, which serves the store, took no connection within {} (--comm-timeout): it still "
          "starts, is stopped or waits for a disk, or all ranks had met before this one came",
          time);
    }
    fail(ErrorKind::timeout,
         "the store {} took the connection, but did not answer within {}: rank 0 is stopped or "
         "busy, or another program holds that port: then choose another MASTER_PORT",
         self_.where, time);
  }

  void check(Trust trust) const {
    const bool is_told = !self_.token.empty();
    if (trust == Trust::handed_down && self_.is_handed_down) return;
    const bool is_known =
        trust == Trust::token || trust == Trust::same_user || trust == Trust::munge;
    if (!is_known) fail_as_foreign("an offer unheard of");
    if (trust == Trust::token && !is_told) {
      fail(ErrorKind::usage, "the store {} wants the job's secret, but this rank has none; {}",
           self_.where, kSecretAdvice);
    }
    if (trust != Trust::token && is_told) {
      fail(ErrorKind::usage,
           "this rank has a job's secret, but rank 0, whose store is {}, has none; {}", self_.where,
           kSecretAdvice);
    }
    if (trust == Trust::same_user) check_user();
  }

  std::string secret_in(const std::string& credential) const {
    std::string reason = "the store sent no credential";
    if (!credential.empty()) {
      if (auto secret = net::open_from_own_user(credential, reason)) return *std::move(secret);
    }
    fail(ErrorKind::usage,
         "the store {} relies on munge, which does not help this rank ({}); let munged run on "
         "every node with the same key, or {}",
         self_.where, reason, kSecretAdvice);
  }

  void check_user() const {
    const auto user = net::user_of_tcp_peer(connection_.get());
    if (!user) {
      fail(ErrorKind::usage,
           "the store {} is on another machine, where ranks must know each other by munge ({}) or "
           "by a secret; {}",
           self_.where, state_of_munge(), kSecretAdvice);
    }
    if (*user != ::geteuid()) {
      fail(ErrorKind::comm, "the store {} belongs to user {}, and this rank to user {}",
           self_.where, *user, ::geteuid());
    }
  }

  [[noreturn]] void fail_as_foreign(std::string_view found) const {
    fail(ErrorKind::comm,
         "what answers {} is no store of dtrain: it sent \"{}\"; another program may hold that "
         "port: choose another MASTER_PORT",
         self_.where, base::printable(found.substr(0, 40)));
  }

  const base::Descriptor& connection_;
  net::FrameBuffer& input_;
  const Newcomer& self_;
  const base::Deadline& deadline_;
  std::string secret_;
  std::string message_;
};

}  // namespace

std::string introduce_to_store(const base::Descriptor& connection, net::FrameBuffer& input,
                               const Newcomer& self, const base::Deadline& deadline) {
  return Handshake(connection, input, self, deadline).run();
}

std::optional<std::string> text_of_reply(const std::string& reply) {
  net::MessageReader reader(reply);
  const auto kind = static_cast<StoreReply>(reader.number());
  if (kind == StoreReply::refused) {
    const ErrorKind error = kind_of_refusal(reader.number());
    throw base::Error(error, base::printable(reader.text()));
  }
  std::string text = reader.text();
  if (!reader.is_whole()) fail(ErrorKind::comm, "the store that rank 0 serves makes no sense");
  if (kind != StoreReply::done) return std::nullopt;
  return text;
}

}  // namespace dtrain::comm
