#include "cuda/nccl/nccl_group.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <thread>
#include <utility>

#include "cuda/check.h"
#include "cuda/tree_reduce_body.h"
#include "dtrain/base/error.h"

namespace dtrain::cuda {
namespace {

using comm::size_in_bytes;

// How long the destructor waits for calls in flight, and then for the watchdog to abort them.
constexpr std::chrono::seconds kDrainTimeout{1};
constexpr std::chrono::seconds kAbortTimeout{10};

void wait_for_calls(const GroupState& state, std::chrono::seconds timeout) {
  const base::Deadline deadline(timeout);
  while (state.has_pending() && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The bytes that the calling rank sends in an operation.
struct BytesSent {
  const comm::GroupIdentity& group;

  std::int64_t operator()(const comm::Barrier&) const { return 0; }
  std::int64_t operator()(const comm::AllReduce& call) const {
    return 2 * size_in_bytes(call.tensor) * others() / (others() + 1);
  }
  std::int64_t operator()(const comm::ReduceScatter& call) const {
    return size_in_bytes(call.output) * others();
  }
  std::int64_t operator()(const comm::AllGather& call) const {
    return size_in_bytes(call.input) * others();
  }
  std::int64_t operator()(const comm::AllToAll& call) const {
    return size_in_bytes(call.input.tensor) - std::ssize(call.input.part(group.rank));
  }
  std::int64_t operator()(const comm::Broadcast& call) const {
    return group.rank == call.root ? size_in_bytes(call.tensor) * others() : 0;
  }
  std::int64_t operator()(const comm::Send& call) const { return size_in_bytes(call.tensor); }
  std::int64_t operator()(const comm::Recv&) const { return 0; }

  [[nodiscard]] std::int64_t others() const { return std::ssize(group.world_ranks) - 1; }
};

// True if the stream is being captured: calls in a graph have no completion to wait for.
bool is_captured(const c10::Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(c10::cuda::CUDAStream(stream).stream(), &status),
        "querying the stream capture status");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<GroupState> state, std::shared_ptr<Communicator> communicator,
                     std::shared_ptr<RegisteredMemory> memory, std::shared_ptr<Watchdog> watchdog,
                     std::shared_ptr<MessageStreams> messages)
    : state_(std::move(state)),
      watchdog_(std::move(watchdog)),
      collectives_(communicator, std::move(memory),
                   {static_cast<int>(rank()), static_cast<int>(size())},
                   state_->config().options.reduction),
      is_connected_(communicator != nullptr),
      messages_(std::move(messages)) {
  DTRAIN_CHECK(size() <= kMaxRanks, "{} ranks", size());
  if (communicator) state_->add(std::move(communicator));
  watchdog_->add(state_);
}

NcclGroup::~NcclGroup() {
  wait_for_calls(*state_, kDrainTimeout);
  if (state_->has_pending()) {
    abort("the group was closed while calls were in flight");
    wait_for_calls(*state_, kAbortTimeout);
  }
  watchdog_->remove(*state_);
  state_->close();
}

comm::Work NcclGroup::post(comm::Operation operation) {
  const comm::GroupIdentity& identity = state_->config().identity;
  check_operation(operation, {.rank = rank(), .size = size(), .device = state_->config().device});
  const bool is_barrier = std::holds_alternative<comm::Barrier>(operation);
  if (size() == 1) run_single_rank(operation);
  if (is_barrier) {
    state_->error().rethrow();
    if (last_) last_->wait_host();
  }
  comm::CallRecord record = record_of(operation, identity.world_ranks);
  record.bytes_sent = std::visit(BytesSent{identity}, operation);
  record.number = state_->ring().add(record);
  if (is_barrier || size() == 1) {
    state_->ring().start(record.number);
    if (is_barrier) {
      state_->post_on_host(comm::AllReduce{at::zeros({1}, at::kLong)}).wait_host();
    }
    state_->ring().finish(record.number, 0);
    state_->error().rethrow();
    return {};
  }
  const c10::DeviceGuard device(state_->config().device);
  auto call = std::make_shared<DeviceCall>(record, state_);
  if (state_->error().is_set()) return comm::Work(call);
  if (const auto* send = std::get_if<comm::Send>(&operation)) {
    connection_to(send->peer, P2pConnection::Direction::sends)
        .post(messages_->sends, call, send->tensor);
  } else if (const auto* recv = std::get_if<comm::Recv>(&operation)) {
    connection_to(recv->peer, P2pConnection::Direction::receives)
        .post(messages_->receives, call, recv->tensor);
  } else {
    enqueue_collective(operation, call);
  }
  return comm::Work(std::move(call));
}

void NcclGroup::enqueue_collective(comm::Operation& operation,
                                   const std::shared_ptr<DeviceCall>& call) {
  DTRAIN_CHECK(is_connected_, "group '{}' supports point-to-point calls only", name());
  if (!stream_) stream_ = new_stream(state_->config().device);
  try {
    std::vector<at::Tensor> used;
    const auto [read, written] = tensors_of(operation);
    if (read != nullptr) used.push_back(*read);
    if (written != nullptr) used.push_back(*written);
    call->begin_on(*stream_, std::move(used));
    {
      const c10::StreamGuard on_stream(*stream_);
      collectives_.run(operation, base::Deadline(state_->config().options.timeout));
    }
    call->end_on(*stream_);
    if (!is_captured(*stream_)) {
      state_->watch(*stream_, call);
      last_ = call;
    }
  } catch (const TransportFailure& failure) {
    state_->error().set(call->record(), failure);
  }
}

P2pConnection& NcclGroup::connection_to(std::int64_t peer, P2pConnection::Direction direction) {
  std::shared_ptr<P2pConnection>& connection = connections_[{direction, peer}];
  if (!connection) connection = std::make_shared<P2pConnection>(state_, peer, direction);
  return *connection;
}

}  // namespace dtrain::cuda
