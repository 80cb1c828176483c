// The contents of a checkpoint, independent of files: named pieces of global tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/checkpoint/format/box.h"

namespace dtrain::checkpoint {

using format::Box;

/// Which of the ranks that hold equal copies of a piece this one is.
struct Replica {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// The part of one global tensor that a rank holds. `tensor` has box.sizes, is contiguous and
/// shares the trainer's memory.
struct Piece {
  std::string name;
  std::vector<std::int64_t> global_shape;
  Box box;
  at::Tensor tensor;
  Replica replica = {};
};

/// Names of parameters begin so.
inline constexpr const char* kWeightPrefix = "model.";

/// All pieces of one rank.
using State = std::vector<Piece>;

/// The part of `state` that this rank saves: of pieces that several ranks hold each takes its share
/// of the rows, so that together they write every element once. Shares memory.
[[nodiscard]] State owned_part(const State& state);

/// The name of the first piece with a value that is not finite; empty: there is none. Reads every
/// value once. Tensors are float32 or float64.
[[nodiscard]] std::string first_not_finite(const State& pieces);

/// Returns the bytes of all pieces' tensors.
[[nodiscard]] std::int64_t bytes_in(const State& pieces);

/// Where pieces are read from.
class Source {
 public:
  virtual ~Source() = default;

  /// Returns whether there is a tensor of that name.
  [[nodiscard]] virtual bool has(const std::string& name) const = 0;
  /// Fills piece.tensor with the values of its name and box.
  ///
  /// Throws: Error{checkpoint} naming the piece if it is missing or of another shape or dtype.
  virtual void read(const Piece& piece) = 0;
};

}  // namespace dtrain::checkpoint
