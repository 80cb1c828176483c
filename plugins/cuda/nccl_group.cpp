#include "cuda/nccl_group.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "cuda/check.h"
#include "cuda/stream.h"
#include "cuda/tree_reduce_body.h"
#include "dtrain/base/check.h"
#include "dtrain/comm/reduce.h"

namespace dtrain::cuda {
namespace {

// How long the destructor waits for calls that the device still carries out, and then for the
// watchdog to abort them.
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::seconds kLongestAbort{10};

void wait_for_calls(const GroupState& state, std::chrono::seconds patience) {
  const base::Deadline deadline(patience);
  while (state.has_pending() && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

comm::CallRecord call_on(std::string_view op, const at::Tensor& tensor, std::int64_t bytes_sent,
                         std::int64_t peer = -1) {
  comm::CallRecord call;
  call.op = op;
  call.peer = peer;
  call.dtype = tensor.scalar_type();
  call.count = tensor.numel();
  call.bytes_sent = bytes_sent;
  return call;
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

void check_dense(const at::Tensor& tensor, c10::Device device) {
  DTRAIN_CHECK(tensor.defined() && tensor.is_contiguous() && tensor.device() == device,
               "communication wants contiguous tensors on {}", device.str());
}

void check_reducible(const at::Tensor& tensor, c10::Device device) {
  check_dense(tensor, device);
  DTRAIN_CHECK(comm::is_reducible(tensor.scalar_type()), "cannot reduce {}",
               c10::toString(tensor.scalar_type()));
}

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// What is recorded into a graph has no end that could be waited for.
bool is_captured(const c10::Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(c10::cuda::CUDAStream(stream).stream(), &status),
        "asking whether a graph is recorded");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<GroupState> state, std::shared_ptr<Communicator> communicator,
                     std::shared_ptr<RegisteredMemory> memory, std::shared_ptr<Watchdog> watchdog,
                     std::shared_ptr<MessageLanes> messages)
    : state_(std::move(state)),
      watchdog_(std::move(watchdog)),
      collectives_(communicator, std::move(memory),
                   {static_cast<int>(rank()), static_cast<int>(size())}),
      is_connected_(communicator != nullptr),
      messages_(std::move(messages)) {
  DTRAIN_CHECK(size() <= kMaxRanks, "{} ranks", size());
  if (communicator) state_->add(std::move(communicator));
  watchdog_->add(state_);
}

NcclGroup::~NcclGroup() {
  wait_for_calls(*state_, kPatience);
  if (state_->has_pending()) {
    abort("the group was closed while calls were under way");
    wait_for_calls(*state_, kLongestAbort);
  }
  watchdog_->remove(*state_);
  state_->close();
}

comm::Work NcclGroup::all_reduce(const at::Tensor& tensor, comm::ReduceOp op) {
  check_reducible(tensor, state_->device());
  return post(call_on(op == comm::ReduceOp::sum ? "all_reduce" : "all_reduce max", tensor,
                      2 * bytes_of(tensor) * (size() - 1) / size()),
              {tensor}, [&](const base::Deadline& deadline) {
                if (is_fast(op)) return collectives_.fast_all_reduce(tensor, deadline);
                collectives_.tree_all_reduce(tensor, op, deadline);
              });
}

comm::Work NcclGroup::reduce_scatter(const at::Tensor& input, const at::Tensor& output) {
  check_reducible(input, state_->device());
  check_dense(output, state_->device());
  DTRAIN_CHECK(input.numel() == output.numel() * size() &&
               input.scalar_type() == output.scalar_type());
  if (size() == 1) output.copy_(input.view_as(output));
  return post(call_on("reduce_scatter", input, bytes_of(output) * (size() - 1)), {input, output},
              [&](const base::Deadline& deadline) {
                if (is_fast(comm::ReduceOp::sum)) {
                  return collectives_.fast_reduce_scatter(input, output, deadline);
                }
                collectives_.tree_reduce_scatter(input, output, deadline);
              });
}

comm::Work NcclGroup::all_gather(const at::Tensor& input, const at::Tensor& output) {
  check_dense(input, state_->device());
  check_dense(output, state_->device());
  DTRAIN_CHECK(output.numel() == input.numel() * size() &&
               input.scalar_type() == output.scalar_type());
  if (size() == 1) output.copy_(input.view_as(output));
  return post(
      call_on("all_gather", input, bytes_of(input) * (size() - 1)), {input, output},
      [&](const base::Deadline& deadline) { collectives_.all_gather(input, output, deadline); });
}

comm::Work NcclGroup::all_gather_v(const at::Tensor& input, const at::Tensor& output,
                                   std::span<const std::int64_t> counts) {
  check_dense(input, state_->device());
  check_dense(output, state_->device());
  DTRAIN_CHECK(std::ssize(counts) == size() && sum_of(counts) == output.numel() &&
               counts[static_cast<std::size_t>(rank())] == input.numel() &&
               input.scalar_type() == output.scalar_type());
  if (size() == 1) output.copy_(input.view_as(output));
  std::vector<Swap> peers;
  auto* to = static_cast<std::byte*>(output.mutable_data_ptr());
  for (const std::int64_t count : counts) {
    const std::size_t bytes = static_cast<std::size_t>(count) * output.element_size();
    peers.push_back(
        {static_cast<const std::byte*>(input.const_data_ptr()), input.nbytes(), to, bytes});
    to += bytes;
  }
  return post(call_on("all_gather_v", input, bytes_of(input) * (size() - 1)), {input, output},
              [&](const base::Deadline& deadline) { collectives_.exchange(peers, deadline); });
}

comm::Work NcclGroup::all_to_all(const at::Tensor& input, std::span<const std::int64_t> send_counts,
                                 const at::Tensor& output,
                                 std::span<const std::int64_t> recv_counts) {
  check_dense(input, state_->device());
  check_dense(output, state_->device());
  DTRAIN_CHECK(std::ssize(send_counts) == size() && std::ssize(recv_counts) == size() &&
               sum_of(send_counts) == input.numel() && sum_of(recv_counts) == output.numel() &&
               input.scalar_type() == output.scalar_type());
  if (size() == 1) output.copy_(input.view_as(output));
  std::vector<Swap> peers;
  const auto* from = static_cast<const std::byte*>(input.const_data_ptr());
  auto* to = static_cast<std::byte*>(output.mutable_data_ptr());
  for (std::size_t peer = 0; peer < send_counts.size(); ++peer) {
    const Swap swap{from, static_cast<std::size_t>(send_counts[peer]) * input.element_size(), to,
                    static_cast<std::size_t>(recv_counts[peer]) * output.element_size()};
    from += swap.give_bytes;
    to += swap.take_bytes;
    peers.push_back(swap);
  }
  const auto kept = static_cast<std::int64_t>(peers[static_cast<std::size_t>(rank())].give_bytes);
  return post(call_on("all_to_all", input, bytes_of(input) - kept), {input, output},
              [&](const base::Deadline& deadline) { collectives_.exchange(peers, deadline); });
}

comm::Work NcclGroup::broadcast(const at::Tensor& tensor, std::int64_t root) {
  check_dense(tensor, state_->device());
  DTRAIN_CHECK(root >= 0 && root < size());
  const std::int64_t sent = rank() == root ? bytes_of(tensor) * (size() - 1) : 0;
  return post(
      call_on("broadcast", tensor, sent, world_rank(root)), {tensor},
      [&](const base::Deadline& deadline) { collectives_.broadcast(tensor, root, deadline); });
}

comm::Work NcclGroup::send(const at::Tensor& tensor, std::int64_t peer) {
  return post(Link::Direction::sends, call_on("send", tensor, bytes_of(tensor), world_rank(peer)),
              tensor, peer);
}

comm::Work NcclGroup::recv(const at::Tensor& tensor, std::int64_t peer) {
  return post(Link::Direction::receives, call_on("recv", tensor, 0, world_rank(peer)), tensor,
              peer);
}

void NcclGroup::barrier() {
  state_->rethrow_error();
  if (last_) last_->wait_host();
  comm::CallRecord call;
  call.op = "barrier";
  const std::uint64_t number = state_->ring().add(call);
  state_->ring().start(number);
  comm::Work met;
  {
    const std::lock_guard lock(state_->host_mutex());
    met = state_->host().all_reduce(at::zeros({1}, at::kLong));
  }
  met.wait_host();
  state_->ring().finish(number, 0);
}

comm::Work NcclGroup::post(comm::CallRecord call, std::initializer_list<at::Tensor> tensors,
                           const Operation& operation) {
  if (size() == 1) return alone(std::move(call));
  DTRAIN_CHECK(is_connected_, "group '{}' is for messages alone", name());
  const c10::DeviceGuard device(state_->device());
  const std::shared_ptr<DeviceCall> posted = numbered(call);
  if (state_->error()) return comm::Work(posted);
  if (!stream_) stream_ = new_stream(state_->device());
  try {
    posted->begin_on(*stream_, tensors);
    {
      const c10::StreamGuard on_stream(*stream_);
      operation(base::Deadline(state_->options().timeout));
    }
    posted->end_on(*stream_);
    if (!is_captured(*stream_)) {
      state_->watch(*stream_, posted);
      last_ = posted;
    }
  } catch (const NcclFailure& failure) {
    state_->fail(call, failure);
  }
  return comm::Work(posted);
}

comm::Work NcclGroup::post(Link::Direction direction, comm::CallRecord call,
                           const at::Tensor& tensor, std::int64_t peer) {
  check_dense(tensor, state_->device());
  DTRAIN_CHECK(peer >= 0 && peer < size() && peer != rank(), "no peer {} in a group of {}", peer,
               size());
  const c10::DeviceGuard device(state_->device());
  std::shared_ptr<DeviceCall> posted = numbered(call);
  if (state_->error()) return comm::Work(posted);
  std::shared_ptr<Link>& link = links_[{direction, peer}];
  if (!link) link = std::make_shared<Link>(state_, peer, direction);
  const bool is_send = direction == Link::Direction::sends;
  link->post(is_send ? messages_->sends : messages_->receives, posted, tensor);
  return comm::Work(std::move(posted));
}

comm::Work NcclGroup::alone(comm::CallRecord call) {
  const std::uint64_t number = state_->ring().add(call);
  state_->ring().start(number);
  state_->ring().finish(number, 0);
  state_->rethrow_error();
  return {};
}

std::shared_ptr<DeviceCall> NcclGroup::numbered(comm::CallRecord& call) {
  call.number = state_->ring().add(call);
  return std::make_shared<DeviceCall>(call, state_);
}

std::int64_t NcclGroup::world_rank(std::int64_t rank) const {
  return state_->identity().world_ranks.at(static_cast<std::size_t>(rank));
}

// NCCL's maximum loses what is no number.
bool NcclGroup::is_fast(comm::ReduceOp op) const {
  return op == comm::ReduceOp::sum && state_->options().reduction == comm::Reduction::fast;
}

}  // namespace dtrain::cuda
