#include "dtrain/comm/queued_group.h"

#include <fmt/format.h>

#include <optional>

#include "dtrain/base/check.h"
#include "dtrain/base/list_text.h"
#include "dtrain/base/readable.h"
#include "dtrain/comm/reduce.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using CallAllocator = std::pmr::polymorphic_allocator<>;

CallRecord call_on(std::string_view op, const at::Tensor& tensor, std::int64_t peer = -1) {
  CallRecord call;
  call.op = op;
  call.peer = peer;
  call.dtype = tensor.scalar_type();
  call.count = tensor.numel();
  return call;
}

void check_dense(const at::Tensor& tensor) {
  DTRAIN_CHECK(tensor.defined() && tensor.is_contiguous() && tensor.device().is_cpu(),
               "communication wants contiguous CPU tensors");
}

void check_reducible(const at::Tensor& tensor) {
  check_dense(tensor);
  DTRAIN_CHECK(is_reducible(tensor.scalar_type()), "cannot reduce {}",
               c10::toString(tensor.scalar_type()));
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
}

}  // namespace

/// A call as its lane's task and its callers' completion. Tensors are released when it has ended.
template <typename Operation>
class QueuedGroup::Call final : public HostCompletion, public Task {
 public:
  Call(QueuedGroup& group, const CallRecord& record, const Lane& lane, Operation operation)
      : HostCompletion(group.ring_, record.number),
        group_(group),
        record_(record),
        queue_(lane.queue()),
        operation_(std::move(operation)) {}

  /// The number of this task in its lane.
  void is_number(std::uint64_t number) { number_ = number; }

  void carry_out() noexcept override {
    group_.carry_out(
        record_, [this](const base::Deadline& deadline) { return (*operation_)(deadline); }, *this);
    operation_.reset();
  }

 private:
  void help() override { queue_->help_with(number_); }

  QueuedGroup& group_;  // used by carry_out alone: a Work may outlive the group
  const CallRecord record_;
  const std::shared_ptr<TaskQueue> queue_;
  std::optional<Operation> operation_;
  std::uint64_t number_ = 0;
};

std::shared_ptr<ProcessGroup> make_queued_group(
    std::span<const std::int64_t> ranks, std::string_view name, std::int64_t world_rank,
    const GroupOptions& options,
    const std::function<std::unique_ptr<Transport>(const GroupIdentity&)>& connect) {
  const auto own = std::find(ranks.begin(), ranks.end(), world_rank);
  if (own == ranks.end()) return nullptr;
  GroupIdentity identity{.name = std::string(name),
                         .rank = own - ranks.begin(),
                         .world_ranks = {ranks.begin(), ranks.end()}};
  std::unique_ptr<Transport> transport;
  if (ranks.size() > 1) transport = connect(identity);
  return std::make_shared<QueuedGroup>(std::move(identity), options, std::move(transport));
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

Work QueuedGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  check_reducible(tensor);
  return post(collectives_, call_on(op == ReduceOp::sum ? "all_reduce" : "all_reduce max", tensor),
              [this, tensor, op](const base::Deadline& deadline) {
                return transport_->all_reduce(tensor, op, deadline);
              });
}

Work QueuedGroup::reduce_scatter(const at::Tensor& input, const at::Tensor& output) {
  check_reducible(input);
  check_dense(output);
  DTRAIN_CHECK(input.numel() == output.numel() * size() &&
               input.scalar_type() == output.scalar_type());
  if (size() == 1) output.copy_(input.view_as(output));
  return post(collectives_, call_on("reduce_scatter", input),
              [this, input, output](const base::Deadline& deadline) {
                return transport_->reduce_scatter(input, output, deadline);
              });
}

Work QueuedGroup::all_gather(const at::Tensor& input, const at::Tensor& output) {
  const PartCounts counts(identity_.world_ranks.size(), input.numel());
  return gather("all_gather", input, PartedTensor(output, {counts.data(), counts.size()}));
}

Work QueuedGroup::all_gather_v(const at::Tensor& input, const at::Tensor& output,
                               std::span<const std::int64_t> counts) {
  return gather("all_gather_v", input, PartedTensor(output, counts));
}

Work QueuedGroup::gather(std::string_view op, const at::Tensor& input, PartedTensor output) {
  check_dense(input);
  check_dense(output.tensor());
  DTRAIN_CHECK(output.ranks() == size() && output.count(rank()) == input.numel() &&
               input.scalar_type() == output.tensor().scalar_type());
  if (size() == 1) output.tensor().copy_(input.view_as(output.tensor()));
  return post(collectives_, call_on(op, input),
              [this, input, output = std::move(output)](const base::Deadline& deadline) {
                return transport_->all_gather(input, output, deadline);
              });
}

Work QueuedGroup::all_to_all(const at::Tensor& input, std::span<const std::int64_t> send_counts,
                             const at::Tensor& output, std::span<const std::int64_t> recv_counts) {
  check_dense(input);
  check_dense(output);
  PartedTensor sent(input, send_counts);
  PartedTensor received(output, recv_counts);
  DTRAIN_CHECK(sent.ranks() == size() && received.ranks() == size() &&
               sent.count(rank()) == received.count(rank()) &&
               input.scalar_type() == output.scalar_type());
  if (size() == 1) output.copy_(input.view_as(output));
  return post(collectives_, call_on("all_to_all", input),
              [this, sent = std::move(sent),
               received = std::move(received)](const base::Deadline& deadline) {
                return transport_->all_to_all(sent, received, deadline);
              });
}

