// Sends and receives activations and gradients between the stages of a pipeline.
#pragma once

#include <deque>
#include <map>
#include <utility>

#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/action.h"

namespace dtrain::parallel {

/// Which of two neighbours' values.
enum class Channel {
  activations,  ///< from each stage to the next; from the last to the first, to its next chunk
  gradients,    ///< the other way
};

/// Sends do not block, and room for what will come is offered early, so that a stage waits for
/// nothing but what it needs next. Each channel has a group of its own, as messages from one rank
/// to another keep their order within a group.
///
/// Throws:  members what Work::wait throws.
/// Threads: one.
class Transfers {
 public:
  /// The groups must outlive this.
  explicit Transfers(const mesh::MeshGroups& groups) : groups_(groups) {}

  /// Offers room for the value that block `block` needs for a microbatch; values come in the order
  /// in which room was offered.
  ///
  /// Async: take() returns the value.
  void offer(Channel channel, BlockId block, MicrobatchId microbatch, at::IntArrayRef shape,
             const at::TensorOptions& options);
  /// Waits for the value that room was offered for; undefined where none was.
  [[nodiscard]] at::Tensor take(Channel channel, BlockId block, MicrobatchId microbatch);
  /// Async: `value` is kept until it has gone.
  void send(Channel channel, const at::Tensor& value);
  /// Returns when everything has gone.
  void finish();

 private:
  struct Value {
    at::Tensor tensor;
    comm::Work work;
  };
  using Key = std::pair<BlockId, MicrobatchId>;

  [[nodiscard]] comm::ProcessGroup& group(Channel channel) const;

  const mesh::MeshGroups& groups_;
  std::map<Key, Value> offered_[2];  // by channel
  std::deque<Value> going_;
};

}  // namespace dtrain::parallel
