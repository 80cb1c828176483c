// What a checkpoint holds, independent of files: named pieces of global tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::checkpoint {

/// A rectangular part of a global tensor: `sizes` elements from `offsets`, one entry for each dim.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
};

/// The part of one global tensor that a rank holds. `tensor` has box.sizes and shares the trainer's
/// memory.
struct Piece {
  std::string name;
  std::vector<std::int64_t> global_shape;
  Box box;
  at::Tensor tensor;
};

/// All pieces of one rank.
using State = std::vector<Piece>;

/// Where pieces are read from.
class Source {
 public:
  virtual ~Source() = default;

  /// Fills piece.tensor with the values of its name and box.
  ///
  /// Throws: Error{checkpoint} naming the piece if it is missing or of another shape or dtype.
  virtual void read(const Piece& piece) = 0;
};

}  // namespace dtrain::checkpoint
