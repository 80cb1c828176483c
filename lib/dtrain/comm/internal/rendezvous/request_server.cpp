#include "dtrain/comm/internal/rendezvous/request_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "dtrain/base/text/text.h"

namespace dtrain::comm {

namespace {

using base::Clock;
using base::ErrorKind;

void answer(net::FramedStream& stream, std::string_view text) {
  stream.send(
      net::MessageWriter().number(static_cast<std::uint64_t>(StoreReply::done)).text(text).bytes());
}

}  // namespace

void RequestServer::add(net::FramedStream stream, std::int64_t rank) {
  stream.input.allow(kMaxMessageBytes);
  connections_.push_back({.stream = std::move(stream), .rank = rank});
  take_messages(connections_.back());
}

void RequestServer::add_to(std::vector<pollfd>& polled) const {
  for (const Connection& each : connections_) polled.push_back(each.stream.polled());
}

Clock::time_point RequestServer::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const Connection& connection : connections_) {
    if (connection.wait != Wait::none) next = std::min(next, connection.deadline.end());
  }
  return next;
}

void RequestServer::serve(std::span<const pollfd> polled) {
  for (std::size_t index = 0; index < polled.size(); ++index) {
    if (polled[index].revents != 0) read_from(connections_[index]);
  }
}

// --- requests -------------------------------------------------------------------------------

void RequestServer::read_from(Connection& connection) {
  const net::Transfer transfer = connection.stream.receive();
  take_messages(connection);
  const bool is_lost = transfer == net::Transfer::closed || connection.stream.input.is_broken();
  if (connection.is_over || !is_lost) return;
  connection.is_over = true;
  store_.fail_job(ErrorKind::comm,
                  fmt::format("rank {} exited during the rendezvous; see its own error message",
                              connection.rank));
}

void RequestServer::take_messages(Connection& connection) {
  while (!connection.is_over) {
    const auto message = connection.stream.input.take_message();
    if (!message) return;
    handle(connection, *message);
  }
}

void RequestServer::handle(Connection& connection, const std::string& message) {
  net::MessageReader reader(message);
  const auto request = static_cast<StoreRequest>(reader.number());
  if (request == StoreRequest::leave) {
    connection.is_over = true;
  } else if (request == StoreRequest::fail) {
    const ErrorKind kind = failure_kind(reader.number());
    store_.fail_job(kind, base::printable(reader.text()));
    send_failure(connection);
  } else if (request == StoreRequest::gather || request == StoreRequest::wait) {
    handle_wait(connection, request, reader);
  } else {
    store_.fail_job(ErrorKind::comm,
                    fmt::format("rank {} sent the store a malformed request", connection.rank));
  }
}

void RequestServer::handle_wait(Connection& connection, StoreRequest request,
                                net::MessageReader& reader) {
  connection.wait = request == StoreRequest::gather ? Wait::gather : Wait::failure;
  connection.key = reader.text();
  connection.deadline =
      base::Deadline(std::chrono::milliseconds(std::min<std::uint64_t>(reader.number(), 1U << 31)));
  if (connection.wait == Wait::gather) {
    std::string value = reader.text();
    const auto members = read_ranks(reader, store_.size());
    store_.join_gather(connection.key, members.value_or(std::vector<std::int64_t>()),
                       connection.rank, std::move(value));
  }
  try_answer(connection);
}

// --- answers ------------------------------------------------------------------------------

void RequestServer::send_failure(Connection& connection) const {
  connection.stream.send(net::MessageWriter()
                             .number(static_cast<std::uint64_t>(StoreReply::job_failed))
                             .number(static_cast<std::uint64_t>(store_.failure()->kind))
                             .text(store_.failure()->message)
                             .bytes());
}

void RequestServer::try_answer(Connection& connection) {
  if (connection.wait == Wait::none) return;
  const bool is_gather = connection.wait == Wait::gather;
  const std::string* const values = is_gather ? store_.values(connection.key) : nullptr;
  if (values != nullptr) {  // even after a member has exited: its value may hold the reason
    answer(connection.stream, *values);
  } else if (store_.failure()) {
    send_failure(connection);
  } else if (!connection.deadline.passed()) {
    return;
  } else {
    answer(connection.stream, is_gather ? store_.missing(connection.key) : "");
  }
  connection.wait = Wait::none;
}

void RequestServer::answer_waiters() {
  const bool has_news = std::exchange(answered_version_, store_.version()) != store_.version();
  for (Connection& connection : connections_) {
    connection.stream.flush();
    if (has_news || connection.deadline.passed()) try_answer(connection);
  }
  std::erase_if(connections_, [](const Connection& each) { return each.is_over; });
}

}  // namespace dtrain::comm
