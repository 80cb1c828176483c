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

// How long rank 0's store may take for an answer that it has, on a machine that is busy.
constexpr std::chrono::seconds kPatience(30);

constexpr const char* kSenseless = "the store that rank 0 serves makes no sense";

net::MessageWriter message_of(StoreRequest request) {
  return net::MessageWriter().number(static_cast<std::uint64_t>(request));
}

/// Throws: the refusal of the job.
std::string text_of_reply(const std::string& reply) {
  net::MessageReader reader(reply);
  const auto kind = static_cast<StoreReply>(reader.number());
  if (kind == StoreReply::refused) {
    const ErrorKind error = kind_of_refusal(reader.number());
    throw base::Error(error, base::printable(reader.text()));
  }
  std::string text = reader.text();
  if (!reader.is_whole() || kind != StoreReply::done) fail(ErrorKind::comm, kSenseless);
  return text;
}

/// Reports a handshake that failed, in a rank's words.
[[noreturn]] void fail_for(const net::HandshakeError& error, const Newcomer& self,
                           const base::Deadline& deadline) {
  using Cause = net::HandshakeError::Cause;
  const std::string what = error.what();
  const std::string time =
      base::readable_time(base::seconds_since(deadline.end() - deadline.limit()));
  if (error.cause() == Cause::dropped) throw ClosedEarly{what};
  if (error.cause() == Cause::mismatch) fail(ErrorKind::usage, "{}", what);
  if (error.cause() == Cause::stranger) fail(ErrorKind::comm, "{}", what);
  if (error.cause() == Cause::late && self.waits_for_rank_0) {
    fail(ErrorKind::timeout,
         "rank 0, which serves the store, took no connection within {} (--comm-timeout): it still "
         "starts, is stopped or waits for a disk, or all ranks had met before this one came",
         time);
  }
  if (error.cause() == Cause::late) {
    fail(ErrorKind::timeout,
         "the store {} took the connection, but did not answer within {}: rank 0 is stopped or "
         "busy, or another program holds that port: then choose another MASTER_PORT",
         self.where, time);
  }
  if (what.starts_with("dtrain/")) {
    fail(ErrorKind::usage,
         "ranks run different builds of dtrain: the store {} greets with \"{}\", and this rank "
         "expects \"{}\"; start every rank with the same program",
         self.where, what.substr(0, kStoreGreeting.size()), kStoreGreeting);
  }
  fail(ErrorKind::comm,
       "what answers {} is no store of dtrain: it sent \"{}\"; another program may hold that "
       "port: choose another MASTER_PORT",
       self.where, what);
}

}  // namespace

std::string introduce_to_store(const base::Descriptor& connection, net::FrameBuffer& input,
                               const Newcomer& self, const base::Deadline& deadline) {
  net::GuestOptions options{
      .greeting = kStoreGreeting,
      .secret = self.token,
      .is_handed_down = self.is_handed_down,
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
      self.waiting->show(
          [&] { return fmt::format("rank 0, which serves the store {}", self.where); });
    };
  }
  net::Admission admission;
  try {
    admission = net::be_admitted(connection, input, options, deadline);
  } catch (const net::HandshakeError& error) {
    fail_for(error, self, deadline);
  }
  if (admission.reply.answer == net::Answer::refused) {
    throw base::Error(kind_of_refusal(admission.reply.kind), base::printable(admission.reply.text));
  }
  input.allow(kMostMessageBytes);
  return admission.secret;
}

std::string meet_request(std::string_view key, const std::vector<std::int64_t>& members,
                         std::string_view note, std::chrono::milliseconds patience) {
  net::MessageWriter writer = message_of(StoreRequest::meet);
  writer.text(key).number(static_cast<std::uint64_t>(patience.count())).text(note);
  write_ranks(writer, members);
  return writer.bytes();
}

StoreClient::StoreClient(base::Descriptor connection, const Newcomer& self,
                         const base::Deadline& deadline)
    : connection_(std::move(connection)) {
  secret_ = introduce_to_store(connection_, input_, self, deadline);
}

StoreClient::~StoreClient() {
  if (std::uncaught_exceptions() == 0) leave();
}

void StoreClient::wait_for_refusal(const base::Deadline& deadline) {
  const auto left = deadline.remaining();
  (void)request(message_of(StoreRequest::wait)
                    .text("")
                    .number(static_cast<std::uint64_t>(left.count()))
                    .bytes(),
                base::Deadline(left + kPatience));
}

Attendance StoreClient::meet(std::string_view key, const std::vector<std::int64_t>& members,
                             std::string_view note, const base::Deadline& deadline) {
  const auto left = deadline.remaining();
  const auto reply =
      request(meet_request(key, members, note, left), base::Deadline(left + kPatience));
  auto attendance = unpacked_attendance(reply);
  const bool fits =
      attendance && (!attendance->missing.empty() || attendance->notes.size() == members.size());
  if (!fits) fail(ErrorKind::comm, kSenseless);
  return *std::move(attendance);
}

void StoreClient::refuse(ErrorKind kind, const std::string& message) {
  (void)request(message_of(StoreRequest::refuse)
                    .number(static_cast<std::uint64_t>(kind))
                    .text(message)
                    .bytes(),
                base::Deadline(kPatience));
  throw base::Error(kind, message);
}

void StoreClient::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (connection_.get() < 0) return;
  try {
    (void)net::send_all(connection_, net::framed(message_of(StoreRequest::leave).bytes()),
                        base::Deadline(kPatience));
  } catch (...) {
    // Rank 0 then takes this rank for one that has died.
  }
  connection_ = base::Descriptor();
}

std::string StoreClient::request(const std::string& message, const base::Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  DTRAIN_CHECK(connection_.get() >= 0, "the store is asked after this rank has left it");
  // A connection that is closed over there may still hold the reason, so it is read in any case.
  net::Transfer transfer = net::send_all(connection_, net::framed(message), deadline);
  int reason = 0;
  while (true) {
    if (const auto reply = input_.take_message()) return text_of_reply(*reply);
    if (input_.is_broken()) fail(ErrorKind::comm, kSenseless);
    transfer = net::receive_some(connection_, input_, deadline, reason);
    if (transfer == net::Transfer::late) {
      fail(ErrorKind::timeout, "the store that rank 0 serves did not answer within {}",
           base::readable_time(base::Seconds(deadline.limit()).count()));
    }
    if (transfer == net::Transfer::closed) break;
  }
  fail(ErrorKind::comm,
       "lost the store that rank 0 serves ({}), while waiting for other ranks: rank 0 has probably "
       "ended; what it printed says why",
       reason == 0 ? "it closed the connection" : std::strerror(reason));
}

}  // namespace dtrain::comm
