#include "dtrain/comm/local/local_transport.h"

#include <cstring>

#include "dtrain/base/check.h"
#include "dtrain/comm/reduce.h"
#include "dtrain/comm/slices.h"

namespace dtrain::comm {

namespace {

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t count) {
  if (to != from && count > 0) std::memmove(to, from, static_cast<std::size_t>(count));
}

std::int64_t size_in_bytes(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

}  // namespace

LocalMeeting::LocalMeeting(std::vector<std::int64_t> world_ranks)
    : world_ranks_(std::move(world_ranks)),
      arrivals_(world_ranks_.size()),
      offers_(world_ranks_.size()) {}

template <typename Ready, typename Missing>
void LocalMeeting::wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Ready ready,
                        Missing missing) {
  const bool woken = changed_.wait_until(lock, deadline.end(), [&] { return closed_ || ready(); });
  if (ready()) return;
  if (!woken) throw TransportFailure(TransportFailure::Cause::no_answer, missing());
  throw TransportFailure(TransportFailure::Cause::closed, {}, reason_);
}

std::vector<std::int64_t> LocalMeeting::not_arrived(std::uint64_t meetings) const {
  std::vector<std::int64_t> missing;
  for (std::int64_t rank = 0; rank < size(); ++rank) {
    if (arrivals_[static_cast<std::size_t>(rank)] < meetings) missing.push_back(rank);
  }
  return missing;
}

void LocalMeeting::offer(std::int64_t rank, const at::Tensor& tensor, const Deadline& deadline) {
  offers_[static_cast<std::size_t>(rank)] = tensor;  // published by the lock in meet()
  meet(rank, deadline);
  for (const at::Tensor& other : offers_) {
    DTRAIN_CHECK(other.numel() == tensor.numel() && other.scalar_type() == tensor.scalar_type(),
                 "ranks called one collective with {} and {} elements", tensor.numel(),
                 other.numel());
  }
}

void LocalMeeting::meet(std::int64_t rank, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const std::uint64_t meetings = ++arrivals_[static_cast<std::size_t>(rank)];
  changed_.notify_all();
  wait(
      lock, deadline, [&] { return not_arrived(meetings).empty(); },
      [&] { return not_arrived(meetings); });
}

void LocalMeeting::put(std::int64_t from, std::int64_t to, const at::Tensor& tensor,
                       const Deadline& deadline) {
  const auto missing = [to] { return std::vector<std::int64_t>{to}; };
  std::unique_lock lock(mutex_);
  at::Tensor& box = boxes_[{from, to}];
  wait(
      lock, deadline, [&box] { return !box.defined(); }, missing);
  box = tensor;
  changed_.notify_all();
  wait(
      lock, deadline, [&box] { return !box.defined(); }, missing);
}

void LocalMeeting::take(std::int64_t from, std::int64_t to, const at::Tensor& tensor,
                        const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  at::Tensor& box = boxes_[{from, to}];
  wait(
      lock, deadline, [&box] { return box.defined(); },
      [from] { return std::vector<std::int64_t>{from}; });
  const at::Tensor sent = box;
  lock.unlock();
  DTRAIN_CHECK(sent.nbytes() == tensor.nbytes(), "sent {} bytes, expected {}", sent.nbytes(),
               tensor.nbytes());
  copy_bytes(bytes_of(tensor), bytes_of(sent), size_in_bytes(tensor));
  lock.lock();
  box = at::Tensor();
  changed_.notify_all();
}

void LocalMeeting::close(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) reason_ = reason;
    closed_ = true;
  }
  changed_.notify_all();
}

std::vector<const std::byte*> LocalTransport::offered_at(std::int64_t first) const {
  std::vector<const std::byte*> result;
  for (std::int64_t rank = 0; rank < meeting_->size(); ++rank) {
    const at::Tensor& tensor = meeting_->offered(rank);
    result.push_back(bytes_of(tensor) + first * static_cast<std::int64_t>(tensor.element_size()));
  }
  return result;
}

std::int64_t LocalTransport::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                        const Deadline& deadline) {
  const std::int64_t size = meeting_->size();
  meeting_->offer(rank_, tensor, deadline);
  // This rank alone touches slice `rank_`, of every rank's tensor.
  const std::int64_t begin = slice_begin(tensor.numel(), size, rank_);
  const std::int64_t count = slice_begin(tensor.numel(), size, rank_ + 1) - begin;
  const auto slices = offered_at(begin);
  const std::int64_t bytes = count * static_cast<std::int64_t>(tensor.element_size());
  const auto own = bytes_of(tensor) + begin * static_cast<std::int64_t>(tensor.element_size());
  reduce_in_tree_order(slices, own, count, tensor.scalar_type(), op);
  for (std::int64_t rank = 0; rank < size; ++rank) {
    const auto element_size = static_cast<std::int64_t>(tensor.element_size());
    copy_bytes(bytes_of(meeting_->offered(rank)) + begin * element_size, own, bytes);
  }
  meeting_->meet(rank_, deadline);
  return size_in_bytes(tensor) - bytes + bytes * (size - 1);
}

std::int64_t LocalTransport::reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                                            const Deadline& deadline) {
  meeting_->offer(rank_, input, deadline);
  reduce_in_tree_order(offered_at(rank_ * output.numel()), bytes_of(output), output.numel(),
                       output.scalar_type(), ReduceOp::sum);
  meeting_->meet(rank_, deadline);
  return size_in_bytes(input) - size_in_bytes(output);
}

std::int64_t LocalTransport::all_gather(const at::Tensor& input, const at::Tensor& output,
                                        const Deadline& deadline) {
  meeting_->offer(rank_, input, deadline);
  const std::int64_t bytes = size_in_bytes(input);
  for (std::int64_t rank = 0; rank < meeting_->size(); ++rank) {
    copy_bytes(bytes_of(output) + rank * bytes, bytes_of(meeting_->offered(rank)), bytes);
  }
  meeting_->meet(rank_, deadline);
  return bytes * (meeting_->size() - 1);
}

std::int64_t LocalTransport::broadcast(const at::Tensor& tensor, std::int64_t root,
                                       const Deadline& deadline) {
  meeting_->offer(rank_, tensor, deadline);
  copy_bytes(bytes_of(tensor), bytes_of(meeting_->offered(root)), size_in_bytes(tensor));
  meeting_->meet(rank_, deadline);
  return rank_ == root ? size_in_bytes(tensor) * (meeting_->size() - 1) : 0;
}

std::int64_t LocalTransport::send(const at::Tensor& tensor, std::int64_t peer,
                                  const Deadline& deadline) {
  meeting_->put(rank_, peer, tensor, deadline);
  return size_in_bytes(tensor);
}

std::int64_t LocalTransport::recv(const at::Tensor& tensor, std::int64_t peer,
                                  const Deadline& deadline) {
  meeting_->take(peer, rank_, tensor, deadline);
  return 0;
}

std::int64_t LocalTransport::barrier(const Deadline& deadline) {
  meeting_->meet(rank_, deadline);
  return 0;
}

}  // namespace dtrain::comm
