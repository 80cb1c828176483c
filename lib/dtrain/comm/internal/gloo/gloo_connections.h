// The connections between the ranks of one gloo group.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

namespace dtrain::comm {

/// The shortest timeout of a wait: gloo takes 0 as infinite.
inline constexpr std::chrono::milliseconds kGlooMinTimeout(1);

/// The purpose of a message. Messages with one tag between two ranks arrive in the order sent.
enum class Tag : std::uint32_t {
  collective = 1,
  contribution,
  result,
  point_to_point,
  failure_notice,
  proof,
  never,  ///< never sent: a receive of it fails when the connection closes
};

/// A message in flight. Its buffer must outlive it. An unfinished message may be destroyed only
/// after an error, when the group is unusable.
struct Message {
  c10::intrusive_ptr<c10d::Work> work;
  std::int64_t peer = -1;
};

/// Posts operations on a gloo group, and closes its connections.
///
/// Throws:  gloo's exceptions, which name ports.
/// Threads: any.
class GlooConnections {
 public:
  explicit GlooConnections(c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : group_(std::move(group)) {}
  ~GlooConnections();
  GlooConnections(const GlooConnections&) = delete;
  GlooConnections& operator=(const GlooConnections&) = delete;

  [[nodiscard]] std::int64_t rank() const { return group_->getRank(); }
  [[nodiscard]] std::int64_t size() const { return group_->getSize(); }

  [[nodiscard]] Message send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  [[nodiscard]] Message recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  /// Posts a receive of one number from each peer into `numbers`, by peer.
  [[nodiscard]] std::vector<Message> recv_from_all(Tag tag, std::vector<std::int64_t>& numbers);
  /// Sums with gloo's own all-reduce, in an unspecified order.
  [[nodiscard]] c10::intrusive_ptr<c10d::Work> all_reduce(const at::Tensor& tensor,
                                                          std::chrono::milliseconds timeout);

  void close() noexcept;
  /// Makes the destructor leak the group. Call it if gloo's thread waits in its all-reduce until
  /// its own timeout: the group's destructor would wait for this thread.
  void leak() { is_leaked_ = true; }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::mutex post_mutex_;  // c10d numbers its calls without one
  bool is_leaked_ = false;
};

}  // namespace dtrain::comm
