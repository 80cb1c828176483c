#include "dtrain/comm/internal/rendezvous/store_client.h"

#include <cstring>
#include <exception>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/handshake.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using base::fail;

// How long a ready answer may take on a busy machine.
constexpr std::chrono::seconds kAnswerTimeout(30);

constexpr const char* kMalformed = "rank 0's store sent a malformed message";

net::MessageWriter message_of(StoreRequest request) {
  return net::MessageWriter().number(static_cast<std::uint64_t>(request));
}

/// Throws: the job's failure.
std::string text_of_reply(const std::string& reply) {
  net::MessageReader reader(reply);
  const auto kind = static_cast<StoreReply>(reader.number());
  if (kind == StoreReply::job_failed) {
    const ErrorKind error = failure_kind(reader.number());
    throw base::Error(error, base::printable(reader.text()));
  }
  std::string text = reader.text();
  if (!reader.is_whole() || kind != StoreReply::done) fail(ErrorKind::comm, kMalformed);
  return text;
}

/// Reports a failed handshake with the store.
[[noreturn]] void fail_for(const net::HandshakeError& error, const JoinRequest& self,
                           const base::Deadline& deadline) {
  using Cause = net::HandshakeError::Cause;
  const std::string what = error.what();
  const std::string time =
      base::readable_time(base::seconds_since(deadline.end() - deadline.limit()));
  if (error.cause() == Cause::dropped) throw RetryableJoinError{what};
  if (error.cause() == Cause::secret_mismatch) fail(ErrorKind::usage, "{}", what);
  if (error.cause() == Cause::wrong_user) fail(ErrorKind::comm, "{}", what);
  if (error.cause() == Cause::timed_out && self.waits_for_rank_0) {
    fail(ErrorKind::timeout,
         "rank 0, which serves the store, accepted no connection within {} (--comm-timeout): it is "
         "still starting, stopped or waiting for a disk, or it serves all the ranks that it "
         "expects and this one is surplus",
         time);
  }
  if (error.cause() == Cause::timed_out) {
    fail(ErrorKind::timeout,
         "the store {} accepted the connection but did not answer within {}: rank 0 is stopped or "
         "busy; if another program holds that port, choose another MASTER_PORT",
         self.where, time);
  }
  if (what.starts_with("dtrain/")) {
    fail(ErrorKind::usage,
         "ranks run different builds of dtrain: the store {} greets with \"{}\", and this rank "
         "expects \"{}\"; start every rank with the same program",
         self.where, what.substr(0, kStoreGreeting.size()), kStoreGreeting);
  }
  fail(ErrorKind::comm,
       "the server {} is not dtrain's store: it sent \"{}\"; another program may hold that port: "
       "choose another MASTER_PORT",
       self.where, what);
}

}  // namespace

std::string join_store(const base::Descriptor& connection, net::FrameBuffer& input,
                       const JoinRequest& self, const base::Deadline& deadline) {
  net::ClientOptions options{
      .greeting = kStoreGreeting,
      .secret = self.token,
      .is_inherited = self.is_inherited,
      .hello = net::MessageWriter()
                   .number(static_cast<std::uint64_t>(self.rank))
                   .number(static_cast<std::uint64_t>(self.size))
                   .bytes(),
      .host = "the store " + self.where,
      .self = "this rank",
      .peers = "ranks",
      .advice = "give every rank the same DTRAIN_JOB_TOKEN or DTRAIN_JOB_TOKEN_FILE"};
  if (self.waiting != nullptr) {
    options.on_wait = [&self] {
      self.waiting->report(
          [&] { return fmt::format("rank 0, which serves the store {}", self.where); });
    };
  }
  net::HandshakeResult result;
  try {
    result = net::run_client_handshake(connection, input, options, deadline);
  } catch (const net::HandshakeError& error) {
    fail_for(error, self, deadline);
  }
  if (result.reply.status == net::ReplyStatus::rejected) {
    throw base::Error(failure_kind(result.reply.kind), base::printable(result.reply.text));
  }
  input.allow(kMaxMessageBytes);
  return result.secret;
}

std::string gather_request(std::string_view key, const std::vector<std::int64_t>& members,
                           std::string_view value, std::chrono::milliseconds timeout) {
  net::MessageWriter writer = message_of(StoreRequest::gather);
  writer.text(key).number(static_cast<std::uint64_t>(timeout.count())).text(value);
  write_ranks(writer, members);
  return writer.bytes();
}

StoreClient::StoreClient(base::Descriptor connection, const JoinRequest& self,
                         const base::Deadline& deadline)
    : connection_(std::move(connection)) {
  secret_ = join_store(connection_, input_, self, deadline);
}

StoreClient::~StoreClient() {
  if (std::uncaught_exceptions() == 0) leave();
}

void StoreClient::wait_for_failure(const base::Deadline& deadline) {
  const auto left = deadline.remaining();
  (void)request(message_of(StoreRequest::wait)
                    .text("")
                    .number(static_cast<std::uint64_t>(left.count()))
                    .bytes(),
                base::Deadline(left + kAnswerTimeout));
}

GatherResult StoreClient::all_gather(std::string_view key, const std::vector<std::int64_t>& members,
                                     std::string_view value, const base::Deadline& deadline) {
  const auto left = deadline.remaining();
  const auto reply =
      request(gather_request(key, members, value, left), base::Deadline(left + kAnswerTimeout));
  auto result = unpacked_result(reply);
  const bool fits = result && (!result->missing.empty() || result->values.size() == members.size());
  if (!fits) fail(ErrorKind::comm, kMalformed);
  return *std::move(result);
}

void StoreClient::fail_job(ErrorKind kind, const std::string& message) {
  (void)request(
      message_of(StoreRequest::fail).number(static_cast<std::uint64_t>(kind)).text(message).bytes(),
      base::Deadline(kAnswerTimeout));
  throw base::Error(kind, message);
}

void StoreClient::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (connection_.get() < 0) return;
  try {
    (void)net::send_all(connection_, net::framed(message_of(StoreRequest::leave).bytes()),
                        base::Deadline(kAnswerTimeout));
  } catch (...) {
    // Rank 0 then assumes that this rank has died.
  }
  connection_ = base::Descriptor();
}

std::string StoreClient::request(const std::string& message, const base::Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  DTRAIN_CHECK(connection_.get() >= 0, "the store is used after this rank has left it");
  // Read even if sending failed: a closed connection may still hold the reason.
  net::Transfer transfer = net::send_all(connection_, net::framed(message), deadline);
  int reason = 0;
  while (true) {
    if (const auto reply = input_.take_message()) return text_of_reply(*reply);
    if (input_.is_broken()) fail(ErrorKind::comm, kMalformed);
    transfer = net::receive_some(connection_, input_, deadline, reason);
    if (transfer == net::Transfer::timed_out) {
      fail(ErrorKind::timeout, "rank 0's store did not answer within {}",
           base::readable_time(base::Seconds(deadline.limit()).count()));
    }
    if (transfer == net::Transfer::closed) break;
  }
  fail(
      ErrorKind::comm,
      "lost rank 0's store ({}) while waiting for other ranks: rank 0 has probably exited; see its "
      "own error message",
      reason == 0 ? "it closed the connection" : std::strerror(reason));
}

}  // namespace dtrain::comm
