// Messages between two ranks of a gloo group. Private to comm/gloo.
#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace dtrain::comm {

/// The purpose of a message. Messages of one kind between two ranks arrive in the order of sending.
enum class Tag : std::uint32_t {
  collective = 1,
  contribution,
  result,
  point_to_point,
  note,
  proof,
  never,  ///< nobody sends one: waiting for it shows when the connection closes
};

/// A message under way. Its memory must outlive it. Destroying it unfinished is safe only after an
/// error: the group is then dead.
struct Message {
  c10::intrusive_ptr<c10d::Work> work;
  std::int64_t peer = -1;
};

}  // namespace dtrain::comm