Work QueuedGroup::broadcast(const at::Tensor& tensor, std::int64_t root) {
  check_dense(tensor);
  DTRAIN_CHECK(root >= 0 && root < size());
  return post(collectives_, call_on("broadcast", tensor, world_rank(root)),
              [this, tensor, root](const base::Deadline& deadline) {
                return transport_->broadcast(tensor, root, deadline);
              });
}

Work QueuedGroup::send(const at::Tensor& tensor, std::int64_t peer) {
  check_dense(tensor);
  check_peer(peer);
  return post(sends_[peer], call_on("send", tensor, world_rank(peer)),
              [this, tensor, peer](const base::Deadline& deadline) {
                return transport_->send(tensor, peer, deadline);
              });
}

Work QueuedGroup::recv(const at::Tensor& tensor, std::int64_t peer) {
  check_dense(tensor);
  check_peer(peer);
  return post(receives_[peer], call_on("recv", tensor, world_rank(peer)),
              [this, tensor, peer](const base::Deadline& deadline) {
                return transport_->recv(tensor, peer, deadline);
              });
}

void QueuedGroup::barrier() {
  CallRecord call;
  call.op = "barrier";
  post(collectives_, call, [this](const base::Deadline& deadline) {
    return transport_->barrier(deadline);
  }).wait_host();
}

void QueuedGroup::abort(const std::string& reason) noexcept {
  keep_error(std::make_exception_ptr(
      base::Error(ErrorKind::comm, fmt::format("group '{}': {}", identity_.name, reason))));
  if (transport_) transport_->close(reason);
}

template <typename Operation>
Work QueuedGroup::post(Lane& lane, const CallRecord& call, Operation operation) {
  CallRecord numbered = call;
  numbered.number = ring_->add(call);
  ++pending_;
  if (size() == 1) {
    const auto completion =
        std::allocate_shared<HostCompletion>(CallAllocator(&call_memory()), ring_);
    carry_out(
        numbered, [](const base::Deadline&) { return std::int64_t{0}; }, *completion);
    return Work(completion);
  }
  const auto posted = std::allocate_shared<Call<Operation>>(CallAllocator(&call_memory()), *this,
                                                            numbered, lane, std::move(operation));
  try {
    posted->is_number(lane.post(posted));
  } catch (const std::exception& caught) {
    --pending_;
    abort(fmt::format("rank {} cannot start a thread: {}", world_rank(rank()), caught.what()));
    throw;
  }
  return Work(posted);
}

void QueuedGroup::carry_out(const CallRecord& call,
                            const std::function<std::int64_t(const base::Deadline&)>& operation,
                            HostCompletion& completion) {
  std::exception_ptr failure = error();
  std::int64_t bytes_sent = 0;
  if (!failure) {
    ring_->start(call.number);
    try {
      bytes_sent = operation(base::Deadline(options_.timeout));
    } catch (const TransportFailure& caught) {
      failure = keep_error(worded(call, caught));
    } catch (...) {
      failure = keep_error(std::current_exception());
    }
    // A group that failed once stays dead, and its peers should not have to wait for their
    // deadline.
    if (failure) transport_->close(message_of(failure));
  }
  --pending_;
  if (failure) {
    ring_->fail(call.number);
    completion.fail(failure);
  } else {
    ring_->finish(call.number, bytes_sent);
    completion.finish();
  }
}

std::int64_t QueuedGroup::awaited() const noexcept {
  const std::int64_t peer = transport_ ? transport_->awaited() : -1;
  return peer < 0 ? -1 : identity_.world_ranks[static_cast<std::size_t>(peer)];
}

std::exception_ptr QueuedGroup::worded(const CallRecord& call,
                                       const TransportFailure& failure) const {
  const auto seconds = base::Seconds(options_.timeout).count();
  const std::string who = names_of(failure.peers());
  const std::string detail = failure.what();
  const std::string where =
      fmt::format("rank {}, group '{}', {}", world_rank(rank()), identity_.name, describe(call));
  switch (failure.cause()) {
    case TransportFailure::Cause::no_answer:
      return std::make_exception_ptr(
          base::Error(ErrorKind::timeout,
                      fmt::format("{}: {} did not answer within {} (--comm-timeout){}{}", where,
                                  who.empty() ? "a peer" : who, base::readable_time(seconds),
                                  detail.empty() ? "" : ": ", detail)));
    case TransportFailure::Cause::gone:
      return std::make_exception_ptr(base::Error(
          ErrorKind::comm,
          fmt::format("{}: {} closed the connection{}", where, who.empty() ? "a peer" : who,
                      detail.empty() ? "; what it printed says why" : ": " + detail)));
    case TransportFailure::Cause::closed:
      break;
  }
  return std::make_exception_ptr(
      base::Error(ErrorKind::comm, fmt::format("{}: {}", where, detail)));
}

std::string QueuedGroup::names_of(const std::vector<std::int64_t>& peers) const {
  if (peers.empty()) return {};
  std::vector<std::int64_t> ranks;
  for (const auto peer : peers) ranks.push_back(world_rank(peer));
  return base::ranks_text(ranks);
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

void QueuedGroup::check_peer(std::int64_t peer) const {
  DTRAIN_CHECK(peer >= 0 && peer < size() && peer != rank(), "no peer {} in a group of {}", peer,
               size());
}

std::int64_t QueuedGroup::world_rank(std::int64_t rank) const {
  return identity_.world_ranks[static_cast<std::size_t>(rank)];
}

}  // namespace dtrain::comm
