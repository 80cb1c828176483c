// A rank's checkpoint state: named pieces of global tensors, and their conversion to and from
// bytes.
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

/// This rank's index among the ranks that hold equal copies of a piece.
struct Replica {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// The part of one global tensor that a rank holds. `tensor` has shape box.sizes, is contiguous and
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

/// Returns the part of `state` that this rank saves, sharing memory. A piece with replicas is
/// divided among them by rows, so every element is written once.
[[nodiscard]] State owned_part(const State& state);

/// Returns the name of the first piece with a non-finite value; empty if there is none. Reads every
/// value once. All tensors must have a floating-point dtype.
[[nodiscard]] std::string first_not_finite(const State& pieces);

/// Returns the total bytes of the pieces.
[[nodiscard]] std::int64_t bytes_in(const State& pieces);

/// A source from which pieces can be read.
class Source {
 public:
  virtual ~Source() = default;

  /// Returns whether a tensor of that name exists.
  [[nodiscard]] virtual bool has(const std::string& name) const = 0;
  /// Fills piece.tensor with the values of its name and box.
  ///
  /// Throws: Error{checkpoint} naming the piece if it is missing or of another shape or dtype.
  virtual void read(const Piece& piece) = 0;
};

/// Reads pieces from a checkpoint, whose layout may differ. Converts floating-point values if the
/// dtypes differ.
///
/// Throws:  read(): Error{checkpoint} naming the checkpoint and a tensor that is missing or has
///          another shape; as store::Reader.
/// Threads: one caller.
class ReaderSource final : public Source {
 public:
  /// `reader` must outlive this object.
  explicit ReaderSource(store::Reader& reader) : reader_(reader) {}

  [[nodiscard]] bool has(const std::string& name) const override {
    return reader_.find(name) != nullptr;
  }
  void read(const Piece& piece) override;

 private:
  store::Reader& reader_;
};

/// Returns whether all pieces are in host memory.
[[nodiscard]] bool are_on_host(const State& pieces);

/// Returns views of the pieces' bytes. The tensors must be in host memory, and must not change
/// while the views are used.
[[nodiscard]] std::vector<store::PieceBytes> bytes_of(const State& pieces);

/// A preallocated host buffer for one copy of a rank's pieces, touched in advance so that take()
/// causes no page faults. Pinned if the pieces are on a device.
///
/// Threads: one caller; another thread may read the result of take() until the next take().
class StagingBuffer {
 public:
  /// Allocates for pieces of these sizes.
  explicit StagingBuffer(const State& pieces);
  /// Returns the buffer size in bytes of a rank that saves the fraction `share` of the state.
  [[nodiscard]] static std::int64_t bytes(std::int64_t state_bytes, double share) {
    return static_cast<std::int64_t>(static_cast<double>(state_bytes) * share);
  }

  /// Copies the pieces, overwriting the result of the previous call.
  [[nodiscard]] std::vector<store::PieceBytes> take(const State& pieces);

 private:
  std::int64_t num_bytes_;
  c10::Device device_;
  at::Tensor memory_;  // (num_bytes_) uint8; a tensor, so that memory reports include it
};

}  // namespace dtrain::checkpoint
