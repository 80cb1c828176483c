// The contents of a checkpoint as named pieces of global tensors, to bytes and from them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/checkpoint/format/box.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/checkpoint/store/shard_writer.h"

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

using format::kWeightPrefix;

/// All pieces of one rank.
using State = std::vector<Piece>;

/// The part of `state` that this rank saves: of pieces that several ranks hold each takes its share
/// of the rows, so that together they write every element once. Shares memory.
[[nodiscard]] State owned_part(const State& state);

/// The name of the first piece with a value that is not finite; empty: there is none. Reads every
/// value once. Tensors are of floating point.
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

/// Reads the pieces of any layout from a checkpoint of any other. Floating-point values are
/// converted where the dtypes differ.
///
/// Throws:  read(): Error{checkpoint} naming the checkpoint and the tensor that is missing or has
///          another shape; as store::Reader.
/// Threads: one caller.
class ReaderSource final : public Source {
 public:
  /// `reader` must outlive this.
  explicit ReaderSource(store::Reader& reader) : reader_(reader) {}

  [[nodiscard]] bool has(const std::string& name) const override {
    return reader_.find(name) != nullptr;
  }
  void read(const Piece& piece) override;

 private:
  store::Reader& reader_;
};

/// Whether the host can read all of them.
[[nodiscard]] bool are_on_host(const State& pieces);

/// The pieces, which the host can read, as bytes in the tensors' own memory, which must not change
/// while they are used.
[[nodiscard]] std::vector<store::PieceBytes> bytes_of(const State& pieces);

/// Memory for one copy of a rank's pieces, taken and touched once, so that a copy costs no more
/// than moving the bytes. It is pinned where the pieces lie on a device.
///
/// Threads: one caller; what take() gave may be read by another until the next take().
class Staging {
 public:
  /// For pieces of the sizes of `pieces`.
  explicit Staging(const State& pieces);
  /// Returns the bytes of a rank's copy of a state of which it saves this share.
  [[nodiscard]] static std::int64_t bytes(std::int64_t state_bytes, double share) {
    return static_cast<std::int64_t>(static_cast<double>(state_bytes) * share);
  }

  /// Copies the pieces; what the earlier call gave is overwritten.
  [[nodiscard]] std::vector<store::PieceBytes> take(const State& pieces);

 private:
  std::int64_t num_bytes_;
  c10::Device device_;
  at::Tensor memory_;  // (num_bytes_) uint8: counted as all tensors are
};

}  // namespace dtrain::checkpoint
