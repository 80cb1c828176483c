// Collectives among threads that read each other's tensors.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/comm/transport.h"

namespace dtrain::comm {

/// What the ranks of one local group share: a meeting point, the tensors of the collective under
/// way, and one box per sender and receiver.
///
/// Threads: any.
class LocalMeeting {
 public:
  explicit LocalMeeting(std::vector<std::int64_t> world_ranks);

  [[nodiscard]] const std::vector<std::int64_t>& world_ranks() const { return world_ranks_; }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(offers_.size()); }

  /// Lays out this rank's tensors for the others and returns when all have laid out theirs.
  void offer(std::int64_t rank, const at::Tensor& tensor, const Deadline& deadline);
  /// The tensor a rank has laid out; between offer() and meet().
  [[nodiscard]] const at::Tensor& offered(std::int64_t rank) const {
    return offers_[static_cast<std::size_t>(rank)];
  }
  /// Returns when all ranks have come here as often as this one.
  void meet(std::int64_t rank, const Deadline& deadline);

  /// Hands `tensor` from rank `from` to rank `to`; returns when it was copied.
  void put(std::int64_t from, std::int64_t to, const at::Tensor& tensor, const Deadline& deadline);
  void take(std::int64_t from, std::int64_t to, const at::Tensor& tensor, const Deadline& deadline);

  void close(const std::string& reason) noexcept;

 private:
  /// Waits until `ready`; otherwise throws, blaming whom `missing` returns.
  template <typename Ready, typename Missing>
  void wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Ready ready,
            Missing missing);
  [[nodiscard]] std::vector<std::int64_t> not_arrived(std::uint64_t meetings) const;

  const std::vector<std::int64_t> world_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> arrivals_;  // by rank: how often it came to a meeting
  // Tensors, not pointers: a rank that gives up must not free what another still reads.
  std::vector<at::Tensor> offers_;                                     // by rank
  std::map<std::pair<std::int64_t, std::int64_t>, at::Tensor> boxes_;  // by (from, to)
  bool closed_ = false;
  std::string reason_;
};

/// One rank's side of a LocalMeeting.
class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalMeeting> meeting, std::int64_t rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  std::int64_t all_reduce(const at::Tensor& tensor, ReduceOp op, const Deadline& deadline) override;
  std::int64_t reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                              const Deadline& deadline) override;
  std::int64_t all_gather(const at::Tensor& input, const at::Tensor& output,
                          const Deadline& deadline) override;
  std::int64_t broadcast(const at::Tensor& tensor, std::int64_t root,
                         const Deadline& deadline) override;
  std::int64_t send(const at::Tensor& tensor, std::int64_t peer, const Deadline& deadline) override;
  std::int64_t recv(const at::Tensor& tensor, std::int64_t peer, const Deadline& deadline) override;
  std::int64_t barrier(const Deadline& deadline) override;
  void close(const std::string& reason) noexcept override { meeting_->close(reason); }

 private:
  /// Pointers to element `first` of every rank's offered tensor, by rank.
  [[nodiscard]] std::vector<const std::byte*> offered_at(std::int64_t first) const;

  std::shared_ptr<LocalMeeting> meeting_;
  std::int64_t rank_;
};

}  // namespace dtrain::comm
