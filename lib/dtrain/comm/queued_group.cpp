#include "dtrain/comm/queued_group.h"

#include <fmt/format.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/base/trace.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using CallAllocator = std::pmr::polymorphic_allocator<>;

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
}

}  // namespace

void HostCompletion::end(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    completed_ = true;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

void HostCompletion::wait_host() {
  std::unique_lock lock(mutex_);
  if (!completed_) {
    const auto start = base::Clock::now();
    const base::Span span("wait", base::TracePart::wait,
                          {"call", static_cast<std::int64_t>(number_)});
    lock.unlock();
    help();
    lock.lock();
    // Needs no deadline here: the operation ends by its own deadline.
    changed_.wait(lock, [this] { return completed_; });
    ring_->add_wait(base::Clock::now() - start);
  }
  if (error_) std::rethrow_exception(error_);
}

bool HostCompletion::is_completed() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

/// A call: an executor's task and its callers' Completion. Releases its tensors at the end.
class QueuedGroup::Call final : public HostCompletion, public Task {
 public:
  Call(QueuedGroup& group, const CallRecord& record, const SerialExecutor& executor,
       Operation operation)
      : HostCompletion(group.ring_, record.number),
        group_(group),
        record_(record),
        queue_(executor.queue()),
        operation_(std::move(operation)) {}

  /// Sets this task's number in its executor.
  void set_number(std::uint64_t number) { number_ = number; }

  void execute() noexcept override {
    std::exception_ptr failure = group_.error();
    std::int64_t bytes_sent = 0;
    if (!failure) {
      group_.ring_->start(record_.number);
      try {
        const base::Deadline deadline(group_.options_.timeout);
        if (group_.transport_) bytes_sent = group_.transport_->run(operation_, deadline);
      } catch (const TransportFailure& caught) {
        std::vector<std::int64_t> peers;
        for (const std::int64_t peer : caught.peers()) peers.push_back(group_.world_rank(peer));
        failure = group_.keep_error(
            error_of(group_.identity_, record_, group_.options_.timeout, caught, peers));
      } catch (...) {
        failure = group_.keep_error(std::current_exception());
      }
      // Closes the group, so that its peers need not wait for their own deadlines.
      if (failure) group_.transport_->close(message_of(failure));
    }
    --group_.pending_;
    if (failure) {
      group_.ring_->fail(record_.number);
      fail(failure);
    } else {
      group_.ring_->finish(record_.number, bytes_sent);
      finish();
    }
    operation_ = Barrier{};
  }

 private:
  void help() override { queue_->help_with(number_); }

  QueuedGroup& group_;  // used by execute() alone: a Work may outlive the group
  const CallRecord record_;
  const std::shared_ptr<TaskQueue> queue_;
  Operation operation_;
  std::uint64_t number_ = 0;
};

std::exception_ptr error_of(const GroupIdentity& group, const CallRecord& call,
                            std::chrono::milliseconds timeout, const TransportFailure& failure,
                            const std::vector<std::int64_t>& peers) {
  using Cause = TransportFailure::Cause;
  const std::string who = peers.empty() ? "a peer" : base::ranks_text(peers);
  const std::string detail = failure.what();
  std::string text = fmt::format(
      "rank {}, group '{}', {}: ", group.world_ranks[static_cast<std::size_t>(group.rank)],
      group.name, describe(call));
  if (failure.cause() == Cause::no_answer) {
    text += fmt::format("{} did not answer within {} (--comm-timeout){}{}", who,
                        base::readable_time(base::Seconds(timeout).count()),
                        detail.empty() ? "" : ": ", detail);
  } else if (failure.cause() == Cause::gone) {
    text += fmt::format("{} closed the connection{}", who,
                        detail.empty() ? "; see its own error message" : ": " + detail);
  } else {
    text += detail;
  }
  const bool is_late = failure.cause() == Cause::no_answer;
  return std::make_exception_ptr(base::Error(is_late ? ErrorKind::timeout : ErrorKind::comm, text));
}

QueuedGroup::QueuedGroup(GroupIdentity identity, const GroupOptions& options,
                         std::unique_ptr<Transport> transport)
    : identity_(std::move(identity)),
      options_(options),
      ring_(std::make_shared<CallRing>()),
      transport_(std::move(transport)) {
  DTRAIN_CHECK(size() == 1 || transport_ != nullptr);
}

QueuedGroup::~QueuedGroup() {
  if (pending_ > 0) abort("the group was closed while calls were under way");
}

Work QueuedGroup::post(Operation operation) {
  check_operation(operation, {.rank = rank(), .size = size(), .device = c10::kCPU});
  if (size() == 1) run_single_rank(operation);
  CallRecord record = record_of(operation, identity_.world_ranks);
  record.number = ring_->add(record);
  ++pending_;
  SerialExecutor& executor = executor_for(operation);
  const auto call = std::allocate_shared<Call>(CallAllocator(&call_memory()), *this, record,
                                               executor, std::move(operation));
  if (size() == 1) {
    call->execute();
    return Work(call);
  }
  try {
    call->set_number(executor.post(call));
  } catch (const std::exception& caught) {
    --pending_;
    abort(fmt::format("rank {} cannot start a thread: {}", world_rank(rank()), caught.what()));
    throw;
  }
  return Work(call);
}

SerialExecutor& QueuedGroup::executor_for(const Operation& operation) {
  if (const auto* send = std::get_if<Send>(&operation)) return sends_[send->peer];
  if (const auto* recv = std::get_if<Recv>(&operation)) return receives_[recv->peer];
  return collectives_;
}

void QueuedGroup::abort(const std::string& reason) noexcept {
  keep_error(std::make_exception_ptr(
      base::Error(ErrorKind::comm, fmt::format("group '{}': {}", identity_.name, reason))));
  if (transport_) transport_->close(reason);
}

std::int64_t QueuedGroup::awaited() const noexcept {
  const std::int64_t peer = transport_ ? transport_->awaited() : -1;
  return peer < 0 ? -1 : world_rank(peer);
}

std::exception_ptr QueuedGroup::keep_error(std::exception_ptr error) noexcept {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  return error_;
}

std::exception_ptr QueuedGroup::error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

std::int64_t QueuedGroup::world_rank(std::int64_t rank) const {
  return identity_.world_ranks[static_cast<std::size_t>(rank)];
}

}  // namespace dtrain::comm
